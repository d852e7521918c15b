"""YTBB-Robust, as its authors publish it: what reviewers said, from which anchors, neighbours and labels follow.

anchor_labels.json     which anchors are good, and classes that the reviewers added to them
ytbb_robustness_test_anchors_full.csv    the class that YouTube-BB itself gives each anchor
ytbb_class_index.json  names of the classes
pmk_labels.json        which frames are similar to an anchor; where it is missing, anchors have no neighbours
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from vivi.evaluate.metadata import read_json
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import check_regular

ANCHORS, INITIAL, SIMILAR = "anchor_labels.json", "ytbb_robustness_test_anchors_full.csv", "pmk_labels.json"
_SWAPPED = {22: 23, 23: 22}  # the table has car and none the other way round than the index of the classes
_DISSIMILAR = {
    *("dissimilar", "problematic", "incorrect", "dont know", "deformation"),
    *("background-change", "occlusion-increased", "blur-increase", "bad-anchor"),
}


class _Review(Struct):
    key: str  # a frame, or an anchor and a frame with a comma between them
    labels: list[int]


class _Reviews(Struct):
    annotations: list[_Review]
    labels: list[str]  # what the numbers in reviews mean


def read_ytbb(folder: Path, classes: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, list[int]], list[str]]:
    """pmsets and labels as ImageNet-Vid-Robust has them, and notes on what was left out."""
    verdicts, notes = _reviews(folder / ANCHORS), []
    initial: dict[str, int] = {}
    pairs: dict[str, set[str]] = {}
    if (folder / INITIAL).exists():
        initial = _initial(folder / INITIAL)
    else:
        notes.append(f"there is no {INITIAL} in {folder}: only classes that the reviewers added count as right")
    if (folder / SIMILAR).exists():
        pairs = _reviews(folder / SIMILAR)
    else:
        notes.append(f"there is no {SIMILAR} in {folder}: anchors have no neighbours, and there is no PM accuracy")
    bad = {anchor for anchor, words in verdicts.items() if "good" not in words or words & {"bad", "unsure"}}
    bad |= verdicts.keys() & {key.partition(",")[0] for key, words in pairs.items() if "bad-anchor" in words}
    never = initial.keys() - {anchor.split("/")[0] for anchor in verdicts}
    if bad or never:
        out_of = f"{len(bad) + len(never):,} of {len(verdicts) + len(never):,} anchors are left out"
        notes.append(f"{out_of}: {len(bad):,} not called good by the reviewers, {len(never):,} never reviewed")
    neighbours: dict[str, list[str]] = {anchor: [] for anchor in verdicts if anchor not in bad}
    for key, words in pairs.items():
        anchor, _, frame = key.partition(",")
        if anchor in neighbours and "similar" in words and not words & _DISSIMILAR:
            neighbours[anchor].append(frame)
    labels: dict[str, list[int]] = {}
    for anchor, frames in neighbours.items():
        right = {number for number, name in enumerate(classes) if name in verdicts[anchor]}
        right |= {initial[video] for video in (anchor.split("/")[0],) if video in initial}
        labels |= dict.fromkeys((anchor, *frames), sorted(right))
    return neighbours, labels, notes


def _reviews(path: Path) -> dict[str, set[str]]:
    """What was said about each key, in words. Many a frame, VIDEO_TIME/frame-NUMBER.jpg, stands behind folders of the
    reviewers' machine."""
    content: _Reviews = read_json(path, _Reviews)
    words = dict(enumerate(content.labels))
    if any(number not in words for row in content.annotations for number in row.labels):
        raise UserError(f"{path} has reviews with labels that it does not name")
    return {
        ",".join("/".join(frame.split("/")[-2:]) for frame in row.key.split(",")): {words[n] for n in row.labels}
        for row in content.annotations
    }


def _initial(path: Path) -> dict[str, int]:
    """The class of YouTube-BB itself, by VIDEO_TIME."""
    try:
        check_regular(path)
        with open(path, newline="", encoding="utf-8") as file:
            rows = [(f"{row['ytid']}_{row['time_ms']}", int(row["label"])) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is no table of ytid, time_ms and label ({first_line(error)})") from None
    return {video: _SWAPPED.get(label, label) for video, label in rows}
