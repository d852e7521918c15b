"""Opens the index of a corpus, and reads frames by it.

A frame is read with two calls of pread, without Arrow: its place in the data, then the data.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vivi.prepare.corpus import REMEDY, Corpus, open_shard, shard_path
from vivi.prepare.index import IndexTables, build_index, index_key, map_index, write_index
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import StorageError


@dataclass(frozen=True)
class Index:
    """The frames of a corpus, by video and shot: n videos in the order of their names, m shots in that of videos."""

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

    def video_name(self, video: int) -> str:
        name: str = self.names[video].as_py()
        return name


def open_index(corpus: Corpus) -> Index:
    """The index of a corpus; it is built, and kept if possible, where there is none or it is damaged.

    Of several processes, one should call this first and the others after it.
    """
    folder, note = corpus.path / "index" / index_key(corpus), ""
    try:
        tables = map_index(folder)
        if _shards_are_unchanged(corpus.path, tables):
            return _index(tables, corpus.path)
    except OSError:  # none was made
        pass
    except ValueError as error:
        note = f"{folder} was damaged ({first_line(error)}) and has been made anew"
    tables = build_index(corpus)
    if tables.about["key"] == index_key(corpus):  # else the table was replaced while it was read
        try:
            write_index(corpus.path, tables)
            tables = map_index(corpus.path / "index" / tables.about["key"])
        except (OSError, ValueError, StorageError):  # read-only, or full, or the disk cannot be trusted
            pass
    return _index(tables, corpus.path, note)


def _shards_are_unchanged(corpus: Path, tables: IndexTables) -> bool:
    """Whether all shards have the sizes that they had; raises for one that is missing."""
    for number, size in tables.about["shards"].items():
        path = shard_path(corpus, int(number))
        try:
            if path.stat().st_size != size:
                return False
        except OSError:
            open_shard(path)  # raises a UserError that says what is wrong
            raise
    return True


def _index(tables: IndexTables, corpus: Path, note: str = "") -> Index:
    videos = {name: tables.videos.column(name) for name in tables.videos.schema.names}
    shots = {name: tables.shots.column(name).to_numpy() for name in tables.shots.schema.names}
    return Index(
        names=videos["name"],
        shard=videos["shard"].to_numpy(),
        test=videos["test"].to_numpy().view(np.bool_),
        first_shot=np.concatenate([[0], np.cumsum(videos["shots"].to_numpy())]),
        first_frame=np.concatenate([[0], np.cumsum(videos["frames"].to_numpy())]),
        **shots,
        corpus=corpus,
        fingerprint=str(tables.about["fingerprint"]),
        note=note,
    )


def read_frames(index: Index, video: int, shot: int, frames: Sequence[int]) -> list[memoryview]:
    """The JPEG files of some frames of a shot, which is given by its place among all shots; from any thread.

    Thousands are read every second while Python is busy elsewhere: few calls, all of which let other threads run.
    """
    path = shard_path(index.corpus, int(index.shard[video]))
    first, count = min(frames), max(frames) - min(frames) + 1
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            raw = os.pread(handle, 4 * (count + 1), int(index.offsets_at[shot]) + 4 * first)
            if len(raw) < 4 * (count + 1):
                raise _damaged(path)
            ends = struct.unpack(f"<{count + 1}i", raw)
            begin = ends[0]
            if begin < 0 or any(end < before for before, end in itertools.pairwise(ends)):
                raise _damaged(path)
            if ends[-1] - begin > os.fstat(handle).st_size:  # or a wild number would take as much memory
                raise _damaged(path)
            data = bytearray(ends[-1] - begin)
            if data and os.preadv(handle, [data], int(index.data_at[shot]) + begin) < len(data):
                raise _damaged(path)
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; bring it back, or run the same vivi prepare again") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); fix that and run the same command") from None
    view = memoryview(data)
    return [view[ends[frame - first] - begin : ends[frame - first + 1] - begin] for frame in frames]


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged, its frames are not where they were; {REMEDY}")
