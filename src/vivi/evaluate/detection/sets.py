"""Detection sets: images and the boxes of the objects in them, from JSON files in COCO's format.

DIR/instances_train.json, instances_val.json               images in DIR/images/, or in images/train/ and images/val/
DIR/annotations/instances_train2017.json, ..._val2017.json COCO's own: images in DIR/train2017/ and val2017/
DIR/train/_annotations.coco.json, DIR/valid/...            Roboflow's export: images beside them

A file that is not in the format is refused. An image that cannot be used, or a box that lies outside its image, is
left out, and a note names it. Boxes belong to the pixels as they are stored: EXIF rotation is followed neither here
nor where images are read.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from vivi.data.decode import plain_jpeg_size
from vivi.evaluate.metadata import named, read_json
from vivi.runtime.errors import UserError, require
from vivi.runtime.image_files import open_image
from vivi.runtime.machine import available_cores
from vivi.runtime.storage import check_regular, leads_out

_COCO = ("instances_{}.json", "annotations/instances_{}.json", "annotations/instances_{}2017.json")
_ROBOFLOW = "{}/_annotations.coco.json"
_TRAIN = [name.format("train") for name in (*_COCO, _ROBOFLOW)]
_TEST = [name.format("val") for name in _COCO] + [_ROBOFLOW.format(part) for part in ("valid", "val", "test")]
_ROUNDING = 0.02  # pixels by which a box may stick out whose place and size were both rounded
_LEAST_SIDE = 0.01  # pixels of a box that has an area; less does not survive float32 and resizing
_SAMPLED = 100  # listed files that decide which folder they are in
_HEADER = 8192  # bytes that tell a JPEG's size, mostly
_LEFT_OUT = "annotations left out, without a listed category or an area in a usable image"

Notes = dict[str, list[str]]  # what was left out or altered: the rows by what is wrong with them


# --- COCO's format, as far as it is read ---


class _Category(Struct, gc=False):
    id: int
    name: str


class _ImageRow(Struct, gc=False):
    id: int
    file_name: str
    width: int | None = None
    height: int | None = None


class _Annotation(Struct, gc=False):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]  # x, y, width, height
    id: int = -1
    area: float | None = None  # of the outline
    iscrowd: bool | None = False

    def __str__(self) -> str:
        return f"id {self.id} of image {self.image_id}"


class _Coco(Struct):
    images: list[_ImageRow]
    annotations: list[_Annotation]
    categories: list[_Category]

    def names(self) -> dict[int, str]:
        """The categories by id, in the order of the ids; each name is one line."""
        return {row.id: " ".join(row.name.split()) for row in sorted(self.categories, key=lambda row: row.id)}


# --- sets ---


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
        """Changes with images, boxes and classes; of the files it knows names and sizes, not where the folder is."""
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
    require(data.is_dir(), f"{data} is no folder; give one with COCO annotations and their images")
    files = (train or _find(data, _TRAIN, "train"), test or _find(data, _TEST, "test"))
    contents = [read_annotations(file) for file in files]
    classes, others = (tuple(dict.fromkeys(coco.names().values())) for coco in contents)
    differing = named(sorted({*classes} ^ {*others}))
    differ = f"{files[0]} and {files[1]} have different categories, {differing}"
    require(not differing, f"{differ}; list the same names in both")
    first, second = (_set(data, file, coco, classes) for file, coco in zip(files, contents, strict=True))
    learned = {os.path.abspath(image.path) for image in first.images}
    shared = [image.path.name for image in second.images if os.path.abspath(image.path) in learned]
    if shared:
        line = f"{len(shared):,} of {len(second.images):,} test images are training images too: {named(shared)}"
        second = replace(second, notes=(*second.notes, line))
    return first, second


def _find(data: Path, known: Sequence[str], part: str) -> Path:
    """The file of annotations in the first of the known layouts that is there."""
    found = next((data / name for name in known if (data / name).is_file()), None)
    if found is None:
        missing = f"{data} has no annotations for {part}: none of {', '.join(known)}"
        raise UserError(f"{missing}; put one there, or name a file in COCO's format with --{part}")
    return found


def read_annotations(file: Path) -> _Coco:
    """A file in COCO's format."""
    coco: _Coco = read_json(file, _Coco)
    for part in ("images", "annotations", "categories"):
        ours = "give a file of COCO's instances (boxes), not captions or results"
        require(bool(getattr(coco, part)), f"{file} has no {part}; {ours}")
    return coco


def _set(data: Path, file: Path, coco: _Coco, classes: Sequence[str]) -> DetectionSet:
    """A set, from what can be used of a file of annotations."""
    notes: Notes = defaultdict(list)
    labels = {key: classes.index(name) for key, name in coco.names().items()}
    annotations: dict[int, list[_Annotation]] = defaultdict(list)
    for annotation in coco.annotations:
        annotations[annotation.image_id].append(annotation)
    images: list[DetectionImage] = []
    seen: set[int | str] = set()  # ids and files
    folder = _folder(data, file, coco.images)
    with ThreadPoolExecutor(4 * available_cores()) as threads:  # a disk far away lets one wait for each file
        for row, size in zip(coco.images, threads.map(lambda row: _size(folder, row), coco.images), strict=True):
            name = os.path.normpath(row.file_name)
            if row.id in seen or name in seen:
                size = "its id or file is listed before"
            if isinstance(size, str):
                notes["images left out"].append(f"{row.file_name}: {size}")
                continue
            seen |= {row.id, name}
            width, height, length = size
            objects = _objects(annotations.pop(row.id, []), width, height, labels, notes)
            images.append(DetectionImage(row.id, folder / row.file_name, width, height, *objects, length))
    notes[_LEFT_OUT] += [str(row) for rows in annotations.values() for row in rows]
    notes["images without objects, kept as background"] = [one.path.name for one in images if not len(one.labels)]
    name = f"{file.parent.name}/{file.name}"  # Roboflow's have the same name for all parts
    lines = tuple(f"{name}: {what} ({len(rows):,}): {named(rows)}" for what, rows in notes.items() if rows)
    if all(image.crowd.all() for image in images):
        what = "box but those of crowds" if images else "image"
        raise UserError(f"{file} has no {what} that can be used ({'; '.join(lines)}); correct it")
    return DetectionSet(data.resolve().name, tuple(images), tuple(classes), lines)


def _folder(data: Path, file: Path, rows: Sequence[_ImageRow]) -> Path:
    """Where the images of a file of annotations lie: the folder that has most of them, the first of equals."""
    part = file.stem.rpartition("_")[2]  # of instances_train2017
    folders = (data / "images" / part, data / part, data / "images", file.parent, data)
    sample = [row.file_name for row in rows[:: -(-len(rows) // _SAMPLED)]]
    hits = {folder: sum(os.path.isfile(folder / name) for name in sample) for folder in folders if folder.is_dir()}
    listed, looked = f"{len(rows):,} images, {sample[0]!r} first", ", ".join(map(str, hits))
    require(any(hits.values()), f"{file} lists {listed}, that are in none of {looked}; put them there")
    return max(hits, key=lambda folder: hits[folder])


def _size(folder: Path, row: _ImageRow) -> tuple[int, int, int] | str:
    """Width, height and bytes of an image file, or why it cannot be used: if it had another size than is listed, its
    boxes would be wrong."""
    if leads_out(row.file_name):
        return "its path leads out of the folder"
    try:
        check_regular(folder / row.file_name)
        with open(folder / row.file_name, "rb") as file:
            length = os.fstat(file.fileno()).st_size
            size = plain_jpeg_size(file.read(_HEADER))  # ten times as fast as Pillow
            if size is None:
                file.seek(0)
                with open_image(file) as image:
                    size = image.size
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    width, height = size
    if (row.width, row.height) not in ((None, None), size):
        turned = "; store it upright, EXIF is not followed" if (row.height, row.width) == size else ""
        return f"it is {width} × {height}, not {row.width} × {row.height}{turned}"
    return width, height, length


def _objects(
    rows: Sequence[_Annotation], image_width: int, image_height: int, labels: Mapping[int, int], notes: Notes
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
    """Boxes, labels, areas and crowds of an image, as far as they can be used: the parts of boxes that lie in it."""
    objects = []
    for row in rows:
        x, y, width, height = row.bbox
        x1, y1, x2, y2 = max(x, 0.0), max(y, 0.0), min(x + width, image_width), min(y + height, image_height)
        if row.category_id not in labels or min(width, height, x2 - x1, y2 - y1) < _LEAST_SIDE:
            notes[_LEFT_OUT].append(str(row))
            continue
        inside = (x2 - x1) * (y2 - y1)
        area = row.area if row.area is not None and row.area > 0 else inside
        if max(x1 - x, y1 - y, x + width - x2, y + height - y2) > _ROUNDING:
            notes["annotations whose box is partly outside their image, clipped"].append(str(row))
            area = min(area, inside)
        objects.append((x1, y1, x2, y2, labels[row.category_id], area, bool(row.iscrowd)))
    table = np.array(objects, np.float64).reshape(-1, 7)
    boxes, (label, areas, crowd) = table[:, :4], table[:, 4:].T
    return boxes.astype(np.float32), label.astype(np.int64), areas.astype(np.float32), crowd.astype(np.bool_)
