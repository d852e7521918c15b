"""Cuts the long shots and the long videos of a corpus, for training: the frames stay where they are on disk.

What comes out is an index like any other, a pure function of the corpus and of `batch.max_shot_seconds` and
`batch.segment_minutes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vivi.data.index import Index
from vivi.prepare.index import consecutive
from vivi.recipes import Batch

# A tenth of a segment is left out before the next one: neighbours in time are neither two videos to tell apart, nor
# one to train on and one to test.
_TENTHS = 10


def cut(index: Index, settings: Mapping[str, Any], batch: Batch) -> Index:
    """The index with its long videos divided into segments, and their long shots into pieces of one length, as the
    batch wants; `settings` are those of the corpus."""
    rate = float(settings["rate"])
    if batch.segment_minutes:
        index = _into_segments(index, round(60 * batch.segment_minutes * rate), settings.get("test_fraction", 0.0))
    if batch.max_shot_seconds:
        index = _into_pieces(index, max(1, round(batch.max_shot_seconds * rate)))
    return index


def _into_pieces(index: Index, most: int) -> Index:
    """Divides shots of more than so many frames evenly."""
    count = index.frames.astype(np.int64)
    pieces = np.maximum(1, -(-count // most))  # (shots,)
    shot, number = np.repeat(np.arange(len(count)), pieces), consecutive(np.zeros_like(pieces), pieces)
    begin, end = number * count[shot] // pieces[shot], (number + 1) * count[shot] // pieces[shot]
    return _with_shots(index, shot, begin, end - begin, np.concatenate([[0], np.cumsum(pieces)])[index.first_shot])


def _into_segments(index: Index, most: int, test_fraction: float) -> Index:
    """Divides videos of more than so many frames evenly; where frames of a shot fall into two segments, so does the
    shot. Segments are held out where their video is. If that leaves nothing to train on, or nothing held out, an even
    choice of all videos and segments is."""
    frames = np.diff(index.first_frame)
    segments = np.maximum(1, -(-frames // max(4, most)))  # (videos,); none may be empty
    video, number = np.repeat(np.arange(len(frames)), segments), consecutive(np.zeros_like(segments), segments)
    # Frames are counted through all videos here. A segment has those between two multiples of frames / segments.
    begin = _TENTHS * number + (number > 0)  # in tenths of a segment
    begin = index.first_frame[video] - (-begin * frames[video] // (_TENTHS * segments[video]))
    end = index.first_frame[video] - (-(number + 1) * frames[video] // segments[video])
    first = np.concatenate([[0], np.cumsum(index.frames, dtype=np.int64)])  # of each shot
    edges = np.unique(np.concatenate([first, begin, end]))
    segment = np.searchsorted(begin, edges[:-1], side="right") - 1
    inside = edges[:-1] < end[segment]
    starts, lengths, segment = edges[:-1][inside], np.diff(edges)[inside], segment[inside]
    shot = np.searchsorted(first, starts, side="right") - 1
    test = index.test[video]
    if test_fraction > 0 and len(test) > 1 and test.all() == test.any():
        held_out = max(1, round(test_fraction * len(test)))
        test = np.zeros_like(test)
        test[((np.arange(held_out) + 0.5) * len(test) / held_out).astype(np.int64)] = True
    parts = zip(video.tolist(), number.tolist(), segments[video].tolist(), strict=True)
    names = [index.video_name(of) + (f" part {part + 1} of {many}" if many > 1 else "") for of, part, many in parts]
    index = replace(
        index,
        names=pa.array(names, pa.large_string()),
        shard=index.shard[video],
        test=test,
        first_frame=np.concatenate([[0], np.cumsum(end - begin)]),
    )
    first_shot = np.concatenate([[0], np.cumsum(np.bincount(segment, minlength=len(video)))])
    return _with_shots(index, shot, starts - first[shot], lengths, first_shot)


def _with_shots(
    index: Index,
    shot: NDArray[np.int64],
    begin: NDArray[np.int64],
    count: NDArray[np.int64],
    first_shot: NDArray[np.int64],
) -> Index:
    """The index with pieces of its shots in their place: of which shot, from which of its frames on, how many."""
    return replace(
        index,
        first_shot=first_shot,
        frames=count.astype(np.int32),
        offsets_at=index.offsets_at[shot] + 4 * begin,  # an int32 for each frame
        data_at=index.data_at[shot],
    )
