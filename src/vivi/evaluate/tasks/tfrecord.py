"""TFRecord files and the tf.train.Example messages in them, without TensorFlow.

A record is its length (8 bytes), a checksum of the length (4), the message and a checksum of the message (4). The
message is in protobuf's wire format: Example {1: Features {1: entry {1: name, 2: Feature {1: bytes | 2: floats |
3: integers}}}}. Files are mapped into memory, so that the bytes of images are not touched on the way to a label.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from vivi.evaluate.tasks.examples import damaged, unreadable

Span = tuple[int, int]
"""Where something begins and ends in a file."""
Data = mmap.mmap | bytes
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}  # bytes


def open_records(path: Path, count: int) -> tuple[Data, list[Span]]:
    """A file of so many records, mapped, and where their messages are.

    Lengths are checked by their checksums; the messages' own are not, as in Python that would take hours.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    except OSError as error:
        raise unreadable(error) from None
    spans = []
    at = 0
    for number in range(count):
        header = data[at : at + 12]
        if len(header) < 12:
            raise damaged(path, f"it ends before record {number}, and must have {count} records")
        length, checksum = struct.unpack("<QI", header)
        if masked_crc32c(header[:8]) != checksum:
            raise damaged(path, f"record {number} does not begin at byte {at}, where it should")
        spans.append((at + 12, at + 12 + length))
        at += 16 + length
        if at > len(data):
            raise damaged(path, f"it ends inside record {number}")
    if at != len(data):
        raise damaged(path, f"it has more than the {count} records that dataset_info.json counts")
    return data, spans


class Example:
    """One message: its features by name, read when they are asked for. A ValueError says what is wrong with it."""

    def __init__(self, data: Data, span: Span) -> None:
        self.data = data
        self.features: dict[str, Span] = {}
        for _, features in _fields(data, span):
            for _, entry in _fields(data, features):
                parts = dict(_fields(data, entry))
                if {1, 2} <= parts.keys():
                    self.features[data[slice(*parts[1])].decode("utf-8", "replace")] = parts[2]

    def image(self) -> Span:
        """Where the encoded image lies."""
        for span in self._values("image", 1):
            return span
        raise ValueError("its image has no bytes")

    def integer(self, name: str) -> int:
        values = self.integers(name)
        if len(values) != 1:
            raise ValueError(f"it has {len(values)} values of {name}, not one")
        return values[0]

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


def _fields(data: Data, within: Span) -> Iterator[tuple[int, Span]]:
    """The number of each field in a part of a message, and where its value lies."""
    at, end = within
    while at < end:
        key, at = _varint(data, at, end)
        kind = key & 7
        if kind == _BYTES:
            length, at = _varint(data, at, end)
        elif kind == _VARINT:
            length = _varint(data, at, end)[1] - at
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise ValueError("it is not in protobuf's format")
        if at + length > end:
            raise ValueError("a field is longer than the message it lies in")
        yield key >> 3, (at, at + length)
        at += length


def _varint(data: Data, at: int, end: int) -> tuple[int, int]:
    """An integer of seven bits a byte, low ones first, and where the next thing is."""
    value = 0
    for place in range(at, min(at + 10, end)):
        value |= (data[place] & 0x7F) << 7 * (place - at)
        if data[place] < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
    raise ValueError("a number in it has no end")
