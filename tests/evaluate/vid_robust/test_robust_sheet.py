"""Which anchors and offsets the contact sheet shows."""

from __future__ import annotations

from vivi.evaluate.vid_robust.scores import Anchor
from vivi.evaluate.vid_robust.sheet import columns, worst


def test_the_worst_anchors_are_right_themselves_and_wrong_around() -> None:
    def anchor(name: str) -> Anchor:
        return Anchor(name, tuple((f"{name}{offset}", offset) for offset in (-2, -1, 1, 2)))

    wrong = ["a", "b1", "c1", "c2", "e", "e-1", "e1", "e2", "e-2"]
    anchors = [anchor(name) for name in "abcde"]
    right = {frame: frame not in wrong for one in anchors for frame in one.within(2)}
    rows = worst(anchors, right, 2)
    assert [row[0] for row in rows] == ["c", "b", "e", "a"]
    assert list(rows[0].items()) == [(-2, "c-2"), (-1, "c-1"), (0, "c"), (1, "c1"), (2, "c2")]
    assert [row[0] for row in worst(anchors, right, 1)] == ["b", "c", "e", "a"]
    right |= dict.fromkeys(("a1", "a2"), False)
    assert [row[0] for row in worst(anchors, right, 2)][2:] == ["e", "a"], "five are wrong, three"
    for frame in ("e", "e-1", "e1"):
        del right[frame]
    assert [row[0] for row in worst(anchors, right, 2)][2:] == ["a", "e"], "missing is not wrong"


def test_columns_are_all_offsets_or_some_evenly() -> None:
    assert columns(0) == [0] and columns(2) == [-2, -1, 0, 1, 2]
    assert len(columns(36)) == 21 and columns(36)[0] == -36 and columns(36)[10] == 0 and len(set(columns(11))) == 21
