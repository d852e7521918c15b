"""What can be learned from a corpus: how its long videos are divided, and which shots of a video are compared.

These are the rules of vivi train auto about the footage; vivi prepare says beforehand what comes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vivi.data.cut import cut
from vivi.data.index import Index
from vivi.recipes import Batch

# With fewer videos, a step has too few others to tell a video from: long ones are divided, as little as that takes.
_ENOUGH_VIDEOS = 64
_SEGMENT_MINUTES = (5.0, 2.0, 1.0, 0.5)
# So many of the training videos must have the shots that a method compares: the others are left out.
_MOST = 0.75
# Takes are cut into shots of this length, of the two in studies/mini the better, or into shorter ones if need be.
_SHOT_SECONDS = 3.2
_FRAMES = 2  # of a shot, as in the best tries of studies/mini


def suit(index: Index, settings: Mapping[str, Any]) -> Batch:
    """A batch whose videos, shots and frames suit a corpus of these settings; how many videos it has is left open."""
    batch = Batch(frames=_FRAMES, segment_minutes=_segment_minutes(index, settings))
    index = cut(index, settings, batch)
    training = np.flatnonzero(~index.test)
    if not len(training) or (index.shots_of(training) >= 4).mean() >= _MOST:
        return replace(batch, shots=4)
    rate = float(settings["rate"])
    frames = int(np.quantile(index.frames_of(training), 1 - _MOST))  # that most videos have
    for shots in (4, 2):
        length = min(frames // shots, max(_FRAMES, round(_SHOT_SECONDS * rate)))
        if length >= _FRAMES:
            return replace(batch, shots=shots, max_shot_seconds=length / rate)
    return replace(batch, shots=1)


def _segment_minutes(index: Index, settings: Mapping[str, Any]) -> float:
    """A few long recordings make many segments; 0: the videos stay as they are."""
    for minutes in _SEGMENT_MINUTES if len(index) < _ENOUGH_VIDEOS else ():
        segments = len(cut(index, settings, Batch(segment_minutes=minutes)))
        enough = segments >= _ENOUGH_VIDEOS or minutes == _SEGMENT_MINUTES[-1]
        if enough and segments >= 2 * len(index):
            return minutes
    return 0.0


def about(batch: Batch) -> str:
    """What is done about the footage, in words, if anything."""
    parts = []
    if batch.segment_minutes:
        parts.append(f"few and long videos, so they are divided into segments of up to {batch.segment_minutes:g} min")
    if batch.max_shot_seconds:
        parts.append(f"few cuts, so takes are cut into shots of {batch.max_shot_seconds:.2g} s")
    return "; ".join(parts)
