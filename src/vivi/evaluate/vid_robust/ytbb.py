"""YTBB-Robust, as its authors publish it: what reviewers said, from which anchors, neighbours and labels follow.

anchor_labels.json     which anchors are good, and classes that the reviewers added to them
ytbb_robustness_test_anchors_full.csv    the class that YouTube-BB itself gives each anchor
ytbb_class_index.json  names of the classes
pmk_labels.json        which frames are similar to an anchor; where it is missing, anchors have no neighbours
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from vivi.evaluate.metadata import named, read_json
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import check_regular

ANCHORS, INITIAL, SIMILAR = "anchor_labels.json", "ytbb_robustness_test_anchors_full.csv", "pmk_labels.json"
_SWAPPED = {22: 23, 23: 22}  # the table has car and none the other way round than the index of the classes
_DISSIMILAR = {
    *("dissimilar", "problematic", "incorrect", "dont know", "deformation"),
    *("background-change", "occlusion-increased", "blur-increase", "bad-anchor"),
}


def read_ytbb(
    folder: Path, classes: Sequence[str]
) -> tuple[dict[str, list[str]], dict[str, list[int]], tuple[str, ...]]:
    """pmsets and labels as ImageNet-Vid-Robust has them, and notes on what was left out."""
    verdicts = _reviews(folder / ANCHORS)
    initial, notes = _initial(folder / INITIAL)
    good = {key: words for key, words in verdicts.items() if "good" in words and not words & {"bad", "unsure"}}
    notes += _left_out(verdicts, good, initial)
    neighbours: dict[str, list[str]] = {key: [] for key in good}
    if (folder / SIMILAR).exists():
        similar, bad = _similar(folder / SIMILAR)
        neighbours = {key: similar.get(key, []) for key in good if key not in bad}
        dropped = [key for key in good if key in bad]
        if dropped:
            notes.append(f"{len(dropped):,} anchors are left out, called bad beside neighbours: {named(dropped)}")
    else:
        notes.append(f"there is no {SIMILAR} in {folder}: anchors have no neighbours, and there is no PM accuracy")
    numbers = {name: number for number, name in enumerate(classes)}
    labels: dict[str, list[int]] = {}
    for anchor, frames in neighbours.items():
        right = {numbers[word] for word in good[anchor] if word in numbers} | initial.get(anchor.split("/")[0], set())
        if right:
            labels |= dict.fromkeys((anchor, *frames), sorted(right))
    return neighbours, labels, tuple(notes)


def _key(path: str) -> str:
    """VIDEO_TIME/frame-NUMBER.jpg: many rows have it behind folders of the reviewers' machine."""
    return "/".join(path.split("/")[-2:])


class _Review(Struct):
    key: str  # a frame, or an anchor and a frame with a comma between them
    labels: list[int]


class _Reviews(Struct):
    annotations: list[_Review]
    labels: list[str]  # what the numbers in reviews mean


def _reviews(path: Path) -> dict[str, set[str]]:
    """What was said about each key, in words."""
    content: _Reviews = read_json(path, _Reviews)
    words = dict(enumerate(content.labels))
    if any(number not in words for row in content.annotations for number in row.labels):
        raise UserError(f"{path} has reviews with labels that it does not name")
    return {
        ",".join(map(_key, row.key.split(","))): {words[number] for number in row.labels}
        for row in content.annotations
    }


def _initial(path: Path) -> tuple[dict[str, set[int]], list[str]]:
    """The class of YouTube-BB itself, by VIDEO_TIME."""
    found: dict[str, set[int]] = {}
    try:
        check_regular(path)
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                number = int(row["label"])
                found[f"{row['ytid']}_{row['time_ms']}"] = {_SWAPPED.get(number, number)}
    except FileNotFoundError:
        return {}, [f"there is no {path.name} in {path.parent}: only classes that the reviewers added count as right"]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is no table of ytid, time_ms and label ({first_line(error)})") from None
    return found, []


def _left_out(
    verdicts: Mapping[str, set[str]], good: Mapping[str, set[str]], initial: Mapping[str, set[int]]
) -> list[str]:
    """Anchors that the reviewers did not call good, by what they said instead."""
    counts = Counter(
        "bad" if "bad" in words else "unsure" if "unsure" in words else "without a verdict"
        for key, words in verdicts.items()
        if key not in good
    )
    reviewed = {key.split("/")[0] for key in verdicts}
    never = sum(key not in reviewed for key in initial)
    parts = [f"{count:,} {word}" for word, count in sorted(counts.items())]
    parts += [f"{never:,} never reviewed"] if never else []
    everything = len(verdicts) + never
    return [f"{everything - len(good):,} of {everything:,} anchors are left out: {', '.join(parts)}"] if parts else []


def _similar(path: Path) -> tuple[dict[str, list[str]], set[str]]:
    """Neighbours that look like their anchor, and anchors that turned out to be bad."""
    similar: dict[str, list[str]] = defaultdict(list)
    bad = set()
    for key, words in _reviews(path).items():
        anchor, _, frame = key.partition(",")
        if "bad-anchor" in words:
            bad.add(anchor)
        if "similar" in words and not words & _DISSIMILAR:
            similar[anchor].append(frame)
    return similar, bad
