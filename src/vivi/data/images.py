"""Labelled images: which files there are and their classes, and a class-balanced part of them.

folder/<class>/.../x.jpg          ImageNet's layout; also folder/train/<class>/ beside folder/val/<class>/
list.txt   lines `path label`     list.csv   columns path,label     paths relative to the list's folder
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from math import ceil, floor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivi.data.image_lists import (
    LAYOUT,
    NAMES,
    has_image_name,
    is_number,
    note,
    read_list,
    read_names,
    relative,
)
from vivi.runtime.errors import UserError

TEST_FOLDERS = ("val", "validation", "test")


@dataclass(frozen=True)
class LabelledImages:
    """Image files and their classes."""

    source: Path
    """The folder or list they were found in."""
    root: Path
    """The names are relative to it."""
    names: Sequence[str]
    """Sorted."""
    labels: NDArray[np.int64]  # (n,)
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What was left out and why, a line each."""

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        """The file of an image."""
        return self.root / self.names[index]

    def files(self) -> Iterator[str]:
        """Where all of them are, whichever way they were named."""
        root = os.path.realpath(self.root)
        return (os.path.join(root, name) for name in self.names)

    def fingerprint(self) -> str:
        """Tells other names, labels or classes; the files are not looked into: a million would take minutes."""
        whole = hashlib.sha256()
        for part in (_encoded(self.names), self.labels.astype("<i8").tobytes(), _encoded(self.classes)):
            whole.update(hashlib.sha256(part).digest())
        return whole.hexdigest()


def find_images(source: Path, labels: bool = True) -> LabelledImages:
    """The images of a folder or a list to train on. Where their labels are not used, they need have none: all images
    below a folder without classes are then of one class."""
    part = _train_folder(source)
    if not labels and os.path.isdir(part) and _has_no_classes(part):
        return _images_without_classes(part)
    images = _find_labelled(part)
    present = np.unique(images.labels)
    if labels and len(present) < 2:
        only = images.classes[present[0]]
        inside = f"give {part / only}, if that holds the classes; else" if os.path.isdir(part / only) else "give"
        raise UserError(f"{part} has images of one class only, {only!r}; {inside} {LAYOUT}")
    return images


def find_test_images(source: Path, test: Path | None, classes: Sequence[str]) -> LabelledImages | None:
    """The images to test on, labelled as in `classes`: those of `test`, or else those beside source's train/."""
    if test is not None:
        place = test if _train_folder(test) == test else _test_folders(test)[0]
        return _relabel(_find_labelled(place), classes)
    train = _train_folder(source)
    if train == source:
        return None
    try:
        return _relabel(_find_labelled(_test_folders(source)[0]), classes)
    except UserError as error:
        raise UserError(f"{error}; or give {train}, to do without test images") from None


def class_balanced(images: LabelledImages, fraction: float, seed: int) -> LabelledImages:
    """A fraction of the images, the same number from every class: floor(fraction · images / classes).

    They are those whose names have the smallest hashes: a smaller fraction is a part of a larger one, and more files
    change little.
    """
    if fraction == 1:
        return images
    present, sizes = np.unique(images.labels, return_counts=True)
    each = _images_per_class(Fraction(str(float(fraction))), len(images), len(present))
    if each == 0:
        least = _fraction_that_gives(1, len(images), len(present))
        raise UserError(
            f"--images-fraction {fraction} takes less than one image of each of the {len(present):,} classes; "
            f"give {least} or more"
        )
    smallest = int(sizes.argmin())
    if each > sizes[smallest]:
        most = _fraction_that_gives(int(sizes[smallest]), len(images), len(present))
        raise UserError(
            f"--images-fraction {fraction} takes {each:,} images of each class, but class "
            f"{images.classes[present[smallest]]!r} has {sizes[smallest]:,}; give {most} or less, or 1 for all"
        )
    hashes = np.array([_hash(seed, name) for name in images.names], np.uint64)
    by_class = np.lexsort((hashes, images.labels))  # in each the smallest hash first
    first = np.cumsum(sizes) - sizes  # (classes,), where each begins
    return _subset(images, np.sort(by_class[first[:, None] + np.arange(each)], axis=None))


def _images_per_class(fraction: Fraction, images: int, classes: int) -> int:
    # A Fraction, because in floats 0.29 · 100 is less than 29.
    return floor(fraction * images / classes)


def _fraction_that_gives(each: int, images: int, classes: int) -> float:
    """The smallest fraction that gives this many images of each class, in three decimals or as many as it takes."""
    exact = Fraction(each * classes, images)
    rounded = (Fraction(ceil(exact * 10**digits), 10**digits) for digits in count(3))
    return float(next(fraction for fraction in rounded if _images_per_class(fraction, images, classes) == each))


def _hash(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed} {name}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _encoded(names: Iterable[str]) -> bytes:
    return "\0".join(names).encode("utf-8", "surrogateescape")


def _subset(images: LabelledImages, indices: NDArray[np.int64], notes: Iterable[str] = ()) -> LabelledImages:
    names = [images.names[index] for index in indices]
    return replace(images, names=names, labels=images.labels[indices], notes=(*images.notes, *notes))


def _train_folder(source: Path) -> Path:
    """The train/ of a folder that holds test images beside it; else the source itself."""
    return source / "train" if os.path.isdir(source / "train") and _test_folders(source) else source


def _test_folders(source: Path) -> list[Path]:
    return [source / name for name in TEST_FOLDERS if os.path.isdir(source / name)]


def _find_labelled(source: Path) -> LabelledImages:
    """The images of a folder or a list, of at least one class."""
    if os.path.isfile(source / "corpus.json"):
        raise UserError(f"{source} is a corpus of videos, not images: name it with --corpus")
    if os.path.isdir(source):
        return _class_folders(source)
    if not os.path.exists(source):
        raise UserError(f"{source} does not exist; give {LAYOUT}")
    if source.suffix.lower() not in (".txt", ".csv"):
        raise UserError(f"{source} is neither a folder nor a list; give {LAYOUT}")
    return _labelled(source, source.parent, *read_list(source))


def _labelled(
    source: Path, root: Path, label_of: Mapping[str, int], classes: Iterable[str], notes: Iterable[str]
) -> LabelledImages:
    names = sorted(label_of)
    labels = np.fromiter(map(label_of.__getitem__, names), np.int64, len(names))
    return LabelledImages(source, root, names, labels, tuple(classes), tuple(notes))


# Folders


def _class_folders(root: Path) -> LabelledImages:
    others: list[str] = []
    unreadable: list[str] = []
    loose, folders = _entries(str(root), others, unreadable)
    if unreadable:
        raise UserError(f"{unreadable[0]} cannot be read; give {LAYOUT}")
    label_of: dict[str, int] = {}
    classes: list[str] = []
    empty: list[str] = []
    for folder in sorted(folders):
        names = _images_below(root, folder, others, unreadable)
        label_of |= dict.fromkeys(names, len(classes))
        (classes if names else empty).append(folder)
    if not classes:
        raise UserError(f"{root} holds no folder with images{', only images' * bool(loose)}; give {LAYOUT}")
    notes = (
        *note("class folder", "without images", [repr(name) for name in empty]),
        *note("image", f"in {root} itself, outside the class folders", [repr(name) for name in sorted(loose)]),
        *note("file", "other than images", [repr(path) for path in sorted(others)]),
        *note("folder", "that cannot be read", sorted(unreadable)),
    )
    return _labelled(root, root, label_of, classes, notes)


def _has_no_classes(root: Path) -> bool:
    """Whether images lie in the folder itself, or there is one folder at most."""
    files, folders = _entries(str(root), [], [])
    return bool(files) or len(folders) < 2


def _images_without_classes(root: Path) -> LabelledImages:
    others: list[str] = []
    unreadable: list[str] = []
    names = [name.removeprefix("./") for name in _images_below(root, ".", others, unreadable)]
    if not names:
        raise UserError(f"{root} holds no images" + (f": {unreadable[0]} cannot be read" if unreadable else ""))
    notes = (*note("file", "other than images", [repr(path) for path in sorted(others)]),)
    return _labelled(root, root, dict.fromkeys(names, 0), ("image",), notes)


def _images_below(root: Path, top: str, others: list[str], unreadable: list[str]) -> list[str]:
    """The images anywhere below a folder, through links, each folder once."""
    names: list[str] = []
    visited: set[str] = set()
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        path = os.path.join(root, folder)
        if (place := os.path.realpath(path)) in visited:
            continue
        visited.add(place)
        files, folders = _entries(path, others, unreadable)
        names += [f"{folder}/{name}" for name in files]
        waiting += [f"{folder}/{name}" for name in folders]
    return names


def _entries(path: str, others: list[str], unreadable: list[str]) -> tuple[list[str], list[str]]:
    """The images and the folders in a folder; a file is not asked for more than its name and kind."""
    files: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _holds(entry.is_dir):
                    folders.append(entry.name)
                elif has_image_name(entry.name) and _holds(entry.is_file):
                    files.append(entry.name)
                else:
                    others.append(entry.path)
    except OSError as error:
        unreadable.append(f"{path} ({error.strerror})")
    return files, folders


def _holds(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link to itself
        return False


# A part of the images


def _relabel(images: LabelledImages, classes: Sequence[str]) -> LabelledImages:
    """Images with the labels that their classes have in `classes`, without those of other classes."""
    where = images.source
    label_of = {name: label for label, name in enumerate(classes)}
    present = [images.classes[label] for label in np.unique(images.labels)]
    notes = []
    if os.path.isfile(where) and all(map(is_number, present)) and label_of.keys().isdisjoint(present):
        label_of = {str(label): label for label in range(len(classes))}
        notes.append(f"labels of {where} are numbers, taken in the order of the classes: 0 is {classes[0]!r}")
    unknown = [repr(name) for name in present if name not in label_of]
    if len(unknown) == len(present):
        raise UserError(
            f"{where} has no class of the training images: {unknown[0]} is none of theirs; name them alike"
        )
    notes += note("class name", f"of {where} that training does not know", unknown)
    labels = np.array([label_of.get(name, -1) for name in images.classes])[images.labels]  # (n,)
    known = np.flatnonzero(labels >= 0)
    return replace(_subset(images, known, notes), labels=labels[known], classes=tuple(classes))


def only_listed(images: LabelledImages, listed: Path) -> LabelledImages:
    """The images that a file names: by their paths or, where no two share it, by the last part of them. Classes of
    which it names none are left out."""
    indices: dict[str, list[int]] = {relative(name, images.root): [] for name in read_names(listed)}
    for index, name in enumerate(images.names):
        last = name.rpartition("/")[2]
        if name in indices or last in indices:
            indices[name if name in indices else last].append(index)
    missing = [repr(name) for name, matches in indices.items() if not matches]
    shared = [repr(name) for name, matches in indices.items() if len(matches) > 1]
    notes = [
        *note("name", f"in {listed} without an image in {images.root}", missing),
        *note("name", f"in {listed} that several images have (write their paths from {images.root})", shared),
    ]
    chosen = sorted(matches[0] for matches in indices.values() if len(matches) == 1)
    if not chosen:
        raise UserError(f"{listed} names no image of {images.root}; " + (notes[0] if notes else f"give {NAMES}"))
    subset = _subset(images, np.array(chosen), notes)
    kept = [images.classes[label] for label in np.unique(subset.labels)]
    lost = [repr(images.classes[label]) for label in np.setdiff1d(images.labels, subset.labels)]
    if len(kept) < 2:
        raise UserError(f"{listed} names images of one class only, {kept[0]!r}; add images of others")
    relabelled = _relabel(subset, kept)
    more = note("class name", f"of which {listed} names no image", lost)
    return replace(relabelled, notes=(*relabelled.notes, *more))
