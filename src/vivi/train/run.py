"""The folder of a run: how it begins, and whether the one that is there can be continued. It needs no torch.

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
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivi.recipes import Recipe
from vivi.recipes.files import differences, flat, flat_defaults, flatten, read_recipe_json, recipe_json
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import read_file, storage, write_atomically

if TYPE_CHECKING:
    from vivi.train.data import TrainingData

# A fingerprint that has changed, in words, and the place that it is of.
FINGERPRINTS = {
    "corpus_fingerprint": ("another corpus", "corpus"),
    "images_fingerprint": ("other images", "images"),
    "labels_fingerprint": ("the labels of other images", "images"),
}
# What write_atomically leaves behind of our files when it is killed.
_LEFTOVERS = re.compile(r"(recipe\.json|run\.json|metrics\.jsonl|\w+\.png|(encoder|classifier)\.\w+)\.\d+\.tmp")


def check_folder(out: Path, recipe: Recipe) -> bool:
    """Whether the folder holds a run, which this recipe may continue: only the number of steps may differ, and only
    grow. Raises where it holds anything else."""
    try:
        entries = {entry.name for entry in out.iterdir()}
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another --out") from None
    if "recipe.json" not in entries:
        others = {name for name in entries - {"run.json"} if not _LEFTOVERS.fullmatch(name)}
        if others:
            lost = " (its recipe.json is gone: put it back)" if "checkpoints" in others else ""
            raise UserError(f"{out} holds other files and is no run{lost}; choose a new or empty folder for --out")
        return False
    before, begun = flatten(read_recipe_json(out / "recipe.json")), _about(out).get("recipe", {})
    if begun:  # perhaps by a version that did not have every field yet
        known = {*begun, "steps"}
        later = {name: value for name, value in flat_defaults(recipe).items() if name not in known}
        before, begun = before | later | before, begun | later
    for name in dict.fromkeys([*before, *begun]) if begun else ():
        if name != "steps" and before.get(name) != begun.get(name):
            raise UserError(
                f"{out / 'recipe.json'} was altered after the run began: {name[:80] or 'all of it'} is "
                f"{_shown(before, name)}, and was {_shown(begun, name)}; put it back, or choose another --out"
            )
    _check_same_recipe(out, before, flat(recipe))
    return True


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return (str(fields[name])[:80] or "''") if name in fields else "missing"


def open_run(out: Path, recipe: Recipe, named: Recipe, data: TrainingData) -> None:
    """Begins the run, or makes sure that the one in the folder is this; `named` is the recipe before overrides."""
    if check_folder(out, recipe):
        _check_same_data(out, _about(out), data)
    else:
        about = {
            **data.places(),
            **data.fingerprints(),
            "recipe": {name: value for name, value in flat(recipe).items() if name != "steps"},
            "overridden": {name: {"from": old, "to": new} for name, (old, new) in differences(named, recipe).items()},
            "versions": {
                "python": platform.python_version(),
                **{name: version_of(name) for name in ("torch", "timm")},
            },
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
    """Without what stands after a +: builds for several GPUs are of one version."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:  # run from its source
        return "of unknown version"


def _about(out: Path) -> dict[str, Any]:
    """What run.json says."""
    try:
        about = json.loads(read_file(out / "run.json"))
        if not isinstance(about, dict) or not isinstance(about.get("recipe", {}), dict):
            raise ValueError("a field is of the wrong type")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{out / 'run.json'} is missing or damaged ({first_line(error)}); choose another --out"
        ) from None
    return about


def _check_same_recipe(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*before, *now]):
        old, new, flag = before.get(name), now.get(name), "--" + name.replace("_", "-")
        if old == new:
            continue
        if name not in now:
            raise UserError(
                f"{out} was begun by another version of vivi, with a field {name[:80]} that this one does not have; "
                "go on with that version, or choose another --out"
            )
        if name == "name":
            raise UserError(f"{out} is a run of {old}, not of {new}; choose another --out, or name the recipe {old}")
        if name != "steps":
            raise UserError(
                f"{out} was begun with {flag} {_shown(before, name)}, not {_shown(now, name)}; use the same value or "
                "another --out"
            )
        if type(old) is not int:
            raise UserError(f"{out / 'recipe.json'}: steps is {_shown(before, name)}; it must be a whole number")
        if now["optimiser.schedule"] == "cosine":
            raise UserError(
                f"{out} was begun with {flag} {old}, at which its cosine ends: it cannot be continued to {new}; "
                "choose another --out"
            )
        if now[name] < old:
            raise UserError(f"{out} has {flag} {old}: it can be continued to more, not to {new}")


def _check_same_data(out: Path, about: Mapping[str, Any], data: TrainingData) -> None:
    for name, value in data.fingerprints().items():
        if name not in about:
            raise UserError(f"{out / 'run.json'} is damaged, it has no {name}; choose another --out")
        if about[name] != value:
            what, where = FINGERPRINTS[name]
            before, now = about.get(where), data.places()[where]
            if before == now:
                raise UserError(f"{now} has changed since {out} was begun; bring it back, or choose a new --out")
            raise UserError(f"{out} was begun on {what} than {now}: give {before}, or choose a new --out")
