"""vivi train: from a recipe and what it learns from to a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from vivi import __version__
from vivi.data.sources import CorpusSource, ImageSource
from vivi.model.vivi import Vivi, build_model
from vivi.recipes import Recipe
from vivi.recipes.check import check_recipe
from vivi.recipes.describe import describe_batch
from vivi.recipes.files import differences, flat
from vivi.runtime.console import SafeConsole, explain, warn
from vivi.runtime.distributed import Claims, World, join_world, only_rank_0_explains
from vivi.runtime.errors import UserError
from vivi.runtime.signals import StopRequest
from vivi.runtime.storage import StorageError, locked
from vivi.train.checkpoint import broadcast_state, load_state, restore
from vivi.train.data import TrainingData, open_data, prefetch_steps
from vivi.train.loop import Loop, Trainer
from vivi.train.micro_batch import MicroBatchSize, choose_size
from vivi.train.monitor import open_monitor
from vivi.train.run import open_run, version_of
from vivi.train.settings import DataPaths, Execution
from vivi.train.writer import RunWriter, write_results


def train(
    recipe: Recipe,
    paths: DataPaths,
    out: Path,
    execution: Execution | None = None,
    console: Console | None = None,
    named: Recipe | None = None,
) -> None:
    """Trains a recipe on what it learns from, or goes on where the run in `out` was.

    Raises KeyboardInterrupt when a signal asked it to stop, after saving. `named` is the recipe before overrides.
    """
    execution, named = execution or Execution(), named or recipe
    console = console or SafeConsole()
    with _failures_explained(), join_world(execution.device) as world, ExitStack() as stack:
        console = console if world.rank == 0 else Console(quiet=True)
        world.together(lambda: _check(recipe, execution, world))
        world.on_rank_0(lambda: stack.enter_context(locked(out, "vivi train")))
        # Rank 0 opens it first: where it has to build the index, the others find it built.
        opened = world.on_rank_0(lambda: open_data(recipe, paths))
        data = world.together(lambda: opened or open_data(recipe, paths))
        world.check_same(lambda: _claims(recipe, data))
        asked, recipe = recipe, data.recipe
        model, size = world.together(lambda: set_up(_resumable(recipe, out), data, execution, world))
        trainer = Trainer(model, recipe, world)
        world.on_rank_0(lambda: open_run(out, asked, named, data))
        start = _restore(trainer, out, console)
        world.on_rank_0(lambda: _describe(trainer, asked, named, data, console))
        if start >= recipe.steps:
            # Once more, in case the run was killed before it came to this.
            world.on_rank_0(lambda: write_results(out, trainer, data.classes, start))
            longer = "; a larger --steps makes it longer" if recipe.optimiser.schedule == "steps" else ""
            console.print(f"{out} has its {start} steps already{longer}", soft_wrap=True)
            return
        if start:
            console.print(f"going on after step {start}")

        def open_writer() -> RunWriter:
            monitor = open_monitor(data.index, data.test, model.encoder.architecture.size, console)
            return RunWriter(out, trainer, data.classes, monitor, start, execution, console)

        with ExitStack() as running:
            steps, dtype = range(start, recipe.steps), model.encoder.precision
            prefetch = world.together(
                lambda: prefetch_steps(data, recipe, execution, world, size, steps, dtype, console)
            )
            running.enter_context(prefetch)
            writer = world.on_rank_0(lambda: running.enter_context(open_writer()))
            stop = running.enter_context(StopRequest())
            Loop(trainer, execution, writer).run(prefetch, stop)
        if world.device.type == "cuda":
            console.print(f"peak GPU memory: {torch.cuda.max_memory_allocated(world.device) / 2**30:.1f} GiB")
        if writer is not None and writer.warning:
            warn(console, writer.warning)
        console.print(f"the encoder: {shlex.quote(str(out / 'encoder.safetensors'))}", soft_wrap=True)
        if world.any(stop.requested):  # too late for this run, but not for what would come after it
            raise KeyboardInterrupt


@contextmanager
def _failures_explained() -> Iterator[None]:
    """Turns a disk that cannot be written, and too little memory, into a UserError."""
    try:
        yield
    except StorageError as error:
        remedy = "make room" if error.full else "fix that"
        raise UserError(f"cannot write {error}; what was saved is intact: {remedy} and run it again") from error
    except (MemoryError, RuntimeError) as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not on_gpu and not isinstance(error, MemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        raise UserError(
            f"the {'GPU' if on_gpu else 'machine'} has too little memory: try a smaller --micro-batch (in cores); "
            "with --micro-batch 1, more --batch.cores, a smaller --augment.size or a smaller encoder"
        ) from None


def check_runs(recipes: Sequence[Recipe], paths: DataPaths) -> None:
    """Raises for the first recipe that cannot work with this data."""
    with only_rank_0_explains():
        for recipe in recipes:
            check_recipe(recipe)
            build_model(recipe, len(open_data(recipe, paths).classes))


def _check(recipe: Recipe, execution: Execution, world: World) -> None:
    check_recipe(recipe)
    execution.check(recipe)
    world.share_of(recipe.batch.cores)


def _claims(recipe: Recipe, data: TrainingData) -> Claims:
    """What must be the same in every process of a run. Each makes its part of every batch by itself: with different
    recipes or data they would go on all the same, and the encoder would be wrong."""
    versions = {"vivi": __version__, **{name: version_of(name) for name in ("torch", "timm")}}
    flags = {f"--{name.replace('_', '-')}": value for name, value in flat(recipe).items()}
    prints = {name: fact for name, fact in data.facts().items() if name.endswith("fingerprint")}
    return {**versions, **flags, **prints}


def _resumable(recipe: Recipe, out: Path) -> Recipe:
    """The recipe, but with a run's own encoder in place of the weights it started from: the checkpoint replaces them
    in any case, and they may be gone."""
    if not recipe.encoder.start or not (out / "encoder.json").exists():
        return recipe
    return replace(recipe, encoder=replace(recipe.encoder, start=str(out)))


def set_up(recipe: Recipe, data: TrainingData, execution: Execution, world: World) -> tuple[Vivi, MicroBatchSize]:
    """The model on the device, with its precision and compiled, and how many cores to compute at once."""
    model = build_model(recipe, len(data.classes)).to(world.device).train()
    on_gpu = world.device.type == "cuda"
    bfloat16 = execution.precision == "bfloat16" or (execution.precision == "auto" and on_gpu)
    model.encoder.precision = torch.bfloat16 if bfloat16 else torch.float32
    size = choose_size(model, recipe, execution, len(world.share_of(recipe.batch.cores)), world.device)
    compiled = execution.compiles(on_gpu)
    precision, how = "bfloat16" if bfloat16 else "float32", "compiled" if compiled else "not compiled"
    explain(f"the encoder computes in {precision}, {how}: --precision {execution.precision}, {world.device}")
    if compiled:
        model.encoder.backbone.compile(dynamic=False)  # one graph each for frames and for images
    return model, size


def _restore(trainer: Trainer, out: Path, console: Console) -> int:
    """Puts the newest valid checkpoint in place; returns its step, or 0.

    Rank 0 reads it and broadcasts it: the others may see another folder, or none. They are also given the weights of
    a run that begins.
    """
    model, optimiser, world = trainer.model, trainer.optimiser, trainer.world

    def read() -> int:
        folder = out / "checkpoints"
        restored = restore(folder, partial(warn, console))
        if restored is not None:
            load_state(model, optimiser, restored[1])
            return restored[0]
        if (out / "encoder.json").exists():  # written with each checkpoint
            raise UserError(f"{out} was trained before, and {folder} is gone: put it back, or choose another --out")
        return 0

    start = world.broadcast_object(world.on_rank_0(read)) or 0
    broadcast_state(model, optimiser, world)
    return start


def _describe(trainer: Trainer, asked: Recipe, named: Recipe, data: TrainingData, console: Console) -> None:
    recipe, encoder, world = trainer.recipe, trainer.model.encoder, trainer.world
    parameters = sum(parameter.numel() for parameter in encoder.parameters()) / 1e6
    cores = f"{recipe.batch.cores} cores" if recipe.batch.cores > 1 else "one core"
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else str(world.device)
    processes = f" in {world.size} processes" if world.size > 1 else ""
    lines = [
        f"{recipe.name}: {encoder.architecture} ({parameters:.1f} M parameters), "
        f"{describe_batch(recipe)} a step in {cores}, on {device}{processes}"
    ]
    for name, (old, new) in differences(named, asked).items():
        lines.append(f"overridden: {name} = {new} (was {old})")
    videos = data.videos_source
    if isinstance(videos, CorpusSource):
        index, held_out, used = videos.index, int(videos.index.test.sum()), len(videos.eligible)
        unused = len(index) - held_out - used
        left_out = f", {unused:,} with fewer than {recipe.batch.shots} shots left out" if unused else ""
        lines.append(f"{index.corpus}: {used:,} training videos{left_out}, {held_out:,} held out")
    if isinstance(videos, ImageSource):
        lines.append(f"{videos.images.source}: {len(videos.images):,} images, their labels unused")
    if data.labelled is not None:
        tests = f", {len(data.test):,} test images" if data.test else ", no test images (--images-test)"
        count, classes = len(data.labelled), len(data.classes)
        lines.append(f"{data.labelled.source}: {count:,} labelled images of {classes:,} classes{tests}")
    for line in lines:
        console.print(line, soft_wrap=True)
    fewer = [f"{name} is {new} instead of {old}" for name, (old, new) in differences(asked, recipe).items()]
    if fewer:
        warn(console, f"there is too little for the batch: {', '.join(fewer)}")
    for note in data.notes():
        warn(console, note)
