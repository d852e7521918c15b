"""What a file in COCO's format says: categories, images, and the boxes of objects.

What is wrong with a row is counted, named, and loses nothing but that row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import LARGE, read_file

_NAMED = 3  # of what is wrong in the same way
_ROUNDING = 0.02  # pixels by which a box whose place and size were both rounded may stick out
_LEAST_SIDE = 0.01  # pixels of a box that has an area; less does not survive float32 and resizing


class Unusable(Exception):
    """Why a row is left out: in general, and in particular."""

    def __init__(self, why: str, particular: str = "") -> None:
        super().__init__(why)
        self.why, self.particular = why, particular


class Notes:
    """What is wrong with a file of annotations: counted, and the first few named."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._counts: dict[tuple[str, str], int] = {}
        self._named: dict[tuple[str, str], list[str]] = {}

    def add(self, noun: str, what: str, which: str) -> None:
        kind = (noun, what)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        named = self._named.setdefault(kind, [])
        if len(named) <= _NAMED:
            named.append(which)

    def lines(self) -> tuple[str, ...]:
        name = f"{self.file.parent.name}/{self.file.name}"  # Roboflow's have the same name for all parts
        return tuple(
            f"{name}: {count:,} {noun}{'s' * (count > 1)} {what}: {few(self._named[noun, what])}"
            for (noun, what), count in self._counts.items()
        )


def few(names: Sequence[str]) -> str:
    """The first of some names."""
    return ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED)


@dataclass(frozen=True)
class Content:
    """What a file of annotations says, before anything is checked but its form."""

    images: list[Any]
    annotations: list[Any]
    categories: dict[int, str]  # names by id, in the order of the ids
    notes: Notes


def read_content(file: Path) -> Content:
    """A whole file, or the one line that says why it is none of COCO's."""
    try:
        content = json.loads(read_file(file, LARGE))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; name a file in COCO's format") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is no JSON ({first_line(error)}); export it again in COCO's format") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} is no set of COCO's: it must be an object with images, annotations and categories")
    for part in ("images", "annotations", "categories"):
        if not isinstance(content.get(part), list) or not content[part]:
            raise UserError(f"{file} has no {part}; give a file of COCO's instances (boxes), not captions or results")
    notes = Notes(file)
    categories = _categories(content["categories"], notes)
    if not categories:
        raise UserError(f"{file} has no usable categories ({notes.lines()[0]}); each needs an id and a name")
    return Content(content["images"], content["annotations"], categories, notes)


def _categories(rows: Iterable[Any], notes: Notes) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, row in enumerate(rows, start=1):
        key = whole(row.get("id")) if isinstance(row, dict) else None
        name = row.get("name") if isinstance(row, dict) else None
        name = " ".join(name.split()) if isinstance(name, str) else ""  # it is printed on one line
        if key is None or not name:
            notes.add("category row", "without a whole number as id or a name, left out", f"number {number}")
        elif names.setdefault(key, name) != name:
            notes.add("category row", "with the id of another, left out", f"{name!r} with the id of {names[key]!r}")
    for name, count in Counter(names.values()).items():
        if count > 1:
            notes.add("category name", "with several ids, taken as one class", repr(name))
    return dict(sorted(names.items()))


def check_same_categories(classes: Sequence[str], train: Content, test: Content) -> None:
    """Raises where a category is only in one of two files; their ids and order may differ."""
    others = set(test.categories.values())
    for lack, has, names in (
        (test, train, [name for name in classes if name not in others]),
        (train, test, sorted(others - set(classes))),
    ):
        if names:
            which = few([repr(name) for name in names])
            raise UserError(
                f"{lack.notes.file} lacks {len(names):,} of the categories of {has.notes.file} ({which}); "
                "list the same names in both"
            )


def whole(value: Any) -> int | None:
    """An id or a size: a whole number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Box(NamedTuple):
    """Where an object is, and what."""

    corners: tuple[float, float, float, float]
    label: int
    area: float
    crowd: bool
    clipped: bool


def read_boxes(
    content: Content, sizes: Mapping[int, tuple[int, int]], left_out: set[int], classes: Sequence[str]
) -> dict[int, list[Box]]:
    """The usable boxes of each image, by its id."""
    labels = {key: classes.index(category) for key, category in content.categories.items()}
    boxes: dict[int, list[Box]] = {key: [] for key in sizes}
    first: dict[int, Any] = {}  # rows by id
    for number, row in enumerate(content.annotations, start=1):
        key = whole(row.get("id")) if isinstance(row, dict) else None
        which = f"number {number}" if key is None else f"id {key}"
        try:
            image, box = _box(row, sizes, left_out, labels)
            again = key is not None and first.setdefault(key, row) is not row
            if key is not None and again and first[key] == row:
                raise Unusable("that repeats another, left out")
        except Unusable as error:
            content.notes.add("annotation", error.why, f"{which}{error.particular}")
            continue
        if again:  # numbered anew in each image, for example; nothing depends on it
            content.notes.add("annotation", "with the id of another, kept", which)
        if box.clipped:
            content.notes.add("annotation", "with a box partly outside its image, clipped", which)
        boxes[image].append(box)
    return boxes


def _box(
    row: Any, sizes: Mapping[int, tuple[int, int]], left_out: set[int], labels: Mapping[int, int]
) -> tuple[int, Box]:
    """The id of a row's image, and the part of its box that lies in the image."""
    if not isinstance(row, dict):
        raise Unusable("that is no object, left out")
    image, category, numbers = whole(row.get("image_id")), whole(row.get("category_id")), row.get("bbox")
    if image in left_out:
        raise Unusable("of an image that is left out", f" (image {image})")
    if image is None or image not in sizes:
        raise Unusable("of an image that is not listed, left out", f" (image {str(row.get('image_id'))[:20]})")
    if category is None or category not in labels:
        raise Unusable(
            "of a category that is not listed, left out", f" (category {str(row.get('category_id'))[:20]})"
        )
    if numbers is None:
        raise Unusable("without a bbox, left out")
    if not isinstance(numbers, list) or len(numbers) != 4 or not all(map(_is_number, numbers)):
        raise Unusable("with a bbox that is not four numbers, left out", f" ({str(numbers)[:60]})")
    x, y, width, height = map(float, numbers)
    corners, clipped = _inside(x, y, width, height, *sizes[image])
    x1, y1, x2, y2 = corners
    inside = (x2 - x1) * (y2 - y1)
    area = float(row["area"]) if _is_number(row.get("area")) and row["area"] > 0 else inside
    area = min(area, inside) if clipped else area
    crowd = row.get("iscrowd", 0)
    if crowd not in (0, 1, None):  # True is 1
        raise Unusable("with an iscrowd that is neither 0 nor 1, left out", f" ({str(crowd)[:20]!r})")
    return image, Box(corners, labels[category], area, bool(crowd), clipped)


def _inside(
    x: float, y: float, width: float, height: float, image_width: int, image_height: int
) -> tuple[tuple[float, float, float, float], bool]:
    """The corners of the part of a box that lies in its image, and whether that is less than all of it."""
    if width < _LEAST_SIDE or height < _LEAST_SIDE:
        raise Unusable("with a box without area, left out", f" ({width:g} × {height:g})")
    corners = (x, y, x + width, y + height)
    x1, y1, x2, y2 = max(x, 0.0), max(y, 0.0), min(x + width, image_width), min(y + height, image_height)
    if x2 - x1 < _LEAST_SIDE or y2 - y1 < _LEAST_SIDE:
        named = ", ".join(f"{corner:g}" for corner in corners)
        raise Unusable("with a box outside its image, left out", f" ({named})")
    cut = max(abs(before - after) for before, after in zip(corners, (x1, y1, x2, y2), strict=True))
    return (x1, y1, x2, y2), cut > _ROUNDING


def _is_number(value: Any) -> bool:
    # Whole numbers have no end in JSON, floats do.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
