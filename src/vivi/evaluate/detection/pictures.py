"""A contact sheet of detections beside the truth, for people to look at."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vivi.data.decode import read_image
from vivi.evaluate.detection.score import Detections
from vivi.evaluate.detection.sets import DetectionImage, DetectionSet
from vivi.runtime.storage import write_atomically

WIDTH = 1600
"""Pixels of a sheet, at most."""
LARGEST = 1_400_000
"""Bytes of its file, at most, if anything of it is to be recognised."""

_COLUMNS = 4
_GAP = 8
_TEXT = 12  # pixels
_LEGEND = 24  # pixels of the line that explains colours
_MOST_NAMED = 12  # classes in that line
_WHITE, _DARK, _GREY = (255, 255, 255), (25, 25, 25), (128, 128, 128)

Colour = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Rectangle = tuple[float, float, float, float]


def choose_images(data: DetectionSet, count: int = 8) -> list[int]:
    """Images with objects, evenly over all."""
    full = [number for number, image in enumerate(data.images) if len(image.labels)]
    count = min(count, len(full))
    return [full[number * len(full) // count] for number in range(count)]


def draw_detections(
    data: DetectionSet,
    chosen: Sequence[int],
    detections: Sequence[Detections],
    path: Path,
    threshold: float = 0.3,
) -> None:
    """Writes a PNG of the chosen images of a set, with the truth in white and detections of at least `threshold` in
    the colours of their classes. `detections` are those of all images of the set, in its order.

    Raises StorageError where it cannot be written.
    """
    for width in (WIDTH, 1360, 1160, 980, 830):
        content = io.BytesIO()
        _sheet(data, chosen, detections, threshold, width).save(content, "PNG", optimize=True)
        if content.tell() <= LARGEST:
            break
    write_atomically(path, content.getvalue())


def class_colour(label: int) -> Colour:
    """Of a class: hues a golden angle apart, so that neighbours differ."""
    red, green, blue = colorsys.hsv_to_rgb((0.08 + label * 0.61803) % 1, 0.85, 1 - 0.2 * (label % 2))
    return round(255 * red), round(255 * green), round(255 * blue)


def _sheet(
    data: DetectionSet, chosen: Sequence[int], detections: Sequence[Detections], threshold: float, width: int
) -> Image.Image:
    columns = min(_COLUMNS, max(1, len(chosen)))
    side = (width - _GAP) // columns - _GAP
    # A row is as high as the highest of its pictures.
    rows = [chosen[start : start + columns] for start in range(0, len(chosen), columns)]
    pictures = [[_picture(data, number, detections[number], threshold, side) for number in row] for row in rows]
    heights = [max(picture.height for picture in row) for row in pictures]
    sheet = Image.new("RGB", (width, sum(heights) + _GAP * (len(rows) + 1) + _LEGEND), _WHITE)
    top = _GAP
    for row, height in zip(pictures, heights, strict=True):
        for column, picture in enumerate(row):
            left = _GAP + column * (side + _GAP) + (side - picture.width) // 2
            sheet.paste(picture, (left, top + (height - picture.height) // 2))
        top += height + _GAP
    _draw_legend(ImageDraw.Draw(sheet), top, width, _shown_classes(chosen, detections, threshold), data, threshold)
    return sheet


def _shown_classes(chosen: Sequence[int], detections: Sequence[Detections], threshold: float) -> list[int]:
    """The commonest first."""
    labels = [detections[number].labels[detections[number].scores >= threshold] for number in chosen]
    shown, counts = np.unique(np.concatenate(labels) if labels else np.zeros(0, np.int64), return_counts=True)
    order: list[int] = shown[np.argsort(-counts, kind="stable")].tolist()
    return order


def _draw_legend(
    draw: ImageDraw.ImageDraw, top: int, width: int, labels: Sequence[int], data: DetectionSet, threshold: float
) -> None:
    font = ImageFont.load_default(size=_TEXT)
    place = _GAP + _entry(draw, (_GAP, top), "truth", _WHITE, font)
    for label in labels[:_MOST_NAMED]:
        if place + draw.textlength(data.classes[label], font) + 40 > width:
            break
        place += _entry(draw, (place, top), data.classes[label], class_colour(label), font)
    if not labels:
        draw.text((place, top), f"no detection has a score of {threshold:g} or more", _DARK, font)


def _entry(draw: ImageDraw.ImageDraw, place: tuple[int, int], name: str, colour: Colour, font: Font) -> int:
    """A colour and what it means; gives the width."""
    left, top = place
    draw.rectangle((left, top + 1, left + _TEXT, top + 1 + _TEXT), colour, _DARK)
    draw.text((left + _TEXT + 5, top), name, _DARK, font)
    return _TEXT + 5 + math.ceil(draw.textlength(name, font)) + 2 * _GAP


def _picture(data: DetectionSet, number: int, found: Detections, threshold: float, side: int) -> Image.Image:
    """An image with boxes, at most side wide and high."""
    image = data.images[number]
    scale = min(side / image.width, side / image.height)
    picture = _read(image).resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    draw = ImageDraw.Draw(picture)
    order = np.argsort(-found.scores, kind="stable")
    shown = [index for index in order.tolist() if found.scores[index] >= threshold]
    # What is missed is white in dark; what is found, white in a colour.
    truth = [_scaled(box, scale, picture) for box in image.boxes]
    for box in truth:
        _outline(draw, box, _DARK, 1)
    for index in reversed(shown):  # the best on top
        _outline(draw, _scaled(found.boxes[index], scale, picture), class_colour(int(found.labels[index])), 1)
    for box in truth:
        _outline(draw, box, _WHITE, 0)
    taken: list[Rectangle] = []
    for index in shown:
        text = f"{data.classes[found.labels[index]]} {found.scores[index]:.2f}"
        box = _scaled(found.boxes[index], scale, picture)
        _label(draw, box, text, class_colour(int(found.labels[index])), picture.size, taken)
    return picture


def _read(image: DetectionImage) -> Image.Image:
    """The picture, or grey where it cannot be read."""
    try:
        return Image.fromarray(read_image(image.path, reduce=False))
    except (OSError, ValueError):
        return Image.new("RGB", (image.width, image.height), _GREY)


def _scaled(box: NDArray[np.float32], scale: float, picture: Image.Image) -> Rectangle:
    """A box in the pixels of the sheet, inside its picture, with its corners in order."""
    limits = np.array([picture.width, picture.height] * 2) - 2.0
    x1, y1, x2, y2 = np.clip(np.nan_to_num(box).clip(-1e6, 1e6) * scale, 1, np.maximum(limits, 1)).tolist()
    return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)


def _outline(draw: ImageDraw.ImageDraw, box: Rectangle, colour: Colour, reach: int) -> None:
    """A line along the box, so many pixels wider to each side."""
    x1, y1, x2, y2 = map(round, box)
    draw.rectangle((x1 - reach, y1 - reach, x2 + reach, y2 + reach), outline=colour, width=1 + 2 * reach)


def _label(
    draw: ImageDraw.ImageDraw,
    box: Rectangle,
    text: str,
    colour: Colour,
    size: tuple[int, int],
    taken: list[Rectangle],
) -> None:
    """Name and score on a box: above it, inside or below, wherever no better one has its own; else nowhere."""
    font = ImageFont.load_default(size=_TEXT)
    width, height = math.ceil(draw.textlength(text, font)) + 5, _TEXT + 3
    left = min(max(0.0, box[0] - 1), max(0, size[0] - width))
    for top in (box[1] - height, box[1] + 1, box[3] + 1, box[3] - height):
        place = (left, top, left + width, top + height)
        if 0 <= top <= size[1] - height and not any(_overlap(place, other) for other in taken):
            draw.rectangle(place, colour)
            dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 110
            draw.text((left + 3, top), text, _DARK if dark else _WHITE, font)
            taken.append(place)
            return


def _overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
