"""vivi evaluate vid-robust: how often a classifier is right about a frame, and about all the frames around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from vivi.evaluate.classifiers import open_classifier
from vivi.evaluate.encoders import checksum
from vivi.evaluate.metadata import counted, named, read_hashed_json
from vivi.evaluate.results import RobustResult, plain, read_all, versions, write_result
from vivi.evaluate.subject import check_name
from vivi.evaluate.vid_robust.predictions import Predictions, predict, predictions_of
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
    began = time.monotonic()
    robust = read_set(find_metadata(subject.metadata, subject.frames), subject.class_map)
    k = min(subject.farthest or robust.farthest, robust.farthest)
    frames = robust.frames(k)
    root, there = find_frames(subject.frames, frames)
    answer: Callable[[], Predictions]
    if subject.predictions is not None:
        rows, classifier_checksum = read_hashed_json(subject.predictions, dict[str, int | list[float]])
        name, source = subject.name or subject.predictions.stem, str(subject.predictions)
        encoder_checksum, given = classifier_checksum, {*rows}
        answer = partial(predictions_of, rows, subject.predictions, robust, frames, subject.reduction)
    else:
        if not there:
            raise UserError(
                f"none of {len(frames):,} frames is in {root}, the first is {frames[0]}; give --frames the folder "
                "that these names start from"
            )
        place = choose_device(device)
        classifier = open_classifier(subject.encoder, subject.weights, subject.name)
        model = classifier.model
        name, source, encoder_checksum, given = model.name, model.source, model.checksum, {*there}
        classifier_checksum = checksum(classifier.network, model.mean, model.std)
        answer = partial(predict, classifier, robust, root, there, subject.reduction, place, console)
    _check_results(subject, robust, k, name, classifier_checksum)
    check_name(name, encoder_checksum, subject.out)
    said, reduced, notes = answer()
    missing = [frame for frame in frames if frame not in given]
    if missing:
        notes.append(f"{len(missing):,} frames are missing: {named(missing)}")
    right = {frame: guess in robust.labels[frame] for frame, guess in said.items()}
    result = RobustResult(
        encoder=name,
        set=robust.name,
        curve=curve(robust.anchors, right, k),
        anchors=len(robust.anchors),
        frames=len(frames),
        classes=len(robust.classes),
        reduction=subject.reduction if reduced else None,
        classifier_checksum=classifier_checksum,
        class_map_checksum=robust.map_checksum(),
        notes=(*robust.notes, *notes),
        encoder_from=source,
        encoder_checksum=encoder_checksum,
        data_checksum=robust.checksum(k),
        seconds=round(time.monotonic() - began, 2),
        versions=versions(),
    )
    shown = [anchor for anchor in robust.anchors if not {*anchor.within(k)}.isdisjoint(there)]
    mistakes = worst(shown, right, k)
    result = _write(result, subject.out, draw_worst(mistakes, robust, said, root, k) if mistakes else b"")
    for note in result.notes:
        console.print(note, style="yellow", soft_wrap=True)
    for line in in_lines(result):
        console.print(line, soft_wrap=True)
    return result


def _check_results(subject: Robustness, robust: RobustSet, k: int, name: str, classifier: str) -> None:
    """A result on another set, by another classifier of the same name, or by other means is not to be lost."""
    names = (plain(name), plain(robust.name))  # as they are in the name of the file
    for result in read_all(subject.out)[0] if subject.out.is_dir() else ():
        if not isinstance(result, RobustResult) or (plain(result.encoder), plain(result.set)) != names:
            continue
        words = {
            f"on another set called {result.set}, or --farthest": result.data_checksum != robust.checksum(k),
            "by another classifier of that name": result.classifier_checksum not in ("", classifier),
            "with another --class-map": result.class_map_checksum != robust.map_checksum(),
            f"with --reduction {result.reduction}": result.reduction not in (None, subject.reduction),
        }
        for how, differs in words.items():
            if differs:
                raise UserError(f"{subject.out} has a result of {result.encoder} {how}: give --name or another --out")


def _write(result: RobustResult, out: Path, sheet: bytes) -> RobustResult:
    """Writes the contact sheet, where there is one, and the result that names it."""
    picture = out / f"{Path(result.file_name).stem}.png"
    try:
        with storage(out):
            out.mkdir(parents=True, exist_ok=True)
        if sheet:
            write_atomically(picture, sheet)
            result = replace(result, picture=picture.name)
        write_result(out, result)
    except StorageError as error:
        raise UserError(f"results cannot be written: {error}") from None
    if not sheet:
        picture.unlink(missing_ok=True)  # of a result that was replaced
    return result


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
    words = f"anchors {_share(first, anchors)}" + (f", PM-{k} {_share(last, anchors)}" if k else "")
    # Of different anchors there is no drop.
    return words + (f", drop {100 * (first.share - last.share):.1f} points" if k and first.n == last.n > 0 else "")


def _share(interval: Interval, anchors: int) -> str:
    """68.0 % [65.2, 70.7], and of how many anchors if not of all."""
    if not interval.n:
        return "of none"
    of = f" of {interval.n:,}" if interval.n < anchors else ""
    return f"{100 * interval.share:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]{of}"
