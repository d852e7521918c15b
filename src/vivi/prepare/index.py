"""The index of a corpus: where every frame lies, in flat arrays that training maps into memory.

    index/KEY/videos.arrow    a row per usable video, in the order of names: name, shard, test, shots, frames
    index/KEY/shots.arrow     a row per shot, in the order of videos: frames, offsets_at, data_at

There is no Python object per video or shot, however many there are. vivi prepare writes the index when it ends; for a
corpus without one, training does. The key says which table of videos it was made from. Its metadata holds the
corpus's fingerprint, the sizes of the shards, and a checksum of all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vivi.prepare.corpus import REMEDY, Corpus, concatenated, reading, shard_path
from vivi.prepare.places import checked_batches, videos_by_place
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import fsync, json_crc32

FORMAT = 2
# Reading shards waits for the disk far more than for a core, and zlib does not hold Python's lock.
_THREADS = 8
_CHUNK = 16 << 20  # bytes that a thread sums up
_KEY = re.compile(r"[0-9a-f]{24}")
# Older indexes, and what killed processes left, stay for a week: a run on another machine may still have them mapped.
_SECONDS_KEPT = 7 * 24 * 3600


@dataclass(frozen=True)
class IndexTables:
    """The two tables of an index, and its metadata."""

    videos: pa.RecordBatch  # name, shard, test, shots, frames
    shots: pa.RecordBatch
    """`frames`: how many; `offsets_at`: the position in the shard file of the offset of its first frame, an int32;
    `data_at`: the position that an offset of 0 means."""
    about: dict[str, Any]  # key, fingerprint, sizes of the shards


def index_key(corpus: Corpus) -> str:
    """Names the table of videos that an index was made from."""
    content = json.dumps([FORMAT, corpus.table_identity(), corpus.settings], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def corpus_fingerprint(corpus: Corpus) -> str:
    """What tells one corpus from another: its settings and its videos, but not how they are packed into shards."""
    return _fingerprint(corpus, _usable_videos(corpus))


def _usable_videos(corpus: Corpus) -> pa.Table:
    """The videos with status ok, in the order of their names."""
    columns = ["video", "shots", "frames", "split", "shard", "first_row", "file_hash"]
    return videos_by_place(corpus).select(columns).sort_by("video").combine_chunks()


def _fingerprint(corpus: Corpus, videos: pa.Table) -> str:
    digest = hashlib.sha256(json.dumps(corpus.settings, sort_keys=True).encode())
    name_starts, names = concatenated(videos["video"])
    test = _numpy(pc.equal(videos["split"], "test"), np.uint8)
    for array in (name_starts, names, _numpy(videos["shots"], np.int64), _numpy(videos["frames"], np.int64), test):
        digest.update(np.ascontiguousarray(array).data)
    digest.update(concatenated(videos["file_hash"])[1].data)  # nothing in older corpora
    return digest.hexdigest()


def _numpy(column: pa.ChunkedArray, dtype: Any) -> NDArray[Any]:
    return np.ascontiguousarray(column.to_numpy().astype(dtype, copy=False))


# --- from the shards ---


def build_index(corpus: Corpus) -> IndexTables:
    """Reads where the frames lie in all shards, and puts it in the order of the videos."""
    key = index_key(corpus)
    videos = _usable_videos(Corpus(corpus.path))  # read after the key: what was read before may be an older table
    shard, shots = _numpy(videos["shard"], np.int32), _numpy(videos["shots"], np.int64)
    order = np.argsort(shard, kind="stable")
    numbers, starts, counts = np.unique(shard[order], return_index=True, return_counts=True)
    by_shard = videos.take(pa.array(order))
    groups = [by_shard.slice(start, count) for start, count in zip(starts, counts, strict=True)]
    paths = [shard_path(corpus.path, number) for number in numbers.tolist()]
    with ThreadPoolExecutor(_THREADS) as threads:
        positions = list(threads.map(index_shard, paths, groups))
    rows = np.array([part.num_rows for part in positions], np.int64)
    before = np.cumsum(rows) - rows  # rows of the shards before
    first_row = _numpy(videos["first_row"], np.int64) + before[np.searchsorted(numbers, shard)]
    whole = pa.Table.from_batches(positions, _POSITIONS).take(pa.array(consecutive(first_row, shots)))
    columns = {
        "name": videos["video"].cast(pa.large_string()),
        "shard": shard,
        "test": _numpy(pc.equal(videos["split"], "test"), np.uint8),
        "shots": shots,
        "frames": _numpy(videos["frames"], np.int64),
    }
    about = {
        "key": key,
        "fingerprint": _fingerprint(corpus, videos),
        "shards": {str(number): path.stat().st_size for number, path in zip(numbers.tolist(), paths, strict=True)},
    }
    return IndexTables(_one_batch(pa.table(columns)), _one_batch(whole), about)


_VIDEOS = pa.schema(
    [
        ("name", pa.large_string()),
        ("shard", pa.int32()),
        ("test", pa.uint8()),
        ("shots", pa.int64()),
        ("frames", pa.int64()),
    ]
)
_POSITIONS = pa.schema([("frames", pa.int32()), ("offsets_at", pa.int64()), ("data_at", pa.int64())])


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def index_shard(path: Path, videos: pa.Table) -> pa.RecordBatch:
    """Where the frames of a shard lie in its file, row by row; checks that the rows are those of `videos`."""
    batches, names = [], []
    with reading(path):
        source = pa.memory_map(str(path))
        whole = source.read_buffer()
        source.seek(0)
        for batch in checked_batches(pa.ipc.open_file(source)):
            names.append(batch.column("video"))
            batches.append(_positions(batch.column("frames"), whole))
    positions = _one_batch(pa.Table.from_batches(batches, _POSITIONS))
    _check_rows(path, pa.chunked_array(names, pa.string()), positions.column("frames").to_numpy(), videos)
    return positions


def _positions(shots: pa.ListArray, whole: pa.Buffer) -> pa.RecordBatch:
    """Positions in the file of one record batch, whose buffers lie in the map of the whole file."""
    first, frames = shots.offsets.to_numpy().astype(np.int64), shots.values
    _, offsets, data = frames.buffers()
    for buffer in (offsets, data):
        if not whole.address <= buffer.address <= buffer.address + buffer.size <= whole.address + whole.size:
            raise ValueError("its frames are compressed")
    offsets_at = offsets.address - whole.address + 4 * (frames.offset + first[:-1])
    data_at = np.full(len(shots), data.address - whole.address)
    return pa.RecordBatch.from_arrays([np.diff(first).astype(np.int32), offsets_at, data_at], schema=_POSITIONS)


def _check_rows(path: Path, names: pa.ChunkedArray, frames: NDArray[np.int32], videos: pa.Table) -> None:
    """Raises unless the rows of a shard belong to the videos that the table says, with as many frames."""
    first, shots = _numpy(videos["first_row"], np.int64), _numpy(videos["shots"], np.int64)
    right = bool((first + shots <= len(names)).all())
    if right and len(videos):
        rows = consecutive(first, shots)
        expected = videos["video"].take(pa.array(np.repeat(np.arange(len(videos)), shots)))
        right = pc.all(pc.equal(names.take(pa.array(rows)), expected), min_count=0).as_py()
        counts = np.add.reduceat(frames[rows].astype(np.int64), np.cumsum(shots) - shots)
        right = right and np.array_equal(counts, _numpy(videos["frames"], np.int64))
    if not right:
        raise UserError(f"{path} holds other videos or frames than videos.parquet says; {REMEDY}")


def consecutive(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """start, start + 1, ... of each start, `count` many, one after the other."""
    ends = np.cumsum(counts)
    numbers: NDArray[np.int64] = np.repeat(starts - (ends - counts), counts)
    numbers += np.arange(len(numbers))
    return numbers


# --- files ---


def write_index(corpus: Path, tables: IndexTables) -> None:
    """Writes an index into a folder of its own, which appears when it is complete, and removes those of long ago."""
    folder = corpus / "index" / tables.about["key"]
    folder.parent.mkdir(exist_ok=True)
    temporary = Path(tempfile.mkdtemp(".tmp", dir=folder.parent))
    try:
        temporary.chmod(0o755)  # others of the group may train on the same corpus
        for name, batch in (("videos", tables.videos), ("shots", tables.shots)):
            about = {**tables.about, "table": name}
            metadata = {"about": json.dumps(about), "crc32": json.dumps(_checksums(about, batch))}
            batch, path = batch.replace_schema_metadata(metadata), temporary / f"{name}.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            fsync(path)
        with suppress(OSError, ValueError):
            if map_index(folder).about == tables.about:
                return  # another process was faster
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one: nobody uses it
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.exists():  # else another process was faster, with the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for other in list(folder.parent.iterdir()):
        if other != folder and (_KEY.fullmatch(other.name) or other.suffix == ".tmp"):
            with suppress(OSError):
                if time.time() - other.stat().st_mtime > _SECONDS_KEPT:
                    shutil.rmtree(other, ignore_errors=True)


def map_index(folder: Path) -> IndexTables:
    """The tables in a folder, mapped into memory.

    Raises OSError where something is missing, and ValueError for what is not as it was written.
    """
    batches, abouts = [], []
    for name, schema in (("videos", _VIDEOS), ("shots", _POSITIONS)):
        path = folder / f"{name}.arrow"
        path.stat()  # raises where it is missing
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            batch = reader.get_batch(0)
            batch.validate()  # or values might be read from outside the file
            about = json.loads(reader.schema.metadata[b"about"])
            expected = json.loads(reader.schema.metadata[b"crc32"])
            same = batch.schema.equals(schema) and _checksums(about, batch) == expected
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError, pa.ArrowException) as error:
            raise ValueError(f"{path.name}: {first_line(error)}") from None
        if not same or about.pop("table") != name:
            raise ValueError(f"{path.name} is not as it was written")
        batches.append(batch)
        abouts.append(about)
    if abouts[0] != abouts[1] or abouts[0]["key"] != folder.name:
        raise ValueError("it is the index of something else")
    return IndexTables(batches[0], batches[1], abouts[0])


def _checksums(about: dict[str, Any], batch: pa.RecordBatch) -> list[int]:
    """CRC-32 sums of the metadata and of the values of each column, chunk by chunk.

    Not of Arrow's buffers: a file leaves out what says that no value is missing.
    """

    def chunks() -> Iterator[NDArray[np.uint8]]:
        for column in batch.columns:
            strings = pa.types.is_large_string(column.type)
            for values in concatenated(pa.chunked_array([column])) if strings else (column.to_numpy(),):
                whole = values.view(np.uint8)
                yield from (whole[start : start + _CHUNK] for start in range(0, len(whole), _CHUNK))

    with ThreadPoolExecutor(_THREADS) as threads:
        return [json_crc32(about), batch.num_rows, *threads.map(zlib.crc32, chunks())]
