"""Contact sheets: rows of small pictures with frames and captions, as a PNG for people to look at."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
BLACK, WHITE = (20, 20, 20), (255, 255, 255)
_BORDER, _GAP, _TEXT = 3, 4, 14  # pixels


@dataclass(frozen=True)
class Picture:
    """An image, or none, in a border of its colour, and what is written below it."""

    image: Image.Image | None
    caption: str = ""
    border: Colour = WHITE


def contact_sheet(rows: Sequence[Sequence[Picture | None]], side: int, title: str = "") -> bytes:
    """The PNG of rows of pictures, each at most `side` pixels wide and high; None leaves a place empty."""
    cell = side + 2 * _BORDER
    pitch, height = cell + _GAP, cell + _TEXT + _GAP
    top = _TEXT + _GAP if title else 0
    sheet = Image.new("RGB", (_GAP + pitch * max(map(len, rows)), _GAP + top + height * len(rows)), WHITE)
    draw = ImageDraw.Draw(sheet)
    _write(draw, (_GAP, _GAP), title, sheet.width)
    for line, row in enumerate(rows):
        for column, picture in enumerate(row):
            if picture is not None:
                left, upper = _GAP + column * pitch, _GAP + top + line * height
                draw.rectangle((left, upper, left + cell - 1, upper + cell - 1), picture.border)
                if picture.image is not None:
                    small = fitted(picture.image, side)
                    corner = (left + (cell - small.width) // 2, upper + (cell - small.height) // 2)
                    sheet.paste(small, corner)
                _write(draw, (left, upper + cell), picture.caption, cell)
    content = io.BytesIO()
    sheet.save(content, "PNG", optimize=True)
    return content.getvalue()


def fitted(image: Image.Image, side: int) -> Image.Image:
    """An image that is at most so wide and high, and as large as it can be."""
    scale = side / max(image.size)
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def _write(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, width: int) -> None:
    """Text that is cut off where it would leave its cell."""
    font = ImageFont.load_default(size=11)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if draw.textlength(text, font) > width:
        while text and draw.textlength(text + "…", font) > width:
            text = text[:-1]
        text += "…"
    draw.text(place, text, BLACK, font)
