"""What a classifier said about frames: its own answers, or a file of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from vivi.data.squares import read_squares
from vivi.evaluate.classifiers import ImageClassifier
from vivi.evaluate.metadata import NAMED, named
from vivi.evaluate.vid_robust.scores import Reduction, decide, project
from vivi.evaluate.vid_robust.sets import ClassMap, RobustSet, numbers
from vivi.model.features import encode
from vivi.runtime.errors import UserError, require
from vivi.runtime.progress import ProgressLine

IMAGENET = 1000  # outputs that the maps of published sets are for

# The class that each frame was given, -1: none; whether several outputs of the classifier made one class; and notes.
Predictions = tuple[dict[str, int], bool, list[str]]


def predict(
    classifier: ImageClassifier,
    robust: RobustSet,
    root: Path,
    frames: Sequence[str],
    reduction: Reduction,
    device: torch.device,
    console: Console,
) -> Predictions:
    """What a classifier says about the central squares of frames."""
    model, network = classifier.model, classifier.network.to(device)
    outputs, notes = outputs_of_classes(robust, classifier.outputs, classifier.classes)
    found: dict[str, int] = {}
    unreadable: list[str] = []
    with ProgressLine("vid-robust", len(frames), console) as progress:
        for batch in read_squares(enumerate(root / frame for frame in frames), model.size):
            if batch.numbers:
                logits = encode(network, [batch.squares], model.mean, model.std, device).numpy()
                said = decide(project(logits, outputs, reduction)).tolist()
                found |= zip((frames[number] for number in batch.numbers), said, strict=True)
            unreadable += batch.unreadable
            done = len(found) + len(unreadable)
            progress.show(done, f"{done:,} of {len(frames):,} frames")
    if not found:
        raise UserError(f"none of {len(frames):,} frames in {root} can be read (the first: {unreadable[0]})")
    if unreadable:
        more = f"; {len(unreadable) - NAMED:,} more" if len(unreadable) > NAMED else ""
        notes.append(f"{len(unreadable):,} frames cannot be read: {'; '.join(unreadable[:NAMED])}{more}")
    lost = [frame for frame, one in found.items() if one < 0]
    if lost:
        notes.append(f"{len(lost):,} frames were given no class: scores are not numbers: {named(lost)}")
    if len(lost) == len(found):
        raise UserError(notes[-1])
    # YTBB-Robust has skateboards, ImageNet has none.
    unknown = {number for number, of_class in enumerate(outputs or ()) if not of_class}
    hopeless = sum(robust.labels[anchor.frame] <= unknown for anchor in robust.anchors)
    if hopeless:
        notes.append(f"{hopeless:,} anchors are wrong in any case, no output means their class")
    return found, _is_reduced(outputs), notes


def predictions_of(
    rows: Mapping[str, int | list[float]], file: Path, robust: RobustSet, frames: Sequence[str], reduction: Reduction
) -> Predictions:
    """What a file says: for each frame a class of the set, or scores of its classes or of a classifier's outputs.

    A class or a number of scores that the set cannot have is noted, and its frame is missing.
    """
    found: dict[str, int] = {}
    scores: dict[int, dict[str, list[float]]] = defaultdict(dict)  # by their number
    wrong: dict[str, list[str]] = defaultdict(list)  # frames by what is wrong with their rows
    for frame in frames:
        row = rows.get(frame)
        if isinstance(row, list):
            scores[len(row)][frame] = row
        elif row is not None and 0 <= row < len(robust.classes):
            found[frame] = row
        elif row is not None:
            wrong[f"a class must be one of 0 to {len(robust.classes) - 1}"].append(frame)
    reduced = False
    for length, of_frames in scores.items():
        try:
            outputs, _ = outputs_of_classes(robust, length, None)
        except UserError as error:
            wrong[str(error)] += of_frames
            continue
        reduced |= _is_reduced(outputs)
        said = decide(project(np.array([*of_frames.values()]), outputs, reduction)).tolist()
        found |= zip(of_frames, said, strict=True)
    if not found:
        frame, reason = next(((bad[0], why) for why, bad in wrong.items()), (frames[0], "it is not there"))
        raise UserError(f"{file} has no prediction for any of {len(frames):,} frames (the first, {frame}: {reason})")
    others = sum(frame not in robust.labels for frame in rows)
    notes = [f"{others:,} rows of {file.name} are about frames that are not in the set"] if others else []
    for reason, bad in wrong.items():
        notes.append(f"{len(bad):,} rows of {file.name} are no predictions ({reason}): {named(bad)}")
    return found, reduced, notes


def _is_reduced(outputs: ClassMap | None) -> bool:
    return any(len(of_class) > 1 for of_class in outputs or ())


def outputs_of_classes(
    robust: RobustSet, outputs: int, names: Sequence[str] | None
) -> tuple[ClassMap | None, list[str]]:
    """Which of so many outputs of a classifier mean each class of a set; None: they are the same. And notes.

    A class map that users give must fit. That of the set's metadata is for classifiers of ImageNet. A classifier of
    the set's own classes needs none: it is matched by the names of classes where both have some, else by number.
    """
    class_map, classes = robust.class_map, robust.classes
    if class_map is not None and (robust.map_given or outputs == IMAGENET):
        last = max(output for of_class in class_map for output in of_class)
        line = f"the class map names output {last:,}, the classifier has {outputs:,}, from 0 on"
        require(last < outputs, f"{line}: give a --class-map for its own outputs")
        return class_map, []
    if names is None or classes == numbers(len(classes)):
        imagenet = f" and a class map for ImageNet's {IMAGENET:,}" if class_map else ""
        line = f"the classifier has {outputs:,} classes, the set {len(classes):,}{imagenet}"
        require(outputs == len(classes), f"{line}: a --class-map must say which of them belong together")
        return None, []
    unknown = [name for name in classes if name not in names]
    line = f"the classifier does not know {len(unknown):,} of the set's {len(classes):,} classes, {named(unknown)}"
    require(not unknown, f"{line}: a --class-map must say what it calls them")
    more = len(names) - len(classes)
    notes = [f"{more:,} classes of the classifier are not in the set: they are left aside"] if more else []
    return None if tuple(names) == classes else tuple((names.index(name),) for name in classes), notes
