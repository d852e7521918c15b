"""Histograms with bins a reader can name; templates/macros.html draws them as inline SVG."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Each edge is about twice the one before, and a duration people use.
_SECONDS = [0.125, 0.25, 0.5, 1, 2, 4, 8, 15, 30]
DURATION_EDGES = [*_SECONDS, *(60.0 * m for m in (1, 2, 4, 8, 15, 30)), *(3600.0 * 2**h for h in range(12))]
_WIDTHS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0]
LINEAR_WIDTHS = [*_WIDTHS, *(60.0 * m for m in (1, 2, 5, 10, 20, 30)), *(3600.0 * 2**h for h in range(20))]
MAX_LINEAR_BINS = 14
# Below this ratio of the largest to the smallest value, doubling bins would be only two or three.
LINEAR_RATIO = 5.0


@dataclass(frozen=True)
class Histogram:
    """Counts in bins of equal width on the page. Labels stand under the bars, or, one more, between them."""

    bins: list[str]
    counts: list[int]
    labels: list[str]
    logarithmic: bool

    @property
    def ticks(self) -> list[int]:
        return y_ticks(max(self.counts))


def count_histogram(values: NDArray[np.int64]) -> Histogram | None:
    """One bar for each number, or groups that double in size: 1, 2, 3–4, 5–8, …; None without values."""
    if not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    if high - low < MAX_LINEAR_BINS:
        edges = list(range(low, high + 2))
    else:
        edges = [0, 1, *(2**k + 1 for k in range(math.ceil(math.log2(high)) + 1))]
        edges = edges[bisect_right(edges, low) - 1 :]
    labels = [str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in pairwise(edges)]
    return Histogram(labels, _count(values, edges), labels, high - low >= MAX_LINEAR_BINS)


def duration_histogram(values: NDArray[np.float64], step: float) -> Histogram | None:
    """Doubling bins, or equal ones where the values lie close together; none finer than `step` seconds."""
    if not len(values):
        return None
    values = values.round(6)  # 1.9999999 is 2
    low, high = float(values.min()), float(values.max())
    logarithmic = high > LINEAR_RATIO * low and high > 4 * step
    if logarithmic:
        edges = [0.0, *(edge for edge in DURATION_EDGES if edge >= step)]
        edges = edges[bisect_right(edges, low) - 1 : bisect_right(edges, high) + 1]
    else:
        width = next(w for w in LINEAR_WIDTHS if w >= step and (high - low) / w < MAX_LINEAR_BINS - 1)
        edges = [round(width * k, 6) for k in range(math.floor(low / width), math.floor(high / width) + 2)]
    labels = _duration_labels(edges)
    bins = [f"{a} to {b}" for a, b in pairwise(labels)]
    return Histogram(bins, _count(values, edges), labels, logarithmic)


def _count(values: NDArray[np.float64] | NDArray[np.int64], edges: Sequence[float]) -> list[int]:
    bins = np.searchsorted(np.asarray(edges, dtype=float), values, side="right") - 1
    return [int(n) for n in np.bincount(bins.clip(0, len(edges) - 2), minlength=len(edges) - 1)]


def _duration_labels(edges: Sequence[float]) -> list[str]:
    """With one unit where that reads well: 70 s, 80 s, 90 s; but 30 s, 1 min, 2 min."""
    whole_minutes = all(edge % 60 == 0 for edge in edges if edge >= 60)
    whole_hours = all(edge % 3600 == 0 for edge in edges if edge >= 3600)

    def label(edge: float) -> str:
        if edge >= 3600 and whole_hours:
            return f"{edge / 3600:g} h"
        if edge >= 60 and whole_minutes:
            return f"{edge / 60:g} min"
        return f"{edge:g} s" if edge else "0"

    return [label(edge) for edge in edges]


def y_ticks(largest: int) -> list[int]:
    """Whole numbers from zero to at least the largest count, four steps at most."""
    magnitude = 10 ** math.floor(math.log10(max(largest, 1)))
    steps = [max(1, magnitude * n // 10) for n in (2, 5, 10, 20, 50)]
    step = next(s for s in steps if s * 4 >= largest)
    return list(range(0, -(-max(largest, 1) // step) * step + 1, step))
