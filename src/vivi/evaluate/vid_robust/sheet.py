"""A contact sheet of the worst anchors: each with its neighbours in order, and what was said where that was wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torchvision.transforms.v2.functional import to_pil_image

from vivi.data.decode import read_image
from vivi.data.squares import central_square
from vivi.evaluate.contact_sheet import Picture, contact_sheet
from vivi.evaluate.vid_robust.scores import Anchor
from vivi.evaluate.vid_robust.sets import RobustSet

ROWS, SIDE_FRAMES, THUMBNAIL = 8, 10, 72
GREEN, RED, GREY = (38, 150, 72), (205, 45, 40), (200, 200, 200)


def worst(anchors: Sequence[Anchor], right: Mapping[str, bool], k: int) -> list[dict[int, str]]:
    """Anchors with wrong frames, each as its frames by offset, its own at 0. First those that are right themselves,
    the classifier's instability laid bare; those with more wrong frames before others."""
    found = []
    for anchor in anchors:
        near = {offset: frame for frame, offset in anchor.neighbours if abs(offset) <= k}
        wrong = sum(not right.get(frame, True) for frame in (anchor.frame, *near.values()))
        if wrong:
            own = not right.get(anchor.frame, False)
            found.append((own, -wrong, anchor.frame, dict(sorted({0: anchor.frame, **near}.items()))))
    return [frames for *_, frames in sorted(found, key=lambda row: row[:3])[:ROWS]]


def columns(k: int) -> list[int]:
    """The offsets that are shown: all, or some evenly where there are too many."""
    steps = min(k, SIDE_FRAMES)
    side = [round(step * k / steps) for step in range(1, steps + 1)]
    return [*(-offset for offset in reversed(side)), 0, *side]


def draw_worst(rows: Sequence[Mapping[int, str]], robust: RobustSet, said: Mapping[str, int], root: Path) -> bytes:
    """The PNG: a row for each anchor, a column for each offset; below the anchor its true classes."""
    offsets = columns(robust.k)
    pictures = [[_picture(row[n], n, robust, said, root) if n in row else None for n in offsets] for row in rows]
    title = f"anchors in the middle, neighbours up to {robust.k} steps before and after; green: right, red: wrong"
    return contact_sheet(pictures, THUMBNAIL, title)


def _picture(frame: str, offset: int, robust: RobustSet, said: Mapping[str, int], root: Path) -> Picture:
    """A frame in a border of its colour, and what was said where that was wrong; empty where it cannot be read."""
    guess, labels = said.get(frame), robust.labels[frame]
    colour = GREY if guess is None else GREEN if guess in labels else RED
    words = "missing" if guess is None else "no class" if guess < 0 else robust.classes[guess]
    if offset == 0:
        truth = " or ".join(robust.classes[number] for number in sorted(labels))
        words = truth if colour == GREEN else f"{truth}: {words}"
    elif colour == GREEN:
        words = f"{offset:+d}"
    try:
        return Picture(to_pil_image(central_square(read_image(root / frame), THUMBNAIL)), words, colour)
    except (OSError, ValueError):
        return Picture(None, words, colour)
