"""Sets of video frames that look alike, in the metadata format of ImageNet-Vid-Robust.

    pmsets.json               anchor -> its neighbours
    labels.json               frame -> the classes that count as right
    rev_class_idx_map.json    class -> the outputs of a classifier that mean it (class_idx_map.json: the inverse);
                              where both are missing, classifiers have the set's own classes
    classes.json              their names; or imagenet_vid_class_index.json, beside it or in misc/

YTBB-Robust has files of another kind: ytbb.py.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivi.evaluate.metadata import named, read_json
from vivi.evaluate.vid_robust.class_maps import ClassMap, read_class_map
from vivi.evaluate.vid_robust.scores import Anchor
from vivi.evaluate.vid_robust.ytbb import ANCHORS, read_ytbb
from vivi.runtime.errors import UserError
from vivi.runtime.storage import leads_out

SETS = "pmsets.json"
_NAMES = ("classes.json", "imagenet_vid_class_index.json", "ytbb_class_index.json")
_MAPS = ("rev_class_idx_map.json", "class_idx_map.json")


@dataclass(frozen=True)
class RobustSet:
    """Anchors with their neighbours, and what is right for every frame."""

    name: str
    anchors: tuple[Anchor, ...]
    labels: Mapping[str, frozenset[int]]
    classes: tuple[str, ...]  # their names, or their numbers
    has_names: bool
    class_map: ClassMap | None  # None: classifiers have these very classes
    map_given: bool  # by users; else it is the set's own
    notes: tuple[str, ...]  # what was left out, and why

    @property
    def farthest(self) -> int:
        """How many frames the farthest neighbour is away."""
        return max((abs(offset) for anchor in self.anchors for _, offset in anchor.neighbours), default=0)

    def frames(self, k: int) -> list[str]:
        """The anchors and their neighbours at most k frames away."""
        return sorted({frame for anchor in self.anchors for frame in anchor.within(k)})

    def checksum(self, k: int) -> str:
        """sha256 over all that scores depend on besides the classifier and its class map."""
        anchors = [(anchor.frame, anchor.neighbours) for anchor in self.anchors]
        labels = sorted((frame, sorted(right)) for frame, right in self.labels.items())
        return _sha256([k, anchors, labels, self.classes])

    def map_checksum(self) -> str:
        return _sha256(self.class_map) if self.class_map is not None else ""


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def find_metadata(metadata: Path | None, frames: Path | None) -> Path:
    """The folder of a set's metadata: as given, or near its frames."""
    if metadata is not None:
        places = [metadata, metadata / "metadata"]
    else:
        assert frames is not None  # checked with the flags
        beside = frames.resolve().parent
        places = [frames, frames / "metadata", beside / "metadata", beside]
    for place in places:
        if (place / SETS).exists() or (place / ANCHORS).exists():
            return place
    raise UserError(f"there is no {SETS} in {places[0]}; --metadata is the folder with {SETS} and labels.json")


def read_set(folder: Path, class_map: Path | None = None) -> RobustSet:
    """The set whose metadata lie in a folder. What is wrong with single frames is noted, and they are left out."""
    names = _class_names(folder)
    notes: tuple[str, ...] = ()
    labels: dict[str, list[int]]
    if (folder / SETS).exists():
        pmsets: dict[str, list[str]] = read_json(folder / SETS, dict[str, list[str]])
        listed: dict[str, int | list[int]] = read_json(folder / "labels.json", dict[str, int | list[int]])
        labels = {frame: value if isinstance(value, list) else [value] for frame, value in listed.items()}
    else:
        pmsets, labels, notes = read_ytbb(folder, names)
    count = 1 + max((label for value in labels.values() for label in value), default=0)
    map_file = class_map or next((folder / name for name in _MAPS if (folder / name).exists()), None)
    outputs = read_class_map(map_file, names, count) if map_file else None
    classes = names or tuple(map(str, range(len(outputs or range(count)))))
    right = {
        frame: frozenset(value)
        for frame, value in labels.items()
        if value and all(0 <= label < len(classes) for label in value)
    }
    anchors, more = _anchors(pmsets, right, len(classes))
    if not anchors:
        raise UserError(f"{folder} has no anchors" + "".join(f"; {note}" for note in (*notes, *more)))
    wanted = {frame for anchor in anchors for frame in (anchor.frame, *(name for name, _ in anchor.neighbours))}
    scored = {frame: one for frame, one in right.items() if frame in wanted}
    path = folder.resolve()
    title = path.parent.name if path.name == "metadata" else path.name
    return RobustSet(title, anchors, scored, classes, bool(names), outputs, class_map is not None, (*notes, *more))


def _class_names(folder: Path) -> tuple[str, ...]:
    """Names of the classes by number; none where no file has them."""
    places = [folder / name for name in _NAMES] + [folder.resolve().parent / "misc" / name for name in _NAMES]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        return ()
    content: Any = read_json(path, list[str] | dict[str, str | list[str]])
    try:
        values = content if isinstance(content, list) else [content[str(number)] for number in range(len(content))]
    except KeyError:
        raise UserError(f"{path} must name the classes 0, 1, 2, ... one after the other") from None
    names = tuple(value[-1] if isinstance(value, list) else value for value in values)  # [wnid, name]
    if len(set(names)) < len(names):
        raise UserError(f"{path} must name the classes, each of them once")
    return names


def _anchors(
    pmsets: Mapping[str, Sequence[str]], right: Mapping[str, frozenset[int]], classes: int
) -> tuple[tuple[Anchor, ...], list[str]]:
    """Anchors and neighbours that have labels, and notes on those that are left out."""
    listed = dict.fromkeys(frame for anchor, frames in pmsets.items() for frame in (anchor, *frames))
    outside = [frame for frame in listed if leads_out(frame)]
    usable = right.keys() - {*outside}
    unlabelled = [anchor for anchor in pmsets if anchor not in right and not leads_out(anchor)]
    # An anchor is no neighbour of its own, and nothing is there twice.
    lists = {
        anchor: [frame for frame in dict.fromkeys(frames) if frame != anchor and not leads_out(frame)]
        for anchor, frames in pmsets.items()
        if anchor in usable
    }
    strangers = sorted({frame for frames in lists.values() for frame in frames if frame not in usable})
    apart = offsets({anchor: [frame for frame in frames if frame in usable] for anchor, frames in lists.items()})
    unclear = [anchor for anchor in lists if anchor not in apart]
    no_label = f"no label from 0 to {classes - 1}"
    notes = [
        f"{len(frames):,} {what}: {named(frames)}"
        for frames, what in (
            (outside, "frames are left out, their paths lead out of the folder"),
            (unlabelled, f"anchors are left out, {no_label}"),
            (strangers, f"neighbours are left out, {no_label}"),
            (unclear, "anchors are left out, numbers do not tell how far neighbours are"),
        )
        if frames
    ]
    unit = math.gcd(*(offset for near in apart.values() for offset in near.values())) or 1
    if unit > 1:
        notes.append(f"the numbers of frames go up by {unit:,}: k counts steps of {unit:,}")
    anchors = (Anchor(a, tuple((frame, n // unit) for frame, n in near.items())) for a, near in apart.items())
    return tuple(anchors), notes


def offsets(neighbours: Mapping[str, Sequence[str]]) -> dict[str, dict[str, int]]:
    """For each anchor how many frames its neighbours lie after it, by the numbers that their names end in, as in
    val/VIDEO/000432.JPEG. Anchors are left out where a name differs in more than that number."""
    apart: dict[str, dict[str, int]] = {}
    for anchor, frames in neighbours.items():
        place, own = _numbered(anchor)
        others = {frame: _numbered(frame) for frame in frames}
        if all(other[0] == place and other[1] != own for other in others.values()):
            apart[anchor] = {frame: other[1] - own for frame, other in others.items()}
    return apart


def _numbered(frame: str) -> tuple[str, int]:
    """A name without its last number, and that number; 0 where it has none."""
    found = re.search(r"([0-9]{1,18})([^0-9/]*)$", frame.rpartition(".")[0] or frame)
    return (f"{frame[: found.start()]}*{found[2]}", int(found[1])) if found else (frame, 0)


def find_frames(folder: Path, frames: Sequence[str]) -> tuple[Path, list[str]]:
    """Where the names start from, and which of the frames are there. The folder may also be the one that names
    begin with, val/, or the one around YTBB-Robust's ytbb_videos/."""
    path = folder.resolve()
    is_inside = any(frame.startswith(f"{path.name}/") for frame in frames)
    for root in (folder, *([path.parent] if is_inside else []), folder / "ytbb_videos"):
        there = [frame for frame in frames if (root / frame).is_file()]
        if there:
            return root, there
    return folder, []
