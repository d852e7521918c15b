"""Opens the index of a corpus, and reads frames by it.

A frame is read with two calls of pread, without Arrow: its place in the data, then the data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vivi.prepare.corpus import Corpus, reading, shard_path
from vivi.prepare.index import IndexTables, build_index, index_key, map_index, write_index
from vivi.runtime.console import explain
from vivi.runtime.errors import first_line
from vivi.runtime.storage import StorageError


@dataclass(frozen=True)
class Index:
    """The frames of a corpus, by video and shot: n videos in the order of their names, m shots in that of videos. The
    arrays are views of the tables that prepare/index.py builds and maps, or sums of their columns."""

    names: pa.LargeStringArray  # (n,)
    shard: NDArray[np.int32]  # (n,)
    test: NDArray[np.bool_]  # (n,): whether held out
    first_shot: NDArray[np.int64]  # (n + 1,): the shots of video i are first_shot[i] ... first_shot[i + 1] - 1
    first_frame: NDArray[np.int64]  # (n + 1,): likewise its frames, all counted through
    frames: NDArray[np.int32]  # (m,): how many a shot has
    offsets_at: NDArray[np.int64]  # (m,): position in the shard file of the offset of its first frame, an int32
    data_at: NDArray[np.int64]  # (m,): position in the shard file that an offset of 0 means
    corpus: Path
    fingerprint: str
    note: str = ""  # what was unusual about opening it, for the user

    def __len__(self) -> int:
        return len(self.shard)

    def shots_of(self, video: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many shots each of some videos has."""
        return self.first_shot[video + 1] - self.first_shot[video]

    def frames_of(self, video: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many frames each of some videos has."""
        return self.first_frame[video + 1] - self.first_frame[video]

    def video_name(self, video: int) -> str:
        return str(self.names[video])


def open_index(corpus: Corpus) -> Index:
    """The index of a corpus; it is built, and kept if possible, where there is none or it is damaged. Of several
    processes, one should call this first and the others after it."""
    folder, note = corpus.path / "index" / index_key(corpus), ""
    try:
        tables, changed = map_index(folder), False
        for number, size in tables.about["shards"].items():
            path = shard_path(corpus.path, int(number))
            with reading(path):  # names a shard that is missing
                changed |= path.stat().st_size != size
        if not changed:
            explain(f"the index of {corpus.path} is up to date")
            return _index(tables, corpus.path)
    except OSError:  # there is none yet
        pass
    except ValueError as error:
        note = f"{folder} was damaged ({first_line(error)}) and has been made anew"
    explain(f"the index of {corpus.path} is built: there is none, or the corpus has changed")
    tables = build_index(corpus)
    if tables.about["key"] == index_key(corpus):  # else the table was replaced while it was read
        # An index that cannot be kept stays in memory: the disk is read-only, or full, or cannot be trusted.
        with suppress(OSError, ValueError, StorageError):
            write_index(corpus.path, tables)
            tables = map_index(corpus.path / "index" / tables.about["key"])
    return _index(tables, corpus.path, note)


def _index(tables: IndexTables, corpus: Path, note: str = "") -> Index:
    videos, shots = tables.videos, tables.shots
    return Index(
        names=videos["name"],
        shard=videos["shard"].to_numpy(),
        test=videos["test"].to_numpy().view(np.bool_),
        first_shot=np.concatenate([[0], np.cumsum(videos["shots"].to_numpy())]),
        first_frame=np.concatenate([[0], np.cumsum(videos["frames"].to_numpy())]),
        **{name: shots[name].to_numpy() for name in shots.schema.names},
        corpus=corpus,
        fingerprint=str(tables.about["fingerprint"]),
        note=note,
    )


def read_frames(index: Index, video: int, shot: int, frames: Sequence[int]) -> list[memoryview]:
    """The JPEG files of some frames of a shot, which is given by its place among all shots; from any thread.
    Thousands are read every second while Python is busy elsewhere: few calls, all of which let other threads run."""
    path = shard_path(index.corpus, int(index.shard[video]))
    first, last, data_at = min(frames), max(frames), int(index.data_at[shot])
    with reading(path), open(path, "rb", buffering=0) as shard:
        raw = os.pread(shard.fileno(), 4 * (last - first + 2), int(index.offsets_at[shot]) + 4 * first)
        ends = np.frombuffer(raw, "<i4").tolist()  # where each frame ends, and before them where the first begins
        possible = len(ends) == last - first + 2 and ends[0] >= 0 and ends == sorted(ends)
        if not possible or data_at + ends[-1] > os.fstat(shard.fileno()).st_size:
            raise ValueError("its frames are not where they were")
        data = bytearray(ends[-1] - ends[0])
        os.preadv(shard.fileno(), [data], data_at + ends[0])
    view = memoryview(data)
    starts = [end - ends[0] for end in ends]
    return [view[starts[frame - first] : starts[frame - first + 1]] for frame in frames]
