"""How fast frames come from the corpus to the encoder: read, decoded, augmented, and all of it; no encoder runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console

from vivi.batches.frames import FrameStream
from vivi.batches.loader import Loader
from vivi.bench.options import LoaderOptions
from vivi.bench.show import about_machine, print_loader, write_json
from vivi.bench.train import long_enough, one_process, parts_alone
from vivi.errors import UserError
from vivi.recipe_checks import check_recipe
from vivi.recipes import Recipe
from vivi.training.data import open_data
from vivi.training.feed import Feed, Pictures
from vivi.training.loading import open_batches, reading_threads
from vivi.training.machine import Machine
from vivi.training.memory import AtOnce
from vivi.training.sources import Sources, wants_videos

_AHEAD = 4  # steps that are not measured


def bench_loader(
    recipe: Recipe, sources: Sources, machine: Machine, options: LoaderOptions, console: Console
) -> dict[str, Any]:
    """Measures, prints and returns what it found."""
    check_recipe(recipe)
    machine.check()
    options.check()
    if recipe.batch.cores % (machine.micro_batch or 1):
        raise UserError(
            f"--micro-batch {machine.micro_batch} does not divide the recipe's {recipe.batch.cores} cores evenly"
        )
    if not wants_videos(recipe):
        raise UserError(f"{recipe.name} learns from no videos: bench another recipe")
    with one_process(machine.device) as world:
        data = open_data(recipe, sources)
        assert data.index is not None
        precision = torch.bfloat16 if world.device.type == "cuda" else torch.float32
        at_once = AtOnce(machine.micro_batch or 1, 1)
        rates: dict[str, tuple[float, str]] = {}
        stream = FrameStream(data.index, recipe.batch, recipe.seed, encoded=True)
        rates["read"] = _reading_rate(stream, reading_threads(machine), options.measure), "JPEG files from the disk"
        for kind in ("off", "on"):
            name = "streaming" if kind == "off" else "resident"
            try:
                with open_batches(
                    data, long_enough(recipe), replace(machine, resident=kind), world, 0, Console(quiet=True)
                ) as batches:
                    pictures = Pictures(replace(batches, images=None), recipe, world.device, precision)
                    if kind == "off":
                        parts = parts_alone(pictures, machine, at_once.videos)
                        rates |= {part.replace("_", " "): (rate, "alone") for part, rate in parts.items()}
                    rates[name] = _feeding_rate(pictures, at_once, options.measure), "all of it, augmented"
            except UserError as error:
                rates[name] = 0.0, str(error)
    found = {"recipe": recipe.name, "machine": about_machine(world.device), "rates": rates}
    print_loader(found, console)
    if options.json:
        write_json(options.json, found)
    return found


def _reading_rate(stream: FrameStream, threads: int, steps: int) -> float:
    batch = stream.batch
    with Loader(stream, 0, batch.cores, threads, 0, steps + 1) as loader:
        batches = iter(loader)
        next(batches)
        began = time.perf_counter()
        for _ in batches:
            pass
        return steps * batch.videos * batch.shots * batch.frames / (time.perf_counter() - began)


def _feeding_rate(pictures: Pictures, at_once: AtOnce, steps: int) -> float:
    """Frames a second that are ready for the encoder, which takes no time here."""
    batch, device = pictures.recipe.batch, pictures.device
    with Feed(pictures, at_once) as feed:
        taken = 0
        began = time.perf_counter()
        for step in feed:
            for part in step.videos:
                part.frames()
            if step.number < _AHEAD:  # sets everything up, and uses up what was read meanwhile
                began = time.perf_counter()
                continue
            taken += 1
            if taken == steps:
                break
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return taken * batch.videos * batch.shots * batch.frames / (time.perf_counter() - began)
