"""How fast frames come from the corpus to the encoder: read, decoded, augmented, and all of it; no encoder runs.

vivi bench loader vivi-ex4 --corpus corpus/
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, takewhile
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from common import about_machine, check_file, command, now, one_process, start, table, write_json
from rich.console import Console
from tyro.conf import OmitArgPrefixes

from vivi.cli.train import RecipeOptions, recipe_options
from vivi.data.augment.uniforms import UNIFORMS
from vivi.data.index import read_frames
from vivi.data.loader import Loader, Prefetch
from vivi.data.packed import on_device
from vivi.data.plan import Plan
from vivi.data.sources import CorpusSource, Source
from vivi.recipes.check import check_recipe
from vivi.runtime.console import SafeConsole
from vivi.runtime.errors import UserError, check_ranges
from vivi.runtime.read_ahead import map_ahead
from vivi.train.data import open_data, prefetch_steps, reading_threads
from vivi.train.micro_batch import MicroBatchSize
from vivi.train.settings import DataPaths, Execution

STEPS = range(100_000)  # enough for every benchmark
_AHEAD = 4  # steps that are not measured
_SECONDS = 1.0  # that each part is measured alone, at least


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(RecipeOptions):
    """Measure how fast frames come from the corpus to the encoder: read, decoded, augmented, and all of it."""

    paths: OmitArgPrefixes[DataPaths] = field(default_factory=DataPaths)
    execution: OmitArgPrefixes[Execution] = field(default_factory=Execution)
    measure: int = 20
    """Steps of each measurement of the whole; each part alone takes a second."""
    json: Path | None = None
    """Also write the figures to this file."""

    def check(self) -> None:
        self.check_named("bench loader")
        check_recipe(self.recipe)
        self.execution.check(self.recipe)
        check_ranges(self, {"measure": (1, 10**6)})
        check_file("--json", self.json)
        cores, micro_batch = self.recipe.batch.cores, self.execution.micro_batch
        if cores % (micro_batch or 1):
            raise UserError(f"--micro-batch {micro_batch} does not divide the recipe's {cores} cores evenly")
        if not self.recipe.learns_from_videos:
            raise UserError(f"{self.recipe.name} learns from no videos: choose another recipe")


def bench_loader(options: LoaderOptions, console: Console) -> dict[str, Any]:
    """Measures, prints and returns what it found: frames a second, and a note, of each part."""
    options.check()
    recipe, execution = options.recipe, options.execution
    size, quiet = MicroBatchSize(execution.micro_batch or 1, 1), Console(quiet=True)
    rates: dict[str, tuple[float, str]] = {}
    with one_process(execution.device) as world:
        dtype = torch.bfloat16 if world.device.type == "cuda" else torch.float32
        data = replace(open_data(recipe, options.paths), labelled_source=None)
        recipe = data.recipe
        source, threads = data.videos_source, reading_threads(execution)
        assert isinstance(source, CorpusSource)

        def prefetch(resident: Literal["on", "off"]) -> Prefetch:
            how = replace(execution, resident=resident)
            return prefetch_steps(data, recipe, how, world, size, STEPS, dtype, quiet)

        rates["read"] = reading_rate(source, threads), "JPEG files from the disk, alone"
        rates["decoded"] = decoding_rate(source, threads), "read and decoded, alone"
        with prefetch("off") as streaming:
            assert streaming.videos is not None
            rates["augmented"] = augmenting_rate(streaming.videos), "alone"
            rates["streaming"] = _whole_rate(streaming, options), "all of it, augmented"
        try:
            with prefetch("on") as resident:
                rates["resident"] = _whole_rate(resident, options), "all of it, augmented"
        except UserError as error:
            rates["resident"] = 0.0, str(error)
    found = {"recipe": recipe.name, "machine": about_machine(world.device), "threads": threads, "rates": rates}
    shown = table("", "frames/s", "")
    for name, (rate, note) in rates.items():
        shown.add_row(name, f"{rate:,.0f}" if rate else "", note)
    console.print(shown)
    write_json(options.json, found)
    return found


def reading_rate(source: CorpusSource, threads: int) -> float:
    """Frames a second whose JPEG files threads read; each is read once, however often a plan has it."""

    def read(plan: Plan) -> int:
        for (video, shot), rows in groupby(plan.frames(), key=lambda row: row[:2]):
            read_frames(source.index, video, shot, sorted({number for _, _, number in rows}))
        return plan.frame.size

    return _rate(read, source, threads)


def decoding_rate(source: Source, threads: int) -> float:
    """Frames a second that threads read and decode."""
    return _rate(lambda plan: len(source.read(plan).images), source, threads)


def _rate(read: Callable[[Plan], int], source: Source, threads: int) -> float:
    """Frames a second of the first steps, as many as come in time."""
    began = time.perf_counter()
    in_time = takewhile(lambda _: time.perf_counter() - began < _SECONDS, _reads(source))
    frames = sum(map_ahead(read, in_time, threads, threads))
    return frames / (time.perf_counter() - began)


def _reads(source: Source) -> Iterator[Plan]:
    """The plans of the steps, as many videos at a time as are best read in one go."""
    for plan in map(source.plan, STEPS):
        for first in range(0, len(plan), source.videos_per_read):
            yield plan[first : first + source.videos_per_read]


def augmenting_rate(loader: Loader) -> float:
    """Frames a second that are augmented, of a micro-batch that is decoded and on the device."""
    micro_batch = loader.source.videos // loader.all_cores * loader.cores_per_micro_batch
    decoded = loader.source.read(loader.source.plan(0)[:micro_batch])
    images = on_device([decoded.images], loader.device)
    uniforms = decoded.plan.augment_uniforms.reshape(-1, UNIFORMS)
    loader.augment(images, uniforms)
    began, done, taken = now(loader.device), 0, 0.0
    while taken < _SECONDS:
        for _ in range(10):  # a GPU is not to wait for the host
            loader.augment(images, uniforms)
        done, taken = done + 10 * len(images), now(loader.device) - began
    return done / taken


def _whole_rate(prefetch: Prefetch, options: LoaderOptions) -> float:
    """Frames a second that are ready for the encoder, which takes no time here."""
    batch, steps = options.recipe.batch, iter(prefetch)

    def take(many: int) -> None:
        for step in islice(steps, many):
            for _ in step.videos:
                pass

    take(_AHEAD)  # sets everything up, and uses up what was read meanwhile
    began = now(prefetch.device)
    take(options.measure)
    return options.measure * batch.videos * batch.shots * batch.frames / (now(prefetch.device) - began)


def main() -> None:
    defaults = LoaderOptions(**recipe_options(sys.argv[1:]))
    bench_loader(tyro.cli(LoaderOptions, prog=command(), default=defaults), SafeConsole())


if __name__ == "__main__":
    start(main)
