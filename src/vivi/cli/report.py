"""vivi report, vivi recipes and vivi demo."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, arg

from vivi.cli.command import Command
from vivi.recipes.describe import print_recipe, print_recipes
from vivi.recipes.files import as_json, find_recipe
from vivi.report.options import ReportOptions
from vivi.runtime.errors import require


@dataclass(frozen=True)
class Report(Command):
    """Make a page of results: the paper's tables and figures, with the paper's numbers beside yours."""

    examples: ClassVar = ("vivi report results/", "vivi report results/ run/ --encoders run/ --corpus corpus/")

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="RESULTS|RUN...")]
    """A folder of results, the --out of vivi evaluate; and training runs, whose curves are laid over each other."""
    out: Path = Path("page")
    """Folder of the page; open its index.html."""
    shown: OmitArgPrefixes[ReportOptions] = field(default_factory=ReportOptions)

    def run(self, console: Console) -> dict[str, Any]:
        from vivi.report.page import write_report

        runs = tuple(folder for folder in self.folders if (folder / "recipe.json").exists())
        results = [folder for folder in self.folders if folder not in runs]
        require(len(results) <= 1, f"one folder of results makes a page, not {' and '.join(map(str, results))}")
        shown = replace(self.shown, runs=(*runs, *self.shown.runs))
        page = write_report(results[0] if results else None, self.out, shown, console)
        console.print(f"open {page}", soft_wrap=True)
        return {"page": page}


@dataclass(frozen=True)
class Recipes(Command):
    """List the recipes, or print one: what it is, what the paper reports for it, and every field."""

    examples: ClassVar = (
        "vivi recipes",
        "vivi recipes vivi-ex4",
        "vivi recipes vivi-ex4 --json > mine.json   # a start for your own: vivi train mine.json ...",
    )

    name: Annotated[Positional[str], arg(metavar="RECIPE")] = ""
    """A recipe, or the path of a recipe.json; without it, all are listed."""

    @property
    def only_prints(self) -> bool:
        return True

    def run(self, console: Console) -> Any:
        if not self.name:
            return print_recipes(console)
        recipe = find_recipe(self.name)
        print_recipe(recipe, console)
        return as_json(recipe)


@dataclass(frozen=True)
class Demo(Command):
    """Try the whole flow on synthesized videos: prepare, train, evaluate, report."""

    examples: ClassVar = ("vivi demo", "vivi demo --out /tmp/demo --steps 400")
    goes_on: ClassVar = True

    out: Path = Path("demo")
    """Folder for everything the demo makes."""
    videos: int = 60
    """How many videos to synthesize."""
    steps: int = 900
    """How many steps to train each of the three encoders."""
    seed: int = 0
    """Another seed gives other videos, tasks and initial weights."""

    def run(self, console: Console) -> dict[str, Any]:
        from vivi.demo.demo import WORLD, demo

        demo(self.out, replace(WORLD, videos=self.videos, seed=self.seed), self.steps, console)
        return {"page": self.out / "page" / "index.html"}
