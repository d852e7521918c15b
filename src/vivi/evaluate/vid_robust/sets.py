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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vivi.evaluate.vid_robust.class_maps import ClassMap, read_class_map
from vivi.evaluate.vid_robust.files import is_index, named, read_json, read_object
from vivi.evaluate.vid_robust.offsets import offsets
from vivi.evaluate.vid_robust.scores import Anchor
from vivi.evaluate.vid_robust.ytbb import ANCHORS, read_ytbb
from vivi.runtime.errors import UserError
from vivi.runtime.storage import leads_out

SETS = "pmsets.json"
MAX_LOOKED_AT = 1000  # files, to name one of them
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
    if (folder / SETS).exists():
        pmsets, labels = read_object(folder / SETS), read_object(folder / "labels.json")
        notes: tuple[str, ...] = ()
    else:
        pmsets, labels, notes = read_ytbb(folder, names)
    classes = names or tuple(map(str, range(_highest(labels) + 1)))
    found_map = class_map or next((folder / name for name in _MAPS if (folder / name).exists()), None)
    outputs = read_class_map(found_map, classes, bool(names)) if found_map else None
    classes = names or tuple(map(str, range(max(len(classes), len(outputs or ())))))
    right = {frame: _right(value, len(classes)) for frame, value in labels.items()}
    anchors, more = _anchors(pmsets, {frame: one for frame, one in right.items() if one}, len(classes))
    if not anchors:
        raise UserError(f"{folder} has no anchors" + "".join(f"; {note}" for note in (*notes, *more)))
    wanted = {frame for anchor in anchors for frame in (anchor.frame, *(name for name, _ in anchor.neighbours))}
    scored = {frame: one for frame, one in right.items() if one and frame in wanted}
    given = class_map is not None
    return RobustSet(_title(folder), anchors, scored, classes, bool(names), outputs, given, (*notes, *more))


def _title(folder: Path) -> str:
    """The name of a set: that of its folder, or of the one that metadata/ is in."""
    path = folder.resolve()
    return path.parent.name if path.name == "metadata" else path.name


def _class_names(folder: Path) -> tuple[str, ...]:
    """Names of the classes by number; none where no file has them."""
    places = [folder / name for name in _NAMES] + [folder.resolve().parent / "misc" / name for name in _NAMES]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        return ()
    content = read_json(path)
    if isinstance(content, list):
        content = {str(number): name for number, name in enumerate(content)}
    try:
        values = [content[str(number)] for number in range(len(content))]
    except (KeyError, TypeError):
        raise UserError(f"{path} must name the classes 0, 1, 2, ... one after the other") from None
    names = tuple(value[-1] if isinstance(value, list) and value else value for value in values)  # [wnid, name]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise UserError(f"{path} must name the classes: texts, each of them once")
    return names


def _highest(labels: Mapping[str, Any]) -> int:
    lists = (value if isinstance(value, list) else [value] for value in labels.values())
    return max((label for value in lists for label in value if is_index(label)), default=0)


def _right(value: Any, classes: int) -> frozenset[int]:
    """The classes that count as right; none where the label is impossible."""
    labels = value if isinstance(value, list) else [value]
    possible = all(is_index(label) and label < classes for label in labels)
    return frozenset(labels if possible else ())


def _anchors(
    pmsets: Mapping[str, Any], right: Mapping[str, frozenset[int]], classes: int
) -> tuple[tuple[Anchor, ...], list[str]]:
    """Anchors and neighbours that have labels, and notes on those that are left out."""
    shapeless = dict.fromkeys(anchor for anchor, frames in pmsets.items() if not _is_list_of_names(frames))
    lists = {anchor: frames for anchor, frames in pmsets.items() if anchor not in shapeless}
    listed = dict.fromkeys(frame for anchor, frames in lists.items() for frame in (anchor, *frames))
    outside = {frame: None for frame in listed if leads_out(frame)}
    right = {frame: one for frame, one in right.items() if frame not in outside}
    unlabelled = [anchor for anchor in lists if anchor not in right and anchor not in outside]
    # An anchor is no neighbour of its own, and nothing is there twice.
    lists = {
        anchor: [frame for frame in dict.fromkeys(frames) if frame != anchor and frame not in outside]
        for anchor, frames in lists.items()
        if anchor in right
    }
    neighbours = {anchor: [frame for frame in frames if frame in right] for anchor, frames in lists.items()}
    strangers = sorted({frame for frames in lists.values() for frame in frames if frame not in right})
    apart, by_order, units = offsets(neighbours)
    no_label = f"no label from 0 to {classes - 1}"
    notes = [
        f"{len(frames):,} {what}: {named(frames)}"
        for frames, what in (
            ([*shapeless], "anchors are left out, their neighbours are no list of names"),
            ([*outside], "frames are left out, their paths lead out of the folder"),
            (unlabelled, f"anchors are left out, {no_label}"),
            (strangers, f"neighbours are left out, {no_label}"),
            (by_order, "anchors have neighbours whose numbers do not tell how far they are; their order does"),
        )
        if frames
    ] + units
    pairs = {anchor: tuple(zip(frames, apart[anchor], strict=True)) for anchor, frames in neighbours.items()}
    return tuple(Anchor(anchor, near) for anchor, near in pairs.items()), notes


def _is_list_of_names(frames: Any) -> bool:
    return isinstance(frames, list) and all(isinstance(frame, str) for frame in frames)


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


def some_file(folder: Path, wanted: str) -> str:
    """The name of a file that is there, of the wanted kind if possible: it shows what is wrong with the folder."""
    files = [path for path in islice(folder.rglob("*"), MAX_LOOKED_AT) if path.is_file()]
    kind = Path(wanted).suffix.lower()
    found = min(files, key=lambda path: path.suffix.lower() != kind, default=None)
    return f"{found.relative_to(folder)} is" if found else "nothing is"
