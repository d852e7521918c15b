"""Labelled images to train, to validate and to test on: split as users give them, or here.

Which images are set aside is decided by the hashes of their names: another image moves at most one of its class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from vivi.data.decode import read_image
from vivi.data.image_lists import note
from vivi.data.images import LabelledImages, check_classes, find_parts, places_in_class, relabel, set_name, subset
from vivi.runtime.errors import UserError, first_line, require
from vivi.runtime.machine import available_cores
from vivi.runtime.progress import ProgressLine
from vivi.runtime.read_ahead import map_ahead
from vivi.runtime.storage import LARGE, read_file

SHARE = 0.2
"""Of the images of each class, in a part that is set aside."""
_AHEAD = 512


@dataclass(frozen=True)
class LabelledSplit:
    """Images of the same classes in three parts."""

    name: str
    train: LabelledImages
    validation: LabelledImages  # to choose settings by; empty where no class has an image to spare
    test: LabelledImages
    how: str  # it was split
    notes: tuple[str, ...]  # what was left out and why, and what is odd, a line each

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    def summary(self) -> str:
        """One line: what there is, and how it was split."""
        names, train = self.classes, len(self.train) + len(self.validation)
        named = ", ".join(map(repr, names)) if len(names) < 5 else f"{names[0]!r} to {names[-1]!r}"
        return (
            f"{self.name}: {len(names):,} classes ({named}), {train:,} images to train on ({len(self.validation):,} "
            f"of them to choose settings by), {len(self.test):,} to test on, {self.how}"
        )


def find_split(source: Path, seed: int = 0, console: Console | None = None) -> LabelledSplit:
    """The images of a folder per class or of a list. Those that cannot be read are left out. Without test images of
    their own, a fifth of each class is to test on; without validation images, a fifth of what is trained on."""
    parts = find_parts(source)
    contents = _contents(parts.values(), console or Console(quiet=True))
    parts = {name: _readable(images, contents) for name, images in parts.items()}
    train, notes = parts["train"], []
    if "test" in parts:
        test, how = parts["test"], "split as you gave them"
        learned = {contents[path] for name, images in parts.items() if name != "test" for path in images.paths()}
        if both := sum(contents[path] in learned for path in test.paths()):
            notes.append(
                f"{both:,} of the {len(test):,} test images are also trained on (identical files), so that the "
                "accuracy says too much: delete them in one of the two parts"
            )
    else:
        train = _without_single_images(train)
        if copies := len(train) - len({contents[path] for path in train.paths()}):
            notes.append(f"{copies:,} images are copies of others (identical files), all on one side of the split")
        train, test = set_aside(train, contents, seed)
        own = "a column split of train and test" if source.suffix.lower() == ".csv" else "train/ and test/ folders"
        how = f"split by seed {seed}; give {own} for your own split"
        require(len(test) > 0, f"{source} has no image to test on: all images of a class are copies of one another")
    check_classes(train)
    train = subset(train, np.arange(len(train)), classes=train.present())
    test = relabel(test, train.classes)
    if "validation" in parts:
        validation = relabel(parts["validation"], train.classes)
    else:
        train, validation = set_aside(train, contents, seed)
        if not len(validation):
            notes.append("no class has an image to spare: settings are chosen by the images that are trained on")
    all_notes = dict.fromkeys([*train.notes, *validation.notes, *test.notes, *notes])
    return LabelledSplit(set_name(source), train, validation, test, how, tuple(all_notes))


Contents = Mapping[Path, bytes | str]
"""Of each image file a hash of its content, or why it cannot be read."""


def set_aside(images: LabelledImages, contents: Contents, seed: int) -> tuple[LabelledImages, LabelledImages]:
    """Images without a fifth of each class, but of a class of one image without none; and that fifth. Copies of an
    image are not parted."""
    files = [contents[path] for path in images.paths()]
    first: dict[bytes | str, str] = {}  # of identical files
    keys = [first.setdefault(file, name) for file, name in zip(files, images.names, strict=True)]
    sizes = np.bincount(images.labels)  # (classes,)
    counts = np.where(sizes > 1, np.maximum(1, np.rint(SHARE * sizes)), 0)
    aside = places_in_class(images.labels, keys, seed) < counts[images.labels]  # (n,)
    kept = {file for file, left in zip(files, aside, strict=True) if not left}
    aside &= [file not in kept for file in files]
    return subset(images, np.flatnonzero(~aside)), subset(images, np.flatnonzero(aside))


def _without_single_images(images: LabelledImages) -> LabelledImages:
    """Without the classes that cannot be split."""
    sizes = np.bincount(images.labels, minlength=len(images.classes))  # (classes,)
    single = [repr(images.classes[label]) for label in np.flatnonzero(sizes == 1)]
    notes = note("class name", "with one image, where one is to train on and one to test on", single)
    if single and (sizes > 1).sum() < 2:
        raise UserError(f"{images.source} has less than two classes to learn; {notes[0]}; give each class two")
    return subset(images, np.flatnonzero(sizes[images.labels] > 1), notes)


def _contents(parts: Iterable[LabelledImages], console: Console) -> Contents:
    paths = [path for images in parts for path in images.paths()]
    found: dict[Path, bytes | str] = {}
    with (
        closing(map_ahead(_content, paths, available_cores(), _AHEAD)) as contents,
        ProgressLine("images", len(paths), console) as progress,
    ):
        for done, (path, content) in enumerate(zip(paths, contents, strict=True), start=1):
            found[path] = content
            progress.show(done, f"{done:,} of {len(paths):,} images checked")
    return found


def _content(path: Path) -> bytes | str:
    try:
        read_image(path)
        return hashlib.blake2b(read_file(path, LARGE), digest_size=16).digest()
    except (OSError, ValueError) as error:
        return f"{str(path)!r}: {first_line(error)}"


def _readable(images: LabelledImages, contents: Contents) -> LabelledImages:
    """Those of the images that can be read."""
    reasons = [contents[path] for path in images.paths()]
    damaged = [reason for reason in reasons if isinstance(reason, str)]
    if len(damaged) == len(images):
        raise UserError(f"none of the {len(images):,} images of {images.source} can be read; {damaged[0]}")
    chosen = np.flatnonzero([isinstance(reason, bytes) for reason in reasons])
    return subset(images, chosen, note("image", "that cannot be read", damaged))
