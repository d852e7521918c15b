"""Labelled images: which files there are and their classes, and a class-balanced part of them.

folder/<class>/.../x.jpg          ImageNet's layout; also folder/train/<class>/ beside folder/val/<class>/
list.txt   lines `path label`     list.csv   columns path,label     paths relative to the list's folder
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from math import ceil, floor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivi.errors import UserError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
TEST_FOLDERS = ("val", "validation", "test")
LARGEST_LABEL = 1_000_000
_LAYOUT = (
    "a folder with a folder of images for each class, or a list (.txt of lines `path label`, .csv of path,label)"
)
_NAMES = 'a .txt with a file name in each line, or a JSON object with the key "values", a list of file names'


@dataclass(frozen=True)
class LabelledImages:
    """Image files and their classes."""

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

    def fingerprint(self) -> str:
        """Tells other names, labels or classes; the files are not looked into: a million would take minutes."""
        whole = hashlib.sha256()
        for part in (_joined(self.names), self.labels.astype("<i8").tobytes(), _joined(self.classes)):
            whole.update(hashlib.sha256(part).digest())
        return whole.hexdigest()


def find_images(source: Path, listed: Path | None = None) -> LabelledImages:
    """The images of a folder or a list to train on; with `listed`, only those that it names."""
    part = _train_part(source)
    images = _find(part)
    if listed is not None:
        images = _only(images, listed)
    present = np.unique(images.labels)
    if len(present) < 2:
        raise UserError(f"{part} has images of one class only, {images.classes[present[0]]!r}; give {_LAYOUT}")
    return images


def find_test_images(source: Path, test: Path | None, classes: Sequence[str]) -> LabelledImages | None:
    """The images to test on, labelled as in `classes`: those of `test`, or else those beside source's train/."""
    if test is not None:
        return _relabel(_find(test), classes, test)
    train = _train_part(source)
    if train == source:
        return None
    beside = _test_parts(source)[0]
    try:
        return _relabel(_find(beside), classes, beside)
    except UserError as error:
        raise UserError(f"{error}; or give {train}, to do without test images") from None


def class_balanced(images: LabelledImages, fraction: float, seed: int) -> LabelledImages:
    """A fraction of the images, the same number from every class: floor(fraction · images / classes).

    They are those whose names have the smallest hashes: a smaller fraction is a part of a larger one, and more files
    change little.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"--images-fraction is {fraction}; it must be above 0 and at most 1")
    if fraction == 1:
        return images
    present, sizes = np.unique(images.labels, return_counts=True)
    each = _per_class(Fraction(str(float(fraction))), len(images), len(present))
    if each == 0:
        least = _fraction_for(1, len(images), len(present))
        raise UserError(
            f"--images-fraction {fraction} takes less than one image of each of the {len(present):,} classes; "
            f"give {least} or more"
        )
    smallest = int(sizes.argmin())
    if each > sizes[smallest]:
        most = _fraction_for(int(sizes[smallest]), len(images), len(present))
        raise UserError(
            f"--images-fraction {fraction} takes {each:,} images of each class, but class "
            f"{images.classes[present[smallest]]!r} has {sizes[smallest]:,}; give {most} or less, or 1 for all"
        )
    hashes = np.array([_hash(seed, name) for name in images.names], np.uint64)
    by_class = np.lexsort((hashes, images.labels))  # in each the smallest hash first
    first = np.cumsum(sizes) - sizes  # (classes,), where each begins
    return _take(images, np.sort(by_class[first[:, None] + np.arange(each)], axis=None))


def _per_class(fraction: Fraction, images: int, classes: int) -> int:
    # A Fraction, because in floats 0.29 · 100 is less than 29.
    return floor(fraction * images / classes)


def _fraction_for(each: int, images: int, classes: int) -> float:
    """The smallest fraction that gives this many images of each class, in three decimals or as many as it takes."""
    exact = Fraction(each * classes, images)
    rounded = (Fraction(ceil(exact * 10**digits), 10**digits) for digits in count(3))
    return float(next(fraction for fraction in rounded if _per_class(fraction, images, classes) == each))


def _hash(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed} {name}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _joined(names: Iterable[str]) -> bytes:
    return "\0".join(names).encode("utf-8", "surrogateescape")


def _take(images: LabelledImages, indices: NDArray[np.int64], notes: Iterable[str] = ()) -> LabelledImages:
    names = [images.names[index] for index in indices]
    return replace(images, names=names, labels=images.labels[indices], notes=(*images.notes, *notes))


def _note(what: str, why: str, which: Sequence[str]) -> list[str]:
    """The line that says what is left out, if something is."""
    if len(which) > 1:
        return [f"left out {len(which):,} {what}s {why}: the first is {which[0]}"]
    return [f"left out 1 {what} {why}: {which[0]}"] if which else []


def _train_part(source: Path) -> Path:
    """The train/ of a folder that holds test images beside it; else the source itself."""
    return source / "train" if os.path.isdir(source / "train") and _test_parts(source) else source


def _test_parts(source: Path) -> list[Path]:
    return [source / name for name in TEST_FOLDERS if os.path.isdir(source / name)]


def _find(source: Path) -> LabelledImages:
    """The images of a folder or a list, of at least one class."""
    if os.path.isdir(source):
        return _in_folder(source)
    if not os.path.exists(source):
        raise UserError(f"{source} does not exist; give {_LAYOUT}")
    if source.suffix.lower() not in (".txt", ".csv"):
        raise UserError(f"{source} is neither a folder nor a list; give {_LAYOUT}")
    return _in_list(source)


def _sorted(root: Path, label_of: Mapping[str, int], classes: Iterable[str], notes: Iterable[str]) -> LabelledImages:
    names = sorted(label_of)
    labels = np.fromiter(map(label_of.__getitem__, names), np.int64, len(names))
    return LabelledImages(root, names, labels, tuple(classes), tuple(notes))


# Folders


def _in_folder(root: Path) -> LabelledImages:
    others: list[str] = []
    unreadable: list[str] = []
    loose, folders = _entries(str(root), others, unreadable)
    if unreadable:
        raise UserError(f"{unreadable[0]} cannot be read; give {_LAYOUT}")
    label_of: dict[str, int] = {}
    classes: list[str] = []
    empty: list[str] = []
    for folder in sorted(folders):
        found = _below(root, folder, others, unreadable)
        label_of |= dict.fromkeys(found, len(classes))
        (classes if found else empty).append(folder)
    if not classes:
        raise UserError(f"{root} holds no folder with images{', only images' * bool(loose)}; give {_LAYOUT}")
    notes = (
        *_note("class folder", "without images", [repr(name) for name in empty]),
        *_note("image", f"in {root} itself, outside the class folders", [repr(name) for name in sorted(loose)]),
        *_note("file", "other than images", [repr(path) for path in sorted(others)]),
        *_note("folder", "that cannot be read", sorted(unreadable)),
    )
    return _sorted(root, label_of, classes, notes)


def _below(root: Path, top: str, others: list[str], unreadable: list[str]) -> list[str]:
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
                if _is(entry.is_dir):
                    folders.append(entry.name)
                elif _has_image_name(entry.name) and _is(entry.is_file):
                    files.append(entry.name)
                else:
                    others.append(entry.path)
    except OSError as error:
        unreadable.append(f"{path} ({error.strerror})")
    return files, folders


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link to itself
        return False


def _has_image_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


# Lists


def _in_list(path: Path) -> LabelledImages:
    given, notes = _given(path)
    missing = [name for name in given if not os.path.isfile(path.parent / name)]
    for name in missing:
        del given[name]
    notes += _note("image", f"of {path}, not to be found", [repr(name) for name in missing])
    if not given:
        raise UserError(f"{path} names no image that can be used; " + (notes[0] if notes else f"give {_LAYOUT}"))
    classes, class_of, more = _classes_of(path, list(dict.fromkeys(given.values())))
    label_of = {name: class_of[label] for name, label in given.items()}
    return _sorted(path.parent, label_of, classes, notes + more)


def _classes_of(path: Path, labels: list[str]) -> tuple[list[str], dict[str, int], list[str]]:
    """The classes in a list with these labels, the number of the class that each label means, and notes."""
    names = [label for label in labels if not _is_number(label)]
    if names:
        classes = sorted(labels)
        mixed = [f"labels of {path} are taken as names, the numbers too: {names[0]!r} is no number"]
        return classes, {label: number for number, label in enumerate(classes)}, mixed * (len(names) < len(labels))
    class_of = {label: int(label) for label in labels}
    classes = [str(number) for number in range(max(class_of.values()) + 1)]
    unused = sorted(set(range(len(classes))) - set(class_of.values()))
    gaps = (
        [f"{len(unused):,} of the classes 0 to {classes[-1]} have no images in {path}: first {unused[0]}"]
        if unused
        else []
    )
    return classes, class_of, gaps


def _given(path: Path) -> tuple[dict[str, str], list[str]]:
    """The label of each file in a list, and notes.

    Of a file with two different labels one is wrong, and nobody knows which: it is left out.
    """
    given: dict[str, str] = {}
    second: dict[str, str] = {}
    broken: list[str] = []
    for line, name, label in _rows(path):
        if not _is_understood(name, label):
            broken.append(f"line {line}, {f'{name} {label}'.strip()[:200]!r}")
            continue
        name = _relative(name, path.parent)
        if given.setdefault(name, label) != label:
            second[name] = label
    torn = [f"{name!r}, {given.pop(name)!r} and {label!r}" for name, label in second.items()]
    needed = f"of {path} without a path and a label (a name, or a number from 0 to {LARGEST_LABEL:,})"
    return given, [*_note("line", needed, broken), *_note("image", f"with two labels in {path}", torn)]


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, path and label; the label is empty where there is none. Empty lines and comments are passed over."""
    lines = _lines(path, _LAYOUT)
    if path.suffix.lower() == ".csv":
        reader = csv.DictReader(lines)
        try:
            if not {"path", "label"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} has no columns path and label; its first line must name them: path,label")
            for row in reader:
                yield reader.line_num, (row["path"] or "").strip(), (row["label"] or "").strip()
        except csv.Error as error:
            raise UserError(f"{path} line {reader.line_num + 1} is no CSV: {error}; correct it") from None
        return
    for number, line in enumerate(lines, start=1):
        words = line.rsplit(maxsplit=1)
        if words and not line.startswith("#"):
            yield number, words[0].strip(), words[1] if len(words) == 2 else ""


def _is_understood(name: str, label: str) -> bool:
    if not name or not label or "\0" in name:
        return False
    if _is_number(label.lstrip("+-")):
        return _is_number(label) and len(label) < 20 and int(label) <= LARGEST_LABEL
    return not _has_image_name(label)  # else it is the end of a path with spaces, and the label is missing


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdecimal()


def _relative(name: str, root: Path) -> str:
    """A path as images are named: from the root, if it lies below it."""
    return os.path.normpath(name).removeprefix(os.path.abspath(root) + os.sep)


def _lines(path: Path, needed: str) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{path} cannot be read ({reason}); give {needed}") from None


# A part of the images


def _relabel(images: LabelledImages, classes: Sequence[str], where: Path) -> LabelledImages:
    """Images with the labels that their classes have in `classes`, without those of other classes."""
    label_of = {name: label for label, name in enumerate(classes)}
    found = [images.classes[label] for label in np.unique(images.labels)]
    notes = []
    if os.path.isfile(where) and all(map(_is_number, found)) and label_of.keys().isdisjoint(found):
        label_of = {str(label): label for label in range(len(classes))}
        notes.append(f"labels of {where} are numbers, taken in the order of the classes: 0 is {classes[0]!r}")
    unknown = [repr(name) for name in found if name not in label_of]
    if len(unknown) == len(found):
        raise UserError(
            f"{where} has no class of the training images: {unknown[0]} is none of theirs; name them alike"
        )
    notes += _note("class name", f"of {where} that training does not know", unknown)
    labels = np.array([label_of.get(name, -1) for name in images.classes])[images.labels]  # (n,)
    known = np.flatnonzero(labels >= 0)
    return replace(_take(images, known, notes), labels=labels[known], classes=tuple(classes))


def _only(images: LabelledImages, listed: Path) -> LabelledImages:
    """The images that a file names: by their paths or, where no two share it, by the last part of them."""
    indices: dict[str, list[int]] = {_relative(name, images.root): [] for name in _listed_names(listed)}
    for index, name in enumerate(images.names):
        last = name.rpartition("/")[2]
        if name in indices or last in indices:
            indices[name if name in indices else last].append(index)
    missing = [repr(name) for name, found in indices.items() if not found]
    shared = [repr(name) for name, found in indices.items() if len(found) > 1]
    notes = [
        *_note("name", f"in {listed} without an image in {images.root}", missing),
        *_note("name", f"in {listed} that several images have (write their paths from {images.root})", shared),
    ]
    single = sorted(found[0] for found in indices.values() if len(found) == 1)
    if not single:
        raise UserError(f"{listed} names no image of {images.root}; " + (notes[0] if notes else f"give {_NAMES}"))
    few = _take(images, np.array(single), notes)
    lost = [images.classes[label] for label in np.setdiff1d(images.labels, few.labels)]
    if lost:
        others = f", nor of {len(lost) - 1:,} others" if len(lost) > 1 else ""
        raise UserError(f"{listed} names no image of class {lost[0]!r}{others}; add some to it")
    return few


def _listed_names(path: Path) -> list[str]:
    """File names: lines, or the `values` of a JSON object, as in S4L's lists of labelled images."""
    lines = _lines(path, _NAMES)
    if path.suffix.lower() != ".json" and not (lines and lines[0].startswith("{")):
        return [line.strip() for line in lines if line.strip()]
    try:
        names = json.loads("\n".join(lines))["values"]
    except (ValueError, KeyError, TypeError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} holds no file names; give {_NAMES}")
    return names
