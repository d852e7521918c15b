"""vivi evaluate vid-robust: how often a classifier is right about a frame, and about all the frames around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from vivi.evaluate.classifiers import open_classifier
from vivi.evaluate.encoders import checksum
from vivi.evaluate.metadata import counted, named, read_hashed_json
from vivi.evaluate.results import RobustResult, check_replaces, versions, write_with_picture
from vivi.evaluate.subject import check_name
from vivi.evaluate.vid_robust.predictions import Predictions, predict, predictions_of
from vivi.evaluate.vid_robust.scores import Interval, curve
from vivi.evaluate.vid_robust.sets import find_frames, find_metadata, read_set
from vivi.evaluate.vid_robust.settings import Robustness
from vivi.evaluate.vid_robust.sheet import draw_worst, worst
from vivi.runtime.console import warn
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError, require
from vivi.runtime.storage import StorageError


def evaluate_robustness(subject: Robustness, console: Console, device: str = "auto") -> RobustResult:
    """Scores predictions on a set of frames that look alike, and writes the result and its worst anchors."""
    subject.check()
    began = time.monotonic()
    robust = read_set(find_metadata(subject.metadata, subject.frames), subject.class_map, subject.farthest)
    k, frames = robust.k, robust.frames()
    root, there = find_frames(subject.frames, frames)
    who: dict[str, Any]
    answer: Callable[[], Predictions]
    if subject.predictions is not None:
        path = subject.predictions
        rows, own = read_hashed_json(path, dict[str, int | list[float]])
        who = {"encoder": subject.name or path.stem, "encoder_from": str(path)}
        who |= {"encoder_checksum": own, "classifier_checksum": own}
        answer = partial(predictions_of, rows, path, robust, frames, subject.reduction)
    else:
        first = f"none of {len(frames):,} frames is in {root}, the first is {frames[0]}"
        require(bool(there), f"{first}; give --frames the folder that these names start from")
        place = choose_device(device)
        classifier = open_classifier(subject.encoder, subject.weights, subject.name)
        model, network = classifier.model, classifier.network
        who = {"encoder": model.name, "encoder_from": model.source, "encoder_checksum": model.checksum}
        who["classifier_checksum"] = checksum(network, model.mean, model.std)
        answer = partial(predict, classifier, robust, root, there, subject.reduction, place, console)
    data_checksum, class_map_checksum = robust.checksums()
    result = RobustResult(
        **who,
        set=robust.name,
        curve=curve(robust.anchors, {}, k),  # nothing was said yet
        anchors=len(robust.anchors),
        frames=len(frames),
        classes=len(robust.classes),
        reduction=subject.reduction,
        data_checksum=data_checksum,
        class_map_checksum=class_map_checksum,
        versions=versions(),
    )
    check_replaces(subject.out, result, partial(_difference, result))
    check_name(result.encoder, result.encoder_checksum, subject.out)
    said, reduced, notes = answer()
    missing = sorted({*frames} - {*(rows if subject.predictions is not None else there)})
    if missing:
        notes.append(f"{len(missing):,} frames are missing: {named(missing)}")
    right = {frame: guess in robust.labels[frame] for frame, guess in said.items()}
    shown = [anchor for anchor in robust.anchors if not {*anchor.within(k)}.isdisjoint(there)]
    mistakes = worst(shown, right, k)
    result = replace(
        result,
        curve=curve(robust.anchors, right, k),
        reduction=subject.reduction if reduced else None,
        notes=(*robust.notes, *notes),
        seconds=round(time.monotonic() - began, 2),
    )
    picture = draw_worst(mistakes, robust, said, root) if mistakes else b""
    try:
        result = write_with_picture(subject.out, result, picture)
    except StorageError as error:
        raise UserError(f"results cannot be written: {error}") from None
    for note in result.notes:
        warn(console, note)
    for line in in_lines(result):
        console.print(line, soft_wrap=True)
    return result


def _difference(result: RobustResult, earlier: RobustResult) -> str:
    """What is different about an earlier result: the set, the classifier, or the means."""
    if earlier.data_checksum != result.data_checksum:
        return f"on another set called {result.set}, or --farthest"
    if earlier.classifier_checksum not in ("", result.classifier_checksum):
        return "by another classifier of that name"
    if earlier.class_map_checksum != result.class_map_checksum:
        return "with another --class-map"
    return "" if earlier.reduction in (None, result.reduction) else f"with --reduction {earlier.reduction}"


def in_lines(result: RobustResult) -> list[str]:
    """run: anchors 68.0 % [65.2, 70.7], PM-10 49.9 % [46.9, 52.9], drop 18.1 points; 1,109 anchors

    Where frames are missing, twice: without the anchors that they belong to, and with them as wrong.
    """
    scores, all_anchors = result.curve, counted(result.anchors, "anchor")
    if not scores.missing:
        return [f"{result.encoder}: {_scores(scores.strict, result.anchors)}; {all_anchors}"]
    missing = f"{len(scores.missing):,} of {result.frames:,} frames are missing"
    return [
        f"{result.encoder}, anchors with all frames: {_scores(scores.complete, result.anchors)}; {missing}",
        f"{result.encoder}, missing frames as wrong: {_scores(scores.strict, result.anchors)}; {all_anchors}",
    ]


def _scores(intervals: Sequence[Interval], anchors: int) -> str:
    """The first and the last, of how many anchors if not of all, and their difference if they are of the same."""

    def share(one: Interval) -> str:
        of = f" of {one.n:,}" if one.n < anchors else ""
        return f"{100 * one.share:.1f} % [{100 * one.low:.1f}, {100 * one.high:.1f}]{of}" if one.n else "of none"

    first, last = intervals[0], intervals[-1]
    words = f"anchors {share(first)}"
    if last is not first:
        words += f", PM-{len(intervals) - 1} {share(last)}"
        words += f", drop {100 * (first.share - last.share):.1f} points" if first.n == last.n > 0 else ""
    return words
