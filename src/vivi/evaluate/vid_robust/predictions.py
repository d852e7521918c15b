"""What a classifier said about frames: its own answers, or a file of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from vivi.data.squares import read_squares
from vivi.evaluate.classifiers import ImageClassifier
from vivi.evaluate.metadata import NAMED, named, read_hashed_json
from vivi.evaluate.vid_robust.class_maps import ClassMap, outputs_of_classes
from vivi.evaluate.vid_robust.scores import Reduction, decide, project
from vivi.evaluate.vid_robust.sets import RobustSet, find_frames
from vivi.model.features import encode
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine


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
            f"none of {len(wanted):,} frames is in {folder}, the first is {wanted[0]}; give --frames the folder that "
            "these names start from"
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

    A class or a number of scores that the set cannot have is noted, and its frame is missing.
    """
    content, checksum = read_hashed_json(path, dict[str, int | list[float]])
    frames = robust.frames(k)
    others = [frame for frame in content if frame not in robust.labels]
    found: dict[str, int] = {}
    scores: dict[int, dict[str, list[float]]] = defaultdict(dict)  # by their number
    wrong: dict[str, list[str]] = defaultdict(list)  # frames by what is wrong with their rows
    for frame in frames:
        row = content.get(frame)
        if isinstance(row, list):
            scores[len(row)][frame] = row
        elif row is not None and 0 <= row < len(robust.classes):
            found[frame] = row
        elif row is not None:
            wrong[f"a class must be one of 0 to {len(robust.classes) - 1}"].append(frame)
    reduced = False
    for length, rows in scores.items():
        try:
            outputs, _ = _outputs(robust, length, None)
        except UserError as error:
            wrong[str(error)] += rows
            continue
        reduced |= _is_reduced(outputs)
        found |= zip(rows, classes_of(np.array([*rows.values()]), outputs, reduction), strict=True)
    if not found:
        first = next(((bad[0], reason) for reason, bad in wrong.items()), (frames[0], "it is not there"))
        raise UserError(
            f"{path} has no prediction for any of {len(frames):,} frames (the first, {first[0]}: {first[1]})"
        )
    notes = [f"{len(others):,} rows of {path.name} are about frames that are not in the set"] if others else []
    notes += [
        f"{len(bad):,} rows of {path.name} are no predictions ({reason}): {named(bad)}"
        for reason, bad in wrong.items()
    ]
    explained = frozenset(frame for bad in wrong.values() for frame in bad)
    return Predictions(name or path.stem, str(path), checksum, checksum, found, reduced, tuple(notes), explained)
