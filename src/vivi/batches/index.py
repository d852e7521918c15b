"""Where every frame of a corpus lies, in flat arrays: no Python object per video or shot, however many there are.

Videos are in the order of their names, whatever shards they are packed in; the shots of a video follow each other.
The arrays are made once per corpus, kept as .npy files in `corpus/index/KEY/` and mapped into memory. The key says
which videos, packed how, in which shard files: a corpus that grew, or a shard made anew, is indexed anew, and indexes
that nobody uses any more are removed. One whose files are not as they were written is made anew. Where the corpus
cannot be written to, the arrays stay in memory. `latest.json` says which key was opened last, and what must be
unchanged for it to be right: then the table of videos is not even read.

A frame is read with two calls of pread, without Arrow: its place in the data, then the data.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vivi.batches.index_files import load, move_away, remove_others, save
from vivi.errors import UserError, first_line
from vivi.storage import StorageError, read_checked_json, write_checked_json
from vivi.video.corpus import REMEDY, Corpus, joined, open_shard, shard_path
from vivi.video.places import videos_by_place

# Reading shards waits for the disk far more than for a core.
_THREADS = 8
_LATEST = "latest.json"
_FORMAT = 1  # of the arrays, and of what their fingerprint means


@dataclass(frozen=True)
class Arrays:
    """What is kept on disk. n videos, m shots."""

    first_shot: NDArray[np.int64]  # (n + 1,): the shots of video i are first_shot[i] ... first_shot[i + 1] - 1
    first_frame: NDArray[np.int64]  # (n + 1,): likewise its frames, all counted through
    shard: NDArray[np.int32]  # (n,)
    test: NDArray[np.bool_]  # (n,): whether held out
    frames: NDArray[np.int32]  # (m,): how many
    offsets_at: NDArray[np.int64]  # (m,): position in the shard file of the shot's first offset, an int32
    data_at: NDArray[np.int64]  # (m,): position in the shard file that offset 0 means
    name_at: NDArray[np.int64]  # (n + 1,): the name of video i is names[name_at[i] : name_at[i + 1]]
    names: NDArray[np.uint8]  # UTF-8


_NAMES = [field.name for field in fields(Arrays)]


@dataclass(frozen=True)
class Index(Arrays):
    """The frames of a corpus, by video and shot."""

    corpus: Path
    fingerprint: str
    note: str = ""  # what was unusual about opening it, for the user

    def __len__(self) -> int:
        return len(self.shard)

    def video_name(self, video: int) -> str:
        name: bytes = self.names[self.name_at[video] : self.name_at[video + 1]].tobytes()
        return name.decode()


def open_index(corpus: Corpus) -> Index:
    """The index of a corpus, made if it is not there yet; checks that all shards are.

    Of several processes, one should call this first and the others after it.
    """
    known = _open_latest(corpus)
    if known is not None:
        return known
    made_from = _made_from(corpus)  # before the table is read: it may be replaced while it is indexed
    videos = usable_videos(corpus)
    stamps = _stamps(corpus.path, _numpy(videos["shard"], np.int64))
    about: dict[str, Any] = {"corpus": corpus.path, "fingerprint": _fingerprint(corpus, videos)}
    folder = corpus.path / "index" / _key(videos, about["fingerprint"], stamps)
    latest = {"made_from": made_from, "shards": stamps, "fingerprint": about["fingerprint"], "folder": folder.name}
    if folder.exists():
        try:
            index = Index(**load(folder, _NAMES), **about)
            _remember(corpus, latest)
            return index
        except OSError:  # it is being removed, or of a version that wrote no checksums
            move_away(folder)
        except ValueError as error:
            about["note"] = f"{folder} was damaged ({first_line(error)}) and has been made anew"
            move_away(folder)
    arrays = as_dict(build(corpus.path, videos))
    try:
        save(arrays, folder)
        index = Index(**load(folder, _NAMES), **about)
        _remember(corpus, latest)
        remove_others(folder)
        return index
    except (OSError, ValueError, StorageError):  # read-only, or full, or the disk cannot be trusted
        return Index(**arrays, **about)


def _open_latest(corpus: Corpus) -> Index | None:
    """The index that was opened last, if videos.parquet, the settings and all shards are still those it was made
    from: without reading the table, so that opening does not take longer as the corpus grows."""
    with suppress(OSError, ValueError, KeyError):
        latest = read_checked_json(corpus.path / "index" / _LATEST)
        if latest["made_from"] != _made_from(corpus):
            return None
        arrays = load(corpus.path / "index" / latest["folder"], _NAMES)
        if latest["shards"] == _stamps(corpus.path, arrays["shard"]):
            return Index(**arrays, corpus=corpus.path, fingerprint=str(latest["fingerprint"]))
    return None


def _remember(corpus: Corpus, latest: dict[str, Any]) -> None:
    """For _open_latest."""
    with suppress(StorageError):  # read-only, or full: the next opening takes longer
        write_checked_json(corpus.path / "index" / _LATEST, latest)


def _made_from(corpus: Corpus) -> list[Any]:
    return [_FORMAT, *corpus.stamp, corpus.settings]


def fingerprint(corpus: Corpus) -> str:
    """What tells one corpus from another: its settings and its videos, but not how they are packed into shards."""
    return _fingerprint(corpus, usable_videos(corpus))


def usable_videos(corpus: Corpus) -> pa.Table:
    """The videos with status ok, in the order of their names."""
    columns = ["video", "shots", "frames", "split", "shard", "first_row", "file_hash"]
    return videos_by_place(corpus).select(columns).sort_by("video").combine_chunks()


def _fingerprint(corpus: Corpus, videos: pa.Table) -> str:
    digest = hashlib.sha256(json.dumps(corpus.settings, sort_keys=True).encode())
    name_at, names = joined(videos["video"])
    held_out = _numpy(pc.equal(videos["split"], "test"), np.uint8)
    for array in (name_at, names, _numpy(videos["shots"], np.int64), _numpy(videos["frames"], np.int64), held_out):
        digest.update(np.ascontiguousarray(array).data)
    digest.update(joined(videos["file_hash"])[1].data)  # nothing in older corpora
    return digest.hexdigest()


def _key(videos: pa.Table, fingerprint: str, stamps: str) -> str:
    """Names what an index was made from: the videos, where they are packed, and the very shard files."""
    digest = hashlib.sha256(fingerprint.encode())
    digest.update(_numpy(videos["shard"], np.int64).data)
    digest.update(_numpy(videos["first_row"], np.int64).data)
    digest.update(stamps.encode())
    return digest.hexdigest()[:24]


def _stamps(corpus: Path, shards: NDArray[np.integer[Any]]) -> str:
    """What tells whether one of the shard files has changed."""
    digest = hashlib.sha256()
    for shard in np.unique(shards).tolist():
        path = shard_path(corpus, shard)
        try:
            status = path.stat()
        except OSError:
            open_shard(path)  # has the right words for it
            raise
        digest.update(b"%d %d %d\n" % (shard, status.st_size, status.st_mtime_ns))
    return digest.hexdigest()


def _numpy(column: pa.ChunkedArray, dtype: Any) -> NDArray[Any]:
    return np.ascontiguousarray(column.to_numpy().astype(dtype, copy=False))


@dataclass(frozen=True)
class Piece:
    """What the index needs to know of the rows of one shard."""

    frames: NDArray[np.int32]
    offsets_at: NDArray[np.int64]
    data_at: NDArray[np.int64]


def build(corpus: Path, videos: pa.Table) -> Arrays:
    """Reads where the frames lie in all shards, and puts it in the order of the videos."""
    shards = _numpy(videos["shard"], np.int64)
    by_shard = np.argsort(shards, kind="stable")
    numbers, starts, lengths = np.unique(shards[by_shard], return_index=True, return_counts=True)
    sorted_videos = videos.take(pa.array(by_shard))
    groups = [sorted_videos.slice(start, length) for start, length in zip(starts, lengths, strict=True)]
    paths = [shard_path(corpus, number) for number in numbers]
    with ThreadPoolExecutor(_THREADS) as threads:
        pieces = list(threads.map(index_shard, paths, groups))
    return assemble(videos, dict(zip(numbers.tolist(), pieces, strict=True)))


def index_shard(path: Path, videos: pa.Table) -> Piece:
    """Where the frames of a shard lie in its file, row by row; checks that the rows are those of `videos`."""
    open_shard(path)  # for its errors
    source = pa.memory_map(str(path))
    pieces, names = [], []
    try:
        whole = source.read_buffer()
        source.seek(0)
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            names.append(batch.column("video"))
            names[-1].validate(full=True)
            pieces.append(_index_batch(batch.column("frames"), batch.column("times"), whole))
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise UserError(f"{path} is damaged ({first_line(error)}); {REMEDY}") from None
    nothing = np.zeros(0, np.int32)
    piece = Piece(*(np.concatenate([nothing, *(getattr(piece, f.name) for piece in pieces)]) for f in fields(Piece)))
    _check_rows(path, pa.chunked_array(names, pa.string()), piece.frames, videos)
    return piece


def _index_batch(shots: pa.ListArray, times: pa.ListArray, whole: pa.Buffer) -> Piece:
    """Positions in the file, from the addresses of buffers that lie in its map."""
    for lists in (shots, times):
        lists.validate(full=True)  # also the offsets: monotone, and within their buffers
    if not np.array_equal(np.diff(_numpy(shots.offsets, np.int64)), np.diff(_numpy(times.offsets, np.int64))):
        raise ValueError("a shot has other times than frames")
    frames = shots.values
    _, offsets, data = frames.buffers()
    for buffer in (offsets, data):
        if buffer is None:
            raise ValueError("frames without data")
        if not whole.address <= buffer.address <= buffer.address + buffer.size <= whole.address + whole.size:
            raise ValueError("its frames are compressed")
    counts = np.diff(_numpy(shots.offsets, np.int64))
    if shots.null_count or frames.null_count or not counts.all():
        raise ValueError("a shot without frames")
    first = frames.offset + _numpy(shots.offsets, np.int64)[:-1]
    return Piece(
        frames=counts.astype(np.int32),
        offsets_at=offsets.address - whole.address + 4 * first,
        data_at=np.full(len(shots), data.address - whole.address),
    )


def _check_rows(path: Path, names: pa.ChunkedArray, frames: NDArray[np.int32], videos: pa.Table) -> None:
    """Raises unless the rows of a shard belong to the videos that the table says, with as many frames."""
    first, shots = _numpy(videos["first_row"], np.int64), _numpy(videos["shots"], np.int64)
    right = bool((first + shots <= len(names)).all())
    if right and len(videos):
        rows = _ranges(first, shots)
        expected = videos["video"].take(pa.array(np.repeat(np.arange(len(videos)), shots)))
        right = pc.all(pc.equal(names.take(pa.array(rows)), expected), min_count=0).as_py()
        found = np.add.reduceat(frames[rows].astype(np.int64), np.cumsum(shots) - shots)
        right = right and np.array_equal(found, _numpy(videos["frames"], np.int64))
    if not right:
        raise UserError(f"{path} holds other videos or frames than videos.parquet says; {REMEDY}")


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """start, start + 1, ... of each start, `length` many, one after the other."""
    ends = np.cumsum(lengths)
    result: NDArray[np.int64] = np.repeat(starts - (ends - lengths), lengths)
    result += np.arange(len(result))
    return result


def assemble(videos: pa.Table, pieces: dict[int, Piece]) -> Arrays:
    """The arrays of videos sorted by name, from the pieces of their shards."""
    shard, shots = _numpy(videos["shard"], np.int32), _numpy(videos["shots"], np.int64)
    numbers = np.array(sorted(pieces), np.int64)
    lengths = np.array([len(pieces[number].frames) for number in numbers.tolist()], np.int64)
    before = np.cumsum(lengths) - lengths  # rows in the shards before
    first_row = _numpy(videos["first_row"], np.int64) + before[np.searchsorted(numbers, shard)]
    rows = _ranges(first_row, shots)

    def in_order(name: str, dtype: Any) -> NDArray[Any]:
        columns = [getattr(pieces[number], name) for number in numbers.tolist()]
        return (np.concatenate(columns) if columns else np.zeros(0)).astype(dtype, copy=False)[rows]

    frames = in_order("frames", np.int32)
    first_shot = np.concatenate([[0], np.cumsum(shots)])
    name_at, names = joined(videos["video"])
    return Arrays(
        first_shot=first_shot,
        first_frame=np.concatenate([[0], np.cumsum(frames, dtype=np.int64)])[first_shot],
        shard=shard,
        test=_numpy(pc.equal(videos["split"], "test"), np.bool_),
        frames=frames,
        offsets_at=in_order("offsets_at", np.int64),
        data_at=in_order("data_at", np.int64),
        name_at=name_at,
        names=names,
    )


def as_dict(arrays: Arrays) -> dict[str, Any]:
    return {name: getattr(arrays, name) for name in _NAMES}


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
        raise UserError(f"{path} cannot be read ({error.strerror}); see to it and resume") from None
    view = memoryview(data)
    return [view[ends[frame - first] - begin : ends[frame - first + 1] - begin] for frame in frames]


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged, its frames are not where they were; {REMEDY}")
