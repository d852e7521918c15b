"""Labelled images: which files there are and their classes, and a class-balanced part of them.

folder/<class>/.../x.jpg          ImageNet's layout; also folder/train/<class>/ beside folder/val/<class>/
list.txt   lines `path label`     list.csv   columns path,label[,split]     paths relative to the list's folder
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vivi.data.image_lists import (
    LAYOUT,
    NAMES,
    PARTS,
    has_image_name,
    is_number,
    list_parts,
    note,
    read_list,
    read_names,
    relative,
)
from vivi.runtime.errors import UserError


@dataclass(frozen=True)
class LabelledImages:
    """Image files and their classes."""

    source: Path  # the folder or list they were found in
    root: Path  # the names are relative to it
    names: Sequence[str]  # sorted
    labels: NDArray[np.int64]  # (n,)
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what was left out and why, a line each

    def __len__(self) -> int:
        return len(self.names)

    def present(self) -> list[str]:
        """The classes that have images."""
        return [self.classes[label] for label in np.unique(self.labels)]

    def path(self, index: int) -> Path:
        """The file of an image."""
        return self.root / self.names[index]

    def paths(self) -> list[Path]:
        """The files of all of them."""
        return [self.root / name for name in self.names]

    def files(self) -> Iterator[str]:
        """Where all of them are, whichever way they were named."""
        root = os.path.realpath(self.root)
        return (os.path.join(root, name) for name in self.names)

    def fingerprint(self) -> str:
        """Changes with names, labels and classes. The files are not looked into: a million would take minutes."""
        whole = hashlib.sha256()
        names, classes = ("\0".join(part).encode("utf-8", "surrogateescape") for part in (self.names, self.classes))
        for part in (names, self.labels.astype("<i8").tobytes(), classes):
            whole.update(hashlib.sha256(part).digest())
        return whole.hexdigest()


def find_images(source: Path, labels: bool = True) -> LabelledImages:
    """The images of a folder or a list to train on. Where their labels are not used, they need have none: all images
    below a folder without classes are then of one class."""
    images = _find(_parts(source)["train"], labels)
    if labels:
        check_classes(images)
    return images


def check_classes(images: LabelledImages) -> None:
    """Raises where there is only one class."""
    part, present = images.source, images.present()
    if len(present) < 2:
        only = present[0]
        inside = f"give {part / only}, if that holds the classes; else" if os.path.isdir(part / only) else "give"
        one = f"{part} has images of one class only, {only!r}"
        raise UserError("; ".join([one, *images.notes, f"{inside} {LAYOUT}"]))


def find_test_images(source: Path, test: Path | None, classes: Sequence[str]) -> LabelledImages | None:
    """The images to test on, labelled as in `classes`: those of `test`, or else those beside source's train/."""
    parts = _parts(test or source)
    beside = parts.get("validation", parts.get("test"))
    if test is not None:
        return relabel(_find(beside or _Part(test)), classes)
    try:
        return relabel(_find(beside), classes) if beside else None
    except UserError as error:
        remedy = "" if beside and beside.rows else f"; or give {parts['train'].path}, to do without test images"
        raise UserError(f"{error}{remedy}") from None


def find_parts(source: Path) -> dict[str, LabelledImages]:
    """The images of a folder or a list by their part: train and, where users split them, validation or test or both.
    Each has its own classes."""
    return {name: _find(part) for name, part in _parts(source).items()}


class _Part(NamedTuple):
    """A folder, a list, or the rows of a list that have this split."""

    path: Path
    rows: str = ""


def _parts(source: Path) -> dict[str, _Part]:
    """Where the images to train on lie and, beside them, those to validate and to test on; a validation set alone is
    to test on. Without such a split, all images are to train on."""
    parts: dict[str, _Part] = {}
    if source.suffix.lower() == ".csv" and os.path.isfile(source):
        parts = {part: _Part(source, part) for part in list_parts(source)}
    for name, part in PARTS.items():
        for folder in (source / name, source / name.capitalize()):
            if os.path.isdir(folder):
                parts.setdefault(part, _Part(folder))
    if "train" not in parts or len(parts) < 2:
        return {"train": _Part(source)}
    return parts if "test" in parts else {"train": parts["train"], "test": parts["validation"]}


def set_name(source: Path) -> str:
    """The name of a set of images: that of its folder, or of the one that val/ or a list is in."""
    path = source.resolve()
    if path.is_file():
        return f"{path.parent.name}-{path.stem}"
    return (path.parent if path.name in PARTS.keys() - {"train"} else path).name or "images"


def class_balanced(images: LabelledImages, fraction: float, seed: int) -> LabelledImages:
    """A fraction of the images, the same number from every class: floor(fraction · images / classes). They are those
    whose names have the smallest hashes: a smaller fraction is a part of a larger one, and more files change
    little."""
    if fraction == 1:
        return images
    present, sizes = np.unique(images.labels, return_counts=True)
    smallest = int(sizes.argmin())
    # A Fraction, because in floats 0.29 · 100 is less than 29.
    each = floor(Fraction(str(float(fraction))) * len(images) / len(present))
    possible = min(max(each, 1), int(sizes[smallest]))
    if each != possible:
        nearest = ceil(1e6 * possible * len(present) / len(images)) / 1e6
        raise UserError(
            f"--images.fraction {fraction} takes {each:,} images of each of the {len(present):,} classes, of which "
            f"the smallest, {images.classes[present[smallest]]!r}, has {sizes[smallest]:,}; "
            f"give {nearest:g} or {'more' if each < possible else 'less'}, or 1 for all"
        )
    return subset(images, np.flatnonzero(places_in_class(images.labels, images.names, seed) < each))


def places_in_class(labels: NDArray[np.int64], keys: Iterable[str], seed: int) -> NDArray[np.int64]:
    """The place (n,) of each image among those of its class, the smallest hash of seed and key first."""
    seeded = (f"{seed} {key}".encode("utf-8", "surrogateescape") for key in keys)
    hashes = np.frombuffer(b"".join(hashlib.blake2b(key, digest_size=8).digest() for key in seeded), ">u8")
    order = np.lexsort((hashes, labels))
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    places = np.empty(len(labels), np.int64)
    places[order] = np.arange(len(labels)) - np.repeat(first, sizes)
    return places


def only_listed(images: LabelledImages, listed: Path) -> LabelledImages:
    """The images that a file names: by their paths or, where no two share it, by the last part of them. Classes of
    which it names none are left out."""
    matches_of: dict[str, list[int]] = {relative(name, images.root): [] for name in read_names(listed)}
    for index, name in enumerate(images.names):
        last = name.rpartition("/")[2]
        if name in matches_of or last in matches_of:
            matches_of[name if name in matches_of else last].append(index)
    unclear = [repr(name) for name, matches in matches_of.items() if len(matches) != 1]
    why = f"in {listed} of no image in {images.root}, or of several (write their paths from there)"
    notes = note("name", why, unclear)
    chosen = np.array(sorted(matches[0] for matches in matches_of.values() if len(matches) == 1), np.int64)
    classes = [images.classes[label] for label in np.unique(images.labels[chosen])]
    if len(classes) < 2:
        named = f"images of one class only, {classes[0]!r}" if classes else f"no image of {images.root}"
        raise UserError("; ".join([f"{listed} names {named}", *notes, f"give {NAMES}"]))
    lost = [repr(name) for name in sorted({*images.present()} - {*classes})]
    notes += note("class name", f"of which {listed} names no image", lost)
    return subset(images, chosen, notes, classes)


def relabel(images: LabelledImages, classes: Sequence[str]) -> LabelledImages:
    """Images with the labels that their classes have in `classes`, without those of other classes."""
    where, names, notes = images.source, images.present(), []
    if os.path.isfile(where) and all(map(is_number, names)) and set(classes).isdisjoint(names):
        named = {str(label): name for label, name in enumerate(classes)}
        images = replace(images, classes=tuple(named.get(number, number) for number in images.classes))
        notes.append(f"labels of {where} are numbers, taken in the order of the classes: 0 is {classes[0]!r}")
    known = np.isin(images.classes, classes)[images.labels]  # (n,)
    unknown = [repr(images.classes[label]) for label in np.unique(images.labels[~known])]
    if not known.any():
        raise UserError(
            f"{where} has no class of the training images: {unknown[0]} is none of theirs; name them alike"
        )
    notes += note("class name", f"of {where} that training does not know", unknown)
    return subset(images, np.flatnonzero(known), notes, classes)


def subset(
    images: LabelledImages, chosen: NDArray[np.int64], notes: Sequence[str] = (), classes: Sequence[str] | None = None
) -> LabelledImages:
    """Some of the images, with the labels that their classes have in `classes`, by default in their own."""
    names, labels = [images.names[index] for index in chosen], images.labels[chosen]
    if classes is not None:
        label_of = {name: label for label, name in enumerate(classes)}
        labels = np.array([label_of.get(name, -1) for name in images.classes])[labels]
    kept = images.classes if classes is None else tuple(classes)
    return replace(images, names=names, labels=labels, classes=kept, notes=(*images.notes, *notes))


# --- what a folder or a list holds ---


def _find(part: _Part, labels: bool = True) -> LabelledImages:
    """The images of a folder or a list, of at least one class."""
    source = part.path
    if os.path.isfile(source / "corpus.json"):
        raise UserError(f"{source} is a corpus of videos, not images: name it with --corpus")
    folder = os.path.isdir(source)
    if not folder and not os.path.exists(source):
        raise UserError(f"{source} does not exist; give {LAYOUT}")
    if not folder and source.suffix.lower() not in (".txt", ".csv"):
        raise UserError(f"{source} is neither a folder nor a list; give {LAYOUT}")
    class_of, classes, notes = _read_folder(source, labels) if folder else read_list(source, part.rows)
    names, number_of = sorted(class_of), {name: number for number, name in enumerate(classes)}
    numbers = np.fromiter((number_of[class_of[name]] for name in names), np.int64, len(names))
    return LabelledImages(source, source if folder else source.parent, names, numbers, tuple(classes), tuple(notes))


def _read_folder(root: Path, labels: bool) -> tuple[dict[str, str], list[str], list[str]]:
    """The class of each image below a folder, all classes, which are the folders in it, and notes about what was left
    out. Where labels are not used and the folder holds images, or no two folders, all images are of one class."""
    found = _scan(root)
    loose = sorted(name for name in found["image"] if "/" not in name)
    notes = note("file", "other than images", [repr(path) for path in sorted(found["other"])])
    notes += note("folder", "that cannot be read", sorted(found["unreadable"]))
    if not labels and (loose or len(found["folder"]) < 2):
        class_of = dict.fromkeys(found["image"], "image")
    else:
        class_of = {name: name.partition("/")[0] for name in found["image"] if "/" in name}
        empty = [repr(folder) for folder in sorted({*found["folder"]} - {*class_of.values()})]
        outside = note("image", f"in {root} itself, outside the class folders", [repr(name) for name in loose])
        notes = [*note("class folder", "without images", empty), *outside, *notes]
    if not class_of:
        what = "images"
        if labels:
            what = "folder with images, only images" if loose else "folder with images"
        reason = f"{min(found['unreadable'])} cannot be read; " if found["unreadable"] else ""
        raise UserError(f"{root} holds no {what}; {reason}give {LAYOUT}")
    return class_of, sorted({*class_of.values()}), notes


def _scan(root: Path) -> dict[str, list[str]]:
    """What lies anywhere below a folder: each "image" and, in the folder itself, each "folder", by their paths from
    it; each "other" file; each "unreadable" folder, and why. Follows links, but to no folder twice within a class. A
    file is not asked for more than its name and kind: a million of them on a network drive would take long."""
    found: dict[str, list[str]] = {"image": [], "folder": [], "other": [], "unreadable": []}
    visited: set[tuple[str, str]] = set()  # class, folder
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        path = os.path.join(root, folder)
        visit = folder.partition("/")[0], os.path.realpath(path)
        if visit in visited:
            continue
        visited.add(visit)
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    link = entry.is_symlink()  # one to itself makes entry.is_dir() raise
                    if entry.name.startswith("."):
                        continue
                    if os.path.isdir(entry.path) if link else entry.is_dir():
                        waiting.append(name)
                    elif has_image_name(name) and (os.path.isfile(entry.path) if link else entry.is_file()):
                        found["image"].append(name)
                    else:
                        found["other"].append(entry.path)
        except OSError as error:
            found["unreadable"].append(f"{path} ({error.strerror})")
        if not folder:
            found["folder"].extend(waiting)
    return found
