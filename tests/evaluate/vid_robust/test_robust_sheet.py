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
    assert [(row.anchor.frame, row.wrong) for row in rows] == [("c", 2), ("b", 1), ("e", 5), ("a", 1)]
    assert list(rows[0].frames.items()) == [(-2, "c-2"), (-1, "c-1"), (0, "c"), (1, "c1"), (2, "c2")]
    assert [row.anchor.frame for row in worst(anchors, right, 1, rows=2)] == ["b", "c"]
    del right["e"]  # missing is not wrong
    assert worst(anchors, right, 2)[2].wrong == 4


def test_columns_are_all_offsets_or_some_evenly() -> None:
    assert columns(0) == [0] and columns(2) == [-2, -1, 0, 1, 2]
    assert len(columns(36)) == 21 and columns(36)[0] == -36 and columns(36)[10] == 0 and len(set(columns(11))) == 21
