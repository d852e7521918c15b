"""vivi train."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, Suppress, arg

from vivi.cli.command import Command
from vivi.recipes import RECIPES, Recipe
from vivi.recipes.check import check_recipe
from vivi.recipes.files import LOSSES, find_recipe, flat, sweep, with_field
from vivi.runtime.errors import UserError
from vivi.train.run import check_folder
from vivi.train.settings import DataPaths, Execution


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """A recipe that is named on the command line, and its fields as flags, with the values that it has."""

    named: Annotated[Positional[str], arg(metavar="RECIPE")]
    """A recipe (vivi recipes lists them), or the path of a recipe.json."""
    frame_loss: Annotated[Literal[tuple(LOSSES["loss.frame"])], arg(name="loss.frame")] = "exemplar"  # type: ignore[valid-type]
    """The frame/shot loss L_S; its own settings are --loss.frame.…"""
    video_loss: Annotated[Literal[tuple(LOSSES["loss.video"])], arg(name="loss.video")] = "infonce"  # type: ignore[valid-type]
    """The video loss L_V; its own settings are --loss.video.…"""
    defaults_of: Annotated[str, Suppress] = "vivi-ex4"
    recipe: Annotated[Recipe, arg(name="")] = field(default_factory=lambda: RECIPES["vivi-ex4"])

    def check_named(self, command: str) -> None:
        """Raises where the flags had the defaults of another recipe."""
        if self.named != self.defaults_of:
            raise UserError(f"name the recipe right after {command}: vivi {command} {self.named} ...")


@dataclass(frozen=True, kw_only=True)
class Train(RecipeOptions, Command):
    """Train an encoder on videos, images, or both, or go on with a run. Every field of the recipe is a flag."""

    examples: ClassVar = (
        "vivi train vivi-ex4-small --corpus corpus/ --out run/",
        "vivi train vivi-ex4-small --corpus corpus/ --out run/ --steps 20000 --optimiser.lr 0.4",
        "vivi train vivi-ex4-co100-small --corpus corpus/ --images labelled/ --out run/",
        "vivi train vivi-ex4 --help   # the flags with the values of this recipe",
    )
    everyday: ClassVar = (
        *("--corpus", "--images", "--out", "--steps", "--seed", "--batch.videos", "--augment.size"),
        *("--encoder.name", "--encoder.start", "--optimiser.lr", "--loss.frame", "--loss.video"),
        *("--loss.video-weight", "--loss.supervised-weight"),
        *("--sweep", "--device", "--micro-batch", "--checkpoint-every"),
    )
    goes_on: ClassVar = True

    out: Path
    """The run: a new folder, or one to go on with."""
    paths: OmitArgPrefixes[DataPaths] = field(default_factory=DataPaths)
    sweep: str = ""
    """Train once for each value of a field, for example loss.video_weight=0.04,0.02,0.01; runs land in
    OUT/field=value."""
    execution: OmitArgPrefixes[Execution] = field(default_factory=Execution)

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Any:
        """The flags have the values of the recipe that is named."""
        return cls(**recipe_options(words), out=tyro.MISSING)

    def run(self, console: Console) -> dict[str, Any]:
        self.check_named("train")
        runs = sweep(self.recipe, self.out, self.sweep)
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
            train(recipe, self.paths, folder, self.execution, console, find_recipe(self.named))
        return {"runs": [{"run": folder, **read_metrics(folder)[-1]} for folder, _ in runs]}


def recipe_options(words: Sequence[str]) -> dict[str, Any]:
    """The defaults of RecipeOptions for a command of these words: the recipe that it names, with the losses that it
    chooses."""
    named = _named_recipe(words)
    recipe = find_recipe(named)
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
    return next((word for before, word in pairs if word in RECIPES and not before.startswith("-")), "vivi-ex4")
