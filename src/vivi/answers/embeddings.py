"""Embeddings on disk: open formats that other programs read as they are.

    embeddings.json       of which footage, by which encoder
    part-00000.parquet    video, shot, frame, time, path, embedding: a row for each frame, or for each shot

A part holds some thousand frames of consecutive shots. It appears under its name only when it is complete, its bytes
depend on footage and encoder alone, and its pages carry checksums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.answers.footage import PLACE
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.machine import available_cores
from vivi.runtime.read_ahead import map_ahead
from vivi.runtime.storage import read_json, storage, write_atomically

FORMAT_VERSION = 1
Per = Literal["frame", "shot"]


@dataclass(frozen=True)
class About:
    """embeddings.json."""

    footage: str  # the absolute path of a corpus, or of images
    fingerprint: str
    encoder: str  # its name
    source: str  # what --encoder was
    weights: str  # what --weights was
    checksum: str  # of the encoder's weights
    size: int  # side of its input in pixels
    features: int
    per: Per
    parts: int
    finished: bool = False  # whether all parts are written
    format_version: int = FORMAT_VERSION


def write_about(folder: Path, about: About) -> None:
    write_atomically(folder / "embeddings.json", json.dumps(asdict(about), indent=2).encode() + b"\n")


def read_about(folder: Path) -> About:
    path = folder / "embeddings.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no embeddings: it has no embeddings.json; make some with vivi embed")
    about = read_json(path, About, "make the embeddings again with vivi embed")
    if about.format_version != FORMAT_VERSION:
        raise UserError(f"{path} has format version {about.format_version}; this vivi reads version {FORMAT_VERSION}")
    return about


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.parquet"


def schema(features: int) -> pa.Schema:
    vector = pa.list_(pa.field("element", pa.float16(), nullable=False), features)
    columns = [*PLACE, pa.field("path", pa.string()), pa.field("embedding", vector, nullable=False)]
    return pa.schema([field.with_nullable(False) for field in columns])


def write_part(path: Path, places: pa.Table, vectors: NDArray[np.float16]) -> None:
    """Writes a part: the columns of all rows, and their vectors (rows, features)."""
    columns = schema(vectors.shape[1])
    values = pa.array(vectors.reshape(-1))
    embedding = pa.FixedSizeListArray.from_arrays(values, type=columns.field("embedding").type)
    table = pa.Table.from_arrays([*places.columns, embedding], schema=columns)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with storage(path):
        try:
            pq.write_table(
                table,
                temporary,
                row_group_size=max(len(table), 1),
                compression={name: "zstd" if name != "embedding" else "none" for name in table.column_names},
                use_dictionary=["video", "path"],
                write_page_checksum=True,
            )
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns every error of reading a part into one line for the user."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the same vivi embed again to make it anew") from None
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        reason = first_line(error)
        raise UserError(f"{path} is damaged ({reason}); delete it and run the same vivi embed again") from None


@dataclass(frozen=True)
class Row:
    """Where an embedding is from."""

    number: int  # among all rows
    video: str
    shot: int
    frame: int
    time: float
    path: str


class Embeddings:
    """Embeddings that were made, opened for reading: `rows` vectors of `about.features` numbers."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.about = read_about(self.folder)
        if not self.about.finished:
            raise UserError(f"{self.folder} was not finished: run the same vivi embed again")

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """(parts + 1,): the numbers of the first row of each part, and of all rows."""
        counts = []
        for number in range(self.about.parts):
            path = part_path(self.folder, number)
            with reading(path):
                metadata = pq.read_metadata(path)
                if not metadata.schema.to_arrow_schema().equals(schema(self.about.features)):
                    raise ValueError(f"its columns are not those of {self.about.features} features")
            counts.append(metadata.num_rows)
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self.first_rows[-1])

    def vectors(self, part: int) -> Tensor:
        """The vectors of a part: float16 (rows, features), or (0, features)."""
        path = part_path(self.folder, part)
        with reading(path):
            # Threads read several parts at once; within one they would wait for each other.
            table = pq.read_table(path, columns=["embedding"], use_threads=False, page_checksum_verification=True)
            values = table["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return torch.from_numpy(values.copy() if not values.flags.writeable else values).view(-1, self.about.features)

    def map_parts(self, function: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """A function of the vectors of each part, in turn; parts are read and mapped ahead, in threads.

        Each thread computes alone: torch's own threads would wait for each other, and for those of other parts.
        """
        threads, before = available_cores(), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with closing(
                map_ahead(lambda part: function(self.vectors(part)), range(self.about.parts), threads, threads + 1)
            ) as results:
                yield from results
        finally:
            torch.set_num_threads(before)

    def columns(self, part: int, names: Sequence[str]) -> pa.Table:
        """Some columns of a part, which say where its rows are from."""
        path = part_path(self.folder, part)
        with reading(path):
            return pq.read_table(path, columns=list(names), use_threads=False, page_checksum_verification=True)

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """Where some embeddings are from, in the order asked for."""
        found: dict[int, Row] = {}
        parts = np.searchsorted(self.first_rows, numbers, side="right") - 1
        for part in np.unique(parts).tolist():
            first = int(self.first_rows[part])
            wanted = [number for number, at in zip(numbers, parts, strict=True) if at == part]
            table = self.columns(part, [*PLACE.names, "path"]).take([number - first for number in wanted])
            found |= {number: Row(number, **row) for number, row in zip(wanted, table.to_pylist(), strict=True)}
        return [found[number] for number in numbers]

    def take(self, numbers: Sequence[int]) -> Tensor:
        """Some vectors, float16 (n, features), in the order asked for."""
        result = torch.empty(len(numbers), self.about.features, dtype=torch.float16)
        parts = np.searchsorted(self.first_rows, numbers, side="right") - 1
        for part in np.unique(parts).tolist():
            at = np.flatnonzero(parts == part)
            result[at] = self.vectors(part)[np.asarray(numbers)[at] - int(self.first_rows[part])]
        return result
