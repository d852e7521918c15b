"""Histograms with bins a reader can name; templates/macros.html draws them as inline SVG."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivi.report.writing import in_words

_MINUTES, _HOURS = (60.0 * m for m in (1, 2, 4, 8, 15, 30)), (3600.0 * 2**h for h in range(12))
# Each edge is about twice the one before, and a duration people use.
DURATION_EDGES = [0.125, 0.25, 0.5, 1, 2, 4, 8, 15, 30, *_MINUTES, *_HOURS]
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
    quantiles: list[str]  # the median, 90 %, the largest

    @property
    def ticks(self) -> list[int]:
        return y_ticks(max(self.counts))


def count_histogram(values: NDArray[np.int64]) -> Histogram | None:
    """One bar for each number, or groups that double in size: 1, 2, 3–4, 5–8, …; None without values."""
    if not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    edges = list(range(low, high + 2))
    if logarithmic := high - low >= MAX_LINEAR_BINS:
        edges = [0, 1, *(2**k + 1 for k in range(math.ceil(math.log2(high)) + 1))]
        edges = edges[bisect_right(edges, low) - 1 :]
    labels = [str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in pairwise(edges)]
    return Histogram(labels, _count(values, edges), labels, logarithmic, _quantiles(values, "{:.0f}".format))


def duration_histogram(values: NDArray[np.float64], step: float) -> Histogram | None:
    """Doubling bins, or equal ones where the values lie close together; none finer than `step` seconds."""
    if not len(values):
        return None
    rounded = values.round(6)  # 1.9999999 is 2
    low, high = float(rounded.min()), float(rounded.max())
    logarithmic = high > LINEAR_RATIO * low and high > 4 * step
    if logarithmic:
        edges = [0.0, *(edge for edge in DURATION_EDGES if edge >= step)]
        edges = edges[bisect_right(edges, low) - 1 : bisect_right(edges, high) + 1]
    else:
        width = next(w for w in LINEAR_WIDTHS if w >= step and (high - low) / w < MAX_LINEAR_BINS - 1)
        edges = [round(width * k, 6) for k in range(math.floor(low / width), math.floor(high / width) + 2)]
    # With one unit where that reads well: 70 s, 80 s, 90 s; but 30 s, 1 min, 2 min.
    units = [(3600, "h"), (60, "min")]
    units = [(unit, name) for unit, name in units if all(edge % unit == 0 for edge in edges if edge >= unit)]

    def label(edge: float) -> str:
        unit, name = next(((unit, name) for unit, name in units if edge >= unit), (1, "s"))
        return f"{edge / unit:g} {name}" if edge else "0"

    labels = [*map(label, edges)]
    bins = [f"{a} to {b}" for a, b in pairwise(labels)]
    return Histogram(bins, _count(rounded, edges), labels, logarithmic, _quantiles(values, in_words))


def _count(values: NDArray[Any], edges: Sequence[float]) -> list[int]:
    bins = np.searchsorted(np.asarray(edges, dtype=float), values, side="right") - 1
    return [int(n) for n in np.bincount(bins.clip(0, len(edges) - 2), minlength=len(edges) - 1)]


def _quantiles(values: NDArray[Any], form: Callable[[float], str]) -> list[str]:
    return [form(float(quantile)) for quantile in np.quantile(values, [0.5, 0.9, 1.0], method="higher")]


def y_ticks(largest: int) -> list[int]:
    """Whole numbers from zero to at least the largest count, four steps at most."""
    magnitude = 10 ** math.floor(math.log10(max(largest, 1)))
    steps = [max(1, magnitude * n // 10) for n in (2, 5, 10, 20, 50)]
    step = next(s for s in steps if s * 4 >= largest)
    return list(range(0, -(-max(largest, 1) // step) * step + 1, step))
