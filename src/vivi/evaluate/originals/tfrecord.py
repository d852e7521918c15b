"""TFRecord files and the tf.train.Example messages in them, without TensorFlow.

A record is its length (8 bytes), a checksum of the length (4), the message and a checksum of the message (4). The
message is in protobuf's wire format: Example {1: Features {1: entry {1: name, 2: Feature {1: bytes | 3: integers}}}}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

Span = tuple[int, int]
"""Where something begins and ends in a message."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Damaged(ValueError):
    """A file that is not TFRecord, or not all of it."""


def records(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each record's message, and where in the file it begins.

    Lengths are checked by their checksum; the messages' own are not, as in Python that would take hours.
    """
    with path.open("rb") as file:
        start = 0
        while header := file.read(12):
            if len(header) < 12:
                raise Damaged(f"it ends inside the record at byte {start}")
            length, checksum = struct.unpack("<QI", header)
            if masked_crc(header[:8]) != checksum:
                raise Damaged(f"no record begins at byte {start}")
            message = file.read(length + 4)
            if len(message) < length + 4:
                raise Damaged(f"it ends inside the record at byte {start}")
            yield start + 12, message[:-4]
            start += 16 + length


def features(message: bytes) -> dict[str, Span]:
    """The features of an Example by name, for bytes_span and integer to read."""
    found = {}
    for number, whole in _fields(message, (0, len(message))):
        for _, entry in _fields(message, whole) if number == 1 else ():
            pair = dict(_fields(message, entry))
            if 1 in pair and 2 in pair:
                found[message[slice(*pair[1])].decode("utf-8", "replace")] = pair[2]
    return found


def bytes_span(message: bytes, feature: Span) -> Span:
    """Where the first of a feature's byte strings lies."""
    for number, values in _fields(message, feature):
        if number == 1:
            for _, value in _fields(message, values):
                return value
    raise Damaged("a feature has no bytes")


def integer(message: bytes, feature: Span) -> int:
    """The first of a feature's integers. Packed into one field or not, its value begins with it."""
    for number, values in _fields(message, feature):
        if number == 3:
            for _, (start, end) in _fields(message, values):
                return _varint(message, start, end)[0]
    raise Damaged("a feature has no integer")


def _fields(message: bytes, within: Span) -> Iterator[tuple[int, Span]]:
    """The number of each field in a part of a message, and where its value lies."""
    at, end = within
    while at < end:
        key, at = _varint(message, at, end)
        kind = key & 7
        if kind == _VARINT:
            length = _varint(message, at, end)[1] - at
        elif kind == _BYTES:
            length, at = _varint(message, at, end)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise Damaged("a message is not in protobuf's format")
        if at + length > end:
            raise Damaged("a message has a field that is longer than itself")
        yield key >> 3, (at, at + length)
        at += length


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    """An integer of seven bits a byte, low ones first, and where the next thing is."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Damaged("a message has a number without an end")


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
