"""The commands; nothing else lives here."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro
from rich.console import Console
from rich.text import Text
from tyro.conf import OmitArgPrefixes, Positional, Suppress, arg, subcommand

from vivi.cli_bench import BENCH, bench_commands
from vivi.cli_evaluate import EVALUATE, Check, Detection, Vtab, evaluate_commands
from vivi.console import Output, SafeConsole, guard_output
from vivi.errors import UserError
from vivi.recipe_checks import check_recipe
from vivi.recipe_files import check_flags, find_recipe, print_recipe, print_recipes, recipe_json, sweep
from vivi.recipes import RECIPES, Recipe
from vivi.report.options import ReportOptions
from vivi.synthetic.synthesize import SynthesizeSettings, synthesize
from vivi.training.machine import Machine as TrainMachine
from vivi.training.sources import Sources, check_sources
from vivi.video.piece import PrepareSettings
from vivi.video.prepare import Machine, prepare
from vivi.video.statistics import print_summary

# What only one command needs, and the flags do not, is imported where it runs: `vivi --help` answers at once.


@dataclass(frozen=True)
class Prepare:
    """Turn video files into a corpus of shots and frames."""

    videos: Annotated[Positional[tuple[Path, ...]], arg(metavar="VIDEOS...")]
    """Video files, folders (searched recursively), or manifests (.txt, .csv, .parquet with a column 'path' and
    optional columns 'video' and 'split')."""
    out: Path
    """The corpus: a new folder, an interrupted one to go on with, or one to add to."""
    settings: OmitArgPrefixes[PrepareSettings] = field(default_factory=PrepareSettings)
    machine: OmitArgPrefixes[Machine] = field(default_factory=Machine)

    def run(self, console: Console) -> None:
        if not self.videos:
            raise UserError("name at least one video file, folder or manifest")
        rows = prepare(self.videos, self.out, self.settings, self.machine, console)
        print_summary(self.out, console)
        if not any(row.status == "ok" for row in rows):
            raise UserError("none of the videos could be used")
        console.print(f"look at it: vivi inspect {shlex.quote(str(self.out))} --out page/", soft_wrap=True)


@dataclass(frozen=True)
class Inspect:
    """Make a page that shows a corpus: statistics, film strips with shot boundaries, skipped files."""

    corpus: Positional[Path]
    """A corpus made by vivi prepare."""
    out: Path = Path("page")
    """Folder of the page; open its index.html."""
    videos: int = 24
    """How many videos to show as film strips."""
    seed: int = 0
    """Which ones: another seed shows others."""
    verify: bool = False
    """First read every frame and check that it is as it was written; what is damaged is listed in OUT/damaged.csv."""

    def run(self, console: Console) -> None:
        from vivi.inspect.page import write_page
        from vivi.inspect.verify import verify

        verified = verify(self.corpus, self.out, console) if self.verify else None
        if verified is None or not verified.unreadable:
            page = write_page(self.corpus, self.out, self.videos, self.seed)
            console.print(f"open {page}", soft_wrap=True)
        if verified is not None and verified.what_to_do:
            raise UserError(verified.what_to_do)


@dataclass(frozen=True)
class Synthesize:
    """Make videos of a procedural world, with true shot boundaries and labelled tasks."""

    out: Path
    """Folder for the videos, truth.json and tasks/."""
    settings: OmitArgPrefixes[SynthesizeSettings] = field(default_factory=SynthesizeSettings)

    def run(self, console: Console) -> None:
        synthesize(self.out, self.settings)
        console.print(
            f"prepare them: vivi prepare {shlex.quote(str(self.out))} --out corpus/ --rate 5", soft_wrap=True
        )


@dataclass(frozen=True)
class Recipes:
    """List the recipes, or print every field of one."""

    name: Positional[str] = ""
    """A recipe, or the path of a recipe.json; none: list them all."""
    json: bool = False
    """Print the recipe as JSON: a start for one's own."""

    def run(self, console: Console) -> None:
        if not self.name and self.json:
            raise UserError("--json prints one recipe: name it")
        if not self.name:
            print_recipes(console)
        elif self.json:
            console.out(recipe_json(find_recipe(self.name)), end="")
        else:
            print_recipe(find_recipe(self.name), console)


@dataclass(frozen=True)
class Train:
    """Train an encoder on videos, images, or both, or go on with a run. Every field of the recipe can be
    overridden."""

    named: Annotated[Positional[str], arg(metavar="RECIPE")]
    """A recipe (vivi recipes lists them), or the path of a recipe.json."""
    out: Path
    """The run: a new folder, or one to go on with."""
    sources: OmitArgPrefixes[Sources] = field(default_factory=Sources)
    sweep: str = ""
    """Train once for each value of a field, for example loss.video_weight=0.04,0.02,0.01; runs land in
    OUT/field=value."""
    machine: OmitArgPrefixes[TrainMachine] = field(default_factory=TrainMachine)
    defaults_of: Annotated[str, Suppress] = "vivi-ex4"
    recipe: Annotated[Recipe, arg(name="")] = field(default_factory=lambda: RECIPES["vivi-ex4"])

    def run(self, console: Console) -> None:
        check_flags(self.named, self.defaults_of, "train")
        runs = sweep(self.recipe, self.out, self.sweep)
        if "WORLD_SIZE" not in os.environ:  # several processes must fail together; alone, before torch is imported
            for _, recipe in runs:
                check_recipe(recipe)
                check_sources(recipe, self.sources)
        from vivi.training.train import check_runs, train

        if self.sweep:  # all of them, before the first one trains for days
            check_runs([recipe for _, recipe in runs], self.sources)
        for folder, recipe in runs:
            train(recipe, self.sources, folder, self.machine, console, find_recipe(self.named))


@dataclass(frozen=True)
class Report:
    """Make a page of the results: the paper's tables and figures, with its own numbers beside one's own."""

    results: Positional[Path]
    """Folder of results of vivi evaluate."""
    out: Path = Path("page")
    """Folder of the page; open its index.html."""
    shown: OmitArgPrefixes[ReportOptions] = field(default_factory=ReportOptions)

    def run(self, console: Console) -> None:
        from vivi.report.page import write_report

        page = write_report(self.results, self.out, self.shown, console)
        console.print(f"open {page}", soft_wrap=True)


@dataclass(frozen=True)
class Demo:
    """The whole flow on synthesized videos: prepare, train, evaluate, report."""

    out: Path = Path("demo")
    """Folder for everything the demo makes."""
    videos: int = 40
    """How many videos to synthesize."""
    steps: int = 160
    """How many steps to train each of the three encoders."""

    def run(self, console: Console) -> None:
        from vivi.demo import WORLD, demo

        demo(self.out, replace(WORLD, videos=self.videos), self.steps, console)


def commands(arguments: Sequence[str]) -> Any:
    """The commands; the flags of train are the fields of the recipe it names, with that recipe's values."""
    named = _recipe_named(arguments)
    recipe = find_recipe(named)
    train = Train(tyro.MISSING, tyro.MISSING, defaults_of=named, recipe=recipe)
    return (
        Annotated[Prepare, subcommand("prepare")]
        | Annotated[Inspect, subcommand("inspect")]
        | Annotated[Synthesize, subcommand("synthesize")]
        | Annotated[Recipes, subcommand("recipes")]
        | Annotated[Train, subcommand("train", default=train)]
        | Annotated[evaluate_commands(arguments), subcommand("evaluate", description=EVALUATE)]
        | Annotated[Report, subcommand("report")]
        | Annotated[bench_commands(named, recipe), subcommand("bench", description=BENCH)]
        | Annotated[Demo, subcommand("demo")]
    )


def _recipe_named(arguments: Sequence[str]) -> str:
    """The recipe that train or bench is told: its first argument, or a recipe's name that is no flag's value."""
    words = list(arguments[1:]) if arguments[:1] == ["bench"] else list(arguments)
    words = words[1:] if words[:1] in (["train"], ["loader"]) else []
    if words and not words[0].startswith("-"):
        return words[0]
    pairs = itertools.pairwise(words)
    return next((word for before, word in pairs if word in RECIPES and not before.startswith("-")), "vivi-ex4")


def main() -> None:
    """Runs a command; what is wrong is said in one line."""
    output = guard_output()
    console, errors = SafeConsole(), SafeConsole(stderr=True)
    signal.signal(signal.SIGTERM, _interrupt)
    command: Any = None
    try:
        kinds = commands(sys.argv[1:])
        with _printed(output):  # the help
            command = tyro.cli(kinds, prog="vivi", description="Image representations from unlabelled video.")
        with _printed(output) if isinstance(command, Recipes | Check) else nullcontext():
            command.run(console)
    except UserError as error:
        line = " ".join(str(error).splitlines())  # names of files may have several
        errors.print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") != "0":  # of torchrun's processes, the first one speaks
            sys.exit(130)
        resumes = isinstance(command, Prepare | Synthesize | Train | Vtab | Detection | Demo)
        errors.print("stopped; the same command goes on from here" if resumes else "stopped")
        sys.exit(130)


@contextmanager
def _printed(output: Output) -> Iterator[None]:
    """For what is only printed, and lost where it cannot be; a reader who leaves has seen enough."""
    try:
        yield
    finally:
        output.flush()
        if output.failure and not isinstance(output.failure, BrokenPipeError):
            raise UserError(f"the output cannot be written: {output.failure.strerror}") from None


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
