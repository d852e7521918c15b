"""The folder of a run: how it begins, and whether the one that is there can be continued. It needs no torch.

What lies in it: docs/architecture.md. recipe.json has every field of the recipe; run.json has the data that the run
learns from, the recipe it was begun with, what was overridden, and versions.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivi.recipes import Recipe
from vivi.recipes.files import default_of, differences, flat, flatten, read_recipe_json, recipe_json
from vivi.runtime.errors import UserError
from vivi.runtime.storage import read_json, storage, write_atomically

if TYPE_CHECKING:
    from vivi.train.data import TrainingData

# What write_atomically leaves behind of our files when it is killed.
_LEFTOVERS = re.compile(r"(recipe\.json|run\.json|metrics\.jsonl|\w+\.png|(encoder|classifier)\.\w+)\.\d+\.tmp")


def check_folder(out: Path, recipe: Recipe) -> bool:
    """Whether the folder holds a run, which this recipe may continue: only the number of steps may differ, and only
    grow, and the batch may be as it was before it was fitted to the data. Raises where it holds anything else."""
    try:
        entries = {entry.name for entry in out.iterdir()}
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another --out") from None
    if "recipe.json" in entries:
        _check_same_recipe(out, recipe)
    elif any(name != "run.json" and not _LEFTOVERS.fullmatch(name) for name in entries):
        raise UserError(f"{out} holds other files and is no run (without recipe.json); choose a new or empty --out")
    return "recipe.json" in entries


def open_run(out: Path, asked: Recipe, named: Recipe, data: TrainingData) -> None:
    """Begins the run, or makes sure that the one in the folder is this; `named` is the recipe before overrides,
    `asked` that before the batch was fitted to the data."""
    recipe = data.recipe
    if check_folder(out, recipe):
        _check_same_data(out, _about(out), data.facts())
    else:
        versions = {"python": platform.python_version(), **{name: version_of(name) for name in ("torch", "timm")}}
        about = {
            **data.facts(),
            "recipe": {name: value for name, value in flat(recipe).items() if name != "steps"},
            "overridden": {name: {"from": old, "to": new} for name, (old, new) in differences(named, asked).items()},
            "asked": {name: old for name, (old, _) in differences(asked, recipe).items()},  # for a larger batch
            "versions": versions,
        }
        write_atomically(out / "run.json", json.dumps(about, indent=2).encode() + b"\n")
    with storage(out):
        for entry in out.iterdir():
            if _LEFTOVERS.fullmatch(entry.name):  # of a run that was killed
                entry.unlink(missing_ok=True)
    # Last, and again when the number of steps has grown: a folder with a recipe.json is a run.
    path, content = out / "recipe.json", recipe_json(recipe).encode()
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)


def version_of(package: str) -> str:
    """A package's version without what follows a +: builds for different GPUs count as one version."""
    return version(package).partition("+")[0]


def _about(out: Path) -> dict[str, Any]:
    """What run.json says."""
    about = read_json(out / "run.json", dict[str, Any], "choose another --out")
    for name in ("recipe", "asked"):
        if not isinstance(about.get(name, {}), dict):
            raise UserError(f"{out / 'run.json'} is missing or damaged ('{name}' is no object); choose another --out")
    return about


def _check_same_recipe(out: Path, recipe: Recipe) -> None:
    last, now = flatten(read_recipe_json(out / "recipe.json")), flat(recipe)
    about = _about(out)
    begun, asked = about.get("recipe", last), about.get("asked", {})  # of an older version, run.json has neither
    for name in dict.fromkeys([*begun, *now]):
        if name not in now:
            raise UserError(f"{out} was begun by another vivi, with a field {name[:80]}: use that, or another --out")
        # Perhaps it was begun by a version that did not have every field yet.
        before = begun[name] if name in begun else default_of(recipe, name)
        if now[name] not in (before, asked.get(name, before)) and name != "steps":
            what = "the recipe" if name == "name" else "--" + name.replace("_", "-")
            old, new = (str(value)[:80] or "''" for value in (before, now[name]))
            raise UserError(f"{out} was begun with {what} {old}, not {new}; use the same or another --out")
    steps = last.get("steps")
    if type(steps) is not int:
        raise UserError(f"{out / 'recipe.json'}: steps is {str(steps)[:80]}; it must be a whole number")
    cosine = recipe.optimiser.schedule == "cosine"
    if recipe.steps < steps or (recipe.steps > steps and cosine):
        why = "its cosine ends there" if cosine else "it can be continued to more"
        raise UserError(f"{out} has --steps {steps}, not {recipe.steps}: {why}; or choose another --out")


def _check_same_data(out: Path, before: Mapping[str, Any], now: Mapping[str, str]) -> None:
    for name, what, place in (
        ("corpus_fingerprint", "another corpus", "corpus"),
        ("images_fingerprint", "other images", "images"),
        ("labels_fingerprint", "the labels of other images", "images"),
    ):
        if before.get(name) != now.get(name):
            then = f"give {before.get(place)} as it was then, or choose another --out"
            raise UserError(f"{out} was begun on {what} than {now.get(place)}: {then}")
