"""Frames as JPEG files with a checksum."""

from __future__ import annotations

import io
import random

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from vivi.prepare.jpeg import encode_jpeg, is_intact


def _frame(height: int, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(("height", "width"), [(16, 16), (37, 90), (256, 340)])
def test_a_checksum_changes_no_pixel(height: int, width: int) -> None:
    frame = _frame(height, width)
    plain = io.BytesIO()
    Image.fromarray(frame).save(plain, "JPEG", quality=90)
    with_checksum = encode_jpeg(frame, 90)
    assert is_intact(with_checksum)
    assert Image.open(io.BytesIO(with_checksum)).tobytes() == Image.open(plain).tobytes()


def test_every_altered_byte_outside_the_comment_is_noticed() -> None:
    jpeg = encode_jpeg(_frame(16, 24), 90)
    comment = range(jpeg.index(b"\xff\xfe"), jpeg.index(b"crc32:") + 6)  # without it, nothing can be told
    for place in range(len(jpeg)):
        altered = bytearray(jpeg)
        altered[place] ^= 1 << random.Random(place).randrange(8)
        assert is_intact(bytes(altered)) == (place in comment), place


def test_a_frame_that_ends_early_or_late_is_noticed() -> None:
    jpeg = encode_jpeg(_frame(16, 24), 90)
    assert not is_intact(jpeg[:-1])
    assert not is_intact(memoryview(pa.py_buffer(jpeg[:-1])))  # of signed bytes
    assert not is_intact(jpeg + b"\0")


def test_frames_of_older_corpora_have_no_checksum_and_count_as_intact() -> None:
    plain = io.BytesIO()
    Image.fromarray(_frame(16, 24)).save(plain, "JPEG", quality=90)
    assert is_intact(plain.getvalue())
    assert is_intact(b"")
