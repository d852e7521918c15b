"""The folder of a run: how it begins, and what is written to it while it trains.

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
import math
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import timm
import torch
from rich.console import Console
from torch import Tensor

from vivi.model.files import Classifier, write_classifier, write_encoder
from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.recipes.files import differences, flat, flatten, read_recipe_json, recipe_json
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.progress import ProgressLine
from vivi.runtime.storage import read_file, storage, write_atomically
from vivi.train.checkpoint import save, state_tensors
from vivi.train.data import TrainingData
from vivi.train.metrics import MetricsLog
from vivi.train.monitor import Monitor
from vivi.train.pictures import draw_curves, picture_of_images, picture_of_shots, write_png

# A fingerprint that has changed, in words, and the place that it is of.
IN_WORDS = {
    "corpus_fingerprint": ("another corpus", "corpus"),
    "images_fingerprint": ("other images", "images"),
    "labels_fingerprint": ("the labels of other images", "images"),
}
# What write_atomically leaves behind of our files when it is killed.
_LEFTOVERS = re.compile(r"(recipe\.json|run\.json|metrics\.jsonl|\w+\.png|(encoder|classifier)\.\w+)\.\d+\.tmp")
_SECONDS_BETWEEN_CURVES = 30  # a drawing takes one


def open_run(out: Path, recipe: Recipe, named: Recipe, data: TrainingData) -> None:
    """Begins the run, or makes sure that the one in the folder is this; `named` is the recipe before overrides."""
    path = out / "recipe.json"
    leftovers = [entry for entry in out.iterdir() if _LEFTOVERS.fullmatch(entry.name)]  # of a run that was killed
    if path.exists():
        _check_same(out, recipe, data)
    elif set(out.iterdir()) - {out / "run.json", *leftovers}:
        lost = " (its recipe.json is gone: put it back)" if (out / "checkpoints").exists() else ""
        raise UserError(f"{out} holds other files and is no run{lost}; choose a new or empty folder for --out")
    else:
        about = {
            **data.places(),
            **data.fingerprints(),
            "recipe": {name: value for name, value in flat(recipe).items() if name != "steps"},
            "overridden": {name: {"from": old, "to": new} for name, (old, new) in differences(named, recipe).items()},
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "timm": timm.__version__},
        }
        write_atomically(out / "run.json", json.dumps(about, indent=2).encode() + b"\n")
    with storage(out):
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
    # Last, and again when the number of steps has grown: a folder with a recipe.json is a run.
    write_atomically(path, recipe_json(recipe).encode())


def _check_same(out: Path, recipe: Recipe, data: TrainingData) -> None:
    """Raises where the run in the folder is another; only the number of steps may differ, and only grow."""
    try:
        about = json.loads(read_file(out / "run.json"))
        if not isinstance(about, dict) or not isinstance(about.get("recipe", {}), dict):
            raise ValueError("a field is of the wrong type")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{out / 'run.json'} is missing or damaged ({first_line(error)}); choose another --out"
        ) from None
    before, begun = flatten(read_recipe_json(out / "recipe.json")), about.get("recipe", {})
    for name in dict.fromkeys([*before, *begun]) if begun else ():
        if name != "steps" and before.get(name) != begun.get(name):
            raise UserError(
                f"{out / 'recipe.json'} was altered after the run began: {name[:80]} is "
                f"{str(before.get(name))[:80]}, and was {str(begun.get(name))[:80]}; put it back, or choose another "
                "--out"
            )
    _check_same_recipe(out, before, flat(recipe))
    _check_same_data(out, about, data)


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
            raise UserError(f"{out} was begun with {flag} {old}, not {new}; use the same value or another --out")
        if not isinstance(old, int) or new is None or new < old:
            raise UserError(f"{out} has {flag} {old}: it can be continued to more, not to {new}")


def _check_same_data(out: Path, about: Mapping[str, Any], data: TrainingData) -> None:
    for name, value in data.fingerprints().items():
        if name not in about:
            raise UserError(f"{out / 'run.json'} is damaged, it has no {name}; choose another --out")
        if about[name] != value:
            what, where = IN_WORDS[name]
            raise UserError(
                f"{out} was begun on {what} than {data.places()[where]} has now (it was {about.get(where)}); "
                "go on with what it was, or choose a new --out"
            )


def write_results(out: Path, model: Vivi, classes: tuple[str, ...], recipe: str, step: int) -> None:
    """The encoder, and the classifier where there is one."""
    write_encoder(out, model.encoder, recipe, step)
    if model.supervised_loss is not None:
        head = model.supervised_loss.head
        write_classifier(out, Classifier(head.weight, head.bias, classes), step)


class RunWriter:
    """Writes a run while it trains, from step `start` on; rank 0 has one. Use it as a context manager."""

    def __init__(
        self,
        out: Path,
        recipe: Recipe,
        model: Vivi,
        classes: tuple[str, ...],
        monitor: Monitor,
        start: int,
        keep: int,
        console: Console,
    ) -> None:
        self.out, self.recipe, self.classes, self.keep, self.console = out, recipe, classes, keep, console
        self.losses = [loss for loss, _ in model.weighted_losses(recipe.loss)]
        self._monitor = monitor
        self._log = MetricsLog(out, start or -1)
        self._progress = ProgressLine("train", recipe.steps, console, start)
        # What stands in the progress line, of all that is logged, and under which name.
        metrics = {name: label for loss in self.losses for name, label in loss.metrics.items() if label}
        losses = {loss.name: loss.label or loss.name for loss in self.losses}
        self._shown = {"loss": "loss", **losses, **metrics, **Monitor.SHOWN}
        self._latest: dict[str, float] = {}
        self._pictures = set[str]() if start == 0 else {"augmented", "labelled"}  # that are written
        self._drawn = -math.inf  # when the curves last were

    def monitor(self, model: Vivi) -> dict[str, float]:
        """What the held-out frames and test images say of the encoder."""
        # Not worth compiling once more: it runs seldom, and in other shapes.
        with torch.compiler.set_stance("force_eager"):
            return self._monitor.measure(model)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A step is done; values, when there are some to log."""
        if values:
            self._log.log(step, values)
        self._latest.update(values)
        parts = [f"step {step}/{self.recipe.steps}"]
        parts += [f"{label} {self._latest[name]:.3f}" for name, label in self._shown.items() if name in self._latest]
        if "frames_per_second" in self._latest:
            parts.append(f"{self._latest['frames_per_second']:,.0f} frames/s")
        self._progress.show(step, " · ".join(parts))

    def write_picture_once(self, name: str, frames: Tensor) -> None:
        """What the encoder sees of a core, (shots, frames, 3, size, size), in the first step of a run."""
        if name in self._pictures:
            return
        self._pictures.add(name)
        shots = self.recipe.batch.shots
        picture = picture_of_shots(frames, shots) if name == "augmented" else picture_of_images(frames)
        write_png(self.out / f"{name}.png", picture)
        self._log.picture(name, 0, picture)

    def save(self, step: int, model: Vivi, optimiser: torch.optim.SGD, draw: bool) -> None:
        """A checkpoint, the encoder as it is, and now and then the curves."""
        self._log.sync()
        save(self.out / "checkpoints", step, state_tensors(model, optimiser), self.keep)
        write_results(self.out, model, self.classes, self.recipe.name, step)
        if draw or time.monotonic() - self._drawn > _SECONDS_BETWEEN_CURVES:
            draw_curves(self.out, self.losses)
            self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.__exit__(None, None, None)
        self._log.close()
