"""The folder of a run.

recipe.json           the recipe, every field
run.json              the data it learns from, the recipe it was begun with, what was overridden, versions
metrics.jsonl         losses, accuracies and retrieval over the steps; tensorboard/ has the same
augmented.png         what the encoder sees; labelled.png the same of labelled images
curves.png            the metrics as curves, drawn at the end and on the way
checkpoints/          to resume from
encoder.safetensors   the result, and encoder.json, which says how to load it
classifier.safetensors, classifier.json   where there are labels
"""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import timm
import torch

from vivi.errors import UserError, first_line
from vivi.recipe_files import differences, flat, read_recipe, recipe_json
from vivi.recipes import Recipe
from vivi.storage import read_file, storage, write_atomically
from vivi.training.data import IN_WORDS, Data

# What write_atomically leaves behind of our files when it is killed.
_OURS = re.compile(r"(recipe\.json|run\.json|metrics\.jsonl|\w+\.png|(encoder|classifier)\.\w+)\.\d+\.tmp")


def open_run(out: Path, recipe: Recipe, named: Recipe, data: Data) -> None:
    """Begins the run, or makes sure that the one in the folder is this; `named` is the recipe before overrides."""
    path = out / "recipe.json"
    leftovers = [entry for entry in out.iterdir() if _OURS.fullmatch(entry.name)]  # of a run that was killed
    if path.exists():
        _check_same(out, read_recipe(path), recipe, data)
    elif set(out.iterdir()) - {out / "run.json", *leftovers}:
        lost = " (its recipe.json is gone: put it back)" if (out / "checkpoints").exists() else ""
        raise UserError(f"{out} holds other files and is no run{lost}; choose a new or empty folder for --out")
    else:
        _write_about(out, recipe, named, data)
    with storage(out):
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
    # Last, and again when the number of steps has grown: a folder with a recipe.json is a run.
    write_atomically(path, recipe_json(recipe).encode())


def _write_about(out: Path, recipe: Recipe, named: Recipe, data: Data) -> None:
    about = {
        **data.places(),
        **data.fingerprints(),
        "recipe": _lasting(recipe),
        "overridden": {name: {"from": old, "to": new} for name, (old, new) in differences(named, recipe).items()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "timm": timm.__version__,
        },
    }
    write_atomically(out / "run.json", json.dumps(about, indent=2).encode() + b"\n")


def _lasting(recipe: Recipe) -> dict[str, Any]:
    """The fields that never change, as JSON has them."""
    fields: dict[str, Any] = json.loads(json.dumps(flat(recipe)))
    return {name: value for name, value in fields.items() if name != "steps"}


def _read_about(out: Path) -> dict[str, Any]:
    path = out / "run.json"
    try:
        about = json.loads(read_file(path))
        if not isinstance(about, dict) or not isinstance(about.get("recipe", {}), dict):
            raise ValueError("a field is of the wrong type")
        return about
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is missing or damaged ({first_line(error)}); choose another --out") from None


def _check_unaltered(out: Path, before: Recipe, begun: dict[str, Any]) -> None:
    """Raises where recipe.json says something else than when the run began; older runs have not kept that."""
    for name, value in _lasting(before).items():
        if name in begun and begun[name] != value:
            raise UserError(
                f"{out / 'recipe.json'} was altered after the run began: {name} is {str(value)[:80]}, and was "
                f"{str(begun[name])[:80]}; put it back, or choose another --out"
            )


def _check_same(out: Path, before: Recipe, recipe: Recipe, data: Data) -> None:
    """Only the number of steps may differ, and only grow."""
    about = _read_about(out)
    _check_unaltered(out, before, about.get("recipe", {}))
    for name, (old, new) in differences(before, recipe).items():
        flag = "--" + name.replace("_", "-")
        if name == "steps":
            if new < old:
                raise UserError(f"{out} has {flag} {old}: it can be continued to more, not to {new}")
        elif name == "name":
            raise UserError(f"{out} is a run of {old}, not of {new}; choose another --out, or name the recipe {old}")
        else:
            raise UserError(f"{out} was begun with {flag} {old}, not {new}; use the same value or another --out")
    places, prints = data.places(), data.fingerprints()
    missing = [name for name in prints if name not in about]
    if missing:
        raise UserError(f"{out / 'run.json'} is damaged, it has no {missing[0]}; choose another --out")
    changed = [name for name in prints if about[name] != prints[name]]
    for name in changed:
        what, where = IN_WORDS[name]
        raise UserError(
            f"{out} was begun on {what} than {places[where]} has now (it was {about.get(where)}); "
            "go on with what it was, or choose a new --out"
        )
