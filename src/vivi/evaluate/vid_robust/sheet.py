"""A contact sheet of the worst anchors: each with its neighbours in order, and what was said where that was wrong."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vivi.data.decode import read_image
from vivi.data.squares import central_square
from vivi.evaluate.vid_robust.scores import Anchor
from vivi.evaluate.vid_robust.sets import RobustSet

ROWS, SIDE_FRAMES = 8, 10
THUMBNAIL, BORDER, GAP, TEXT, LEFT = 72, 3, 2, 13, 130
CELL = THUMBNAIL + 2 * BORDER
GREEN, RED, GREY = (38, 150, 72), (205, 45, 40), (200, 200, 200)
BLACK, WHITE = (20, 20, 20), (255, 255, 255)


@dataclass(frozen=True)
class Row:
    """An anchor, and its frames by offset; the anchor's own is 0."""

    anchor: Anchor
    frames: Mapping[int, str]
    wrong: int  # how many of the frames were predicted wrong


def worst(anchors: Sequence[Anchor], right: Mapping[str, bool], k: int, rows: int = ROWS) -> list[Row]:
    """Anchors with wrong frames. First those that are right themselves, the classifier's instability laid bare; those
    with more wrong frames before others."""
    found = []
    for anchor in anchors:
        frames = {0: anchor.frame, **{offset: frame for frame, offset in anchor.neighbours if abs(offset) <= k}}
        wrong = sum(not right.get(frame, True) for frame in frames.values())
        if wrong:
            found.append(Row(anchor, dict(sorted(frames.items())), wrong))
    return sorted(found, key=lambda row: (not right.get(row.anchor.frame, False), -row.wrong, row.anchor.frame))[
        :rows
    ]


def columns(k: int) -> list[int]:
    """The offsets that are shown: all, or some evenly where there are too many."""
    steps = min(k, SIDE_FRAMES)
    side = [round(step * k / steps) for step in range(1, steps + 1)]
    return [*(-offset for offset in reversed(side)), 0, *side]


def contact_sheet(rows: Sequence[Row], robust: RobustSet, said: Mapping[str, int], root: Path, k: int) -> bytes:
    """The PNG: a row for each anchor, true classes on the left, offsets above."""
    offsets = columns(k)
    pitch, height = CELL + GAP, CELL + TEXT + 2 * GAP
    sheet = Image.new("RGB", (LEFT + len(offsets) * pitch + GAP, TEXT + 2 * GAP + len(rows) * height), WHITE)
    draw = ImageDraw.Draw(sheet)
    for column, offset in enumerate(offsets):
        _write(draw, (LEFT + column * pitch, GAP), f"{offset:+d}" if offset else "anchor", CELL)
    for line, row in enumerate(rows):
        top = TEXT + 2 * GAP + line * height
        truth = " or ".join(robust.classes[number] for number in sorted(robust.labels[row.anchor.frame]))
        _write(draw, (GAP, top + CELL // 2 - TEXT), truth, LEFT - 2 * GAP)
        _write(draw, (GAP, top + CELL // 2), f"{row.wrong} of {len(row.frames)} wrong", LEFT - 2 * GAP, RED)
        for column, offset in enumerate(offsets):
            if offset in row.frames:
                _cell(sheet, draw, (LEFT + column * pitch, top), row.frames[offset], robust, said, root)
    content = io.BytesIO()
    sheet.save(content, "PNG", optimize=True)
    return content.getvalue()


def _cell(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    place: tuple[int, int],
    frame: str,
    robust: RobustSet,
    said: Mapping[str, int],
    root: Path,
) -> None:
    """A frame in a border of its colour, and below it what was said where that was wrong."""
    left, top = place
    guess = said.get(frame)
    colour = GREY if guess is None else GREEN if guess in robust.labels[frame] else RED
    draw.rectangle((left, top, left + CELL - 1, top + CELL - 1), fill=colour)
    picture = _thumbnail(root / frame)
    if picture is not None:
        sheet.paste(picture, (left + BORDER, top + BORDER))
    words = "missing" if guess is None else "no class" if guess < 0 else robust.classes[guess]
    if colour != GREEN:
        _write(draw, (left, top + CELL), words, CELL, RED if colour == RED else BLACK)


def _thumbnail(path: Path) -> Image.Image | None:
    try:
        square = central_square(read_image(path), THUMBNAIL)
    except (OSError, ValueError):
        return None
    return Image.fromarray(np.ascontiguousarray(square.permute(1, 2, 0).numpy()))


def _write(
    draw: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    width: int,
    colour: tuple[int, int, int] = BLACK,
) -> None:
    """Text that is cut off where it would leave its cell."""
    font = ImageFont.load_default(size=11)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if draw.textlength(text, font) > width:
        while text and draw.textlength(text + "…", font) > width:
            text = text[:-1]
        text += "…"
    draw.text(place, text, colour, font)
