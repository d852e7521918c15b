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
from vivi.data.footage import about, suit
from vivi.data.index import open_index
from vivi.data.plan import with_enough_shots
from vivi.prepare.corpus import Corpus
from vivi.recipes import RECIPES, Augment, Exemplar, Recipe
from vivi.runtime.distributed import World, choose_device
from vivi.runtime.machine import available_cores
from vivi.train.data import fit_batch, open_data, prefetch_steps
from vivi.train.loop import Trainer
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import set_up

CPU_MINUTES = 20.0
_CPU_WIDTH = 0.5  # of the encoder
_CPU_FRAMES, _GPU_FRAMES = 192, 2048  # that the encoder sees in a step
_MOST_FRAMES = 8  # of a shot: with few videos, more of them fill a step
# As in the best tries of studies/mini: with weaker changes, frames of a shot are found by their colours alone.
_AUGMENT = Augment(crop_area=(0.2, 1.0), brightness=0.4, saturation=0.8, hue=0.2, contrast=0.6, grey_frames=0.2)
_TRIED_STEPS, _LEAST_STEPS = 5, 100


@dataclass(frozen=True)
class Choice:
    """A recipe, and why it is this one: a line about the footage, and one about the batch."""

    recipe: Recipe
    why: tuple[str, str]


def choose(corpus: Corpus, device: str = "auto") -> Choice:
    """The recipe for this corpus on this machine; its number of steps is that of the -tiny or -small recipes."""
    index, on_gpu = open_index(corpus), choose_device(device).type == "cuda"
    batch = suit(index, corpus.settings)
    method = {1: "ex-yt-s", 2: "vivi-ex2", 4: "vivi-ex4"}[batch.shots]
    base = RECIPES[f"{method}-{'small' if on_gpu else 'tiny'}"]
    passes = _GPU_FRAMES if on_gpu else _CPU_FRAMES
    recipe = replace(
        base,
        name=f"{method}-auto",
        encoder=base.encoder if on_gpu else replace(base.encoder, width=_CPU_WIDTH),
        batch=replace(batch, videos=passes // (batch.shots * batch.frames), cores=base.batch.cores),
        augment=replace(_AUGMENT, size=min(base.augment.size, _short_side(corpus))),
        loss=replace(base.loss, frame=Exemplar(negatives="videos" if batch.max_shot_seconds else "shots")),
        optimiser=replace(base.optimiser, lr=0.2, schedule="cosine"),
    )
    training = cut(index, corpus.settings, batch)
    batch = fit_batch(recipe, training, None, None).batch
    frames = min(_MOST_FRAMES, passes // max(1, batch.videos * batch.shots))
    batch = replace(batch, frames=max(batch.frames, frames))
    videos = f"{method}: {batch.videos} of {len(with_enough_shots(training, batch.shots)):,} training videos a step"
    shots = f"{batch.shots} shots of each" if batch.shots > 1 else "a shot of each, as they are too short for more"
    apart = "; pieces of one take are not told apart" if batch.max_shot_seconds else ""
    line = f"{videos}, {shots}, {batch.frames} frames of a shot{apart}"
    footage = (
        f"{len(index):,} video{'s' * (len(index) != 1)}, {len(index.frames) / max(1, len(index)):.1f} shots each"
    )
    return Choice(replace(recipe, batch=batch), ("; ".join(filter(None, (footage, about(batch)))), line))


def _short_side(corpus: Corpus) -> int:
    """Of the frames of a middling video, in pixels."""
    videos = corpus.videos.filter(pc.equal(corpus.videos["status"], "ok"))
    sides = np.minimum(videos["width"].to_numpy(), videos["height"].to_numpy())
    return int(min(corpus.settings["short_side"], np.median(sides))) if len(sides) else 4096


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with so many steps, of which a twentieth warms up."""
    return replace(recipe, steps=steps, optimiser=replace(recipe.optimiser, warmup=steps // 20))


def budget(minutes: float, device: str) -> float:
    """How many minutes to train, where none are asked for; on a GPU none: the recipe says how many steps."""
    return minutes or (CPU_MINUTES if choose_device(device).type == "cpu" else 0.0)


def steps_in(minutes: float, recipe: Recipe, paths: DataPaths, execution: Execution) -> int:
    """How many steps take so many minutes on this machine, two digits of it, by trying some of which nothing is
    kept."""
    world, data = World(choose_device(execution.device)), open_data(recipe, paths)
    recipe, began = data.recipe, 0.0
    model, size = set_up(recipe, data, execution, world)
    trainer, streaming = Trainer(model, recipe, world), replace(execution, resident="off")
    steps, dtype, quiet = range(_TRIED_STEPS + 1), model.encoder.precision, Console(quiet=True)
    with prefetch_steps(data, recipe, streaming, world, size, steps, dtype, quiet) as prefetch:
        for batch in prefetch:
            float(trainer.step(batch)["gradient_norm"])  # waits for the device
            began = began or time.monotonic()  # after the first step, which compiles
    found = 60 * minutes * _TRIED_STEPS / (time.monotonic() - began)
    return max(_LEAST_STEPS, int(round(found, 1 - int(math.log10(max(found, 1))))))


def about_machine(recipe: Recipe, minutes: float, device: str) -> str:
    """A line about the encoder and the number of steps, which take so many minutes, if that is known."""
    machine = "a GPU" if choose_device(device).type == "cuda" else f"{available_cores()} CPU cores"
    encoder = f"{recipe.encoder.name} ×{recipe.encoder.width:g} at {recipe.augment.size} px"
    return f"{machine}: {encoder}, {recipe.steps:,} steps{f' in about {minutes:g} minutes' if minutes else ''}"
