"""Detection sets: images and the boxes of the objects in them, as COCO's JSON files say.

DIR/instances_train.json, instances_val.json               images in DIR/images/, or in images/train/ and images/val/
DIR/annotations/instances_train2017.json, ..._val2017.json COCO's own: images in DIR/train2017/ and val2017/
DIR/train/_annotations.coco.json, DIR/valid/...            Roboflow's export: images beside them

Boxes belong to the pixels as they are stored: a camera's note of how it was held (EXIF) is followed neither here nor
where images are read. What is wrong with a row is counted, named and loses nothing but that row.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vivi.data.decode import plain_jpeg_size
from vivi.evaluate.detection.annotations import (
    Box,
    Content,
    Notes,
    Unusable,
    check_same_categories,
    few,
    read_boxes,
    read_content,
    whole,
)
from vivi.runtime.errors import UserError
from vivi.runtime.image_files import open_image
from vivi.runtime.machine import available_cores
from vivi.runtime.storage import leads_out

_COCO = ("instances_{}.json", "annotations/instances_{}.json", "annotations/instances_{}2017.json")
_ROBOFLOW = "{}/_annotations.coco.json"
_TRAIN = tuple(name.format("train") for name in (*_COCO, _ROBOFLOW))
_TEST = (*(name.format("val") for name in _COCO), *map(_ROBOFLOW.format, ("valid", "val", "test")))
_SAMPLED = 1000  # listed files that decide which folder they are in
_HEADER = 8192  # bytes that tell a JPEG's size, mostly


@dataclass(frozen=True, eq=False)
class DetectionImage:
    """An image file and the objects in it; none: it is background."""

    id: int
    path: Path
    width: int
    height: int
    boxes: NDArray[np.float32]  # (n, 4): x1 y1 x2 y2 in pixels
    labels: NDArray[np.int64]  # (n,) from 0
    areas: NDArray[np.float32]  # (n,): of the objects' outlines as far as COCO knows them; tells small from large
    crowd: NDArray[np.bool_]  # (n,): many objects in one box, which is not learned and not scored
    file_size: int = 0


@dataclass(frozen=True, eq=False)
class DetectionSet:
    """Images with objects of some classes."""

    name: str
    images: tuple[DetectionImage, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """Tells other images, boxes or classes; of the files it knows names and sizes, not where the folder is."""
        digest = hashlib.sha256("\0".join(self.classes).encode("utf-8", "surrogatepass"))
        root = os.path.commonpath([os.path.abspath(image.path.parent) for image in self.images])
        for image in self.images:
            name = os.path.relpath(image.path, root)
            about = f"\0{image.id} {name}\0{image.width} {image.height} {image.file_size} {len(image.labels)}\0"
            digest.update(about.encode("utf-8", "surrogateescape"))
            for part, kind in ((image.boxes, "<f4"), (image.labels, "<i8"), (image.areas, "<f4"), (image.crowd, "?")):
                digest.update(part.astype(kind).tobytes())
        return digest.hexdigest()


def open_sets(data: Path, train: Path | None = None, test: Path | None = None) -> tuple[DetectionSet, DetectionSet]:
    """The set to learn from and the one to be tested on, which is COCO's val; `train` and `test` name files of
    annotations outright."""
    files = [_find(data, train, _TRAIN, "train"), _find(data, test, _TEST, "test")]
    name = data.resolve().name
    with _no_collection():
        contents = [read_content(file) for file in files]
        classes = tuple(dict.fromkeys(contents[0].categories.values()))
        check_same_categories(classes, *contents)
        first, second = (_make(name, data, content, classes) for content in contents)
    learned = {os.path.abspath(image.path) for image in first.images}
    shared = [image.path.name for image in second.images if os.path.abspath(image.path) in learned]
    if shared:
        line = f"{len(shared):,} of {len(second.images):,} test images are training images too: {few(shared)}"
        second = DetectionSet(name, second.images, classes, (*second.notes, line))
    return first, second


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of small objects without cycles are read in half the time if nobody looks for any."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _find(data: Path, given: Path | None, known: Sequence[str], part: str) -> Path:
    """A file of annotations: the one that was given, or else the first of the known layouts."""
    if not os.path.isdir(data):
        raise UserError(f"{data} is no folder; give one with COCO annotations and their images")
    if given is not None:
        return given
    found = [data / name for name in known if os.path.isfile(data / name)]
    if not found:
        raise UserError(
            f"{data} has no annotations for {part}: none of {', '.join(known)}; "
            f"put one there, or name a file in COCO's format with --{part}"
        )
    return found[0]


class _File(NamedTuple):
    """What the header of an image file says."""

    path: Path
    width: int
    height: int
    bytes: int


def _make(name: str, data: Path, content: Content, classes: Sequence[str]) -> DetectionSet:
    """A set, from what is usable of a file of annotations."""
    notes = content.notes
    files, left_out = _images(data, content)
    boxes = read_boxes(content, {key: (file.width, file.height) for key, file in files.items()}, left_out, classes)
    if all(box.crowd for some in boxes.values() for box in some):
        found = "; ".join(notes.lines()) or "all of them are crowds"
        raise UserError(f"{notes.file} has no box that can be used; correct it ({found})")
    for key, file in files.items():
        if not boxes[key]:
            notes.add("image", "without objects, kept as background", repr(file.path.name))
    images = tuple(_image(key, file, boxes[key]) for key, file in files.items())
    return DetectionSet(name, images, tuple(classes), notes.lines())


def _image(key: int, file: _File, boxes: Sequence[Box]) -> DetectionImage:
    return DetectionImage(
        id=key,
        path=file.path,
        width=file.width,
        height=file.height,
        boxes=np.array([box.corners for box in boxes], np.float32).reshape(-1, 4),
        labels=np.array([box.label for box in boxes], np.int64),
        areas=np.array([box.area for box in boxes], np.float32),
        crowd=np.array([box.crowd for box in boxes], np.bool_),
        file_size=file.bytes,
    )


def _images(data: Path, content: Content) -> tuple[dict[int, _File], set[int]]:
    """The usable image files by id, in their order, and the ids of those that are left out."""
    notes = content.notes
    rows = _named_images(content.images, notes)
    if not rows:
        raise UserError(f"{notes.file} has no usable images ({notes.lines()[-1]}); each needs an id and a file_name")
    folder = _folder(data, notes.file, [row["file_name"] for row in rows.values()])
    files: dict[int, _File] = {}
    for key, found in zip(rows, _look_at_all(folder, list(rows.values())), strict=True):
        if isinstance(found, _File):
            files[key] = found
        else:
            notes.add("image", found.why, f"{rows[key]['file_name']!r}{found.particular}")
    if not files:
        raise UserError(f"none of the images of {notes.file} can be used ({'; '.join(notes.lines())}); correct it")
    listed = {whole(row["id"]) for row in content.images if isinstance(row, dict) and "id" in row}
    return files, {key for key in listed if key is not None and key not in files}


def _named_images(rows: Iterable[Any], notes: Notes) -> dict[int, dict[str, Any]]:
    """The rows of images that have an id of their own and a name inside the folder, by id."""
    kept: dict[int, dict[str, Any]] = {}
    files: set[str] = set()
    for number, row in enumerate(rows, start=1):
        key = whole(row.get("id")) if isinstance(row, dict) else None
        name = row.get("file_name") if isinstance(row, dict) else None
        if key is None or not isinstance(name, str) or not name:
            notes.add("image", "without a whole number as id or a file_name, left out", f"number {number}")
        elif leads_out(name):
            notes.add("image", "with a path that leads out of the folder, left out", repr(name))
        elif key in kept:
            notes.add("image", "with the id of another, left out", f"{name!r} ({key})")
        elif os.path.normpath(name) in files:  # without the objects it has there, or with others
            notes.add("image", "with the file of another, left out", f"{name!r} ({key})")
        else:
            kept[key] = row
            files.add(os.path.normpath(name))
    return kept


def _folder(data: Path, file: Path, names: Sequence[str]) -> Path:
    """Where the images of a file of annotations lie: the folder that has most of them."""
    bases = [data, file.parent, *([file.parent.parent] if file.parent.name == "annotations" else [])]
    part = file.stem.rpartition("_")[2]  # of instances_train2017
    folders = [folder for base in bases for folder in (base / "images" / part, base / part, base / "images", base)]
    some = names[:: math.ceil(len(names) / _SAMPLED)]
    hits = {folder: sum(_exists(folder / name) for name in some) for folder in folders if os.path.isdir(folder)}
    best = max(hits, key=lambda folder: hits[folder])  # the first of equals
    if not hits[best]:
        looked = ", ".join(map(str, hits))
        raise UserError(
            f"{file} lists {len(names):,} images, {names[0]!r} first, that are in none of {looked}; put them there"
        )
    return best


def _exists(path: Path) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a name that no file can have
        return False


def _look_at_all(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[_File | Unusable]:
    """Threads, because a disk far away lets one wait for each file."""

    def look(some: Sequence[Mapping[str, Any]]) -> list[_File | Unusable]:
        return [_look_at(folder / row["file_name"], row.get("width"), row.get("height")) for row in some]

    with ThreadPoolExecutor(4 * available_cores()) as threads:
        chunks = [rows[start : start + 64] for start in range(0, len(rows), 64)]
        return [file for files in threads.map(look, chunks) for file in files]


def _look_at(path: Path, width: Any, height: Any) -> _File | Unusable:
    """An image file of the size that was said: with another one, its boxes would be those of another picture."""
    try:
        file = _File(path, *_size(path), os.stat(path).st_size)
    except (FileNotFoundError, NotADirectoryError):
        return Unusable("whose file is missing, left out")
    except Unusable as error:
        return error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return Unusable("whose file is unreadable, left out", f" ({why})")
    if (width, height) == (None, None) or (whole(width), whole(height)) == (file.width, file.height):
        return file
    said = " × ".join(repr(side)[:12] for side in (width, height))
    turned = "; store it upright, EXIF is not followed" if (height, width) == (file.width, file.height) else ""
    return Unusable("whose file has another size, left out", f" ({file.width} × {file.height}, not {said}{turned})")


def _size(path: Path) -> tuple[int, int]:
    """Width and height that the header of an image file says."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise OSError("it is no file")
    if not about.st_size:
        raise Unusable("whose file is empty, left out")
    with open(path, "rb") as file:
        size = plain_jpeg_size(file.read(_HEADER))  # ten times as fast as Pillow
        if size is None:
            file.seek(0)
            with open_image(file) as image:
                size = image.size
    return size
