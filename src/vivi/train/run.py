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
from vivi.recipes.files import default_of, differences, flat, flatten, read_recipe_json, recipe_json
from vivi.runtime.errors import UserError
from vivi.runtime.storage import read_json, storage, write_atomically

if TYPE_CHECKING:
    from vivi.train.data import TrainingData

# What a run learns from: where another fingerprint is said, in words, and the place that it is of.
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
    if "recipe.json" in entries:
        before = flatten(read_recipe_json(out / "recipe.json"))
        _check_same_recipe(
            out, _about(out).get("recipe", before), recipe
        )  # runs of older versions have it there alone
        _check_steps(out, before.get("steps"), recipe)
        return True
    if any(name != "run.json" and not _LEFTOVERS.fullmatch(name) for name in entries):
        lost = " (its recipe.json is gone: put it back)" if "checkpoints" in entries else ""
        raise UserError(f"{out} holds other files and is no run{lost}; choose a new or empty folder for --out")
    return False


def open_run(out: Path, recipe: Recipe, named: Recipe, data: TrainingData) -> None:
    """Begins the run, or makes sure that the one in the folder is this; `named` is the recipe before overrides."""
    if check_folder(out, recipe):
        _check_same_data(out, _about(out), data.facts())
    else:
        about = {
            **data.facts(),
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
    about = read_json(out / "run.json", dict[str, Any], "choose another --out")
    if not isinstance(about.get("recipe", {}), dict):
        raise UserError(f"{out / 'run.json'} is missing or damaged (its recipe is none); choose another --out")
    return about


def _check_same_recipe(out: Path, begun: Mapping[str, Any], recipe: Recipe) -> None:
    now = flat(recipe)
    for name in dict.fromkeys([*begun, *now]):
        if name not in now:
            raise UserError(
                f"{out} was begun by another version of vivi, with a field {name[:80]} that this one does not have; "
                "go on with that version, or choose another --out"
            )
        # Perhaps it was begun by a version that did not have every field yet.
        before = begun[name] if name in begun else default_of(recipe, name)
        if before != now[name] and name != "steps":
            what = "the recipe" if name == "name" else "--" + name.replace("_", "-")
            raise UserError(
                f"{out} was begun with {what} {str(before)[:80] or repr('')}, not {str(now[name])[:80] or repr('')}; "
                "use the same or another --out"
            )


def _check_steps(out: Path, before: object, recipe: Recipe) -> None:
    if type(before) is not int:
        raise UserError(f"{out / 'recipe.json'}: steps is {str(before)[:80]}; it must be a whole number")
    if recipe.steps != before and recipe.optimiser.schedule == "cosine":
        raise UserError(
            f"{out} was begun with --steps {before}, at which its cosine ends: it cannot be continued to "
            f"{recipe.steps}; choose another --out"
        )
    if recipe.steps < before:
        raise UserError(f"{out} has --steps {before}: it can be continued to more, not to {recipe.steps}")


def _check_same_data(out: Path, before: Mapping[str, Any], now: Mapping[str, str]) -> None:
    for name, (what, place) in FINGERPRINTS.items():
        if name in now and now[name] != before.get(name):
            raise UserError(
                f"{out} was begun on {what} than {now[place]}: give {before.get(place, 'that')} as it was then, or "
                "choose a new --out"
            )
