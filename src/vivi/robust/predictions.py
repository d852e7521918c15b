"""What a classifier said about frames: its own answers, or a file of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

from vivi.errors import UserError
from vivi.progress import ProgressLine
from vivi.robust.class_maps import ClassMap, outputs_of_classes
from vivi.robust.files import NAMED, is_index, named, read_object
from vivi.robust.scores import Reduction, decide, project
from vivi.robust.sets import RobustSet, find_frames
from vivi.transfer.classifiers import ImageClassifier
from vivi.transfer.classify import read_squares
from vivi.transfer.features import encode
from vivi.transfer.models import Model


@dataclass(frozen=True)
class Predictions:
    """The class that each frame was given; frames that are missing are not in it."""

    model: Model
    classes: Mapping[str, int]  # -1: none
    reduced: bool  # several outputs of the classifier made one class
    notes: tuple[str, ...]


def classes_of(scores: NDArray[np.floating], outputs: ClassMap | None, reduction: Reduction) -> list[int]:
    """Of each row of a classifier's outputs (n, outputs), the class of the set."""
    return [int(one) for one in decide(scores if outputs is None else project(scores, outputs, reduction))]


def _is_reduced(outputs: ClassMap | None) -> bool:
    return any(len(of_class) > 1 for of_class in outputs or ())


# --- by a classifier ---


def predict(
    classifier: ImageClassifier,
    robust: RobustSet,
    folder: Path,
    k: int,
    reduction: Reduction,
    device: torch.device,
    console: Console,
) -> Predictions:
    """What a classifier says about the central squares of all frames that are there and can be read."""
    model, network = classifier.model, classifier.network.to(device)
    outputs, notes = outputs_of_classes(
        robust.class_map, robust.classes, robust.has_names, classifier.outputs, classifier.classes
    )
    root, frames = find_frames(folder, wanted := robust.frames(k))
    if not frames:
        raise UserError(
            f"none of {len(wanted):,} frames is in {folder} (the first: {wanted[0]}); give other --frames"
        )
    found: dict[str, int] = {}
    unreadable: list[str] = []
    with ProgressLine("vid-robust", len(frames), console) as progress:
        for batch in read_squares(enumerate(root / frame for frame in frames), model.size):
            if batch.numbers:
                logits = encode(network, [batch.squares], model.mean, model.std, device).numpy()
                said = classes_of(logits, outputs, reduction)
                found |= {frames[number]: one for number, one in zip(batch.numbers, said, strict=True)}
            unreadable += batch.unreadable
            done = len(found) + len(unreadable)
            progress.show(done, f"{done:,} of {len(frames):,} frames")
    if not found:
        raise UserError(f"none of {len(frames):,} frames in {root} can be read (the first: {unreadable[0]})")
    if unreadable:
        more = f"; {len(unreadable) - NAMED:,} more" if len(unreadable) > NAMED else ""
        notes += (f"{len(unreadable):,} frames cannot be read: {'; '.join(unreadable[:NAMED])}{more}",)
    return Predictions(model, found, _is_reduced(outputs), (*notes, *_unnameable(robust, outputs)))


def _unnameable(robust: RobustSet, outputs: ClassMap | None) -> list[str]:
    """Says how many anchors are wrong in any case: YTBB-Robust has skateboards, ImageNet has none."""
    lost = {number for number, of_class in enumerate(outputs or ()) if not of_class}
    anchors = [anchor.frame for anchor in robust.anchors if robust.labels[anchor.frame] <= lost]
    return [f"{len(anchors):,} anchors are wrong in any case, no output means their class"] if anchors else []


# --- from a file ---


def read_predictions(path: Path, robust: RobustSet, k: int, reduction: Reduction, name: str = "") -> Predictions:
    """What a file says: for each frame a class of the set, or scores of its classes or of a classifier's outputs.

    A row that is neither is noted, and its frame is missing.
    """
    content = read_object(path)
    frames = robust.frames(k)
    by_length: dict[int, dict[str, NDArray[np.floating]]] = defaultdict(dict)
    found: dict[str, int] = {}
    wrong: dict[str, str] = {}
    for frame in frames:
        if frame not in content:
            continue
        row = _row(content[frame], len(robust.classes))
        if isinstance(row, int):
            found[frame] = row
        elif isinstance(row, str):
            wrong[frame] = row
        else:
            by_length[len(row)][frame] = row
    reduced = False
    for length, rows in by_length.items():
        try:
            outputs, _ = outputs_of_classes(robust.class_map, robust.classes, robust.has_names, length, None)
        except UserError as error:
            wrong |= dict.fromkeys(rows, str(error))
            continue
        reduced |= _is_reduced(outputs)
        found |= zip(rows, classes_of(np.stack([*rows.values()]), outputs, reduction), strict=True)
    if not found:
        first = next(iter(wrong.items()), (frames[0], "it is not there"))
        raise UserError(
            f"{path} has no prediction for any of {len(frames):,} frames (the first, {first[0]}: {first[1]})"
        )
    others = sum(frame not in robust.labels for frame in content)
    notes = [f"{others:,} rows of {path.name} are about frames that are not in the set"] if others else []
    if wrong:
        reason = next(iter(wrong.values()))
        notes.append(f"{len(wrong):,} rows of {path.name} are no predictions ({reason}): {named([*wrong])}")
    return Predictions(_model_of(path, name), found, reduced, tuple(notes))


def _row(value: Any, classes: int) -> int | NDArray[np.floating] | str:
    """A class, scores, or what is wrong."""
    if is_index(value):
        return int(value) if value < classes else f"class {value} is not one of 0 to {classes - 1}"
    if not isinstance(value, list) or not value:
        return "a class or a list of scores is wanted"
    try:
        scores = np.array(value, np.float64)
    except (ValueError, TypeError, OverflowError):
        return "scores must be numbers"
    return "scores must be numbers" if scores.ndim != 1 or np.isnan(scores).any() else scores


def _model_of(path: Path, name: str) -> Model:
    """A file of predictions in the place of a model: it has a name and a checksum, and no network."""
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    return Model(name or path.stem, str(path), nn.Identity(), 0, 0, (), (), (), checksum)
