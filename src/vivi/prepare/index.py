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
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vivi.prepare.corpus import INT32, INT64, REMEDY, STRING, Corpus, concatenated, reading, shard_path
from vivi.prepare.places import by_shard, checked_batches, integers, videos_by_place
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import fsync, json_crc32

FORMAT = 2
_THREADS = 8  # reading shards waits for the disk far more than for a core, and zlib does not hold Python's lock
_CHUNK = 16 << 20  # bytes that a thread sums up
_KEY = re.compile(r"[0-9a-f]{24}")
# Older indexes, and what killed processes left, stay for a week: a run on another machine may still have them mapped.
_SECONDS_KEPT = 7 * 24 * 3600


@dataclass(frozen=True)
class IndexTables:
    """The two tables of an index as they lie on disk, and its metadata. Training makes a data.index.Index of them."""

    videos: pa.RecordBatch
    shots: pa.RecordBatch
    about: dict[str, Any]  # key, fingerprint, sizes of the shards


def index_key(corpus: Corpus) -> str:
    """Names the table of videos that an index was made from: by the checksum that it carries, or by its size and time
    in older corpora."""
    path = corpus.path / "videos.parquet"
    with reading(path, "ours"):
        crc32, status = (pq.read_schema(path).metadata or {}).get(b"crc32"), path.stat()
    table = [crc32.decode()] if crc32 else [status.st_size, status.st_mtime_ns]
    content = json.dumps([FORMAT, table, corpus.settings], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


def _fingerprint(corpus: Corpus, videos: pa.Table) -> str:
    """What tells one corpus from another: its settings and its videos, in the order of their names, but not how they
    are packed into shards."""
    digest = hashlib.sha256(json.dumps(corpus.settings, sort_keys=True).encode())
    starts, names = concatenated(videos["video"])
    _, hashes = concatenated(videos["file_hash"])  # nothing in older corpora
    for array in (starts, names, integers(videos, "shots"), integers(videos, "frames"), _test(videos), hashes):
        digest.update(array.data)
    return digest.hexdigest()


def _test(videos: pa.Table) -> NDArray[np.uint8]:
    held_out: NDArray[np.uint8] = pc.equal(videos["split"], "test").to_numpy().astype(np.uint8)
    return held_out


# How many frames a shot has, the position in the shard file of the offset of its first frame, an int32, and the
# position that an offset of 0 means.
_POSITIONS = pa.schema({"frames": INT32, "offsets_at": INT64, "data_at": INT64})
_NO_POSITIONS = pa.RecordBatch.from_pylist([], _POSITIONS)
_VIDEOS = pa.schema({"name": pa.large_string(), "shard": INT32, "test": pa.uint8(), "shots": INT64, "frames": INT64})


def build_index(corpus: Corpus) -> IndexTables:
    """Reads where the frames lie in all shards, and puts it in the order of the videos."""
    key = index_key(corpus)
    corpus = Corpus(corpus.path)  # read after the key: what was read before may be an older table
    needed = ["video", "shots", "frames", "split", "shard", "first_row", "file_hash"]
    videos = videos_by_place(corpus).select(needed)
    shards = by_shard(videos)
    paths = [shard_path(corpus.path, number) for number in shards]
    with ThreadPoolExecutor(_THREADS) as threads:
        positions = pa.Table.from_batches(threads.map(index_shard, paths, shards.values()), _POSITIONS)
    shots = integers(videos, "shots")
    videos = videos.append_column("start", pa.array(np.cumsum(shots) - shots)).sort_by("video").combine_chunks()
    shots = integers(videos, "shots")
    positions = positions.take(pa.array(consecutive(integers(videos, "start"), shots))).combine_chunks()
    names = videos["video"].cast(pa.large_string()).combine_chunks()
    columns = integers(videos, "shard").astype(np.int32), _test(videos), shots, integers(videos, "frames")
    table = pa.record_batch([names, *map(pa.array, columns)], _VIDEOS)
    sizes = {str(number): path.stat().st_size for number, path in zip(shards, paths, strict=True)}
    about = {"key": key, "fingerprint": _fingerprint(corpus, videos), "shards": sizes}
    return IndexTables(table, [*positions.to_batches(), _NO_POSITIONS][0], about)


def index_shard(path: Path, videos: pa.Table) -> pa.RecordBatch:
    """Where the frames of these videos lie in the file of their shard, shot by shot; raises unless its rows belong to
    them, with as many frames."""
    batches, names = [], []
    with reading(path):
        source = pa.memory_map(str(path))
        whole = source.read_buffer()
        source.seek(0)
        for batch in checked_batches(pa.ipc.open_file(source)):
            names.append(batch.column("video"))
            batches.append(_positions(batch.column("frames"), whole))
    first, shots, found = integers(videos, "first_row"), integers(videos, "shots"), pa.chunked_array(names, STRING)
    if (first + shots <= len(found)).all():
        rows = pa.array(consecutive(first, shots))
        positions = pa.concat_batches(batches).take(rows)
        frames = np.add.reduceat(positions["frames"].to_numpy().astype(np.int64), np.cumsum(shots) - shots)
        expected = videos["video"].take(pa.array(np.repeat(np.arange(len(videos)), shots)))
        if found.take(rows).equals(expected) and np.array_equal(frames, integers(videos, "frames")):
            return positions
    raise UserError(f"{path} holds other videos or frames than videos.parquet says; {REMEDY}")


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


def consecutive(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """start, start + 1, ... of each start, `count` many, one after the other."""
    ends = np.cumsum(counts)
    numbers: NDArray[np.int64] = np.repeat(starts - (ends - counts), counts)
    numbers += np.arange(len(numbers))
    return numbers


def write_index(corpus: Path, tables: IndexTables) -> None:
    """Writes an index into a folder of its own, which appears when it is complete, and removes those of long ago."""
    folder = corpus / "index" / tables.about["key"]
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(".tmp", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        os.chmod(temporary, 0o755)  # others of the group may train on the same corpus
        for name, batch in (("videos", tables.videos), ("shots", tables.shots)):
            about = {**tables.about, "table": name}
            metadata = {"about": json.dumps(about), "crc32": json.dumps(_checksums(about, batch))}
            batch, path = batch.replace_schema_metadata(metadata), Path(temporary, f"{name}.arrow")
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
