"""A contact sheet of the worst anchors: each with its neighbours in order, and what was said where that was wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vivi.data.decode import read_image
from vivi.data.squares import central_square
from vivi.evaluate.contact_sheet import Picture, contact_sheet
from vivi.evaluate.vid_robust.scores import Anchor
from vivi.evaluate.vid_robust.sets import RobustSet

ROWS, SIDE_FRAMES, THUMBNAIL = 8, 10, 72
GREEN, RED, GREY = (38, 150, 72), (205, 45, 40), (200, 200, 200)


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
    found.sort(key=lambda row: (not right.get(row.anchor.frame, False), -row.wrong, row.anchor.frame))
    return found[:rows]


def columns(k: int) -> list[int]:
    """The offsets that are shown: all, or some evenly where there are too many."""
    steps = min(k, SIDE_FRAMES)
    side = [round(step * k / steps) for step in range(1, steps + 1)]
    return [*(-offset for offset in reversed(side)), 0, *side]


def draw_worst(rows: Sequence[Row], robust: RobustSet, said: Mapping[str, int], root: Path, k: int) -> bytes:
    """The PNG: a row for each anchor, a column for each offset; below the anchor its true classes."""
    pictures = [
        [_picture(row, offset, robust, said, root) if offset in row.frames else None for offset in columns(k)]
        for row in rows
    ]
    title = f"anchors in the middle, neighbours up to {k} steps before and after; green: right, red: wrong"
    return contact_sheet(pictures, THUMBNAIL, title)


def _picture(row: Row, offset: int, robust: RobustSet, said: Mapping[str, int], root: Path) -> Picture:
    """A frame in a border of its colour, and what was said where that was wrong."""
    frame = row.frames[offset]
    guess, labels = said.get(frame), robust.labels[frame]
    colour = GREY if guess is None else GREEN if guess in labels else RED
    words = "missing" if guess is None else "no class" if guess < 0 else robust.classes[guess]
    if offset == 0:
        truth = " or ".join(robust.classes[number] for number in sorted(labels))
        words = truth if colour == GREEN else f"{truth}: {words}"
    elif colour == GREEN:
        words = f"{offset:+d}"
    return Picture(_thumbnail(root / frame), words, colour)


def _thumbnail(path: Path) -> Image.Image | None:
    try:
        square = central_square(read_image(path), THUMBNAIL)
    except (OSError, ValueError):
        return None
    return Image.fromarray(np.ascontiguousarray(square.permute(1, 2, 0).numpy()))
