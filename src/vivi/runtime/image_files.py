"""Image files that users bring: the one way to open them, and any of them as 8-bit RGB."""

from __future__ import annotations

import ctypes
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from vivi.runtime.errors import first_line

# What Pillow may take a file for. It knows others, and would start other programs for some of them.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


@contextmanager
def open_image(file: Path | BinaryIO, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """An image of one of the formats, whatever its name is. What is wrong with it, seen here or inside the block
    where it is decoded, is an OSError or a ValueError as in `image_errors`. A truncated image is wrong, and so is one
    of more pixels than Pillow thinks safe."""
    _silence_decoders()
    with image_errors(formats), Image.open(file, formats=formats) as image:
        yield image


@contextmanager
def image_errors(formats: tuple[str, ...] = FORMATS) -> Iterator[None]:
    """Turns whatever an image makes its decoder raise into an OSError or a ValueError with a reason in one line that
    does not name the file."""
    try:
        yield
    except UnidentifiedImageError:
        raise ValueError(f"it is damaged, or none of {', '.join(formats)}") from None
    except Image.DecompressionBombError:
        raise ValueError("it has more pixels than the 179 million that Pillow reads") from None
    except OSError as error:
        raise OSError(error.strerror or first_line(error)) from None
    except Exception as error:  # Pillow raises nearly everything for damaged files, SyntaxError among them
        raise ValueError(first_line(error)) from None


def as_rgb(image: Any) -> Any:
    """A PIL image of any mode as RGB; anything else as it is."""
    if not isinstance(image, Image.Image):
        return image
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow would cut off at 255
        image = Image.fromarray(np.clip(np.array(image) >> 8, 0, 255).astype(np.uint8))
    return image.convert("RGB")


_FROM_PILLOW = re.compile(r"PIL\.")


def _silence_decoders() -> None:
    """No words of Pillow and libtiff about large images, transparency and damage on the console.

    A filter of warnings for the process: one around each image would not do in threads. It is looked for every time,
    because a catch_warnings elsewhere, as in torch, drops the filters that were added meanwhile.
    """
    if ("ignore", None, Warning, _FROM_PILLOW, 0) not in warnings.filters:
        warnings.filterwarnings("ignore", module=_FROM_PILLOW.pattern)
    _silence_libtiff()


@lru_cache(maxsize=1)
def _silence_libtiff() -> None:
    """Pillow leaves libtiff's own handlers in place, which write on the terminal; it raises errors all the same."""
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # without any handler, Python writes them out
    with suppress(OSError, AttributeError):  # a Pillow that hides its libtiff, or has none
        pillow = ctypes.CDLL(Image.core.__file__)
        for handler in (pillow.TIFFSetErrorHandler, pillow.TIFFSetWarningHandler):
            handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
            handler(None)
