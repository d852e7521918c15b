"""DMLab from original files: TFRecord, read without TensorFlow."""

from __future__ import annotations

import io
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from test_originals import error
from test_originals_binary import check, image, noise

from vivi.evaluate.originals import look, read_original
from vivi.evaluate.originals.tfrecord import Damaged, masked_crc, records
from vivi.runtime.errors import UserError


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(data: bytes, label: int, packed: bool = True) -> bytes:
    integers = field(1, varint(label)) if packed else varint(1 << 3) + varint(label)
    values = {
        "filename": field(1, field(1, b"f.jpg")),
        "image": field(1, field(1, data)),
        "label": field(3, integers),
    }
    values["depth"] = field(2, field(1, struct.pack("<f", 1.5)))
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in values.items()))


def record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc(length)) + message + struct.pack("<I", masked_crc(message))


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def decoded(data: bytes) -> NDArray[np.uint8]:
    return np.array(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)


def test_records_have_the_checksum_of_tensorflow() -> None:
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_dmlab(folder: Path, shards: bool) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for split, count in (("train", 11), ("validation", 4), ("test", 6)):
        images = [jpeg(noise(12, 16, 3 + count + i)[..., :3]) for i in range(count)]
        labels = [i % 6 for i in range(count)]
        written = [record(example(images[i], labels[i], bool(i % 2))) for i in range(count)]
        names = (
            [f"dmlab-{split}.tfrecord-0000{i}-of-00002" for i in (0, 1)] if shards else [f"dmlab-{split}.tfrecord"]
        )
        cut = 3 if shards else count
        for name, part in zip(names, (written[:cut], written[cut:]), strict=False):
            (folder / name).write_bytes(b"".join(part))
        wanted[split] = np.stack([decoded(data) for data in images]), labels
    return wanted


@pytest.mark.parametrize("shards", [False, True])
def test_dmlab_is_read_from_records_of_tensorflow(shards: bool, tmp_path: Path) -> None:
    wanted = write_dmlab(tmp_path / ("dmlab/2.0.1" if shards else "dmlab"), shards)
    original = read_original("dmlab", tmp_path)
    check(original.train, *wanted["train"])
    check(original.val, *wanted["validation"])
    check(original.test, *wanted["test"])
    found = look("dmlab", tmp_path)
    assert found.missing == () and found.problem == "" and found.counts is None


def test_bad_records_of_dmlab_are_told(tmp_path: Path) -> None:
    write_dmlab(tmp_path, shards=False)
    path = tmp_path / "dmlab-test.tfrecord"
    whole = path.read_bytes()
    good = record(example(b"x", 1))
    no_label = record(field(1, field(1, field(1, b"image") + field(2, field(1, field(1, b"x"))))))
    for content, reason in (
        (whole[:-1], "ends inside"),
        (whole[:7], "ends inside"),
        (b"GIF89a and more of it", "no record begins at byte 0"),
        (good + bytes(20), f"no record begins at byte {len(good)}"),
        (no_label, "no label"),
        (record(example(b"x", 6)), "label 6"),
        (record(example(b"x", -1)), "label"),
        (record(b"\x0b\x0c"), "protobuf"),
        (record(b"\x0a\xff"), "without an end"),
        (record(b"\x0a\x7f"), "longer"),
    ):
        path.write_bytes(content)
        assert re.search(rf"dmlab-test.tfrecord is damaged.*{reason}", error("dmlab", tmp_path)), reason
    path.write_bytes(b"")
    assert "no examples in dmlab-test" in error("dmlab", tmp_path)
    path.write_bytes(good)
    with pytest.raises(UserError, match=r"^[^\n]*dmlab-test.tfrecord is damaged[^\n]*image at byte[^\n]*$"):
        image(read_original("dmlab", tmp_path).test, 0)


def test_a_missing_shard_of_dmlab_is_told(tmp_path: Path) -> None:
    write_dmlab(tmp_path, shards=True)
    (tmp_path / "dmlab-train.tfrecord-00001-of-00002").unlink()
    assert re.search(r"dmlab-train.tfrecord-00001-of-00002 is missing", error("dmlab", tmp_path))


def test_garbage_is_never_taken_for_records(tmp_path: Path) -> None:
    path = tmp_path / "garbage"
    for length in (1, 11, 12, 16, 500):
        path.write_bytes(np.random.default_rng(length).bytes(length))
        with pytest.raises(Damaged):
            list(records(path))
