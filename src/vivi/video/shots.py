"""Finds where shots begin, from the sampled frames alone, in the pass that samples them.

The method, in the spirit of Mas and Fernandez (2003): colour histograms and a robust decision over time.

A frame becomes a unit vector: the square roots of slightly blurred histograms of luminance and of chrominance in
3 × 3 blocks. The Hellinger distance of two frames (0 alike, 1 nothing in common) is then one dot product. A window
is a pair of frames around a possible transition: neighbours for a cut, frames up to a second apart for a fade. Its
score is how far apart the two sides are, less how much the picture changes within the same time inside either side
(so that pans, shaking and drifting light, which change the picture everywhere, do not count). "How far apart" is the
least distance also to the next frames out, so that a flash, after which the old picture returns, does not count.
A window votes for the place inside it from which the frames resemble its end more than its beginning, and a shot
begins where the highest vote exceeds the threshold. Of two such places in one fade, or closer than the minimum
length of a shot, the stronger stays.

Cross-fades and dips to black shorter than about a second and a half give one boundary, near their middle; slower
ones look like slow light changes and may be missed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_FADE_SECONDS = 1.0  # the longest window: what is slower than this counts as change within a shot
_FLASH_SECONDS = 0.2  # flashes last less than this; also the shortest time over which activity is measured
_STRAIGHT = 1.4  # see HistogramShotDetector._same_transition
_SIDE = 72  # a frame is looked at in _SIDE × _SIDE points
_GRID = 3
_LUMA_BINS = 16
_CHROMA_BINS = 12
_CHROMA_SHARE = 2 / 3  # the rest is luminance, which changes with the light


class ShotDetector(Protocol):
    """What prepare asks of a shot detector."""

    def add(self, time: float, frame: NDArray[np.uint8]) -> list[int]:
        """Takes the next sampled frame, RGB (height, width, 3); returns the frames found to begin a shot since."""

    def finish(self) -> list[int]:
        """The frames that begin a shot among those held back."""


class HistogramShotDetector:
    """Takes a video's sampled frames one by one and tells the indices of those with which a new shot begins.

    Index i means that the boundary lies between frames i - 1 and i; indices come in increasing order, a few frames
    late, and each once. The same threshold serves all sampling rates: it is compared with the change at a
    transition beyond the change within the same time around it. 0 to 1; lower finds more.
    """

    def __init__(self, rate: float, threshold: float = 0.18, min_shot_seconds: float = 0.5) -> None:
        if not rate > 0:
            raise ValueError(f"rate must be positive, not {rate}")
        self.threshold = threshold
        self.min_shot_seconds = min_shot_seconds
        self._step = max(1, round(_FLASH_SECONDS * rate))
        # Lengths of the windows, in frames: 1 for a cut, at least one longer for a fade.
        longest = max(2, int(_FADE_SECONDS * rate + 1e-6))
        self._lengths = list(range(1, longest + 1, self._step))
        self._reach = max(self._lengths[-1], self._step)  # how far a window looks to either side of itself
        self._near = max(1, longest, int(np.ceil(min_shot_seconds * rate)))
        self._kept = 2 * self._near + 4 * self._reach + 4  # frames remembered
        self._first = 0  # index of the first frame remembered
        self._times: list[float] = []
        self._vectors: list[NDArray[np.float32]] = []
        self._distances = np.zeros((self._kept + 1, self._kept + 1), np.float32)
        self._votes: dict[int, float] = {}  # frame -> highest score of a window that votes for it
        self._decided = 1  # frames before this one are decided; frame 0 begins the video, not a new shot
        self._pending: tuple[int, float] | None = None  # the last boundary, which a stronger one may still replace

    @property
    def _count(self) -> int:
        return self._first + len(self._vectors)

    def add(self, time: float, frame: NDArray[np.uint8]) -> list[int]:
        """Takes the next frame, RGB (height, width, 3); returns the indices at which shots were found to begin."""
        self._remember(time, describe(frame))
        last = self._count - 1
        for length in self._lengths:  # the windows that had been waiting for this frame
            self._vote(last - length - max(length, self._step), length)
        return self._decide(last - 2 * self._reach)

    def finish(self) -> list[int]:
        """Decides what had been waiting for more frames. Nothing may be added afterwards."""
        last = self._count - 1
        for length in self._lengths:
            for start in range(last - length - max(length, self._step) + 1, last - length + 1):
                self._vote(start, length)
        found = self._decide(last)
        if self._pending is not None:
            found.append(self._pending[0])
            self._pending = None
        return found

    def _remember(self, time: float, vector: NDArray[np.float32]) -> None:
        self._times.append(time)
        self._vectors.append(vector)
        n = len(self._vectors)
        distances = np.sqrt(np.maximum(0, 1 - np.stack(self._vectors) @ vector))
        self._distances[n - 1, :n] = self._distances[:n, n - 1] = distances
        if n > self._kept:
            del self._times[0], self._vectors[0]
            self._first += 1
            self._distances[:-1, :-1] = self._distances[1:, 1:].copy()

    def _distance(self, a: int, b: int) -> float:
        return float(self._distances[a - self._first, b - self._first])

    def _vote(self, start: int, length: int) -> None:
        """Scores the window from frame `start` to `start + length`, and enters the score where it votes."""
        end, last = start + length, self._count - 1
        if start < 0:
            return
        across = min(
            self._distance(a, b)
            for a in (start, max(start - self._step, 0))
            for b in (end, min(end + self._step, last))
        )
        lag = max(length, self._step)
        sides = []
        if start > 0:
            sides.append(self._distance(max(start - lag, 0), start))
        if end < last:
            sides.append(self._distance(end, min(end + lag, last)))
        score = across - (sum(sides) / len(sides) if sides else 0.0)
        if score <= self.threshold:
            return
        middle = start + 1
        while middle < end and self._distance(start, middle) <= self._distance(middle, end):
            middle += 1
        self._votes[middle] = max(score, self._votes.get(middle, 0.0))

    def _decide(self, last: int) -> list[int]:
        """Goes through the frames up to `last`, all of whose votes are in; returns the boundaries that are final."""
        found = []
        for i in range(self._decided, last + 1):
            score = self._votes.pop(i, None)
            if self._pending is not None:
                j, pending_score = self._pending
                if (
                    i - j > self._near
                    and self._times[i - self._first] - self._times[j - self._first] >= self.min_shot_seconds
                ):
                    found.append(j)
                    self._pending = None
                elif score is not None and self._same_transition(j, i):
                    if score > pending_score:
                        self._pending = (i, score)
                    continue
                elif score is not None:
                    found.append(j)
            if score is not None:
                self._pending = (i, score)
        self._decided = max(self._decided, last + 1)
        return found

    def _same_transition(self, i: int, j: int) -> bool:
        """Whether candidates i < j are too close to both be boundaries.

        They also are when a fade leads from one to the other: then the frames between lie on the way from the frame
        before i to frame j, and the path through them is not much longer than the direct one. Through a shot of its
        own it is about twice as long.
        """
        if self._times[j - self._first] - self._times[i - self._first] < self.min_shot_seconds - 1e-6:
            return True
        if j - i > self._reach:
            return False
        detour = max(self._distance(i - 1, k) + self._distance(k, j) for k in range(i, j))
        return detour < _STRAIGHT * self._distance(i - 1, j)


def _blur(bins: int) -> NDArray[np.float32]:
    """Spreads each bin of a histogram over its neighbours, so that small changes of light make small distances."""
    matrix = np.eye(bins) / 2 + np.eye(bins, k=1) / 4 + np.eye(bins, k=-1) / 4
    matrix[0, 0] = matrix[-1, -1] = 0.75
    return matrix.astype(np.float32)


_LUMA_BLUR = _blur(_LUMA_BINS) @ _blur(_LUMA_BINS)
_CHROMA_BLUR = _blur(_CHROMA_BINS)
_BLOCK = (
    (np.arange(_SIDE) * _GRID // _SIDE)[:, None] * _GRID + np.arange(_SIDE) * _GRID // _SIDE
).ravel()  # the block of each point
# Bin of a difference of colours from -255 to 255: finer near grey, where most colours are.
_DIFFERENCE = np.arange(-255, 256)
_CHROMA_BIN = np.clip(
    (np.sign(_DIFFERENCE) * np.sqrt(np.abs(_DIFFERENCE) / 255) / 1.6 + 0.5) * _CHROMA_BINS, 0, _CHROMA_BINS - 1
).astype(np.intp)


def describe(frame: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The frame as a unit vector whose dot product with another's is the likeness of their block histograms."""
    height, width = frame.shape[:2]
    rows = (np.arange(_SIDE) * 2 + 1) * height // (2 * _SIDE)
    columns = (np.arange(_SIDE) * 2 + 1) * width // (2 * _SIDE)
    points = frame[rows[:, None], columns].reshape(-1, 3).astype(np.intp)
    red, green, blue = points.T
    luma = (77 * red + 150 * green + 29 * blue) >> 8
    chroma = _CHROMA_BIN[red - luma + 255] * _CHROMA_BINS + _CHROMA_BIN[blue - luma + 255]
    blocks, pairs = _GRID * _GRID, _CHROMA_BINS * _CHROMA_BINS
    lumas = np.bincount(_BLOCK * _LUMA_BINS + luma * _LUMA_BINS // 256, minlength=blocks * _LUMA_BINS)
    chromas = np.bincount(_BLOCK * pairs + chroma, minlength=blocks * pairs)
    luma_part = lumas.reshape(blocks, _LUMA_BINS).astype(np.float32) @ _LUMA_BLUR
    chroma_part = _CHROMA_BLUR @ chromas.reshape(blocks, _CHROMA_BINS, _CHROMA_BINS).astype(np.float32) @ _CHROMA_BLUR
    shares = np.concatenate(
        [(1 - _CHROMA_SHARE) * luma_part.ravel(), _CHROMA_SHARE * chroma_part.ravel()]
    ) / np.float32(len(points))
    vector: NDArray[np.float32] = np.sqrt(shares).astype(np.float32)
    return vector
