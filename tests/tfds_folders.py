"""Writes folders as TensorFlow Datasets prepares them, to the format's specification: TFRecord framing with both
checksums, tf.train.Example messages in protobuf's wire format, dataset_info.json and features.json. No folder that
TFDS itself wrote is at hand."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vivi.evaluate.tasks.tfds import SOURCES

NAMES = {source.folder.split("/")[0] for source in SOURCES.values()}
Value = bytes | list[int] | list[float]
Features = Mapping[str, Value]


def crc32c(data: bytes) -> int:
    """Bit by bit, as slow as it is obvious: reflected, polynomial 0x1EDC6F41."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + masked(length) + message + masked(message)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are ten bytes long
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(value: Value, packed: bool = True) -> bytes:
    if isinstance(value, bytes):
        return field(1, field(1, value))
    if value and isinstance(value[0], float):
        floats = [struct.pack("<f", each) for each in value]
        return field(2, field(1, b"".join(floats)) if packed else b"".join(varint(1 << 3 | 5) + f for f in floats))
    integers = [varint(int(each)) for each in value]
    return field(3, field(1, b"".join(integers)) if packed else b"".join(varint(1 << 3) + each for each in integers))


def example(features: Features, packed: bool = True) -> bytes:
    entries = (field(1, name.encode()) + field(2, feature(value, packed)) for name, value in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def encoded(pixels: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def picture(number: int, kind: str = "PNG") -> bytes:
    """A small image that tells its number."""
    pixels = np.empty((4, 5, 3), np.uint8)
    pixels[:] = number // 256, number % 256, 7
    return encoded(pixels, kind)


def write_folder(
    folder: Path,
    splits: Mapping[str, Sequence[Features]],
    shards: Mapping[str, Sequence[int]] | None = None,
    template: str | None = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    **info: object,
) -> Path:
    """A prepared data set in <name>/<version> or <name>/<config>/<version>, each split in files of these lengths."""
    folder.mkdir(parents=True)
    name = next(part for part in reversed(folder.parts) if part in NAMES)
    described = []
    for split, features in splits.items():
        lengths = list((shards or {}).get(split, [len(features)]))
        assert sum(lengths) == len(features)
        start = 0
        for index, length in enumerate(lengths):
            path = folder / f"{name}-{split}.tfrecord-{index:05d}-of-{len(lengths):05d}"
            messages = [example(each, packed=k % 2 == 0) for k, each in enumerate(features[start : start + length])]
            path.write_bytes(b"".join(map(record, messages)))
            start += length
        # Integers of 64 bits are strings in protobuf's JSON.
        about: dict[str, object] = {"name": split, "numBytes": "1", "shardLengths": [str(k) for k in lengths]}
        described.append(about | ({"filepathTemplate": template} if template else {}))
    content = {"name": name, "version": folder.name, "fileFormat": "tfrecord", "splits": described, **info}
    (folder / "dataset_info.json").write_text(json.dumps(content))
    kinds = {"pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict"}
    (folder / "features.json").write_text(json.dumps(kinds))
    return folder
