"""Image files and frames, decoded: 8-bit RGB, (height, width, 3), of a moderate size.

As in TensorFlow's decoder, colours under transparency count, and a camera's note of how it was held does not.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import simplejpeg
from PIL.Image import Resampling

from vivi.data.packed import Image
from vivi.prepare.jpeg import decode_jpeg, is_intact
from vivi.runtime.image_files import as_rgb, image_errors, open_image

LARGEST = 512
"""Pixels of an image's short side at most: crops are seen at 224, and batches stay small."""
LARGEST_LONG = 4 * LARGEST
"""Pixels of the long side at most, for images that are mostly edge."""

_MOST_PIXELS = 24_000_000  # of a JPEG that is decoded whole
_END_OF_JPEG = b"\xff\xd9"
_HEADER = 1 << 16  # bytes that are read to see what a file is


def decode_frame(jpeg: bytes | bytearray | memoryview) -> Image:
    """A frame of a corpus. Raises ValueError for one that cannot be decoded, or whose checksum is wrong."""
    if not jpeg:
        raise ValueError("empty")
    if not is_intact(jpeg):
        raise ValueError("its checksum is wrong")
    return decode_jpeg(jpeg)


def read_image(path: Path, reduce: bool = True) -> Image:
    """An image file of any kind, by default reduced to LARGEST. Raises ValueError or OSError with a reason in one
    line that does not name the path."""
    with image_errors(), open(path, "rb") as file:
        # Only the header is read before its size is known to be acceptable.
        start = file.read(_HEADER)
        if not start:
            raise ValueError("it is empty")
        size = plain_jpeg_size(start)
        if size is not None and size[0] * size[1] <= _MOST_PIXELS and (not reduce or reduced_size(size) == size):
            jpeg = start + file.read()
            # One that lacks its end is for Pillow, which notices.
            if jpeg.endswith(_END_OF_JPEG):
                with suppress(ValueError):  # Pillow tries it again, and its message is shorter
                    return decode_jpeg(jpeg)
        file.seek(0)
        with open_image(file) as image:
            size = reduced_size(image.size) if reduce else image.size
            # A JPEG is decoded at a half, a quarter or an eighth if that is large enough; its last pixel may be part
            # of one.
            draft = image.draft(None, size)
            rgb = as_rgb(image)
            if rgb.size != size:
                rgb = rgb.resize(size, Resampling.BILINEAR, box=draft[1] if draft else None)  # antialiased
            return np.array(rgb)


def plain_jpeg_size(start: bytes) -> tuple[int, int] | None:
    """Width and height of a grey or YCbCr JPEG, from the first part of its file. None for all others, whose colours
    Pillow knows better, and where the part is too short. Pillow could tell as well, but takes Python's lock ten times
    as long."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(start)
    except ValueError:
        return None
    return (width, height) if colours in ("YCbCr", "Gray") else None


def reduced_size(size: tuple[int, int]) -> tuple[int, int]:
    """Width and height at which an image is used."""
    scale = min(1, LARGEST / min(size), LARGEST_LONG / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    return width, height
