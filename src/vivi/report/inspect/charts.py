"""Histograms as inline SVG, with bins a reader can name."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Each edge is about twice the one before, and a duration people use.
_SECONDS = [0.125, 0.25, 0.5, 1, 2, 4, 8, 15, 30]
DURATION_EDGES = [*_SECONDS, *(60.0 * m for m in (1, 2, 4, 8, 15, 30)), *(3600.0 * 2**h for h in range(12))]
MAX_LINEAR_BINS = 14
# Below this ratio of the largest to the smallest value, doubling bins would be only two or three.
LINEAR_RATIO = 5.0


@dataclass(frozen=True)
class Histogram:
    """Counts in bins of equal width on the page."""

    bins: list[str]
    """Each bin in words."""
    counts: list[int]
    labels: list[str]
    """Under the bars (as many as bins) or under the lines between them (one more)."""
    logarithmic: bool


def count_histogram(values: NDArray[np.int64]) -> Histogram:
    """One bar for each number, or groups that double in size: 1, 2, 3–4, 5–8, …"""
    if not len(values):
        return Histogram([], [], [], False)
    low, high = int(values.min()), int(values.max())
    if high - low < MAX_LINEAR_BINS:
        edges = list(range(low, high + 2))
    else:
        edges = [0, 1, *(2**k + 1 for k in range(math.ceil(math.log2(high)) + 1))]
        edges = edges[bisect_right(edges, low) - 1 :]
    labels = [str(a) if b == a + 1 else f"{a}–{b - 1}" for a, b in pairwise(edges)]
    return Histogram(labels, _count(values, edges), labels, high - low >= MAX_LINEAR_BINS)


def duration_histogram(values: NDArray[np.float64], step: float) -> Histogram:
    """Doubling bins, or equal ones where the values lie close together; none finer than `step` seconds."""
    if not len(values):
        return Histogram([], [], [], False)
    values = values.round(6)  # 1.9999999 is 2
    low, high = float(values.min()), float(values.max())
    logarithmic = high > LINEAR_RATIO * low and high > 4 * step
    edges = _doubling_edges(low, high, step) if logarithmic else _linear_edges(low, high, step)
    labels = _duration_labels(edges)
    bins = [f"{a} to {b}" for a, b in pairwise(labels)]
    return Histogram(bins, _count(values, edges), labels, logarithmic)


def _count(values: NDArray[np.float64] | NDArray[np.int64], edges: Sequence[float]) -> list[int]:
    bins = np.searchsorted(np.asarray(edges, dtype=float), values, side="right") - 1
    return [int(n) for n in np.bincount(bins.clip(0, len(edges) - 2), minlength=len(edges) - 1)]


def _doubling_edges(low: float, high: float, step: float) -> list[float]:
    edges = [0.0, *(edge for edge in DURATION_EDGES if edge >= step)]
    return edges[bisect_right(edges, low) - 1 : bisect_right(edges, high) + 1]


def _linear_edges(low: float, high: float, step: float) -> list[float]:
    width = next(w for w in _nice_widths() if w >= step and (high - low) / w < MAX_LINEAR_BINS - 1)
    first = math.floor(low / width)
    return [round(width * k, 6) for k in range(first, math.floor(high / width) + 2)]


def _nice_widths() -> list[float]:
    below_a_minute = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0]
    return [
        0.01,
        0.02,
        0.05,
        *below_a_minute,
        *(60.0 * m for m in (1, 2, 5, 10, 20, 30)),
        *(3600.0 * 2**h for h in range(20)),
    ]


def _duration_labels(edges: Sequence[float]) -> list[str]:
    """With one unit where that reads well: 70 s, 80 s, 90 s; but 30 s, 1 min, 2 min."""
    whole_minutes = all(edge % 60 == 0 for edge in edges if edge >= 60)
    whole_hours = all(edge % 3600 == 0 for edge in edges if edge >= 3600)
    return [
        f"{edge / 3600:g} h"
        if edge >= 3600 and whole_hours
        else f"{edge / 60:g} min"
        if edge >= 60 and whole_minutes
        else f"{edge:g} s"
        if edge
        else "0"
        for edge in edges
    ]


WIDTH, HEIGHT = 380, 214
LEFT, RIGHT, TOP, BOTTOM = 44, 20, 26, 42
# Room for "30 min" in the axis font, which is larger on phones.
LABEL_WIDTH = 50


def histogram_svg(histogram: Histogram, title: str, x_title: str, y_title: str) -> str:
    """The chart; its numbers are repeated in tooltips and in what a screen reader says."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    ticks = y_ticks(max(histogram.counts))
    bar = width / len(histogram.counts)
    parts = []
    for tick in ticks:
        y = TOP + height * (1 - tick / ticks[-1])
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{compact(tick)}</text>')
    for i, (name, count) in enumerate(zip(histogram.bins, histogram.counts, strict=True)):
        # A single video among thousands still shows.
        tall = max(height * count / ticks[-1], 1.5) if count else 0
        x, y = LEFT + i * bar + bar * 0.06, TOP + height - tall
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{bar * 0.88:.1f}" height="{tall:.1f}" rx="1.5">'
            f"<title>{escape(name)}: {count:,} {escape(y_title)}</title></rect>"
        )
    parts.append(_x_labels(histogram, bar, TOP + height + 17))
    scale = ", log scale" if histogram.logarithmic else ""
    parts.append(f'<text class="axis" x="{LEFT - 38}" y="12">{escape(y_title)}</text>')
    parts.append(
        f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_title + scale)}</text>'
    )
    spoken = "; ".join(f"{n}: {c:,}" for n, c in zip(histogram.bins, histogram.counts, strict=True))
    label = escape(f"{title}. {spoken}")
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _x_labels(histogram: Histogram, bar: float, y: float) -> str:
    between = len(histogram.labels) > len(histogram.counts)
    every = math.ceil(LABEL_WIDTH / bar)
    return "".join(
        f'<text x="{LEFT + bar * (i if between else i + 0.5):.1f}" y="{y:.1f}" text-anchor="middle">'
        f"{escape(histogram.labels[i])}</text>"
        for i in range(0, len(histogram.labels), every)
    )


def y_ticks(largest: int) -> list[int]:
    """Whole numbers from zero to at least the largest count, four steps at most."""
    magnitude = 10 ** math.floor(math.log10(max(largest, 1)))
    steps = [max(1, magnitude * n // 10) for n in (2, 5, 10, 20, 50)]
    step = next(s for s in steps if s * 4 >= largest)
    return list(range(0, -(-max(largest, 1) // step) * step + 1, step))


def compact(number: int) -> str:
    """1500 as 1.5k: axis labels have little room."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return str(number)
