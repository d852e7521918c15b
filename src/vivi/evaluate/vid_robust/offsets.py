"""How many frames a neighbour lies before or after its anchor, from the numbers in their names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

TURN = 360


def offsets(neighbours: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[int]], list[str], list[str]]:
    """For each anchor the offsets of its neighbours; the anchors whose names do not tell; and notes on the unit.

    Names end in a number, as in val/VIDEO/000432.JPEG. Offsets are in the set's own unit: numbers may go up in
    steps of 5. Views around an object have degrees as numbers, and 355 lies beside 0. Where names do not tell, the
    neighbours' order does: the first half lies before the anchor.
    """
    apart = {anchor: _apart(anchor, frames) for anchor, frames in neighbours.items()}
    known = [number for numbers in apart.values() for number in numbers or ()]
    notes = []
    if max(map(abs, known), default=0) > TURN // 2 and _are_degrees(neighbours):
        apart = {a: [_turned(number) for number in numbers] if numbers else numbers for a, numbers in apart.items()}
        known = [_turned(number) for number in known]
        notes.append(f"the numbers of frames are read as degrees: {TURN - 1} lies beside 0")
    unit = math.gcd(*known) or 1
    if unit > 1:
        notes.append(f"the numbers of frames go up by {unit:,}: k counts steps of {unit:,}")
    found = {
        anchor: [number // unit for number in numbers] if numbers is not None else _by_order(len(neighbours[anchor]))
        for anchor, numbers in apart.items()
    }
    return found, [anchor for anchor, numbers in apart.items() if numbers is None], notes


def _apart(anchor: str, neighbours: Sequence[str]) -> list[int] | None:
    """The neighbours' numbers less the anchor's; None where a name has no number or differs in more than that."""
    own, others = _numbered(anchor), [_numbered(frame) for frame in neighbours]
    if any(other is None or own is None or other[0] != own[0] or other[1] == own[1] for other in others):
        return None
    return [other[1] - own[1] for other in others if other is not None and own is not None]


def _numbered(frame: str) -> tuple[str, int] | None:
    """A name without its last number, and that number."""
    folder, _, base = frame.rpartition("/")
    found = re.search(r"([0-9]{1,18})([^0-9]*)$", base.rpartition(".")[0] or base)
    return (f"{folder}/{base[: found.start()]}*{found[2]}", int(found[1])) if found else None


def _are_degrees(neighbours: Mapping[str, Sequence[str]]) -> bool:
    numbered = (_numbered(frame) for anchor, frames in neighbours.items() for frame in (anchor, *frames))
    return all(one[1] < TURN for one in numbered if one is not None)


def _turned(number: int) -> int:
    """The short way round."""
    return (number + TURN // 2) % TURN - TURN // 2


def _by_order(count: int) -> list[int]:
    before = count // 2
    return [*range(-before, 0), *range(1, count - before + 1)]
