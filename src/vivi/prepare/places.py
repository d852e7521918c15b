"""Checks before a corpus is read: the rows of videos.parquet, which say where videos lie in their shards, and the
structure of shards, since Arrow would read any bytes. Rows of a shard that belong to no video of the table come from
files that have changed since and were prepared again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vivi.prepare.corpus import SHOT_SCHEMA, VIDEO_SCHEMA, Corpus, open_shard, reading, shard_path
from vivi.runtime.errors import UserError


def videos_by_place(corpus: Corpus) -> pa.Table:
    """The videos that the corpus holds, by shard and row; raises for the first whose row cannot be right."""
    ok = corpus.videos.filter(pc.equal(corpus.videos["status"], "ok"))

    def check(name: str, right: NDArray[np.bool_]) -> None:
        if not right.all():
            (video,) = ok.slice(int(np.argmin(right)), 1).to_pylist()
            what = f"no {name}" if video[name] is None else f"{name} {video[name]}"
            path = corpus.path / "videos.parquet"
            raise UserError(
                f"{path} is damaged: it gives video {video['video']!r} {what}; delete it and run the same vivi "
                "prepare again, which makes it anew from the shards"
            )

    for name in VIDEO_SCHEMA.names:
        check(name, ok[name].is_valid().to_numpy())
    ok = ok.sort_by([("shard", "ascending"), ("first_row", "ascending"), ("shots", "ascending")])
    shard, first_row, shots, frames = (integers(ok, name) for name in ("shard", "first_row", "shots", "frames"))
    seconds = ok["seconds"].to_numpy()
    free = np.zeros_like(first_row)  # the first row behind the video before, in the same shard
    free[1:] = np.where(shard[1:] == shard[:-1], (first_row + shots)[:-1], 0)
    check("shard", shard >= 0)
    check("shots", shots >= 1)
    check("frames", frames >= shots)
    check("first_row", (first_row >= free) & (first_row < 2**31))
    check("seconds", (seconds >= 0) & (seconds < 1e10))  # 300 years
    return ok


def integers(videos: pa.Table, name: str) -> NDArray[np.int64]:
    """A column of a table of videos."""
    numbers: NDArray[np.int64] = np.ascontiguousarray(videos[name].to_numpy().astype(np.int64, copy=False))
    return numbers


def by_shard(videos: pa.Table) -> dict[int, pa.Table]:
    """The videos of each shard, in its order; given are all, by place."""
    numbers, starts, counts = np.unique(integers(videos, "shard"), return_index=True, return_counts=True)
    parts = zip(numbers.tolist(), starts.tolist(), counts.tolist(), strict=True)
    return {number: videos.slice(start, count) for number, start, count in parts}


def check_shards(corpus: Path, numbers: Iterable[int]) -> None:
    """Raises for the first of these shards that is not built as a shard must be; frames are not decoded."""
    for number in numbers:
        path = shard_path(corpus, number)
        with reading(path):
            for _ in checked_batches(open_shard(path)):
                pass


def checked_batches(reader: pa.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    """The record batches of a shard; raises for the first that is not built as it must be."""
    if not reader.schema.equals(SHOT_SCHEMA):
        raise ValueError("its columns are not those of a shard")
    for batch in (reader.get_batch(index) for index in range(reader.num_record_batches)):
        batch.validate(full=True)  # also the offsets of lists: monotone, and within their buffers
        times, frames = batch.column("times"), batch.column("frames")
        counts = pc.list_value_length(frames)
        if any(column.null_count for column in (*batch.columns, times.values, frames.values)):
            raise ValueError("something is missing in a shot")
        if not counts.equals(pc.list_value_length(times)):
            raise ValueError("a shot has other times than frames")
        if not pc.all(pc.greater(counts, 0), min_count=0).as_py():
            raise ValueError("a shot has no frames")
        if not pc.all(pc.is_finite(times.values), min_count=0).as_py():
            raise ValueError("a shot has times that are not finite")
        yield batch
