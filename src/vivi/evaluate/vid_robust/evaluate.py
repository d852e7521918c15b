"""vivi evaluate vid-robust: how often a classifier is right about a frame, and about all the frames around it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vivi.evaluate.classifiers import open_classifier
from vivi.evaluate.metadata import counted, named
from vivi.evaluate.models import checksum
from vivi.evaluate.results import plain, read_all, versions, write_result
from vivi.evaluate.subject import check_name
from vivi.evaluate.vid_robust.predictions import Predictions, predict, read_predictions
from vivi.evaluate.vid_robust.result import RobustResult
from vivi.evaluate.vid_robust.scores import Interval, curve
from vivi.evaluate.vid_robust.sets import RobustSet, find_frames, find_metadata, read_set
from vivi.evaluate.vid_robust.settings import Robustness
from vivi.evaluate.vid_robust.sheet import draw_worst, worst
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError, storage, write_atomically


def evaluate_robustness(subject: Robustness, console: Console, device: str = "auto") -> RobustResult:
    """Scores predictions on a set of frames that look alike, and writes the result and its worst anchors."""
    subject.check()
    robust = read_set(find_metadata(subject.metadata, subject.frames), subject.class_map)
    k = min(subject.farthest or robust.farthest, robust.farthest)
    began = time.monotonic()
    said = _predictions(subject, robust, k, console, device)
    right = {frame: guess in robust.labels[frame] for frame, guess in said.classes.items()}
    scores = curve(robust.anchors, right, k)
    notes = (*robust.notes, *said.notes, *_missing([one for one in scores.missing if one not in said.explained]))
    result = RobustResult(
        encoder=said.name,
        set=robust.name,
        curve=scores,
        anchors=len(robust.anchors),
        frames=len(robust.frames(k)),
        classes=len(robust.classes),
        reduction=subject.reduction if said.reduced else None,
        classifier_checksum=said.checksum,
        class_map_checksum=robust.map_checksum(),
        notes=notes,
        encoder_from=said.source,
        encoder_checksum=said.encoder_checksum,
        data_checksum=robust.checksum(k),
        seconds=round(time.monotonic() - began, 2),
        versions=versions(),
    )
    result = _written(result, subject, robust, said, right)
    for note in notes:
        console.print(note, style="yellow", soft_wrap=True)
    for line in in_lines(result):
        console.print(line, soft_wrap=True)
    return result


def _predictions(subject: Robustness, robust: RobustSet, k: int, console: Console, device: str) -> Predictions:
    if subject.predictions is not None:
        said = read_predictions(subject.predictions, robust, k, subject.reduction, subject.name)
        _check_results(said.name, said.checksum, subject, robust, k)
        check_name(said.name, said.encoder_checksum, subject.out)
        return said
    assert subject.frames is not None  # checked with the flags
    place = choose_device(device)
    classifier = open_classifier(subject.encoder, subject.weights, subject.name)
    model = classifier.model
    weights = checksum(classifier.network, model.mean, model.std)
    _check_results(model.name, weights, subject, robust, k)
    check_name(model.name, model.checksum, subject.out)
    return predict(classifier, robust, subject.frames, k, subject.reduction, place, console, weights)


def _check_results(name: str, classifier: str, subject: Robustness, robust: RobustSet, k: int) -> None:
    """A result on another set, by another classifier of the same name, or by other means is not to be lost."""
    names = (plain(name), plain(robust.name))  # as they are in the name of the file
    for result in read_all(subject.out)[0] if subject.out.is_dir() else ():
        if not isinstance(result, RobustResult) or (plain(result.encoder), plain(result.set)) != names:
            continue
        has = f"{subject.out} has a result of {result.encoder}"
        if result.data_checksum != robust.checksum(k):
            raise UserError(
                f"{has} on another set called {result.set}, or with another --farthest; choose another --out"
            )
        if result.classifier_checksum not in ("", classifier):
            what = "predictions" if subject.predictions is not None else "weights"
            raise UserError(f"{has} by other {what} of the same name: give --name or another --out")
        if result.class_map_checksum != robust.map_checksum():
            raise UserError(f"{has} with another --class-map; give --name or another --out")
        if result.reduction not in (None, subject.reduction):
            raise UserError(f"{has} with --reduction {result.reduction}; give --name or another --out")


def _missing(frames: Sequence[str]) -> tuple[str, ...]:
    return (f"{len(frames):,} frames are missing: {named(frames)}",) if frames else ()


def _written(
    result: RobustResult, subject: Robustness, robust: RobustSet, said: Predictions, right: dict[str, bool]
) -> RobustResult:
    """Writes the contact sheet, where there is one, and the result that names it."""
    picture = f"{Path(result.file_name).stem}.png"
    content = _sheet(subject, robust, said, right, result.farthest)
    try:
        if content:
            with storage(subject.out):
                subject.out.mkdir(parents=True, exist_ok=True)
            write_atomically(subject.out / picture, content)
            result = replace(result, picture=picture)
        write_result(subject.out, result)
    except StorageError as error:
        raise UserError(f"results cannot be written: {error}") from None
    if not result.picture:
        (subject.out / picture).unlink(missing_ok=True)  # of a result that was replaced
    return result


def _sheet(subject: Robustness, robust: RobustSet, said: Predictions, right: dict[str, bool], k: int) -> bytes:
    """The worst anchors as PNG; nothing where there are no frames, or no mistakes."""
    if subject.frames is None:
        return b""
    root, there = (said.root, [*right]) if said.root else find_frames(subject.frames, robust.frames(k))
    shown = set(there)
    rows = worst([anchor for anchor in robust.anchors if shown & {*anchor.within(k)}], right, k)
    return draw_worst(rows, robust, said.classes, root, k) if rows else b""


# --- in words ---


def in_lines(result: RobustResult) -> list[str]:
    """run: anchors 68.0 % [65.2, 70.7], PM-10 49.9 % [46.9, 52.9], drop 18.1 points; 1,109 anchors

    Where frames are missing, twice: without the anchors that they belong to, and with them as wrong.
    """
    scores, anchors = result.curve, counted(result.anchors, "anchor")
    if not scores.missing:
        return [f"{result.encoder}: {_scores(scores.strict, result.anchors)}; {anchors}"]
    missing = f"{len(scores.missing):,} of {result.frames:,} frames are missing"
    return [
        f"{result.encoder}, anchors with all frames: {_scores(scores.complete, result.anchors)}; {missing}",
        f"{result.encoder}, missing frames as wrong: {_scores(scores.strict, result.anchors)}; {anchors}",
    ]


def _scores(intervals: tuple[Interval, ...], anchors: int) -> str:
    first, last, k = intervals[0], intervals[-1], len(intervals) - 1
    if k == 0:
        return f"anchors {_share(first, anchors)}"
    both = f"anchors {_share(first, anchors)}, PM-{k} {_share(last, anchors)}"
    # Of different anchors there is no drop.
    return f"{both}, drop {100 * (first.share - last.share):.1f} points" if first.n == last.n > 0 else both


def _share(interval: Interval, anchors: int) -> str:
    """68.0 % [65.2, 70.7], and of how many anchors if not of all."""
    if not interval.n:
        return "of none"
    of = f" of {interval.n:,}" if interval.n < anchors else ""
    return f"{100 * interval.share:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]{of}"
