"""vivi report, vivi recipes and vivi demo."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, arg

from vivi.recipes.describe import print_recipe, print_recipes
from vivi.recipes.files import find_recipe, recipe_json
from vivi.report.options import ReportOptions
from vivi.runtime.errors import UserError, require


@dataclass(frozen=True)
class Report:
    """Make a page of results: the paper's tables and figures, with the paper's numbers beside yours."""

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="RESULTS|RUN...")]
    """A folder of results, the --out of vivi evaluate; and training runs, whose curves are laid over each other."""
    out: Path = Path("page")
    """Folder of the page; open its index.html."""
    shown: OmitArgPrefixes[ReportOptions] = field(default_factory=ReportOptions)

    def run(self, console: Console) -> None:
        from vivi.report.page import write_report

        runs = tuple(folder for folder in self.folders if (folder / "recipe.json").exists())
        results = [folder for folder in self.folders if folder not in runs]
        require(len(results) <= 1, f"one folder of results makes a page, not {' and '.join(map(str, results))}")
        shown = replace(self.shown, runs=(*runs, *self.shown.runs))
        page = write_report(results[0] if results else None, self.out, shown, console)
        console.print(f"open {page}", soft_wrap=True)


@dataclass(frozen=True)
class Recipes:
    """List the recipes, or print one: what it is, what the paper reports for it, and every field."""

    name: Annotated[Positional[str], arg(metavar="[RECIPE]")] = ""
    """A recipe, or the path of a recipe.json; default: list them all."""
    json: bool = False
    """Print the recipe as JSON: a start for your own."""

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
class Demo:
    """The whole flow on synthesized videos: prepare, train, evaluate, report."""

    out: Path = Path("demo")
    """Folder for everything the demo makes."""
    videos: int = 60
    """How many videos to synthesize."""
    steps: int = 900
    """How many steps to train each of the three encoders."""
    seed: int = 0
    """Another seed gives other videos, tasks and initial weights."""

    def run(self, console: Console) -> None:
        from vivi.demo.demo import WORLD, demo

        demo(self.out, replace(WORLD, videos=self.videos, seed=self.seed), self.steps, console)
