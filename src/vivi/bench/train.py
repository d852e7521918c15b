"""The whole step of training beside its encoder alone, in one run: is anything slower than the encoder?

The encoder alone is the plain timm model, compiled, on random images that lie on the device: forward, backward and
update, in the micro-batches of the step. The step is what `vivi train` takes, from the corpus on disk to updated
weights; what was made ahead of it is used up before the clock starts. Both are measured in turn, several rounds.
"""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vivi.batches.frames import FrameStream
from vivi.batches.loader import Loader
from vivi.batches.resident import ResidentLoader
from vivi.bench.encoder import EncoderAlone
from vivi.bench.options import BenchOptions
from vivi.bench.peers import PeerSettings, lightly_loop, plain_loop
from vivi.bench.show import about_machine, median, print_train, write_json
from vivi.errors import UserError
from vivi.machine import available_cores
from vivi.model.vivi import Vivi, build_model
from vivi.recipe_checks import check_recipe
from vivi.recipe_files import differences, find_recipe
from vivi.recipes import Recipe
from vivi.training.data import open_data
from vivi.training.distributed import World, join_world
from vivi.training.feed import AnyLoader, Feed, Pictures, Step
from vivi.training.loading import decoding_rates, open_batches, reading_threads
from vivi.training.loop import Training
from vivi.training.machine import Machine
from vivi.training.memory import AtOnce, encoder_load
from vivi.training.progress import TrainProgress
from vivi.training.sources import Sources, wants_videos
from vivi.training.state import build_optimiser
from vivi.training.train import set_up


@dataclass(frozen=True)
class Work:
    """What the encoder has to do in one step: micro-batches of videos and of labelled images."""

    micro_batches: int  # of videos
    frames: int  # that it sees of each, all copies counted
    image_batches: int
    images: int  # of each
    two_passes: bool

    @property
    def total(self) -> int:
        return self.micro_batches * self.frames + self.image_batches * self.images


@dataclass(frozen=True)
class Round:
    """Seconds, each for one step: whole, waiting for pictures, and what the encoder alone takes for it."""

    step: float
    waiting: float
    encoder: float
    cores: float  # the encoder with statistics of each core
    forward: float  # what the first pass of two takes alone


def bench_train(
    recipe: Recipe, named: str, sources: Sources, machine: Machine, options: BenchOptions, console: Console
) -> dict[str, Any]:
    """Measures, prints and returns what it found."""
    check_recipe(recipe)
    machine.check()
    options.check()
    if options.peers and not (wants_videos(recipe) and options.peer_batch >= max(2, recipe.batch.frames)):
        raise UserError(
            "--peers needs a recipe that learns from videos, and a --peer-batch of a shot's frames or more"
        )
    with one_process(machine.device) as world:
        data = open_data(recipe, sources)
        model = build_model(recipe, data.classes).to(world.device)
        at_once = set_up(model, recipe, machine, recipe.batch.cores, world)
        work = work_of(model, recipe, at_once)
        console.print(
            f"{recipe.name}: {work.micro_batches} × {work.frames:,} frames and {work.image_batches} × "
            f"{work.images:,} images a step, "
            f"{'two passes' if work.two_passes else 'one pass'}, on {about_machine(world.device)}",
            soft_wrap=True,
        )
        with open_batches(data, long_enough(recipe), machine, world, 0, console) as batches:
            pictures = Pictures(batches, recipe, world.device, model.encoder.precision)
            with Feed(pictures, at_once) as feed:
                rounds, memory = _rounds(recipe, machine, world, model, feed, work, options, console)
            found = {
                "recipe": recipe.name,
                "overridden": {name: new for name, (_, new) in differences(find_recipe(named), recipe).items()},
                "machine": about_machine(world.device),
                "torch": torch.__version__,
                "work": asdict(work) | {"cores_at_once": at_once.videos, "size": recipe.augment.size},
                "rounds": [asdict(one) for one in rounds],
                "peak_gib": memory,
                "alone": parts_alone(pictures, machine, at_once.videos),
                **summary(rounds, work, recipe),
            }
        if options.peers and data.index is not None:
            del model, pictures, feed
            settings = _peer_settings(recipe, machine, world, options)
            loops = {"plain DataLoader": plain_loop, "lightly": lightly_loop}
            found["peers"] = {name: asdict(loop(data.index, settings)) for name, loop in loops.items()}
    print_train(found, console)
    if options.json:
        write_json(options.json, found)
    return found


@contextmanager
def one_process(device: str) -> Iterator[World]:
    with join_world(device) as world:
        if world.size > 1:
            raise UserError("vivi bench measures one process: start it without torchrun")
        yield world


def long_enough(recipe: Recipe) -> Recipe:
    """With steps enough for every bench."""
    return replace(recipe, steps=max(recipe.steps, 100_000))


def work_of(model: Vivi, recipe: Recipe, at_once: AtOnce) -> Work:
    loss, cores = recipe.loss, recipe.batch.cores
    frames, images = encoder_load(model, recipe)
    of_videos, of_images = cores // at_once.videos if frames else 0, cores // at_once.images if images else 0
    two_passes = loss.video == "infonce" and loss.across == "all" and of_videos > 1
    return Work(of_videos, frames // max(of_videos, 1), of_images, images // max(of_images, 1), two_passes)


def _rounds(
    recipe: Recipe,
    machine: Machine,
    world: World,
    model: Vivi,
    feed: Feed,
    work: Work,
    options: BenchOptions,
    console: Console,
) -> tuple[list[Round], float]:
    """Every round measures all in turn. Also the most memory that steps took, in GiB."""
    quiet = Console(quiet=True)
    optimiser = build_optimiser(model, recipe.optimiser)
    progress = TrainProgress(0, recipe.steps, quiet)
    training = Training(
        recipe, machine, Path(), world, model, optimiser, feed, None, None, (), progress, quiet
    )  # nothing is written
    steps = iter(feed)
    compiled = machine.compiles(world.device.type == "cuda")
    size = recipe.augment.size

    def alone(batch: int) -> EncoderAlone | None:
        plain = model.encoder.architecture.create()
        return EncoderAlone(plain, batch, size, world.device, compiled) if batch else None

    console.print("compiling and warming up ..." if compiled else "warming up ...")
    with_cores = WithCores(model, feed.at_once.videos, work.frames, size, world.device) if work.frames else None
    _take(training, steps, options.warm_up)
    counts = (work.micro_batches, work.image_batches)
    both = zip((alone(work.frames), alone(work.images)), counts, strict=True)
    encoders = [(encoder, count) for encoder, count in both if encoder is not None]
    for encoder, _ in encoders:
        encoder.train(options.warm_up)
    if work.two_passes:
        encoders[0][0].look(options.warm_up)
    if with_cores is not None:
        with_cores.train(1)
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    with _turn(options.lock, console):
        return _measured(training, steps, encoders, with_cores, work, options, console)


@contextmanager
def _turn(lock: Path | None, console: Console) -> Iterator[None]:
    """Waits until no other process has the lock."""
    if lock is None:
        yield
        return
    with open(lock, "a") as file:
        console.print("waiting for its turn ...")
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _measured(
    training: Training,
    steps: Iterator[Step],
    encoders: list[tuple[EncoderAlone, int]],
    with_cores: WithCores | None,
    work: Work,
    options: BenchOptions,
    console: Console,
) -> tuple[list[Round], float]:
    world, feed = training.world, training.feed
    rounds, peak = [], 0.0
    for number in range(options.rounds):
        _take(training, steps, steps_ahead(feed, work))  # what was made ahead meanwhile
        if world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(world.device)
        seconds, waiting = _take(training, steps, options.measure)
        if world.device.type == "cuda":
            peak = max(peak, torch.cuda.max_memory_allocated(world.device) / 2**30)
        count = options.measure * work.micro_batches
        rounds.append(
            Round(
                step=seconds / options.measure,
                waiting=waiting / options.measure,
                encoder=sum(encoder.train(many * options.measure) for encoder, many in encoders) / options.measure,
                cores=with_cores.train(count) / options.measure if with_cores else 0.0,
                forward=encoders[0][0].look(count) / options.measure if work.two_passes else 0.0,
            )
        )
        one = rounds[-1]
        console.print(
            f"round {number + 1}: {one.step:.4f} s a step, {one.encoder / one.step:.3f} of the encoder alone"
        )
    return rounds, peak


def steps_ahead(feed: Feed, work: Work) -> int:
    """How many steps may have been read, decoded or augmented before they were asked for, at most, and one more."""
    augmented = math.ceil(feed.ahead / max(work.micro_batches + work.image_batches, 1))
    batches = feed.pictures.batches
    read = [loader.prefetch + 1 for loader in (batches.videos, batches.images) if isinstance(loader, Loader)]
    return 1 + augmented + max(read, default=0)


def _take(training: Training, steps: Iterator[Step], count: int) -> tuple[float, float]:
    """Takes so many steps: their seconds, and for how many of them the device waited for pictures."""
    device, feed = training.world.device, training.feed
    feed.waits = []
    _wait(device)
    began = time.perf_counter()
    for _ in range(count):
        training.step(next(steps))
    _wait(device)
    seconds = time.perf_counter() - began
    waits, feed.waits = feed.waits, None
    return seconds, sum(before.elapsed_time(after) for before, after in waits) / 1000


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class WithCores:
    """The encoder as training has it, with statistics of each core, on random images: no losses, no update.

    Gradients and statistics stay with the encoder: it is good for measuring only.
    """

    def __init__(self, model: Vivi, cores: int, frames: int, size: int, device: torch.device) -> None:
        self.encoder, self.device = model.encoder, device
        images = torch.randn(frames, 3, size, size, device=device, dtype=self.encoder.precision)
        images = images.contiguous(memory_format=self.encoder.memory_format)
        self.images = images.view(cores, -1, 3, size, size)  # (cores, frames, 3, size, size)

    def train(self, steps: int) -> float:
        _wait(self.device)
        began = time.perf_counter()
        for _ in range(steps):
            self.encoder(self.images).mean().backward()
        _wait(self.device)
        return time.perf_counter() - began


def parts_alone(pictures: Pictures, machine: Machine, at_once: int) -> dict[str, float]:
    """Frames a second of each part alone: decoded, and augmented."""
    videos = pictures.batches.videos
    if videos is None:
        return {}
    rates: dict[str, float] = {}
    if isinstance(videos.stream, FrameStream):
        decoding = decoding_rates(videos.stream, pictures.device, reading_threads(machine))
        rates |= {"decoded_by_gpu": decoding.gpu, "decoded_by_threads": decoding.threads}
    return rates | {"augmented": _augmenting_rate(pictures, videos, at_once)}


def _augmenting_rate(pictures: Pictures, videos: AnyLoader, at_once: int) -> float:
    """Frames a second that are cropped and coloured, of frames that are decoded and on the device."""
    again: AnyLoader
    if isinstance(videos, ResidentLoader):
        again = ResidentLoader(videos.stream, videos.store, 0, at_once, 0, 1)
    else:
        again = Loader(videos.stream, 0, at_once, 1, 0, 1)
    with again:
        samples = again.samples(next(iter(again)), slice(0, at_once), pictures.device)
    for repeats in (2, 20 if pictures.device.type == "cuda" else 2):
        _wait(pictures.device)
        began = time.perf_counter()
        for _ in range(repeats):
            pictures.augmented(samples)
        _wait(pictures.device)
    return repeats * len(samples.pixels) / (time.perf_counter() - began)


def summary(rounds: list[Round], work: Work, recipe: Recipe) -> dict[str, float | None]:
    """Medians over the rounds, and ratios of each round's own figures."""
    step = median(one.step for one in rounds)
    return {
        "seconds_per_step": step,
        "frames_per_second": work.total / step,
        "encoder_alone_per_second": work.total / median(one.encoder for one in rounds),
        "ratio": median(one.encoder / one.step for one in rounds),
        "ratio_least": min(one.encoder / one.step for one in rounds),
        "ratio_most": max(one.encoder / one.step for one in rounds),
        "ratio_with_first_pass": median((one.encoder + one.forward) / one.step for one in rounds),
        "cores_cost": median(one.cores / one.encoder - 1 for one in rounds) if not work.images else None,
        "waiting": median(one.waiting / one.step for one in rounds),
        "days": step * recipe.steps / 86_400,
    }


def _peer_settings(recipe: Recipe, machine: Machine, world: World, options: BenchOptions) -> PeerSettings:
    encoder = recipe.encoder
    on_gpu = world.device.type == "cuda"
    return PeerSettings(
        size=recipe.augment.size,
        frames=recipe.batch.frames,
        batch=options.peer_batch,
        encoder=encoder.name,
        encoder_arguments={"width_factor": encoder.width} if encoder.width != 1 else {},
        device=world.device,
        compile=machine.compiles(on_gpu),
        workers=available_cores() if on_gpu else max(1, available_cores() - 1),
        seconds=options.peer_seconds,
    )
