"""The whole step of training beside its encoder alone, in one run: is anything slower than the encoder?

    vivi bench train vivi-ex4 --corpus corpus/ --peers

The encoder alone is the plain timm model, compiled, on random images that lie on the device: forward, backward and
update, in the micro-batches of the step. The step is what `vivi train` takes, from the corpus on disk to updated
weights; what was made ahead of it is used up before the clock starts. Both are measured in turn, several rounds.
"""

from __future__ import annotations

import fcntl
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import tyro
from common import about_machine, check_file, command, median, now, one_process, start, table, write_json
from encoder import EncoderAlone
from loader import STEPS, augmenting_rate, decoding_rate
from peers import PeerSettings, lightly_loop, plain_loop
from rich.console import Console
from torch.profiler import ProfilerActivity, profile
from tyro.conf import OmitArgPrefixes

from vivi.cli.train import RecipeOptions, recipe_options
from vivi.data.index import Index
from vivi.data.loader import Loader, Prefetch, StepInput
from vivi.data.resident import ResidentSource
from vivi.model.architecture import Architecture
from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.recipes.check import check_recipe
from vivi.recipes.files import differences, find_recipe
from vivi.runtime.console import SafeConsole
from vivi.runtime.distributed import World
from vivi.runtime.errors import UserError, check_ranges
from vivi.runtime.machine import available_cores
from vivi.train.data import open_data, prefetch_steps, reading_threads
from vivi.train.loop import Trainer
from vivi.train.micro_batch import MicroBatchSize, frames_of_encoder
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import set_up


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RecipeOptions):
    """Measure the whole step of training beside its encoder alone, and, if asked, beside other training loops."""

    paths: OmitArgPrefixes[DataPaths] = field(default_factory=DataPaths)
    execution: OmitArgPrefixes[Execution] = field(default_factory=Execution)
    measure: int = 20
    """Steps of each round."""
    rounds: int = 3
    """The step and its encoder alone are measured in turn, so many times."""
    warm_up: int = 3
    """Steps before the first round; the first compiles."""
    peers: bool = False
    """Also measure, with the same frames and encoder, a plain DataLoader loop, and lightly's if it is installed."""
    peer_batch: int = 256
    """Frames that the encoder of a peer sees at once."""
    peer_seconds: float = 20.0
    """How long to measure each peer."""
    lock: Path | None = None
    """Wait for this file's lock before measuring: benchmarks that are started together compile side by side."""
    profile: Path | None = None
    """Also write to this file which operations three more steps consist of, by their time on the device."""
    json: Path | None = None
    """Also write the figures to this file."""

    def check(self) -> None:
        self.check_named("bench train")
        whole, recipe = (1, 10**6), self.recipe
        check_ranges(self, {"measure": whole, "rounds": whole, "warm_up": whole, "peer_batch": (2, 10**6)})
        check_ranges(self, {"peer_seconds": (0.1, 10**5)})
        check_file("--json", self.json)
        check_file("--lock", self.lock)
        check_file("--profile", self.profile)
        check_recipe(recipe)
        self.execution.check(recipe)
        if self.peers and not (recipe.learns_from_videos and self.peer_batch >= max(2, recipe.batch.frames)):
            raise UserError(
                "--peers needs a recipe that learns from videos, and a --peer-batch of a shot's frames or more"
            )


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
    """Seconds, each for one step: whole, waiting for frames, and what the encoder alone takes for it."""

    step: float
    waiting: float
    encoder: float
    cores: float  # the encoder with statistics of each core
    forward: float  # what the first pass of two takes alone


def bench_train(options: TrainOptions, console: Console) -> dict[str, Any]:
    """Measures, prints and returns what it found."""
    options.check()
    recipe, execution = options.recipe, options.execution
    with one_process(execution.device) as world:
        data = open_data(recipe, options.paths)
        recipe = data.recipe
        model, size = set_up(recipe, data, execution, world)
        work = work_of(model, recipe, size)
        console.print(
            f"{recipe.name}: {work.micro_batches} × {work.frames:,} frames and {work.image_batches} × "
            f"{work.images:,} images a step, "
            f"{'two passes' if work.two_passes else 'one pass'}, on {about_machine(world.device)}",
            soft_wrap=True,
        )
        precision, architecture = model.encoder.precision, model.encoder.architecture
        with prefetch_steps(data, recipe, execution, world, size, STEPS, precision, console) as prefetch:
            training = Training(Trainer(model, recipe, world), prefetch)
            beside = warm_up(training, size, work, options, console)
            with turn(options.lock, console):
                rounds, memory = measure_rounds(training, beside, work, options, console)
                if options.profile:
                    options.profile.write_text(profiled(training))
                alone = parts_alone(prefetch, reading_threads(execution)) if prefetch.videos else {}
        found = {
            "recipe": recipe.name,
            "overridden": {name: new for name, (_, new) in differences(find_recipe(options.named), recipe).items()},
            "machine": about_machine(world.device),
            "torch": torch.__version__,
            "work": asdict(work) | {"cores_per_micro_batch": size.videos, "size": recipe.augment.size},
            "rounds": [asdict(one) for one in rounds],
            "peak_gib": memory,
            "alone": alone,
            **summary(rounds, work, recipe),
        }
        if options.peers and data.index is not None:
            del model, training, prefetch  # they have the memory of the GPU
            found["peers"] = measure_peers(data.index, architecture, options, world)
    print_found(found, console)
    write_json(options.json, found)
    return found


def work_of(model: Vivi, recipe: Recipe, size: MicroBatchSize) -> Work:
    frames, images = frames_of_encoder(model, recipe)
    of_videos = recipe.batch.cores // size.videos if frames else 0
    of_images = recipe.batch.cores // size.images if images else 0
    two_passes = model.video_loss is not None and model.video_loss.across_cores and of_videos > 1
    return Work(of_videos, frames // max(of_videos, 1), of_images, images // max(of_images, 1), two_passes)


class Training:
    """Steps of training, one after the other; nothing is written."""

    def __init__(self, trainer: Trainer, prefetch: Prefetch) -> None:
        self.trainer, self.prefetch, self.device = trainer, prefetch, prefetch.device
        self.steps: Iterator[StepInput] = iter(prefetch)

    def take(self, count: int) -> tuple[float, float]:
        """Takes so many steps: their seconds, and for how many of them the device waited for frames."""
        self.prefetch.waits = []
        began = now(self.device)
        for _ in range(count):
            self.trainer.step(next(self.steps))
        seconds = now(self.device) - began
        waits, self.prefetch.waits = self.prefetch.waits, None
        return seconds, sum(before.elapsed_time(after) for before, after in waits) / 1000


def steps_ahead(prefetch: Prefetch) -> int:
    """How many steps may have been read, decoded or augmented before they are asked for, at most, and one more."""
    loaders = [loader for loader in (prefetch.videos, prefetch.images) if loader and loader.threads]
    decoded = max((micro_batches_ahead(loader) / loader.micro_batches_per_step for loader in loaders), default=0)
    return 1 + math.ceil(prefetch.ahead / sum(prefetch.counts)) + math.ceil(decoded)


def micro_batches_ahead(loader: Loader) -> float:
    """How many micro-batches Loader.load has under way, with the one that is being made."""
    return 1 + loader.reads_ahead / loader.reads


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
        began = now(self.device)
        for _ in range(steps):
            self.encoder(self.images).mean().backward()
        return now(self.device) - began


@dataclass(frozen=True)
class Beside:
    """What the step is measured beside, warmed up."""

    encoders: list[
        tuple[EncoderAlone, int]
    ]  # of videos and of images, and how many micro-batches of a step each takes
    with_cores: WithCores | None


def warm_up(training: Training, size: MicroBatchSize, work: Work, options: TrainOptions, console: Console) -> Beside:
    model, device, pixels = training.trainer.model, training.device, options.recipe.augment.size
    compiled = options.execution.compiles(device.type == "cuda")
    console.print("compiling and warming up ..." if compiled else "warming up ...")
    training.take(options.warm_up)
    create = model.encoder.architecture.create
    batches = ((work.frames, work.micro_batches), (work.images, work.image_batches))
    encoders = [(EncoderAlone(create(), batch, pixels, device, compiled), count) for batch, count in batches if batch]
    with_cores = WithCores(model, size.videos, work.frames, pixels, device) if work.frames else None
    for alone, _ in encoders:
        alone.train(options.warm_up)
    if work.two_passes:
        encoders[0][0].forward(options.warm_up)
    if with_cores is not None:
        with_cores.train(1)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Beside(encoders, with_cores)


def measure_rounds(
    training: Training, beside: Beside, work: Work, options: TrainOptions, console: Console
) -> tuple[list[Round], float]:
    """Every round measures all in turn. Also the most memory that steps took, in GiB."""
    device, many = training.device, options.measure
    rounds, peak = [], 0.0
    for number in range(options.rounds):
        training.take(steps_ahead(training.prefetch))  # what was made ahead meanwhile
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        step, waiting = training.take(many)
        if device.type == "cuda":
            peak = max(peak, torch.cuda.max_memory_allocated(device) / 2**30)
        passes = many * work.micro_batches
        one = Round(
            step=step / many,
            waiting=waiting / many,
            encoder=sum(alone.train(many * count) for alone, count in beside.encoders) / many,
            cores=beside.with_cores.train(passes) / many if beside.with_cores else 0.0,
            forward=beside.encoders[0][0].forward(passes) / many if work.two_passes else 0.0,
        )
        rounds.append(one)
        console.print(
            f"round {number + 1}: {one.step:.4f} s a step, {one.encoder / one.step:.3f} of the encoder alone"
        )
    return rounds, peak


def profiled(training: Training, steps: int = 3) -> str:
    """The operations of some steps, those that take longest on the device first."""
    on_gpu = training.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        training.take(steps)
    by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    return str(profiler.key_averages().table(sort_by=by, row_limit=60, max_name_column_width=80)) + "\n"


@contextmanager
def turn(lock: Path | None, console: Console) -> Iterator[None]:
    """Waits until no other process has the lock."""
    if lock is None:
        yield
        return
    with open(lock, "a") as file:
        console.print("waiting for its turn ...")
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def parts_alone(prefetch: Prefetch, threads: int) -> dict[str, float]:
    """Frames a second of each part of the input alone."""
    assert prefetch.videos is not None
    source = prefetch.videos.source
    source = source.source if isinstance(source, ResidentSource) else source
    return {"decoded": decoding_rate(source, threads), "augmented": augmenting_rate(prefetch.videos)}


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


def measure_peers(index: Index, architecture: Architecture, options: TrainOptions, world: World) -> dict[str, Any]:
    recipe, on_gpu = options.recipe, world.device.type == "cuda"
    settings = PeerSettings(
        size=recipe.augment.size,
        frames=recipe.batch.frames,
        batch=options.peer_batch,
        create=architecture.create,
        device=world.device,
        compile=options.execution.compiles(on_gpu),
        workers=available_cores() if on_gpu else max(1, available_cores() - 1),
        seconds=options.peer_seconds,
    )
    loops = {"plain DataLoader": plain_loop, "lightly": lightly_loop}
    return {name: asdict(loop(index, settings)) for name, loop in loops.items()}


def print_found(found: dict[str, Any], console: Console) -> None:
    shown = table("", "frames/s, as the encoder sees them", "of the encoder alone")
    alone = found["encoder_alone_per_second"]
    ratio = f"{found['ratio']:.3f} ({found['ratio_least']:.3f} to {found['ratio_most']:.3f})"
    shown.add_row("whole step", f"{found['frames_per_second']:,.0f}", ratio)
    if found["work"]["two_passes"]:
        shown.add_row("its first pass counted", "", f"{found['ratio_with_first_pass']:.3f}")
    shown.add_row("encoder alone", f"{alone:,.0f}", "1")
    for name, rate in found["alone"].items():
        shown.add_row(f"{name}, alone", f"{rate:,.0f}", f"{rate / alone:.2f}")
    for name, peer in found.get("peers", {}).items():
        rate, note = peer["frames_per_second"], peer["note"]
        shown.add_row(name, f"{rate:,.0f}" if rate else note, f"{rate / alone:.3f}" if rate else "")
    console.print(shown)
    said = [f"{found['seconds_per_step']:.3f} s a step, {found['days']:.2f} days for the recipe's steps"]
    if found["peak_gib"]:
        said.append(f"the device waits for frames {100 * found['waiting']:.1f} % of the time")
        said.append(f"peak memory {found['peak_gib']:.1f} GiB")
    if found["cores_cost"] is not None:
        said.append(f"statistics within cores cost the encoder {100 * found['cores_cost']:.1f} %")
    console.print("; ".join(said), soft_wrap=True)


def main() -> None:
    defaults = TrainOptions(**recipe_options(sys.argv[1:]))
    bench_train(tyro.cli(TrainOptions, prog=command(), default=defaults), SafeConsole())


if __name__ == "__main__":
    start(main)
