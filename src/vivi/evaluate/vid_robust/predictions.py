"""What a classifier said about frames: its own answers, or a file of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from vivi.data.squares import read_squares
from vivi.evaluate.classifiers import ImageClassifier
from vivi.evaluate.vid_robust.class_maps import ClassMap, outputs_of_classes
from vivi.evaluate.vid_robust.files import NAMED, is_index, named, read_hashed_object
from vivi.evaluate.vid_robust.scores import Reduction, decide, project
from vivi.evaluate.vid_robust.sets import RobustSet, find_frames, some_file
from vivi.model.features import encode
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine

ROWS = 1024  # of scores at a time


@dataclass(frozen=True)
class Predictions:
    """The class that each frame was given; frames that are missing are not in it."""

    name: str
    source: str  # as it was given
    encoder_checksum: str
    checksum: str  # of the classifier, its last layer too; of a file, both are its own
    classes: Mapping[str, int]  # -1: none
    reduced: bool  # several outputs of the classifier made one class
    notes: tuple[str, ...]
    explained: frozenset[str]  # missing frames that the notes speak of
    root: Path | None = None  # where the names of frames start from, if the frames were read


def classes_of(scores: NDArray[np.floating], outputs: ClassMap | None, reduction: Reduction) -> list[int]:
    """Of each row of a classifier's outputs (n, outputs), the class of the set."""
    return [int(one) for one in decide(scores if outputs is None else project(scores, outputs, reduction))]


def _outputs(robust: RobustSet, outputs: int, names: Sequence[str] | None) -> tuple[ClassMap | None, tuple[str, ...]]:
    return outputs_of_classes(robust.class_map, robust.map_given, robust.classes, robust.has_names, outputs, names)


def _no_numbers(found: Mapping[str, int]) -> list[str]:
    """Says which frames got no class; a classifier that gives none to any frame is broken."""
    lost = [frame for frame, one in found.items() if one < 0]
    if not lost:
        return []
    note = f"{len(lost):,} frames were given no class: scores are not numbers: {named(lost)}"
    if len(lost) == len(found):
        raise UserError(note)
    return [note]


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
    checksum: str,
) -> Predictions:
    """What a classifier says about the central squares of all frames that are there and can be read."""
    model, network = classifier.model, classifier.network.to(device)
    outputs, notes = _outputs(robust, classifier.outputs, classifier.classes)
    root, frames = find_frames(folder, wanted := robust.frames(k))
    if not frames:
        raise UserError(
            f"none of {len(wanted):,} frames is in {folder} (the first, {wanted[0]}, is not there, "
            f"{some_file(folder, wanted[0])}); give other --frames"
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
    notes += (*_no_numbers(found), *_unnameable(robust, outputs))
    explained = frozenset(frames) - found.keys()
    who = (model.name, model.source, model.checksum, checksum)
    return Predictions(*who, found, _is_reduced(outputs), notes, explained, root)


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
    content, checksum = read_hashed_object(path)
    frames = robust.frames(k)
    others = [frame for frame in content if frame not in robust.labels]
    by_length: dict[int, dict[str, NDArray[np.floating]]] = defaultdict(dict)
    found: dict[str, int] = {}
    wrong: dict[str, list[str]] = defaultdict(list)  # frames by what is wrong with their rows
    for frame in frames:
        if frame not in content:
            continue
        row = _row(content.pop(frame), len(robust.classes))
        if isinstance(row, int):
            found[frame] = row
        elif isinstance(row, str):
            wrong[row].append(frame)
        else:
            by_length[len(row)][frame] = row
    reduced = False
    for length, rows in by_length.items():
        try:
            outputs, _ = _outputs(robust, length, None)
        except UserError as error:
            wrong[str(error)] += rows
            continue
        reduced |= _is_reduced(outputs)
        found |= _classes_of_rows(rows, outputs, reduction)
    if not found:
        raise UserError(f"{path} has no prediction for any of {len(frames):,} frames ({_why(wrong, frames, others)})")
    notes = [f"{len(others):,} rows of {path.name} are about frames that are not in the set"] if others else []
    notes += [
        f"{len(bad):,} rows of {path.name} are no predictions ({reason}): {named(bad)}"
        for reason, bad in wrong.items()
    ]
    notes += _no_numbers(found)
    explained = frozenset(frame for bad in wrong.values() for frame in bad)
    return Predictions(name or path.stem, str(path), checksum, checksum, found, reduced, tuple(notes), explained)


def _row(value: Any, classes: int) -> int | NDArray[np.floating] | str:
    """A class, scores, or what is wrong."""
    if is_index(value):
        return int(value) if value < classes else f"a class must be one of 0 to {classes - 1}"
    if not isinstance(value, list) or not value:
        return "a class or a list of scores is wanted"
    if not {type(score) for score in value} <= {int, float}:
        return "scores must be numbers"
    try:
        scores = np.array(value, np.float64)
    except OverflowError:
        return "scores must be numbers"
    return "scores must be numbers" if np.isnan(scores).any() else scores


def _classes_of_rows(
    rows: dict[str, NDArray[np.floating]], outputs: ClassMap | None, reduction: Reduction
) -> dict[str, int]:
    """Some rows at a time, which are taken away: a thousand scores for each of many frames are large."""
    found: dict[str, int] = {}
    while part := [*islice(rows, ROWS)]:
        scores = np.stack([rows.pop(frame) for frame in part])
        found |= zip(part, classes_of(scores, outputs, reduction), strict=True)
    return found


def _why(wrong: Mapping[str, Sequence[str]], frames: Sequence[str], others: Sequence[str]) -> str:
    """What is wrong with the first of the frames; where none has a row, a key that has one shows how they differ."""
    for reason, bad in wrong.items():
        return f"the first, {bad[0]}: {reason}"
    return f"the first, {frames[0]}, is not there, {repr(others[0]) if others else 'nothing'} is"
