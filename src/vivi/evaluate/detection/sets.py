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

_File = tuple[Path, int, int, int]  # an image: its width, height and bytes
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
    files = _image_files(_folder(data, file, coco.images), coco.images, notes)
    objects = _objects(
        coco.annotations, files, {key: classes.index(name) for key, name in coco.names().items()}, notes
    )
    images = []
    for key, (path, width, height, size) in files.items():
        boxes, (label, area, crowd) = objects[key][:, :4].astype(np.float32), objects[key][:, 4:].T
        columns = (boxes, label.astype(np.int64), area.astype(np.float32), crowd.astype(np.bool_))
        images.append(DetectionImage(key, path, width, height, *columns, size))
    background = [image.path.name for image in images if not len(image.labels)]
    if background:
        notes["images without objects, kept as background"] = background
    name = f"{file.parent.name}/{file.name}"  # Roboflow's have the same name for all parts
    lines = tuple(f"{name}: {what} ({len(rows):,}): {named(rows)}" for what, rows in notes.items())
    if all(image.crowd.all() for image in images):
        what = "box but those of crowds" if images else "image"
        raise UserError(f"{file} has no {what} that can be used ({'; '.join(lines)}); correct it")
    return DetectionSet(data.resolve().name, tuple(images), tuple(classes), lines)


# --- images ---


def _folder(data: Path, file: Path, rows: Sequence[_ImageRow]) -> Path:
    """Where the images of a file of annotations lie: the folder that has most of them, the first of equals."""
    part = file.stem.rpartition("_")[2]  # of instances_train2017
    bases = [data, file.parent, *([file.parent.parent] if file.parent.name == "annotations" else [])]
    folders = [folder for base in bases for folder in (base / "images" / part, base / part, base / "images", base)]
    sample = [row.file_name for row in rows[:: -(-len(rows) // _SAMPLED)]]
    hits = {folder: sum(os.path.isfile(folder / name) for name in sample) for folder in folders if folder.is_dir()}
    looked = (
        f"{file} lists {len(rows):,} images, {sample[0]!r} first, that are in none of {', '.join(map(str, hits))}"
    )
    require(any(hits.values()), f"{looked}; put them there")
    return max(hits, key=lambda folder: hits[folder])


def _image_files(folder: Path, rows: Sequence[_ImageRow], notes: Notes) -> dict[int, _File]:
    """The images that can be used, by id, in their order."""
    files: dict[int, _File] = {}
    seen: set[str] = set()
    with ThreadPoolExecutor(4 * available_cores()) as threads:  # a disk far away lets one wait for each file
        for row, found in zip(rows, threads.map(lambda row: _open(folder, row), rows), strict=True):
            name = os.path.normpath(row.file_name)
            if row.id in files or name in seen:
                found = "its id or file is listed before"
            if isinstance(found, str):
                notes["images left out"].append(f"{row.file_name}: {found}")
            else:
                files[row.id] = found
                seen.add(name)
    return files


def _open(folder: Path, row: _ImageRow) -> _File | str:
    """An image file of the listed size, or why it cannot be used: with another size, its boxes would be wrong."""
    if leads_out(row.file_name):
        return "its path leads out of the folder"
    path = folder / row.file_name
    try:
        check_regular(path)
        with open(path, "rb") as file:
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
    return path, width, height, length


# --- boxes ---


def _objects(
    rows: Sequence[_Annotation], files: Mapping[int, _File], labels: Mapping[int, int], notes: Notes
) -> dict[int, NDArray[np.float64]]:
    """The boxes that can be used, the parts of them that lie in the image, by its id: (n, 7), x1 y1 x2 y2 label area
    crowd."""
    objects: dict[int, list[tuple[float, ...]]] = {key: [] for key in files}
    for row in rows:
        _, image_width, image_height, _ = files.get(row.image_id, (None, 0, 0, 0))
        x, y, width, height = row.bbox
        x1, y1, x2, y2 = max(x, 0.0), max(y, 0.0), min(x + width, image_width), min(y + height, image_height)
        if row.category_id not in labels or min(width, height, x2 - x1, y2 - y1) < _LEAST_SIDE:
            left_out = "annotations left out, without a listed category or an area in a usable image"
            notes[left_out].append(f"id {row.id} of image {row.image_id}")
            continue
        inside = (x2 - x1) * (y2 - y1)
        area = row.area if row.area is not None and row.area > 0 else inside
        if max(x1 - x, y1 - y, x + width - x2, y + height - y2) > _ROUNDING:
            notes["annotations whose box is partly outside their image, clipped"].append(f"id {row.id}")
            area = min(area, inside)
        objects[row.image_id].append((x1, y1, x2, y2, labels[row.category_id], area, bool(row.iscrowd)))
    return {key: np.array(some, np.float64).reshape(-1, 7) for key, some in objects.items()}
