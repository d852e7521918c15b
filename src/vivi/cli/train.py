"""vivi train."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, Suppress, arg

from vivi.cli.command import Command
from vivi.prepare.corpus import Corpus
from vivi.recipes import RECIPES, Recipe
from vivi.recipes.check import check_recipe
from vivi.recipes.files import LOSSES, find_recipe, flat, sweep, with_field
from vivi.runtime.errors import UserError, check_ranges, require
from vivi.train.run import check_folder
from vivi.train.settings import DataPaths, Execution

AUTO = "auto"
_ANY = replace(RECIPES["vivi-ex4-tiny"], name=AUTO)  # has the flags, until the recipe is chosen


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """A recipe that is named on the command line, and its fields as flags, with the values that it has."""

    named: Annotated[Positional[str], arg(metavar="RECIPE")]
    """A recipe (vivi recipes lists them), the path of a recipe.json, or auto: one is chosen that fits the corpus and
    the machine."""
    frame_loss: Annotated[Literal[tuple(LOSSES["loss.frame"])], arg(name="loss.frame")] = "exemplar"  # type: ignore[valid-type]
    """The frame/shot loss L_S; its own settings are --loss.frame.…"""
    video_loss: Annotated[Literal[tuple(LOSSES["loss.video"])], arg(name="loss.video")] = "infonce"  # type: ignore[valid-type]
    """The video loss L_V; its own settings are --loss.video.…"""
    defaults_of: Annotated[str, Suppress] = "vivi-ex4"
    words: Annotated[tuple[str, ...], Suppress] = ()  # of the command line, behind the command
    recipe: Annotated[Recipe, arg(name="")] = field(default_factory=lambda: RECIPES["vivi-ex4"])

    def check_named(self, command: str) -> None:
        """Raises where the flags had the defaults of another recipe."""
        if self.named != self.defaults_of:
            raise UserError(f"name the recipe right after {command}: vivi {command} {self.named} ...")


@dataclass(frozen=True, kw_only=True)
class Train(RecipeOptions, Command):
    """Train an encoder on videos, images, or both, or go on with a run. Every field of the recipe is a flag."""

    examples: ClassVar = (
        "vivi train auto --corpus corpus/ --out run/   # a recipe that fits the corpus and the machine",
        "vivi train vivi-ex4-small --corpus corpus/ --out run/ --steps 20000 --optimiser.lr 0.4",
        "vivi train vivi-ex4-co100-small --corpus corpus/ --images labelled/ --out run/",
        "vivi train vivi-ex4 --help   # the flags with the values of this recipe",
    )
    everyday: ClassVar = (
        *("--corpus", "--images", "--out", "--minutes", "--steps", "--seed", "--batch.videos", "--augment.size"),
        *("--encoder.name", "--encoder.start", "--optimiser.lr", "--loss.frame", "--loss.video"),
        *("--loss.video-weight", "--loss.supervised-weight"),
        *("--sweep", "--device", "--micro-batch", "--checkpoint-every", "--log"),
    )
    goes_on: ClassVar = True

    out: Path
    """The run: a new folder, or one to go on with."""
    paths: OmitArgPrefixes[DataPaths] = field(default_factory=DataPaths)
    sweep: str = ""
    """Train once for each value of a field, for example loss.video_weight=0.04,0.02,0.01; runs land in
    OUT/field=value."""
    execution: OmitArgPrefixes[Execution] = field(default_factory=Execution)
    minutes: float = 0.0
    """With the recipe auto: how long to train; 0: 20 minutes on a CPU, as the -small recipes on a GPU."""

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Any:
        """The flags have the values of the recipe that is named."""
        return cls(**recipe_options(words), out=tyro.MISSING)

    def run(self, console: Console) -> dict[str, Any]:
        self.check_named("train")
        if self.named == AUTO:
            named, recipe = self._chosen(console)
        else:
            require(not self.minutes, "--minutes goes with auto alone: vivi train auto; set --steps")
            named, recipe = find_recipe(self.named), self.recipe
        runs = sweep(recipe, self.out, self.sweep)
        if "WORLD_SIZE" not in os.environ:  # several processes must fail together; alone, before torch is imported
            for folder, recipe in runs:
                check_recipe(recipe)
                self.execution.check(recipe)
                self.paths.check(recipe)
                check_folder(folder, recipe)
        from vivi.train.metrics import read_metrics
        from vivi.train.train import check_runs, train

        if self.sweep:  # all of them, before the first one trains for days
            check_runs([recipe for _, recipe in runs], self.paths)
        for folder, recipe in runs:
            train(recipe, self.paths, folder, self.execution, console, named)
        if os.environ.get("RANK", "0") != "0":
            return {}  # rank 0 has the runs
        return {"runs": [{"run": folder, **read_metrics(folder)[-1]} for folder, _ in runs]}

    def _chosen(self, console: Console) -> tuple[Recipe, Recipe]:
        """What auto chose for the run, now or when it was begun: before overrides, and after."""
        self.paths.check(self.recipe)
        self.execution.check(self.recipe)
        check_ranges(self, {"minutes": (0, 1e6)})
        require(not self.sweep, "--sweep needs a recipe: give it the recipe.json of a run that auto began")
        begun = self.out / "recipe.json"
        if begun.exists():
            chosen = find_recipe(str(begun))
            return chosen, self._overridden(chosen)
        alone = "WORLD_SIZE" not in os.environ
        require(alone, "auto chooses in one process: begin the run so, and stop it; then torchrun goes on with it")
        from vivi.train.auto import about_machine, budget, choose, steps_in, with_steps

        assert self.paths.corpus is not None
        device = self.execution.device
        choice = choose(Corpus(self.paths.corpus), device)
        recipe = self._overridden(choice.recipe)
        check_recipe(recipe)
        check_folder(self.out, recipe)
        minutes = budget(self.minutes, device) if recipe.steps == choice.recipe.steps else 0.0  # else --steps says it
        steps = steps_in(minutes, recipe, self.paths, self.execution) if minutes else recipe.steps
        chosen = with_steps(choice.recipe, steps)
        recipe = self._overridden(chosen)
        for line in (*choice.why, about_machine(recipe, minutes, device)):
            console.print(line, soft_wrap=True)
        return chosen, recipe

    def _overridden(self, recipe: Recipe) -> Recipe:
        """A recipe with the fields that the command line gives."""
        default = Train(**_options(AUTO, recipe, self.words), out=tyro.MISSING)
        return tyro.cli(Train, default=default, args=self.words).recipe


def recipe_options(words: Sequence[str]) -> dict[str, Any]:
    """The defaults of RecipeOptions for a command of these words: the recipe that it names, with the losses that it
    chooses."""
    named = _named_recipe(words)
    return _options(named, _ANY if named == AUTO else find_recipe(named), words)


def _options(named: str, recipe: Recipe, words: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in LOSSES:
        parser.add_argument(f"--{flag}", dest=flag, nargs="?")
    chosen = vars(parser.parse_known_args(words)[0])
    for flag, known in LOSSES.items():
        if chosen[flag] in known:  # else tyro says which there are
            recipe = with_field(recipe, flag, chosen[flag], where=f"--{flag}")
        _check_settings(words, flag, known, flat(recipe))
    return {
        "named": tyro.MISSING,
        "frame_loss": flat(recipe)["loss.frame"],
        "video_loss": flat(recipe)["loss.video"],
        "defaults_of": named,
        "words": tuple(words),
        "recipe": recipe,
    }


def _check_settings(words: Sequence[str], flag: str, known: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
    """Raises for a setting of another loss than the one that is chosen."""
    for word in words:
        name = word.partition("=")[0].removeprefix(f"--{flag}.").replace("-", "_")
        others = [loss for loss, kind in known.items() if kind and name in {field.name for field in fields(kind)}]
        if word.startswith(f"--{flag}.") and others and f"{flag}.{name}" not in recipe:
            raise UserError(
                f"--{flag}.{name.replace('_', '-')} is a setting of --{flag} {' and '.join(others)}, "
                f"not of {recipe[flag]}"
            )


def _named_recipe(words: Sequence[str]) -> str:
    """The first word, or a recipe's name that is no flag's value."""
    if words and not words[0].startswith("-"):
        return words[0]
    pairs = itertools.pairwise(words)
    known = {*RECIPES, AUTO}
    return next((word for before, word in pairs if word in known and not before.startswith("-")), "vivi-ex4")
