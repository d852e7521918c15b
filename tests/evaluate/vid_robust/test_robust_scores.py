"""The scores of ImageNet-Vid-Robust: intervals, projections, the curve, distances."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest

from vivi.evaluate.vid_robust.scores import Anchor, Interval, Reduction, clopper_pearson, curve, decide, project
from vivi.evaluate.vid_robust.sets import ClassMap, offsets

# --- intervals ---


@pytest.mark.parametrize(
    ("accuracy", "low", "high"), [(68.0, 65.2, 70.7), (49.9, 46.9, 52.9), (62.2, 59.3, 65.1), (46.3, 43.3, 49.2)]
)
def test_intervals_are_those_that_the_paper_prints(accuracy: float, low: float, high: float) -> None:
    found = clopper_pearson(round(accuracy / 100 * 1109), 1109)
    assert 100 * found.share == pytest.approx(accuracy, abs=0.05)
    assert 100 * found.low == pytest.approx(low, abs=0.1) and 100 * found.high == pytest.approx(high, abs=0.1)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 1109])
def test_intervals_are_exact(n: int) -> None:
    for right in {0, 1, n // 3, n // 2, n - 1, n}:
        expected = binomtest(right, n).proportion_ci(0.95, "exact")
        found = clopper_pearson(right, n)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
        assert found.low <= found.share <= found.high


def test_a_share_of_nothing_is_unknown() -> None:
    assert math.isnan(Interval(0, 0, 0.0, 1.0).share)


# --- from outputs to classes ---

REDUCE: dict[Reduction, Callable[[list[float]], float]] = {
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": math.fsum,
}


@pytest.mark.parametrize("reduction", ["max", "mean", "median", "sum"])
def test_outputs_are_reduced_class_by_class(reduction: Reduction) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 12))
    class_map: ClassMap = ((3,), (0, 1, 7), (), (11, 4), (2, 5, 6, 8))
    found = project(logits, class_map, reduction)
    assert found.shape == (50, 5)
    for row, scores in zip(logits.tolist(), found.tolist(), strict=True):
        for indices, score in zip(class_map, scores, strict=True):
            expected = REDUCE[reduction]([row[index] for index in indices]) if indices else -math.inf
            assert score == pytest.approx(expected)
    assert 2 not in decide(found)  # no output means it


def test_reductions_may_decide_differently() -> None:
    logits, class_map = np.array([[5.0, -9.0, 0.0, 1.0, 2.0, 2.0]]), ((0, 1, 2), (3,), (4, 5))
    reductions: tuple[Reduction, ...] = ("max", "mean", "median", "sum")
    assert [int(decide(project(logits, class_map, one))[0]) for one in reductions] == [0, 2, 2, 2]


def test_what_is_no_number_is_no_class() -> None:
    rows = [[0.0, math.nan], [1.0, 1.0], [-math.inf, -math.inf], [math.inf, 0.0], [-math.inf, 3.0]]
    assert decide(np.array(rows)).tolist() == [-1, 0, -1, 0, 1]


# --- the curve ---


def some_anchors(count: int, farthest: int, chance: random.Random) -> list[Anchor]:
    """Anchors with some of their neighbours, a few with none."""
    anchors = []
    for video in range(count):
        around = [offset for offset in range(-farthest, farthest + 1) if offset and chance.random() < 0.7]
        around = [] if chance.random() < 0.1 else around
        anchors.append(Anchor(f"{video}/50", tuple((f"{video}/{50 + offset}", offset) for offset in around)))
    return anchors


def slow_counts(anchors: list[Anchor], right: dict[str, bool], k: int) -> tuple[int, int]:
    """How many anchors are right with all their frames as far as k, and how many have them all."""
    hits, whole = 0, 0
    for anchor in anchors:
        there, good = anchor.frame in right, right.get(anchor.frame, False)
        for frame, offset in anchor.neighbours:
            if -k <= offset <= k:
                there = there and frame in right
                good = good and right.get(frame, False)
        whole += there
        hits += good
    return hits, whole


@pytest.mark.parametrize("missing", [0.0, 0.05, 1.0])
def test_the_curve_is_that_of_a_count_one_by_one(missing: float) -> None:
    chance = random.Random(0)
    anchors = some_anchors(60, 6, chance)
    frames = {frame for anchor in anchors for frame in anchor.within(6)}
    right = {frame: chance.random() < 0.9 for frame in sorted(frames) if chance.random() >= missing}
    found = curve(anchors, right, 6)
    assert found.missing == tuple(sorted(frames - right.keys()))
    for k in range(7):
        hits, whole = slow_counts(anchors, right, k)
        assert (found.complete[k].right, found.complete[k].n) == (hits, whole)
        assert (found.strict[k].right, found.strict[k].n) == (hits, 60)
    if not missing:
        assert found.complete == found.strict and found.strict[6].right < found.strict[0].right


def test_one_wrong_neighbour_in_every_set_leaves_the_anchors_that_have_none() -> None:
    anchors = some_anchors(60, 6, random.Random(1))
    alone = sum(not anchor.neighbours for anchor in anchors)
    assert 0 < alone < 60
    right = {frame: True for anchor in anchors for frame in anchor.within(6)}
    assert [one.right for one in curve(anchors, right, 6).strict] == [60] * 7
    right |= {anchor.neighbours[0][0]: False for anchor in anchors if anchor.neighbours}
    found = curve(anchors, right, 6)
    assert (found.complete[0].right, found.complete[-1].right) == (60, alone)
    assert [one.right for one in curve(anchors, dict.fromkeys(right, False), 6).strict] == [0] * 7


# --- how far neighbours are ---


def test_distances_are_those_of_the_numbers() -> None:
    found = offsets("v/1/000442.JPEG", ["v/1/000440.JPEG", "v/1/000443.JPEG"])
    assert found == {"v/1/000440.JPEG": -2, "v/1/000443.JPEG": 1}
    found = offsets("t_3/frame-732.jpg", ["t_3/frame-722.jpg", "t_3/frame-735.jpg"])
    assert found == {"t_3/frame-722.jpg": -10, "t_3/frame-735.jpg": 3}
    assert offsets("v/2/7.JPEG", []) == {} and offsets("x/5.jpg", ["x/4.jpg"]) == {"x/4.jpg": -1}


def test_neighbours_without_comparable_numbers_have_no_distances() -> None:
    for anchor, frames in {"anchor": ["a", "b"], "p/1.jpg": ["q/1.jpg", "q/2.jpg"], "c/5.png": ["c/5.jpg"]}.items():
        assert offsets(anchor, frames) is None
