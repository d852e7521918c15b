"""Labelled images: which files there are and their classes, and a class-balanced part of them.

folder/<class>/.../x.jpg          ImageNet's layout; also folder/train/<class>/ beside folder/val/<class>/
list.txt   lines `path label`     list.csv   columns path,label     paths relative to the list's folder
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from math import ceil, floor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivi.data.image_lists import LAYOUT, NAMES, has_image_name, is_number, note, read_list, read_names, relative
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
        names, classes = ("\0".join(part).encode("utf-8", "surrogateescape") for part in (self.names, self.classes))
        for part in (names, self.labels.astype("<i8").tobytes(), classes):
            whole.update(hashlib.sha256(part).digest())
        return whole.hexdigest()


def find_images(source: Path, labels: bool = True) -> LabelledImages:
    """The images of a folder or a list to train on. Where their labels are not used, they need have none: all images
    below a folder without classes are then of one class."""
    part = _train_folder(source)
    images = _find(part, labels)
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
        return _relabel(_find(place), classes)
    train = _train_folder(source)
    if train == source:
        return None
    try:
        return _relabel(_find(_test_folders(source)[0]), classes)
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
            f"--images.fraction {fraction} takes less than one image of each of the {len(present):,} classes; "
            f"give {least} or more"
        )
    smallest = int(sizes.argmin())
    if each > sizes[smallest]:
        most = _fraction_that_gives(int(sizes[smallest]), len(images), len(present))
        raise UserError(
            f"--images.fraction {fraction} takes {each:,} images of each class, but class "
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
        raise UserError(f"{listed} names no image of {images.root}; " + "; ".join([*notes[:1], f"give {NAMES}"]))
    present, labels = np.unique(images.labels[chosen], return_inverse=True)
    classes = tuple(images.classes[label] for label in present)
    if len(classes) < 2:
        raise UserError(f"{listed} names images of one class only, {classes[0]!r}; add images of others")
    lost = [repr(images.classes[label]) for label in np.setdiff1d(images.labels, present)]
    notes += note("class name", f"of which {listed} names no image", lost)
    return replace(_subset(images, chosen, notes), labels=labels, classes=classes)


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


def _subset(images: LabelledImages, indices: Iterable[int], notes: Iterable[str] = ()) -> LabelledImages:
    chosen = np.fromiter(indices, np.int64)
    names = [images.names[index] for index in chosen]
    return replace(images, names=names, labels=images.labels[chosen], notes=(*images.notes, *notes))


# --- what a folder or a list holds ---


def _train_folder(source: Path) -> Path:
    """The train/ of a folder that holds test images beside it; else the source itself."""
    return source / "train" if os.path.isdir(source / "train") and _test_folders(source) else source


def _test_folders(source: Path) -> list[Path]:
    return [source / name for name in TEST_FOLDERS if os.path.isdir(source / name)]


def _find(source: Path, labels: bool = True) -> LabelledImages:
    """The images of a folder or a list, of at least one class."""
    if os.path.isfile(source / "corpus.json"):
        raise UserError(f"{source} is a corpus of videos, not images: name it with --corpus")
    if os.path.isdir(source):
        label_of, classes, notes = _read_folder(source, labels)
        root = source
    elif not os.path.exists(source):
        raise UserError(f"{source} does not exist; give {LAYOUT}")
    elif source.suffix.lower() not in (".txt", ".csv"):
        raise UserError(f"{source} is neither a folder nor a list; give {LAYOUT}")
    else:
        label_of, classes, notes = read_list(source)
        root = source.parent
    names = sorted(label_of)
    numbers = np.fromiter(map(label_of.__getitem__, names), np.int64, len(names))
    return LabelledImages(source, root, names, numbers, tuple(classes), tuple(notes))


def _read_folder(root: Path, labels: bool) -> tuple[dict[str, int], list[str], list[str]]:
    """The label of each image below a folder, the classes, which are the folders in it, and notes about what was left
    out. Where labels are not used and the folder holds images, or no two folders, all images are of one class."""
    contents = _scan(root)
    names, folders = contents.images, sorted(contents.folders)
    loose = sorted(name for name in names if "/" not in name)
    unreadable = sorted(contents.unreadable)
    notes = note("file", "other than images", [repr(path) for path in sorted(contents.others)])
    if not labels and (loose or len(folders) < 2):
        if not names:
            raise UserError(f"{root} holds no images" + (f": {unreadable[0]} cannot be read" if unreadable else ""))
        return dict.fromkeys(names, 0), ["image"], notes
    if unreadable and not folders and not loose:
        raise UserError(f"{unreadable[0]} cannot be read; give {LAYOUT}")
    used = {name.partition("/")[0] for name in names if "/" in name}
    classes = [folder for folder in folders if folder in used]
    if not classes:
        raise UserError(f"{root} holds no folder with images{', only images' * bool(loose)}; give {LAYOUT}")
    numbers = {name: number for number, name in enumerate(classes)}
    label_of = {name: numbers[name.partition("/")[0]] for name in names if "/" in name}
    empty = [repr(folder) for folder in folders if folder not in used]
    outside = note("image", f"in {root} itself, outside the class folders", [repr(name) for name in loose])
    unread = note("folder", "that cannot be read", unreadable)
    return label_of, classes, [*note("class folder", "without images", empty), *outside, *notes, *unread]


@dataclass(frozen=True)
class _Contents:
    """What lies anywhere below a folder."""

    images: list[str] = field(default_factory=list)  # by their paths from the folder
    folders: list[str] = field(default_factory=list)  # in the folder itself
    others: list[str] = field(default_factory=list)  # files that are no images
    unreadable: list[str] = field(default_factory=list)  # folders, and why


def _scan(root: Path) -> _Contents:
    """Follows links, but to no folder twice within a class. A file is not asked for more than its name and kind: a
    million of them on a network drive would take long."""
    found = _Contents()
    visited: set[tuple[str, str]] = set()  # class, folder
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        path = os.path.join(root, folder)
        place = folder.partition("/")[0], os.path.realpath(path)
        if place in visited:
            continue
        visited.add(place)
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.name.startswith("."):
                        continue
                    if _holds(entry.is_dir):
                        waiting.append(name)
                    elif has_image_name(name) and _holds(entry.is_file):
                        found.images.append(name)
                    else:
                        found.others.append(entry.path)
        except OSError as error:
            found.unreadable.append(f"{path} ({error.strerror})")
        if not folder:
            found.folders.extend(waiting)
    return found


def _holds(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link to itself
        return False
