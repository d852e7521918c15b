"""How robust predictions are to small changes between the frames of a video: the scores of ImageNet-Vid-Robust.

An anchor is a frame; its neighbours are frames around it that look alike to people. pm-0 is the share of anchors that
are predicted right, pm-k the share for which the anchor and all its neighbours at most k frames away are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Reduction = Literal["max", "mean", "median", "sum"]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A share of n, and its Clopper-Pearson interval."""

    right: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.right / self.n if self.n else math.nan


def clopper_pearson(right: int, n: int) -> Interval:
    """The exact binomial interval: shares that would give so many, or more extreme, in at least (1 - CONFIDENCE) / 2
    of the cases on either side."""
    from scipy.special import betaincinv  # half a second, which `vivi --help` need not wait for

    rest = (1 - CONFIDENCE) / 2
    low = float(betaincinv(right, n - right + 1, rest)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, n - right, 1 - rest)) if right < n else 1.0
    return Interval(right, n, low, high)


def project(
    logits: NDArray[np.floating], class_map: Sequence[Sequence[int]] | None, reduction: Reduction = "max"
) -> NDArray[np.floating]:
    """Scores of the set's classes (n, classes), from a classifier's (n, outputs) and which of these mean each class;
    None: they are the same. A class without outputs, which the classifier cannot name, scores -inf."""
    if class_map is None:
        return logits
    reduce: Callable[..., NDArray[np.floating]] = getattr(np, reduction)
    none = np.full(len(logits), -np.inf)
    return np.stack([reduce(logits[:, list(own)], axis=1) if own else none for own in class_map], axis=1)


def decide(scores: NDArray[np.floating]) -> NDArray[np.integer]:
    """The class of the highest score in each row (n, classes); of two the first. -1, no class, where a score is not a
    number or the classifier can name none."""
    broken = np.isnan(scores).any(axis=1) | (scores.max(axis=1) == -np.inf)
    return np.where(broken, -1, scores.argmax(axis=1))


@dataclass(frozen=True)
class Anchor:
    """An anchor and its neighbours, each with how many frames it lies after the anchor; before it: less than 0."""

    frame: str
    neighbours: tuple[tuple[str, int], ...]

    def within(self, k: int) -> list[str]:
        """The anchor and its neighbours at most k frames away."""
        return [self.frame, *(frame for frame, offset in self.neighbours if abs(offset) <= k)]


@dataclass(frozen=True)
class Curve:
    """pm-0 ... pm-k, and what was missing."""

    complete: tuple[Interval, ...]  # of the anchors whose frames, as far as k, are all there
    strict: tuple[Interval, ...]  # of all anchors: a missing frame counts as wrong
    missing: tuple[str, ...]  # frames without a prediction


def curve(anchors: Sequence[Anchor], right: Mapping[str, bool], farthest: int) -> Curve:
    """The scores of predictions: `right` says of each frame that was predicted whether that was right."""
    complete, strict = [], []
    for k in range(farthest + 1):
        sets = [anchor.within(k) for anchor in anchors]
        whole = [frames for frames in sets if all(frame in right for frame in frames)]
        hits = sum(all(right[frame] for frame in frames) for frames in whole)
        complete.append(clopper_pearson(hits, len(whole)) if whole else Interval(0, 0, 0.0, 1.0))
        strict.append(clopper_pearson(hits, len(sets)))
    wanted = {frame for anchor in anchors for frame in anchor.within(farthest)}
    return Curve(tuple(complete), tuple(strict), tuple(sorted(wanted - right.keys())))
