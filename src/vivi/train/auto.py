"""vivi train auto: a recipe that fits a corpus and a machine, by a few rules, and why.

What is chosen is an ordinary recipe: the run's recipe.json repeats it without auto.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc
from rich.console import Console

from vivi.data.cut import cut
from vivi.data.index import Index, open_index
from vivi.prepare.corpus import Corpus
from vivi.recipes import RECIPES, Augment, Batch, Exemplar, Recipe
from vivi.runtime.distributed import World, choose_device
from vivi.runtime.machine import available_cores
from vivi.train.data import fit_batch, open_data, prefetch_steps
from vivi.train.loop import Trainer
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import set_up

CPU_MINUTES = 20.0
# With fewer videos, a step has too few others to tell a video from: long ones are divided, as little as that takes.
_ENOUGH_VIDEOS = 64
_SEGMENT_MINUTES = (5.0, 2.0, 1.0, 0.5)
# So many of the training videos must have the shots that a method compares: the others are left out.
_MOST = 0.75
# Takes are cut into shots of this length, of the two in studies/mini the better, or into shorter ones if need be.
_SHOT_SECONDS = 3.2
# Frames of a shot: two in the best tries of studies/mini; with few videos, more of them fill a step.
_FRAMES, _MOST_FRAMES = 2, 8
_CPU_FRAMES, _GPU_FRAMES = 192, 2048  # that the encoder sees in a step
_CPU_WIDTH = 0.5
_TRIED_STEPS, _LEAST_STEPS = 5, 100
# As in the best tries of studies/mini: with weaker changes, frames of a shot are found by their colours alone.
_AUGMENT = Augment(crop_area=(0.2, 1.0), brightness=0.4, saturation=0.8, hue=0.2, contrast=0.6, grey_frames=0.2)


@dataclass(frozen=True)
class Choice:
    """A recipe, and why it is this one: a line about shots, and one about the batch."""

    recipe: Recipe
    why: tuple[str, str]


def choose(corpus: Corpus, device: str = "auto") -> Choice:
    """The recipe for this corpus on this machine; its number of steps is that of the -small recipes."""
    whole, on_gpu = open_index(corpus), choose_device(device).type == "cuda"
    batch = _compared(whole, corpus, _divided(whole, corpus))
    method = {1: "ex-yt-s", 2: "vivi-ex2", 4: "vivi-ex4"}[batch.shots]
    base = RECIPES[f"{method}-{'small' if on_gpu else 'tiny'}"]
    passes = _GPU_FRAMES if on_gpu else _CPU_FRAMES
    videos = passes // (batch.shots * batch.frames)
    recipe = replace(
        base,
        name=f"{method}-auto",
        encoder=base.encoder if on_gpu else replace(base.encoder, width=_CPU_WIDTH),
        batch=replace(batch, videos=videos, cores=base.batch.cores),
        augment=replace(_AUGMENT, size=min(base.augment.size, _short_side(corpus))),
        loss=replace(base.loss, frame=Exemplar(negatives="videos" if batch.max_shot_seconds else "shots")),
        optimiser=replace(base.optimiser, lr=0.2, schedule="cosine"),
    )
    index = cut(whole, corpus.settings, batch)
    batch = fit_batch(recipe, index, None, None).batch
    more = min(_MOST_FRAMES, passes // max(1, batch.videos * batch.shots))
    recipe = replace(recipe, batch=replace(batch, frames=max(batch.frames, more)))
    return Choice(recipe, (_about_shots(whole, index, recipe.batch), _about_batch(index, recipe)))


def _about_shots(whole: Index, index: Index, batch: Batch) -> str:
    parts = [f"{len(whole):,} videos, {len(whole.frames) / max(1, len(whole)):.1f} shots each"]
    if batch.segment_minutes:
        parts.append(f"long ones are divided: {len(index):,} segments of up to {batch.segment_minutes:g} minutes")
    if batch.max_shot_seconds:
        parts.append(f"few cuts, so takes are cut into shots of {batch.max_shot_seconds:.2g} s")
    return "; ".join(parts)


def _about_batch(index: Index, recipe: Recipe) -> str:
    batch, training, method = recipe.batch, int((~index.test).sum()), recipe.name.removesuffix("-auto")
    shots = f"{batch.shots} shots of each" if batch.shots > 1 else "a shot of each, as they are too short for more"
    seen = f"{method}: {batch.videos} of {training:,} training videos a step, {shots}, {batch.frames} frames of each"
    return f"{seen}{'; pieces of one take are not told apart' if batch.max_shot_seconds else ''}"


def _divided(index: Index, corpus: Corpus) -> Batch:
    """How long videos are divided: a few long recordings into many segments."""
    for minutes in _SEGMENT_MINUTES if len(index) < _ENOUGH_VIDEOS else ():
        batch = Batch(frames=_FRAMES, segment_minutes=minutes)
        segments = len(cut(index, corpus.settings, batch))
        enough = segments >= _ENOUGH_VIDEOS or minutes == _SEGMENT_MINUTES[-1]
        if enough and segments >= 2 * len(index):
            return batch
    return Batch(frames=_FRAMES)


def _compared(whole: Index, corpus: Corpus, batch: Batch) -> Batch:
    """How many shots of a video are compared, and how long they are: as prepared if most videos have four, else
    pieces of their takes."""
    index = cut(whole, corpus.settings, batch)
    training = np.flatnonzero(~index.test)
    if not len(training) or (index.shots_of(training) >= 4).mean() >= _MOST:
        return replace(batch, shots=4)
    rate = float(corpus.settings["rate"])
    frames = int(np.quantile(index.frames_of(training), 1 - _MOST))  # that most videos have
    for shots in (4, 2):
        length = min(frames // shots, max(_FRAMES, round(_SHOT_SECONDS * rate)))
        if length >= _FRAMES:
            return replace(batch, shots=shots, max_shot_seconds=length / rate)
    return replace(batch, shots=1)


def _short_side(corpus: Corpus) -> int:
    """Of half of the videos, in pixels, at least."""
    videos = corpus.videos.filter(pc.equal(corpus.videos["status"], "ok"))
    sides = np.minimum(videos["width"].to_numpy(), videos["height"].to_numpy())
    return int(min(corpus.settings["short_side"], np.median(sides))) if len(sides) else 4096


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with so many steps, of which a twentieth warms up."""
    return replace(recipe, steps=steps, optimiser=replace(recipe.optimiser, warmup=steps // 20))


def steps_in(minutes: float, recipe: Recipe, paths: DataPaths, execution: Execution) -> int:
    """How many steps take so many minutes on this machine, two digits of it, by trying some of which nothing is kept.
    By default as many as the recipe has on a GPU, and CPU_MINUTES elsewhere."""
    world, quiet = World(choose_device(execution.device)), Console(quiet=True)
    if not minutes and world.device.type != "cpu":
        return recipe.steps
    data = open_data(recipe, paths)
    recipe, began = data.recipe, 0.0
    model, size = set_up(recipe, data, execution, world)
    trainer, streaming = Trainer(model, recipe, world), replace(execution, resident="off")
    steps, dtype = range(_TRIED_STEPS + 1), model.encoder.precision
    with prefetch_steps(data, recipe, streaming, world, size, steps, dtype, quiet) as prefetch:
        for batch in prefetch:
            float(trainer.step(batch)["gradient_norm"])  # waits for the device
            began = began or time.monotonic()  # after the first step, which compiles
    found = 60 * (minutes or CPU_MINUTES) * _TRIED_STEPS / (time.monotonic() - began)
    return max(_LEAST_STEPS, int(round(found, 1 - int(math.log10(max(found, 1))))))


def about_machine(recipe: Recipe, minutes: float, execution: Execution) -> str:
    """A line about the encoder and the number of steps."""
    on_gpu = choose_device(execution.device).type == "cuda"
    machine = "a GPU" if on_gpu else f"{available_cores()} CPU cores"
    encoder = f"{recipe.encoder.name} ×{recipe.encoder.width:g} at {recipe.augment.size} px"
    time = f", about {minutes or CPU_MINUTES:g} minutes" if minutes or not on_gpu else ""
    return f"{machine}: {encoder}, {recipe.steps:,} steps{time}"
