"""Finds where shots begin, from the sampled frames alone, in the pass that samples them.

The method, in the spirit of Mas and Fernandez (2003): colour histograms, and a robust decision over time.

A frame is described by histograms of luminance and of chrominance in 3 × 3 blocks, and two frames by the Hellinger
distance of these (0: alike, 1: nothing in common), which is one dot product. A window is a pair of frames around a
possible transition: neighbours for a cut, frames up to 0.8 s apart for a fade. Its score is how far apart its ends
are, less a part of how much the picture changes in the same time before and after it: pans, shaking and drifting
light change the picture there as well. How far apart is the least distance also to the next frames out, so that a
flash, after which the old picture returns, scores nothing. A window votes for the place in it from which on the
frames resemble its end more than its start. A shot begins where the highest vote exceeds the threshold; of two such
places in one fade, or closer than the minimum length of a shot, the stronger stays.

So a cross-fade or a dip to black gives one boundary, near its middle. Fades much slower than a second are like slow
changes of light and may be missed; at 1 Hz a half-dark sample of a dip may become a shot of its own. A shot of a
single sample between two samples of one other shot is taken for a flash at 1 Hz and above.

The constants were chosen on takes of real videos joined at known places, see studies/shots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.27
MIN_SHOT_SECONDS = 0.5

_FADE_SECONDS = 0.8  # the longest window
_FLASH_SECONDS = 0.2  # a flash is shorter than this
_ACTIVITY = 0.7  # the part of the change before and after a window that is subtracted
_STRAIGHT, _DIP = 1.4, 0.5  # see HistogramShotDetector._one_transition

_SIDE = 72  # a frame is looked at in 72 × 72 points, whatever its size
_GRID = 3
_BLOCKS = _GRID * _GRID
_LUMA_BINS, _CHROMA_BINS = 16, 12  # of luminance; of red less luminance, and of blue less luminance
# Of the description; luminance has less, as it changes with the light.
_LUMA_SHARE, _CHROMA_SHARE = np.float32(1 / 3), np.float32(2 / 3)
_BLACK = 16  # luminance below which a point is as black as a letterbox
_GREY = 5  # difference of a colour from luminance below which a point is grey
_LEAST_INFORMATION = 0.25  # see distances


class ShotDetector(Protocol):
    """What prepare asks of a shot detector; one detector serves one video."""

    lookahead: int
    """The most frames that follow a frame before it is told whether it begins a shot."""

    def add(self, time: float, frame: NDArray[np.uint8]) -> list[int]:
        """Takes the next sampled frame, RGB (height, width, 3); returns indices of frames found to begin shots."""

    def finish(self) -> list[int]:
        """Returns the indices that were held back."""


@dataclass(frozen=True)
class _Boundary:
    index: int
    time: float
    score: float


class HistogramShotDetector:
    """Takes a video's sampled frames one by one and tells the indices of those with which a new shot begins.

    Index i means that the boundary lies between frames i - 1 and i. Indices come in increasing order, each once,
    about two seconds or a handful of frames late. `threshold`, from 0 to 1, serves all sampling rates, because what
    is compared with it is change beyond that of the same time before and after; lower finds more.
    """

    def __init__(self, rate: float, threshold: float = THRESHOLD, min_shot_seconds: float = MIN_SHOT_SECONDS) -> None:
        self.rate = rate
        self.threshold = threshold
        self.min_shot_seconds = min_shot_seconds
        # All in frames. Below 1 Hz no flash is looked past: what is gone after more than a second was a shot.
        flash = round(_FLASH_SECONDS * rate)
        self._flash = max(1, flash) if rate >= 1 else 0
        self._fade = max(1, int(_FADE_SECONDS * rate + 1e-6))
        # The lengths of windows (1: a cut; others: fades) and of the time before and after them in which activity is
        # measured: their own and a little more, in case frames repeat (as they do where the source has few), but no
        # more than a fade: a low rate would meet the next boundary.
        lengths = range(1, max(2, self._fade) + 1, max(1, flash))
        self._windows = [(length, min(length, self._fade) + flash) for length in lengths]
        self._longest = lengths[-1]
        self._reach = sum(self._windows[-1])  # of a window to one side, counted from its other end
        self.lookahead = self._reach + max(self._longest, math.ceil(min_shot_seconds * rate)) + 1
        self._count = 0
        # Slot i % size holds frame i: what was said of it, and its distances to all frames that are still held.
        size = 2 * self._reach + 2
        self._times = np.zeros(size)
        self._descriptions = np.zeros((size, _DESCRIPTION), np.float32)
        self._distances = np.zeros((size, size), np.float32)
        self._votes: dict[int, float] = {}  # frame -> highest score of a window that votes for it
        self._decided = 1  # all frames before this one; the first is no boundary
        self._start = 0.0  # of the video
        self._pending: _Boundary | None = None  # may still be replaced by a stronger one

    def add(self, time: float, frame: NDArray[np.uint8]) -> list[int]:
        """Takes the next frame, RGB (height, width, 3); returns the indices at which shots were found to begin."""
        if self._count == 0:
            self._start = time
        last, size = self._count, len(self._times)
        self._count += 1
        self._times[last % size] = time
        self._descriptions[last % size] = describe(frame)
        row = distances(self._descriptions, self._descriptions[last % size])
        self._distances[last % size] = self._distances[:, last % size] = row
        for length, lag in self._windows:  # those that waited for this frame
            self._vote(last - lag - length, length, lag)
        return self._decide(last - self._reach)

    def finish(self) -> list[int]:
        """Decides what has been waiting for more frames; nothing may be added afterwards."""
        last = self._count - 1
        for length, lag in self._windows:
            for start in range(last - lag - length + 1, last - length + 1):
                self._vote(start, length, lag)
        found = self._decide(last)
        if self._pending is not None:
            rest = self._times[last % len(self._times)] + 1 / self.rate - self._pending.time
            if rest >= self.min_shot_seconds - 1e-6:
                found.append(self._pending.index)
            self._pending = None
        return found

    def _distance(self, a: int, b: int) -> float:
        size = len(self._times)
        return float(self._distances[a % size, b % size])

    def _vote(self, start: int, length: int, lag: int) -> None:
        """Scores the window from frame `start` to `start + length`, and enters the score where it votes."""
        if start < 0:
            return
        end, last = start + length, self._count - 1
        starts = (start, max(start - self._flash, 0))
        ends = (end, min(end + self._flash, last))
        apart = min(self._distance(a, b) for a in starts for b in ends)
        activity = []
        if start > 0:
            activity.append(self._distance(max(start - lag, 0), start))
        if end < last:
            activity.append(self._distance(end, min(end + lag, last)))
        score = apart - _ACTIVITY * sum(activity) / max(len(activity), 1)
        if score <= self.threshold:
            return
        middle = start + 1
        while middle < end and min(self._distance(a, middle) for a in starts) <= min(
            self._distance(middle, b) for b in ends
        ):
            middle += 1
        self._votes[middle] = max(score, self._votes.get(middle, 0.0))

    def _decide(self, last: int) -> list[int]:
        """Goes on to frame `last`, the last one with all its votes; returns the boundaries that became final."""
        found = []
        for index in range(self._decided, last + 1):
            time = float(self._times[index % len(self._times)])
            boundary = _Boundary(index, time, self._votes.pop(index, 0.0))
            if boundary.score and time - self._start >= self.min_shot_seconds - 1e-6:
                if self._pending is None:
                    self._pending = boundary
                elif not self._one_transition(self._pending, boundary):
                    found.append(self._pending.index)
                    self._pending = boundary
                elif boundary.score > self._pending.score:
                    self._pending = boundary
            elif self._pending is not None and not self._are_near(self._pending, boundary):
                found.append(self._pending.index)
                self._pending = None
        self._decided = max(self._decided, last + 1)
        return found

    def _are_near(self, a: _Boundary, b: _Boundary) -> bool:
        return b.index - a.index < self._longest or b.time - a.time < self.min_shot_seconds - 1e-6

    def _one_transition(self, a: _Boundary, b: _Boundary) -> bool:
        """Whether of a and the later b only one can be a boundary: they are too close, or belong to one fade.

        The frames of a cross-fade lie on the way from the picture before it to the picture after it, so going through
        them is hardly farther than going directly; through a shot of its own it is about twice as far. A dip to black
        goes through frames darker than both.
        """
        if b.time - a.time < self.min_shot_seconds - 1e-6:
            return True
        if b.index - a.index > self._longest:
            return False
        before, inside, after = a.index - 1, range(a.index, b.index), b.index
        way = max(self._distance(before, i) + self._distance(i, after) for i in inside)
        if way < _STRAIGHT * self._distance(before, after):
            return True
        darkest = min(self._brightness(i) for i in inside)
        return darkest < _DIP * min(self._brightness(before), self._brightness(after)) and len(inside) <= self._fade

    def _brightness(self, index: int) -> float:
        roots = self._descriptions[index % len(self._times), : _BLOCKS * _LUMA_BINS].reshape(_BLOCKS, _LUMA_BINS)
        return float((roots**2).sum(axis=0) @ np.arange(_LUMA_BINS))


def _blur(bins: int) -> NDArray[np.float32]:
    """Spreads each bin of a histogram over its neighbours, so that small changes of light make small distances."""
    matrix = np.eye(bins) / 2 + np.eye(bins, k=1) / 4 + np.eye(bins, k=-1) / 4
    matrix[0, 0] = matrix[-1, -1] = 0.75
    return matrix.astype(np.float32)


_POINTS = np.arange(1, 2 * _SIDE, 2)  # centres of _SIDE cells, in halves of a cell
_BLOCK = ((_POINTS * _GRID // (2 * _SIDE))[:, None] * _GRID + _POINTS * _GRID // (2 * _SIDE)).ravel()  # of each point
_LUMA_BLUR = _blur(_LUMA_BINS) @ _blur(_LUMA_BINS)
_CHROMA_BLUR = _blur(_CHROMA_BINS)
# The bin of a difference from -255 to 255: bins are narrow near grey, where most colours are.
_DIFFERENCES = np.arange(-255, 256)
_ROOTS = np.sign(_DIFFERENCES) * np.sqrt(np.abs(_DIFFERENCES) / 255)
_CHROMA_BIN = np.clip((_ROOTS / 1.6 + 0.5) * _CHROMA_BINS, 0, _CHROMA_BINS - 1).astype(np.intp)
_IS_GREY = np.abs(_DIFFERENCES) < _GREY
_HISTOGRAMS = _BLOCKS * (_LUMA_BINS + _CHROMA_BINS**2)
_DESCRIPTION = _HISTOGRAMS + 2 * _BLOCKS


def describe(frame: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The square roots of the frame's block histograms, then the shares of black and of grey points in each block.

    Luminance and chrominance are weighted; the squares of the first part, and the second part of a black frame, add
    up to 1.
    """
    height, width = frame.shape[:2]
    points = frame.take(_POINTS * height // (2 * _SIDE), axis=0).take(_POINTS * width // (2 * _SIDE), axis=1)
    red, green, blue = points.reshape(-1, 3).T.astype(np.intp, order="C")  # (_SIDE * _SIDE,) each
    luma = (77 * red + 150 * green + 29 * blue) >> 8
    red_difference, blue_difference = red - luma + 255, blue - luma + 255
    chroma = _CHROMA_BIN.take(red_difference) * _CHROMA_BINS + _CHROMA_BIN.take(blue_difference)
    black = luma < _BLACK
    grey = _IS_GREY.take(red_difference) & _IS_GREY.take(blue_difference)

    def shares(kind: NDArray[np.intp], kinds: int) -> NDArray[np.float32]:
        """What part of the frame each kind of point has in each block: (blocks, kinds)."""
        counts = np.bincount(_BLOCK * kinds + kind, minlength=_BLOCKS * kinds)
        return (counts.reshape(_BLOCKS, kinds) / _SIDE**2).astype(np.float32)

    lumas = shares(luma * _LUMA_BINS >> 8, _LUMA_BINS) @ _LUMA_BLUR
    chromas = shares(chroma, _CHROMA_BINS**2).reshape(_BLOCKS, _CHROMA_BINS, _CHROMA_BINS)
    chroma_blurred = _CHROMA_BLUR @ chromas @ _CHROMA_BLUR
    blank = shares(black + 2 * grey, 4)  # neither, black, grey, both
    return np.concatenate(
        [
            np.sqrt(_LUMA_SHARE * lumas).ravel(),
            np.sqrt(_CHROMA_SHARE * chroma_blurred).ravel(),
            _LUMA_SHARE * (blank[:, 1] + blank[:, 3]),
            _CHROMA_SHARE * (blank[:, 2] + blank[:, 3]),
        ]
    )


def distances(many: NDArray[np.float32], one: NDArray[np.float32]) -> NDArray[np.float32]:
    """The distances, from 0 to 1, of many frames (frames, description) to one.

    Where both are black the luminance tells nothing, and where both are grey the chrominance: a letterbox, or a film
    in black and white, would make all its frames alike. The distance is therefore taken relative to the part that
    does tell something, down to a limit at which little but noise is left.
    """
    likeness = many[:, :_HISTOGRAMS] @ one[:_HISTOGRAMS]
    shared = np.minimum(many[:, _HISTOGRAMS:], one[_HISTOGRAMS:]).sum(axis=1)
    squares = (1 - likeness) / np.maximum(1 - shared, _LEAST_INFORMATION)
    result: NDArray[np.float32] = np.sqrt(np.clip(squares, 0, 1))
    return result
