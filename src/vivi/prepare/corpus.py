"""The corpus on disk: Arrow shards of shots, a Parquet table of videos, and the settings they were made with.

    corpus.json            format version and settings
    shards/NNNNN.arrow     one row per shot: video, shot, times, frames (JPEG); memory-mapped
    videos.parquet         one row per source video, the skipped ones with their reason

The shots of a video are consecutive rows of one shard. A shard also carries the rows of its videos in its schema's
metadata, so that renaming it into place commits both at once.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vivi.prepare.identity import FileIdentity
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import fsync, read_file, storage, write_atomically

FORMAT_VERSION = 1
BATCH_BYTES = 8 << 20  # what a reader maps and indexes at once: small enough to skip, large enough to be few
REMEDY = "delete it and run the same vivi prepare again"  # for a damaged file of a corpus

STRING, INT32, INT64, FLOAT64 = pa.string(), pa.int32(), pa.int64(), pa.float64()
SHOT_SCHEMA = pa.schema({"video": STRING, "shot": INT32, "times": pa.list_(FLOAT64), "frames": pa.list_(pa.binary())})
VIDEO_SCHEMA = pa.schema(
    {"video": STRING, "path": STRING, "status": STRING, "reason": STRING}
    | {"seconds": FLOAT64, "width": INT32, "height": INT32, "codec": STRING}
    | {"frames": INT32, "shots": INT32, "shard": INT32, "first_row": INT64, "split": STRING}
    | {"file_bytes": INT64, "file_changed": INT64, "file_hash": STRING}
)
Split = Literal["train", "test"]


@contextmanager
def reading(path: Path, expected: str = "a shard") -> Iterator[None]:
    """Turns every error of reading a file of the corpus into one line for the user."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the same vivi prepare again to make it anew") from None
    except PermissionError:
        raise UserError(f"{path} may not be read; change its permissions") from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, pa.ArrowException) as error:
        raise UserError(f"{path} is damaged or not {expected} ({first_line(error)}); {REMEDY}") from None


@dataclass(frozen=True, slots=True)
class VideoRow:
    """A row of videos.parquet. The fields of the file are those of FileIdentity."""

    video: str
    path: str
    status: Literal["ok", "skipped"]
    reason: str
    split: Split
    seconds: float = 0.0
    width: int = 0
    height: int = 0
    codec: str = ""
    frames: int = 0
    shots: int = 0
    shard: int | None = None
    first_row: int | None = None
    file_bytes: int = 0
    file_changed: int = 0
    file_hash: str = ""

    @property
    def file(self) -> FileIdentity:
        """The file that it was made from."""
        return FileIdentity(self.file_bytes, self.file_changed, self.file_hash)


class ShotWriter:
    """Writes shots to an Arrow file that appears under its name only when complete."""

    def __init__(self, path: Path, videos: Sequence[VideoRow] = ()) -> None:
        self.path = path
        self.temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self.bytes = self.rows = self.frames = self._pending_bytes = 0
        self._pending: list[pa.RecordBatch] = []
        with storage(path):
            self._sink = pa.OSFile(str(self.temporary), "wb")
            content = json.dumps([asdict(row) for row in videos])
            metadata = {"videos": content, "videos_crc32": f"{zlib.crc32(content.encode()):08x}"}
            self._writer = pa.ipc.new_file(self._sink, SHOT_SCHEMA.with_metadata(metadata))

    def add(self, video: str, shot: int, times: Sequence[float], frames: Sequence[bytes]) -> None:
        """Adds one shot; its frames are JPEG files."""
        row = {"video": video, "shot": shot, "times": times, "frames": frames}
        self.frames += len(frames)
        self.add_batch(pa.RecordBatch.from_pylist([row], SHOT_SCHEMA))

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Adds the shots of a record batch; small ones are written together."""
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            with storage(self.path):
                self._writer.write_batch(pa.concat_batches(self._pending))
        self._pending, self._pending_bytes = [], 0

    def commit(self, sync: bool = False) -> None:
        """Completes the file and puts it in place; with `sync`, it is on the disk afterwards."""
        self._flush()
        with storage(self.path):
            self._writer.close()
            self._sink.close()
            if sync:
                fsync(self.temporary)
            os.replace(self.temporary, self.path)
            if sync:
                fsync(self.path.parent)

    def __enter__(self) -> ShotWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves nothing behind unless committed."""
        self._sink.close()
        self.temporary.unlink(missing_ok=True)


def shard_path(corpus: Path, shard: int) -> Path:
    return corpus / "shards" / f"{shard:05d}.arrow"


def shard_numbers(corpus: Path) -> list[int]:
    """The shards that are in place, complete ones only."""
    return sorted(int(path.stem) for path in (corpus / "shards").glob("*.arrow") if path.stem.isdigit())


def open_shard(path: Path, columns: Sequence[str] = tuple(SHOT_SCHEMA.names)) -> pa.RecordBatchFileReader:
    """Maps a shard, or these of its columns, into memory; rows are read from the page cache without a copy."""
    options = pa.ipc.IpcReadOptions(included_fields=[SHOT_SCHEMA.get_field_index(name) for name in columns])
    with reading(path):
        return pa.ipc.open_file(pa.memory_map(str(path)), options=options)


def shard_videos(path: Path) -> list[VideoRow]:
    """The rows of the videos a shard was committed with."""
    metadata = open_shard(path).schema.metadata or {}
    content, crc32 = metadata.get(b"videos", b"[]"), metadata.get(b"videos_crc32")
    with reading(path):
        if crc32 not in (None, b"%08x" % zlib.crc32(content)):
            raise ValueError("its list of videos does not match its checksum")
        return [VideoRow(**row) for row in json.loads(content)]


def write_videos(corpus: Path, rows: Sequence[VideoRow], next_shard: int | None = None) -> None:
    """Writes videos.parquet. It knows of all shards below `next_shard`, by default of those that rows name: one of
    them that no row names holds nothing of use any more."""
    table = videos_table(rows)
    known = _behind_all(rows) if next_shard is None else next_shard
    metadata = {"next_shard": str(known), "crc32": f"{_checksum(table):08x}"}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    write_atomically(corpus / "videos.parquet", sink.getvalue().to_pybytes())


def known_shards(corpus: Path, rows: Sequence[VideoRow]) -> int:
    """The number of the first shard that videos.parquet, with these rows, does not know of."""
    path = corpus / "videos.parquet"
    number = (pq.read_schema(path).metadata or {}).get(b"next_shard") if path.exists() else None
    return int(number or _behind_all(rows))


def _behind_all(rows: Sequence[VideoRow]) -> int:
    return 1 + max((row.shard for row in rows if row.shard is not None), default=-1)


def _checksum(table: pa.Table) -> int:
    """The CRC-32 of the values in a table, however a file holds them."""
    value = 0
    for column in table.columns:
        values = concatenated(column) if pa.types.is_string(column.type) else (column.fill_null(0).to_numpy(),)
        for array in (column.is_null().to_numpy(), *values):
            value = zlib.crc32(np.ascontiguousarray(array).data, value)
    return value


def concatenated(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The strings of a column as one array of bytes, and where each begins."""
    strings = column.cast(pa.large_binary()).combine_chunks()
    _, offsets, data = strings.buffers()
    begins = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return begins - begins[0], np.frombuffer(data or b"", np.uint8)[begins[0] : begins[-1]]


def videos_table(rows: Sequence[VideoRow]) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in VIDEO_SCHEMA.names}
    return pa.table(columns, schema=VIDEO_SCHEMA)


def read_videos(corpus: Path) -> list[VideoRow]:
    """The rows of videos.parquet; none if it is not there yet."""
    path = corpus / "videos.parquet"
    if not path.exists():
        return []
    batches = _read_table(path).to_batches(max_chunksize=1 << 16)
    return [VideoRow(**row) for batch in batches for row in batch.to_pylist()]


def _read_table(path: Path) -> pa.Table:
    with reading(path, "ours"):
        table = pq.read_table(path)
        crc32 = (table.schema.metadata or {}).get(b"crc32")
        for name, unknown in (("file_bytes", 0), ("file_changed", 0), ("file_hash", "")):
            if name not in table.column_names:  # of an older corpus
                table = table.append_column(name, pa.array([unknown] * len(table), VIDEO_SCHEMA.field(name).type))
        table = table.select(VIDEO_SCHEMA.names).cast(VIDEO_SCHEMA)
        if crc32 not in (None, b"%08x" % _checksum(table)):
            raise ValueError("it does not match its checksum")
        for name, allowed in (("status", ["ok", "skipped"]), ("split", ["train", "test"])):
            if not pc.all(pc.is_in(table[name], pa.array(allowed)), min_count=0).as_py():
                raise ValueError(f"a video whose {name} is neither {' nor '.join(allowed)}")
        return table


@dataclass(frozen=True)
class Shot:
    """One row of a shard."""

    video: str
    shot: int
    times: list[float]
    frames: list[bytes]


class Corpus:
    """A prepared corpus, opened for reading."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.settings = read_settings(self.path)
        if not (self.path / "videos.parquet").exists():
            raise UserError(f"{self.path} was not finished: run the same vivi prepare again")

    @cached_property
    def videos(self) -> pa.Table:
        """videos.parquet, read at the first access: of millions of videos that takes seconds."""
        return _read_table(self.path / "videos.parquet")

    def shots(self, video: dict[str, Any]) -> Iterator[Shot]:
        """The shots of a video, given as a row of `videos`, in order; none of a skipped one."""
        for batch in self._rows(video, SHOT_SCHEMA.names):
            yield from (Shot(**shot) for shot in batch.to_pylist())

    def times(self, video: dict[str, Any]) -> list[list[float]]:
        """The times of the frames of each of its shots; the frames themselves stay on the disk."""
        return [times for batch in self._rows(video, ["times"]) for times in batch["times"].to_pylist()]

    def _rows(self, video: dict[str, Any], columns: Sequence[str]) -> list[pa.RecordBatch]:
        """The rows of a video in its shard, which stays on the disk."""
        if video["shard"] is None:
            return []
        shard = open_shard(shard_path(self.path, video["shard"]), columns).read_all()
        return list(shard.slice(video["first_row"], video["shots"]).to_batches())


def read_settings(corpus: Path) -> dict[str, Any]:
    """The content of corpus.json."""
    path = corpus / "corpus.json"
    try:
        settings = json.loads(read_file(path))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{corpus} is no corpus: it has no corpus.json; make one with vivi prepare") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); did vivi prepare make it?") from None
    version = settings.get("format_version") if isinstance(settings, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(f"{path} has format version {version}; this vivi reads version {FORMAT_VERSION}")
    return dict(settings)


def write_settings(corpus: Path, settings: dict[str, Any]) -> None:
    content = json.dumps({"format_version": FORMAT_VERSION, **settings}, indent=2)
    write_atomically(corpus / "corpus.json", content.encode() + b"\n")
