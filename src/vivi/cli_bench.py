"""The commands that begin with vivi bench."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, Suppress, arg, subcommand

from vivi.bench.detection_options import DetectionBenchOptions
from vivi.bench.options import BenchOptions, LoaderOptions
from vivi.recipe_files import check_flags
from vivi.recipes import RECIPES, Recipe
from vivi.training.machine import Machine as TrainMachine
from vivi.training.sources import Sources


@dataclass(frozen=True)
class BenchPrepare:
    """Measure vivi prepare beside ffmpeg and PySceneDetect, on the same files and cores."""

    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILES...")]
    """Video files."""
    work: float = 10.0
    """Repeat each file until ffmpeg is busy with it for this many seconds, so that start-up does not count."""
    copies: int = 0
    """How many copies of each repeated file; 0: one for each core, 1: a single long video."""
    rate: float = 1.0
    """Frames a second."""
    rounds: int = 3
    """The median over the rounds and their spread are printed."""
    json: Path | None = None
    """Also write the figures to this file."""

    def run(self, console: Console) -> None:
        from vivi.bench.prepare import bench_prepare

        bench_prepare(self.files, self.work, self.copies, self.rate, self.rounds, self.json, console)


@dataclass(frozen=True)
class _BenchRecipe:
    named: Annotated[Positional[str], arg(metavar="RECIPE")]
    """A recipe, or the path of a recipe.json."""
    sources: OmitArgPrefixes[Sources] = field(default_factory=Sources)
    machine: OmitArgPrefixes[TrainMachine] = field(default_factory=TrainMachine)
    defaults_of: Annotated[str, Suppress] = "vivi-ex4"
    recipe: Annotated[Recipe, arg(name="")] = field(default_factory=lambda: RECIPES["vivi-ex4"])


@dataclass(frozen=True)
class BenchTrain(_BenchRecipe):
    """Measure the whole step of training beside its encoder alone, and, if asked, beside other training loops."""

    measurement: OmitArgPrefixes[BenchOptions] = field(default_factory=BenchOptions)

    def run(self, console: Console) -> None:
        from vivi.bench.train import bench_train

        check_flags(self.named, self.defaults_of, "bench train")
        bench_train(self.recipe, self.named, self.sources, self.machine, self.measurement, console)


@dataclass(frozen=True)
class BenchLoader(_BenchRecipe):
    """Measure how fast frames come from the corpus to the encoder: read, decoded, augmented, and all of it."""

    measurement: OmitArgPrefixes[LoaderOptions] = field(default_factory=LoaderOptions)

    def run(self, console: Console) -> None:
        from vivi.bench.loader import bench_loader

        check_flags(self.named, self.defaults_of, "bench loader")
        bench_loader(self.recipe, self.sources, self.machine, self.measurement, console)


@dataclass(frozen=True)
class BenchDetection:
    """Measure training steps of RetinaNet on an encoder beside torchvision's own, on random images."""

    measurement: OmitArgPrefixes[DetectionBenchOptions] = field(default_factory=DetectionBenchOptions)

    def run(self, console: Console) -> None:
        from vivi.bench.detection import bench_detection

        bench_detection(self.measurement, console)


BENCH = "Measure on the present machine."


def bench_commands(named: str, recipe: Recipe) -> Any:
    """What can be measured; a recipe's flags have its values."""
    train = BenchTrain(tyro.MISSING, defaults_of=named, recipe=recipe)
    loader = BenchLoader(tyro.MISSING, defaults_of=named, recipe=recipe)
    return (
        Annotated[BenchPrepare, subcommand("prepare")]
        | Annotated[BenchTrain, subcommand("train", default=train)]
        | Annotated[BenchLoader, subcommand("loader", default=loader)]
        | Annotated[BenchDetection, subcommand("detection")]
    )
