"""vivi train: from a recipe and what it learns from to a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console

from vivi.batches.frames import FrameStream
from vivi.batches.image_stream import ImageStream
from vivi.console import SafeConsole
from vivi.errors import UserError, first_line
from vivi.model.encoder import describe
from vivi.model.vivi import Vivi, build_model
from vivi.recipe_checks import check_recipe
from vivi.recipe_files import batch_in_words, differences
from vivi.recipes import Recipe
from vivi.storage import StorageError, locked
from vivi.training.agreement import check_agreement
from vivi.training.checkpoint import restore
from vivi.training.curves import draw_curves
from vivi.training.data import Data, image_stream, open_data, video_stream
from vivi.training.distributed import World, join_world, said_once
from vivi.training.feed import Feed, Pictures
from vivi.training.loading import open_batches
from vivi.training.loop import Training, write_results
from vivi.training.machine import Machine
from vivi.training.memory import AtOnce, cores_at_once, images_at_once
from vivi.training.metrics import MetricsLog
from vivi.training.monitor import MOST_IMAGES, read_watched
from vivi.training.progress import TrainProgress
from vivi.training.run import open_run
from vivi.training.sources import Sources
from vivi.training.state import build_optimiser, load_state, share_state
from vivi.training.stop import StopRequest


def train(
    recipe: Recipe,
    sources: Sources,
    out: Path,
    machine: Machine | None = None,
    console: Console | None = None,
    named: Recipe | None = None,
) -> None:
    """Trains a recipe on what it learns from, or goes on where the run in `out` was.

    Raises KeyboardInterrupt when a signal asked it to stop, after saving. `named` is the recipe before overrides.
    """
    machine, named = machine or Machine(), named or recipe
    console = console or SafeConsole()
    try:
        with join_world(machine.device) as world, ExitStack() as stack:
            world.together(lambda: _check(recipe, machine, world))
            world.first_alone(lambda: stack.enter_context(locked(out, "vivi train")))
            _train(recipe, named, sources, out, machine, console if world.rank == 0 else Console(quiet=True), world)
    except StorageError as error:
        remedy = "make room" if error.full else "see to it"
        raise UserError(
            f"cannot write {error}; what was saved before is intact: {remedy} and run the same command again"
        ) from error


def check_runs(recipes: Sequence[Recipe], sources: Sources) -> None:
    """Raises for the first recipe that cannot work with this data."""
    with said_once():
        for recipe in recipes:
            check_recipe(recipe)
        for recipe in recipes:
            build_model(recipe, open_data(recipe, sources).classes)


def _check(recipe: Recipe, machine: Machine, world: World) -> None:
    check_recipe(recipe)
    machine.check()
    world.cores(recipe.batch.cores)


def _train(
    recipe: Recipe, named: Recipe, sources: Sources, out: Path, machine: Machine, console: Console, world: World
) -> None:
    opened = world.first_alone(lambda: open_data(recipe, sources))  # and keeps an index, which the others find
    data = world.together(lambda: opened or open_data(recipe, sources))
    check_agreement(world, recipe, data)
    classes = data.labelled.classes if data.labelled else ()
    model, at_once = world.together(lambda: _build(recipe, data, machine, world))
    optimiser = build_optimiser(model, recipe.optimiser)
    world.first_alone(lambda: open_run(out, recipe, named, data))
    start = _restore(model, optimiser, out, console, world)
    world.first_alone(lambda: _describe(recipe, named, model, data, world, console))
    if start >= recipe.steps:
        # Once more, in case the run was killed before it came to this.
        world.first_alone(lambda: _write_all(out, model, classes, recipe.name, start))
        console.print(f"{out} has its {start} steps already; a larger --steps makes it longer", soft_wrap=True)
        return
    if start:
        console.print(f"going on after step {start}")
    watched = world.first_alone(lambda: read_watched(data.index, data.test, model.encoder.architecture.size))
    for part in (watched.held_out, watched.test) if watched else ():
        if part is not None and part.note:
            console.print(part.note, style="yellow", soft_wrap=True)

    with ExitStack() as stack:
        opening = open_batches(data, recipe, machine, world, start, console)
        batches = world.together(lambda: stack.enter_context(opening))
        log = world.first_alone(lambda: stack.enter_context(MetricsLog(out, start or -1)))
        stop = stack.enter_context(StopRequest())
        progress = stack.enter_context(TrainProgress(start, recipe.steps, console))
        pictures = Pictures(batches, recipe, world.device, model.encoder.precision)
        feed = stack.enter_context(Feed(pictures, at_once))
        training = Training(
            recipe, machine, out, world, model, optimiser, feed, log, watched, classes, progress, console
        )
        training.run(start, stop)
    if world.device.type == "cuda":
        console.print(f"peak GPU memory: {torch.cuda.max_memory_allocated(world.device) / 2**30:.1f} GiB")
    console.print(f"the encoder: {shlex.quote(str(out / 'encoder.safetensors'))}", soft_wrap=True)
    if world.any(stop.requested):  # too late for this run, but not for what would come after it
        raise KeyboardInterrupt


def _build(recipe: Recipe, data: Data, machine: Machine, world: World) -> tuple[Vivi, AtOnce]:
    model = build_model(recipe, data.classes).to(world.device)
    return model, set_up(model, recipe, machine, len(world.cores(recipe.batch.cores)), world)


def _write_all(out: Path, model: Vivi, classes: tuple[str, ...], recipe: str, step: int) -> None:
    write_results(out, model, classes, recipe, step)
    draw_curves(out)


def _restore(model: Vivi, optimiser: torch.optim.SGD, out: Path, console: Console, world: World) -> int:
    """Puts the newest valid checkpoint in place; returns its step, or 0.

    The first process reads it and gives it to the others: they may see another folder, or none. They are also given
    the weights of a run that begins.
    """

    def warn(line: str) -> None:
        console.print(line, style="yellow", soft_wrap=True)

    def read() -> int:
        folder = out / "checkpoints"
        restored = restore(folder, warn)
        if restored is None:
            if (out / "encoder.json").exists():  # written with each checkpoint
                raise UserError(
                    f"{out} was trained before, and {folder} is gone: put it back, or choose another --out"
                )
            return 0
        step, tensors = restored
        load_state(model, optimiser, tensors)
        return step

    start = world.broadcast_object(world.first_alone(read)) or 0
    share_state(model, optimiser, world)
    return start


def _describe(
    recipe: Recipe,
    named: Recipe,
    model: Vivi,
    data: Data,
    world: World,
    console: Console,
) -> None:
    videos, images = video_stream(data, recipe), image_stream(data, recipe)
    parameters = sum(parameter.numel() for parameter in model.encoder.parameters()) / 1e6
    cores = f"{recipe.batch.cores} cores" if recipe.batch.cores > 1 else "one core"
    processes = f" in {world.size} processes" if world.size > 1 else ""
    console.print(
        f"{recipe.name}: {describe(model.encoder.architecture)} ({parameters:.1f} M parameters), "
        f"{batch_in_words(recipe)} a step in {cores}, "
        f"on {_device_name(world.device)}{processes}",
        soft_wrap=True,
    )
    for name, (old, new) in differences(named, recipe).items():
        console.print(f"overridden: {name} = {new} (was {old})", soft_wrap=True)
    for note in data.notes():
        console.print(note, style="yellow", soft_wrap=True)
    if isinstance(videos, FrameStream):
        usable, index = videos.eligible, videos.index
        dropped = (
            f", {usable.dropped:,} with fewer than {recipe.batch.shots} shots left out" if usable.dropped else ""
        )
        console.print(
            f"{index.corpus}: {len(usable.videos):,} training videos{dropped}, {int(index.test.sum()):,} held out",
            soft_wrap=True,
        )
    if isinstance(videos, ImageStream):
        console.print(f"{videos.images.source}: {len(videos.images):,} images, their labels unused", soft_wrap=True)
    if images is not None:
        watched = f", {MOST_IMAGES:,} of them watched" if data.test and len(data.test) > MOST_IMAGES else ""
        tests = f", {len(data.test):,} test images{watched}" if data.test else ", no test images (--images-test)"
        console.print(
            f"{images.images.source}: {len(images.images):,} labelled images of {data.classes:,} classes{tests}",
            soft_wrap=True,
        )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def set_up(model: Vivi, recipe: Recipe, machine: Machine, cores: int, world: World) -> AtOnce:
    """Chooses precision, compiles, and returns how many cores to compute at once."""
    on_gpu = world.device.type == "cuda"
    model.train()
    bfloat16 = machine.precision == "bfloat16" or (machine.precision == "auto" and on_gpu)
    model.encoder.precision = torch.bfloat16 if bfloat16 else torch.float32
    compiled = machine.compiles(on_gpu)
    try:
        fit = cores_at_once(model, recipe, cores, world.device, compiled)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UserError(
            f"{recipe.encoder.name} cannot take frames of {recipe.augment.size} px ({first_line(error)}): "
            "set --augment.size"
        ) from None
    if cores % (machine.micro_batch or 1):
        raise UserError(
            f"--micro-batch {machine.micro_batch} does not divide this process's number of cores, {cores}, evenly"
        )
    if compiled:
        model.encoder.backbone.compile(dynamic=False)  # one graph each for frames and for images
    videos = machine.micro_batch or fit
    return AtOnce(videos, images_at_once(model, recipe, videos, cores))
