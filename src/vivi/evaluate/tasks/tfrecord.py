"""TFRecord files and the tf.train.Example messages in them, without TensorFlow.

A record is its length (8 bytes), a checksum of the length (4), the message and a checksum of the message (4). The
message is in protobuf's wire format: Example {1: Features {1: entry {1: name, 2: Feature {1: bytes | 2: floats |
3: integers}}}}. Files are mapped into memory, so that the bytes of images are not touched on the way to a label.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivi.evaluate.tasks.examples import damaged

Span = tuple[int, int]
"""Where something begins and ends in a file."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def map_file(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""  # nothing that could be mapped
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def record_starts(path: Path, data: mmap.mmap | bytes, count: int, whole: int) -> NDArray[np.int64]:
    """Where the messages of the first `count` records begin, and at the end where a further one would.

    `whole` is the number of records that the file must have. Lengths are checked by their checksums; the messages'
    own are not, as in Python that would take hours.
    """
    starts = np.empty(count + 1, dtype=np.int64)
    at = 0
    for number in range(count):
        header = data[at : at + 12]
        if len(header) < 12:
            raise damaged(path, f"it ends before record {number}, and must have {whole} records")
        length, checksum = struct.unpack("<QI", header)
        if masked_crc(header[:8]) != checksum:
            raise damaged(path, f"record {number} does not begin at byte {at}, where it should")
        starts[number] = at + 12
        at += 16 + length
        if at > len(data):
            raise damaged(path, f"it ends inside record {number}")
    starts[count] = at + 12
    if count == whole and at != len(data):
        raise damaged(path, f"it has more than the {whole} records that dataset_info.json counts")
    return starts


@dataclass(frozen=True, eq=False)
class Example:
    """One message: its features by name, read when they are asked for. A ValueError says what is wrong with it."""

    data: Any  # the mapped file
    features: dict[str, Span]

    def image(self, name: str = "image") -> Span:
        """Where the first of a feature's byte strings lies."""
        for span in self._values(name, 1):
            return span
        raise ValueError(f"its {name} has no bytes")

    def integers(self, name: str) -> list[int]:
        """Packed into one field or each in its own."""
        values = []
        for at, end in self._values(name, 3):
            while at < end:
                value, at = _varint(self.data, at, end)
                values.append(value - (value >> 63 << 64))
        return values

    def floats(self, name: str) -> NDArray[np.float32]:
        packed = b"".join(self.data[start:end] for start, end in self._values(name, 2))
        return np.frombuffer(packed, dtype="<f4")

    def _values(self, name: str, kind: int) -> Iterator[Span]:
        if name not in self.features:
            raise ValueError(f"it has no {name}")
        for number, values in _fields(self.data, self.features[name]):
            if number == kind:
                yield from (span for _, span in _fields(self.data, values))


def read_example(data: mmap.mmap | bytes, span: Span) -> Example:
    features = {}
    for number, whole in _fields(data, span):
        for _, entry in _fields(data, whole) if number == 1 else ():
            pair = dict(_fields(data, entry))
            if 1 in pair and 2 in pair:
                features[data[slice(*pair[1])].decode("utf-8", "replace")] = pair[2]
    return Example(data, features)


def _fields(data: mmap.mmap | bytes, within: Span) -> Iterator[tuple[int, Span]]:
    """The number of each field in a part of a message, and where its value lies."""
    at, end = within
    while at < end:
        key, at = _varint(data, at, end)
        kind = key & 7
        if kind == _VARINT:
            length = _varint(data, at, end)[1] - at
        elif kind == _BYTES:
            length, at = _varint(data, at, end)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("it is not in protobuf's format")
        if at + length > end:
            raise ValueError("a field is longer than the message it lies in")
        yield key >> 3, (at, at + length)
        at += length


def _varint(data: mmap.mmap | bytes, at: int, end: int) -> tuple[int, int]:
    """An integer of seven bits a byte, low ones first, and where the next thing is."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number in it has no end")


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TFRecord has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
