"""Frames as JPEG files that carry their own checksum.

The checksum is a comment (marker COM) right behind the JFIF header: `crc32:` and eight hexadecimal digits, the CRC-32
of all other bytes of the file. Every JPEG reader skips it. Frames of older corpora have none.
"""

from __future__ import annotations

import io
import zlib

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

MAX_SIDE = 65_500  # libjpeg's limit
_HEADER = 20  # bytes: SOI and the JFIF header, with which Pillow's JPEG files begin
_COMMENT = b"\xff\xfe\x00\x10crc32:"  # a segment of 16 bytes
_END = _HEADER + len(_COMMENT) + 8


def encode_jpeg(image: NDArray[np.uint8], quality: int) -> bytes:
    """An RGB image, (height, width, 3), as a JPEG file with a checksum."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    jpeg = buffer.getvalue()
    return b"".join((jpeg[:_HEADER], _COMMENT, b"%08x" % zlib.crc32(jpeg), jpeg[_HEADER:]))


def decode_jpeg(jpeg: bytes | bytearray | memoryview) -> NDArray[np.uint8]:
    """The picture in a JPEG file, also a grey one, as RGB: (height, width, 3).

    Raises ValueError for whatever libjpeg warns of. Other decoders write its warnings on the terminal and go on.
    """
    picture: NDArray[np.uint8] = simplejpeg.decode_jpeg(jpeg, "RGB", strict=True)
    return picture


def is_intact(jpeg: bytes | bytearray | memoryview) -> bool:
    """Whether a file is as it was written, as far as can be told: one without a checksum counts as intact."""
    view = memoryview(jpeg).cast("B")  # Arrow's are of signed bytes
    if view[_HEADER : _HEADER + len(_COMMENT)] != _COMMENT:
        return True
    return b"%08x" % zlib.crc32(view[_END:], zlib.crc32(view[:_HEADER])) == view[_END - 8 : _END]
