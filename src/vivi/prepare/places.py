"""Whether what is about to be read can be right: the rows of videos.parquet, which must say where videos lie in their
shards, one after the other; and the structure of shards, without which Arrow reads anything. Rows of a shard that no
video claims belong to files that have changed and were prepared again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vivi.prepare.corpus import REMEDY, SHOT_SCHEMA, VIDEO_SCHEMA, Corpus, open_shard, shard_path
from vivi.runtime.errors import UserError, first_line


def videos_by_place(corpus: Corpus) -> pa.Table:
    """The videos that the corpus holds, by shard and row; raises for the first whose row cannot be right."""
    ok = corpus.videos.filter(pc.equal(corpus.videos["status"], "ok"))
    for name in VIDEO_SCHEMA.names:
        if ok[name].null_count:
            video = ok.filter(pc.is_null(ok[name]))["video"][0].as_py()
            raise _wrong(corpus, video, f"no {name}")
    ok = ok.sort_by([("shard", "ascending"), ("first_row", "ascending"), ("shots", "ascending")])
    shard, first_row, shots, frames = (_numbers(ok, name) for name in ("shard", "first_row", "shots", "frames"))
    seconds = ok["seconds"].to_numpy()
    free = np.zeros_like(first_row)  # the first row behind the video before, in the same shard
    free[1:] = np.where(shard[1:] == shard[:-1], (first_row + shots)[:-1], 0)
    checks = {
        "shard": shard >= 0,
        "shots": shots >= 1,
        "frames": frames >= shots,
        "first_row": (first_row >= free) & (first_row < 2**31),
        "seconds": (seconds >= 0) & (seconds < 1e10),  # 300 years
    }
    for name, right in checks.items():
        if not right.all():
            video = ok.slice(int(np.argmin(right)), 1)
            raise _wrong(corpus, video["video"][0].as_py(), f"{name} {video[name][0].as_py()}")
    return ok


def check_shards(corpus: Path, numbers: Iterable[int]) -> None:
    """Raises for the first of these shards that is not built as a shard is, or whose times are none; frames are not
    looked at."""
    for number in numbers:
        path = shard_path(corpus, number)
        reader = open_shard(path)
        try:
            if not reader.schema.equals(SHOT_SCHEMA):
                raise ValueError("its columns are not those of a shard")
            for batch in (reader.get_batch(index) for index in range(reader.num_record_batches)):
                batch.validate(full=True)
                _check_values(batch)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise UserError(f"{path} is damaged ({first_line(error)}); {REMEDY}") from None


def _check_values(batch: pa.RecordBatch) -> None:
    times, frames = batch.column("times"), batch.column("frames")
    if any(column.null_count for column in (*batch.columns, times.values, frames.values)):
        raise ValueError("something is missing in a shot")
    if not pc.all(pc.equal(pc.list_value_length(times), pc.list_value_length(frames)), min_count=0).as_py():
        raise ValueError("a shot has other times than frames")
    if not pc.all(pc.greater(pc.list_value_length(frames), 0), min_count=0).as_py():
        raise ValueError("a shot has no frames")
    if not pc.all(pc.is_finite(times.values), min_count=0).as_py():
        raise ValueError("a shot has times that are not finite")


def _numbers(table: pa.Table, name: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = table[name].to_numpy().astype(np.int64)
    return numbers


def _wrong(corpus: Corpus, video: str | None, what: str) -> UserError:
    path = corpus.path / "videos.parquet"
    return UserError(
        f"{path} is damaged: it gives video {video!r} {what}; delete it and run the same vivi prepare again, which "
        "makes it anew from the shards"
    )
