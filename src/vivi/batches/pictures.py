"""Users' pictures, of every kind, as 8-bit RGB of a moderate size.

As in TensorFlow's decoder, colours under transparency count, and a camera's note of how it was held does not.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as vision

from vivi.batches.nvjpeg import decode_jpegs
from vivi.images import as_rgb, image_errors, open_image
from vivi.video.jpeg import decode_jpeg

LARGEST = 512
"""Pixels of a picture's short side at most: crops are seen at 224, and batches stay small."""
LARGEST_LONG = 4 * LARGEST
"""Pixels of the long side at most, for pictures that are mostly edge."""

_MOST_ENCODED = 24_000_000  # pixels: a larger JPEG would take much of the device for a moment
_AT_ONCE = 64  # JPEGs that the device decodes together: at most 4.6 GB of pixels before they are reduced
_END_OF_JPEG = b"\xff\xd9"
_HEADER = 1 << 16  # bytes that are read to see what a file is


def read_picture(path: Path, encoded: bool = False) -> Tensor:
    """A picture as RGB, uint8 (3, height, width), reduced to LARGEST.

    With `encoded`, a plain JPEG is not decoded: its bytes, uint8 (length,), are for `decode_on`. Raises ValueError or
    OSError with a reason in one line that does not name the path.
    """
    with image_errors(), open(path, "rb") as file:
        return _read(file, encoded)


def read_whole_picture(path: Path) -> Tensor:
    """The same, at whatever size the file has it."""
    with image_errors(), open(path, "rb") as file:
        return _read(file, whole=True)


def decode_on(device: torch.device | str, pictures: Sequence[Tensor]) -> list[Tensor | str]:
    """What `read_picture` gave as RGB on the device, uint8 (3, height, width), or why that cannot be.

    A CUDA device decodes JPEGs itself, many at once.
    """
    device = torch.device(device)
    pixels: list[Tensor | str] = [one.to(device, non_blocking=True) if one.dim() == 3 else "" for one in pictures]
    jpegs = [number for number, one in enumerate(pictures) if one.dim() == 1]
    for start in range(0, len(jpegs), _AT_ONCE):
        some = jpegs[start : start + _AT_ONCE]
        there: list[Tensor | None] = [None] * len(some)
        if device.type == "cuda":
            there = decode_jpegs([pictures[number] for number in some], device)
        for number, one in zip(some, there, strict=True):
            # What a GPU cannot decode is for Pillow, which can, or says in a few words what is wrong.
            pixels[number] = _decode_on_cpu(pictures[number], device) if one is None else _reduce(one)
    return pixels


def _decode_on_cpu(jpeg: Tensor, device: torch.device) -> Tensor | str:
    try:
        with image_errors():
            pixels = _read(io.BytesIO(jpeg.numpy().tobytes()))
    except (OSError, ValueError) as error:
        return str(error)
    return pixels.to(device)


def _read(file: BinaryIO, encoded: bool = False, whole: bool = False) -> Tensor:
    """The picture in an open file. Only its header is read before it is known to be of a bearable size."""
    start = file.read(_HEADER)
    if not start:
        raise ValueError("it is empty")
    size = plain_jpeg_size(start)
    if size is not None and size[0] * size[1] <= _MOST_ENCODED and (encoded or whole or _reduced(size) == size):
        jpeg = bytearray(start + file.read())
        # One that lacks its end is for Pillow, which notices.
        if jpeg.endswith(_END_OF_JPEG):
            if encoded:
                return torch.frombuffer(jpeg, dtype=torch.uint8)
            with suppress(ValueError):  # Pillow has the last word, and says in fewer words what is wrong
                return torch.from_numpy(decode_jpeg(jpeg)).permute(2, 0, 1)
    file.seek(0)
    with open_image(file) as image:
        return _pixels(image, image.size if whole else _reduced(image.size))


def plain_jpeg_size(start: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG that any decoder can be trusted with, from the first part of its file: grey or YCbCr
    of 8 bits, not CMYK, not RGB as it is. None for all others, and where the part is too short.

    Pillow could tell as well, but takes Python's lock ten times as long.
    """
    place = 2
    while start[:2] == b"\xff\xd8" and place + 10 <= len(start) and start[place] == 0xFF:
        marker, length = start[place + 1], int.from_bytes(start[place + 2 : place + 4])
        segment = start[place + 4 : place + 2 + length]
        if marker == 0xEE and segment[:5] == b"Adobe" and segment[11:12] == b"\0":
            return None  # its colours are not YCbCr
        if marker in (0xC0, 0xC1, 0xC2):  # baseline, extended, progressive
            components = segment[6::3]  # their names
            if len(segment) < 9 or segment[0] != 8 or segment[5] not in (1, 3) or components == b"RGB":
                return None
            width, height = int.from_bytes(segment[3:5]), int.from_bytes(segment[1:3])
            return (width, height) if width and height else None
        if 0xC0 <= marker <= 0xDF and marker not in (0xC4, 0xDB, 0xDD):
            return None  # another kind of JPEG, or no header
        place += 2 + length
    return None


def _pixels(image: Image.Image, size: tuple[int, int]) -> Tensor:
    """Decoded, and reduced to a size, by Pillow: uint8 (3, height, width)."""
    # A JPEG is decoded at a half, a quarter or an eighth if that is large enough; its last pixel may be part of one.
    drafted = image.draft(None, size)
    rgb = as_rgb(image)
    if rgb.size != size:
        rgb = rgb.resize(size, Image.Resampling.BILINEAR, box=drafted[1] if drafted else None)  # antialiased
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1)  # (height, width, 3) to (3, height, width)


def _reduce(pixels: Tensor) -> Tensor:
    """Decoded pixels, uint8 (3, height, width), reduced like those that `read_picture` decodes."""
    height, width = pixels.shape[1:]
    size = _reduced((width, height))
    if size == (width, height):
        return pixels
    reduced: Tensor = vision.resize(pixels, [size[1], size[0]], antialias=True)
    return reduced


def _reduced(size: tuple[int, int]) -> tuple[int, int]:
    """Width and height at which a picture is used."""
    scale = min(1, LARGEST / min(size), LARGEST_LONG / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    return width, height
