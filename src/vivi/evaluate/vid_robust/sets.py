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
from vivi.evaluate.vid_robust.scores import Anchor
from vivi.evaluate.vid_robust.ytbb import ANCHORS, read_ytbb
from vivi.runtime.errors import UserError
from vivi.runtime.storage import leads_out

SETS = "pmsets.json"
_ARCHIVE = "imagenet_vid_class_index.json"
_NAMES = ("classes.json", "ytbb_class_index.json", _ARCHIVE, f"../misc/{_ARCHIVE}")
_MAPS = ("rev_class_idx_map.json", "class_idx_map.json")
_MOST_CLASSES = 10_000  # of a set without names

ClassMap = tuple[tuple[int, ...], ...]  # for each class of the set, the outputs of a classifier that mean it


@dataclass(frozen=True)
class RobustSet:
    """Anchors with their neighbours, and what is right for every frame."""

    name: str
    anchors: tuple[Anchor, ...]
    labels: Mapping[str, frozenset[int]]
    classes: tuple[str, ...]  # their names, or their numbers
    class_map: ClassMap | None  # None: classifiers have these very classes
    map_given: bool = False  # by users; else it is the set's own
    k: int = 0  # neighbours that are farther away do not count
    notes: tuple[str, ...] = ()  # what was left out, and why

    def frames(self) -> list[str]:
        """The anchors and their neighbours at most k frames away."""
        return sorted({frame for anchor in self.anchors for frame in anchor.within(self.k)})

    def checksums(self) -> tuple[str, str]:
        """sha256 over all that scores depend on besides the classifier and its class map; and over the class map."""
        anchors = [(anchor.frame, anchor.neighbours) for anchor in self.anchors]
        labels = sorted((frame, sorted(right)) for frame, right in self.labels.items())
        content = json.dumps([self.k, anchors, labels, self.classes]).encode()
        mapped = hashlib.sha256(json.dumps(self.class_map).encode()).hexdigest() if self.class_map else ""
        return hashlib.sha256(content).hexdigest(), mapped


def numbers(count: int) -> tuple[str, ...]:
    """What classes without names are called."""
    return tuple(map(str, range(count)))


def find_metadata(metadata: Path | None, frames: Path | None) -> Path:
    """The folder of a set's metadata: as given, or near its frames."""
    given = metadata or frames
    assert given is not None  # checked with the flags
    beside = given.resolve().parent
    places = [given, given / "metadata", *([] if metadata else [beside / "metadata", beside])]
    for place in places:
        if (place / SETS).exists() or (place / ANCHORS).exists():
            return place
    raise UserError(f"there is no {SETS} in {given}; --metadata is the folder with {SETS} and labels.json")


def find_frames(folder: Path | None, frames: Sequence[str]) -> tuple[Path, list[str]]:
    """Where the names start from, and which of the frames are there. The folder may also be the one that names
    begin with, val/, or the one around YTBB-Robust's ytbb_videos/."""
    if folder is None:
        return Path(), []
    path = folder.resolve()
    roots = [folder, folder / "ytbb_videos"]
    if any(frame.startswith(f"{path.name}/") for frame in frames):
        roots.insert(1, path.parent)
    found = ((root, [frame for frame in frames if (root / frame).is_file()]) for root in roots)
    return next(((root, there) for root, there in found if there), (folder, []))


def read_set(folder: Path, class_map: Path | None = None, farthest: int = 0) -> RobustSet:
    """The set whose metadata lie in a folder. What is wrong with single frames is noted, and they are left out."""
    names = _class_names(folder)
    notes: list[str] = []
    labels: Mapping[str, int | list[int]]
    if (folder / SETS).exists():
        pmsets: dict[str, list[str]] = read_json(folder / SETS, dict[str, list[str]])
        labels = read_json(folder / "labels.json", dict[str, int | list[int]])
    else:
        pmsets, labels, notes = read_ytbb(folder, names)
    right = {frame: frozenset(some if isinstance(some, list) else [some]) for frame, some in labels.items()}
    count = min(_MOST_CLASSES, 1 + max((label for some in right.values() for label in some), default=0))
    map_file = class_map or next((folder / name for name in _MAPS if (folder / name).exists()), None)
    outputs = read_class_map(map_file, names, count) if map_file else None
    classes = names or numbers(len(outputs) if outputs else count)
    known = {*range(len(classes))}
    right = {frame: some for frame, some in right.items() if some and some <= known}
    anchors = _anchors(pmsets, right, len(classes), notes)
    if not anchors:
        raise UserError("; ".join([f"{folder} has no anchors", *notes]))
    scored = {frame: right[frame] for anchor in anchors for frame in (anchor.frame, *dict(anchor.neighbours))}
    most = max((abs(offset) for anchor in anchors for _, offset in anchor.neighbours), default=0)
    path = folder.resolve()
    name = path.parent.name if path.name == "metadata" else path.name
    k = min(farthest or most, most)
    return RobustSet(name, anchors, scored, classes, outputs, class_map is not None, k, tuple(notes))


def _class_names(folder: Path) -> tuple[str, ...]:
    """Names of the classes by number; none where no file has them."""
    path = next((folder.resolve() / name for name in _NAMES if (folder.resolve() / name).exists()), None)
    if path is None:
        return ()
    content: Any = read_json(path, list[str] | dict[str, str | list[str]])
    values = content if isinstance(content, list) else [content.get(number) for number in numbers(len(content))]
    names = tuple((value or [None])[-1] if isinstance(value, list) else value for value in values)  # [wnid, name]
    if None in names or len(set(names)) < len(names):
        raise UserError(f"{path} must name the classes 0, 1, 2, ..., each of them once")
    return names


def read_class_map(path: Path, names: Sequence[str], labels: int) -> ClassMap:
    """Of a file that goes from classes to lists of outputs, or from outputs to classes. Classes are known by number,
    or by their names in the set; a set without names has at least as many as its labels say."""
    content: dict[str, int | str | list[int]] = read_json(path, dict[str, int | str | list[int]])
    pairs: list[tuple[int | str, int | str]] = []  # class, output
    for key, value in content.items():
        pairs += [(key, output) for output in value] if isinstance(value, list) else [(value, key)]
    class_of: dict[int, int] = {}
    for name, output in pairs:
        number = names.index(str(name)) if name in names else int(name) if str(name).isdecimal() else -1
        is_class, is_output = 0 <= number < (len(names) or _MOST_CLASSES), str(output).isdecimal()
        if not is_class or not is_output or class_of.setdefault(int(output), number) != number:
            raise UserError(
                f"{path} is no class map, at class {name!r} and output {output!r}: classes must be those of the set, "
                "outputs numbers from 0 on, each of one class alone"
            )
    if not class_of:
        raise UserError(f"{path} is no class map: it names no outputs")
    count = len(names) or max(labels, 1 + max(class_of.values()))
    return tuple(tuple(sorted(o for o, number in class_of.items() if number == of)) for of in range(count))


# --- anchors ---


def _anchors(
    pmsets: Mapping[str, Sequence[str]], labels: Mapping[str, object], classes: int, notes: list[str]
) -> tuple[Anchor, ...]:
    """Anchors and neighbours that have labels; what is left out is noted."""
    listed = dict.fromkeys(frame for anchor, frames in pmsets.items() for frame in (anchor, *frames))
    usable = {frame for frame in listed if frame in labels and not leads_out(frame)}
    near = {
        # An anchor is no neighbour of its own, and nothing is there twice.
        anchor: offsets(anchor, [frame for frame in dict.fromkeys(frames) if frame in usable and frame != anchor])
        for anchor, frames in pmsets.items()
        if anchor in usable
    }
    apart = {anchor: some for anchor, some in near.items() if some is not None}
    useless = [frame for frame in listed if frame not in usable]
    why = f"no label from 0 to {classes - 1}, or their paths lead out of the folder"
    for what, frames in {
        f"anchors are left out, {why}": [frame for frame in useless if frame in pmsets],
        f"neighbours are left out, {why}": [frame for frame in useless if frame not in pmsets],
        "anchors are left out, numbers do not tell how far neighbours are": [*(near.keys() - apart.keys())],
    }.items():
        notes += [f"{len(frames):,} {what}: {named(sorted(frames))}"] if frames else []
    unit = math.gcd(*(offset for near in apart.values() for offset in near.values())) or 1
    if unit > 1:
        notes.append(f"the numbers of frames go up by {unit:,}: k counts steps of {unit:,}")
    return tuple(Anchor(a, tuple((frame, n // unit) for frame, n in near.items())) for a, near in apart.items())


def offsets(anchor: str, frames: Sequence[str]) -> dict[str, int] | None:
    """How many frames others lie after an anchor, by the numbers that their names end in, as in
    val/VIDEO/000432.JPEG; None where a name differs in more than that number."""
    place, own = _numbered(anchor)
    others = {frame: _numbered(frame) for frame in frames}
    if any(other[0] != place or other[1] == own for other in others.values()):
        return None
    return {frame: number - own for frame, (_, number) in others.items()}


def _numbered(frame: str) -> tuple[str, int]:
    """A name without its last number, and that number; 0 where it has none."""
    found = re.search(r"([0-9]{1,18})([^0-9/]*)$", frame.rpartition(".")[0] or frame)
    return (f"{frame[: found.start()]}*{found[2]}", int(found[1])) if found else (frame, 0)
