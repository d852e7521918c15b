"""Features of images: read them, make them square, run the encoder over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as vision

from vivi.evaluate.tasks.examples import Image
from vivi.model.features import encode
from vivi.runtime.errors import UserError
from vivi.runtime.image_files import as_rgb, open_image
from vivi.runtime.machine import available_cores
from vivi.runtime.read_ahead import map_ahead


def embed(
    encoder: nn.Module,
    images: Iterable[Image],
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
    batch: int = 256,
) -> Tensor:
    """The encoder's features (images, d) of images, uint8 (3, height, width) or files, float32 on the CPU.

    The whole image is resized to a square, as VTAB does, without a crop; `mean` and `std` are those of the three
    channels where pixels lie between 0 and 1.
    """
    with closing(map_ahead(partial(square, size=size), images, available_cores(), 2 * batch)) as squares:
        batches = (torch.stack(part) for part in iter(lambda: list(islice(squares, batch)), []))
        return encode(encoder, batches, mean, std, device)


def read_image(path: Path) -> Tensor:
    """An image file of any kind as RGB: uint8 (3, height, width)."""
    try:
        with open_image(path) as image:
            pixels = np.array(as_rgb(image))  # (height, width, 3)
    except (OSError, ValueError) as error:
        raise UserError(f"image {path} cannot be read: {error}; replace it or take it off its list") from None
    return torch.from_numpy(pixels).permute(2, 0, 1)


def square(image: Image, size: int, antialias: bool = True) -> Tensor:
    """The whole image resized to uint8 (3, size, size); its sides may change their ratio."""
    if not isinstance(image, Tensor):
        image = read_image(image) if isinstance(image, Path) else image.read()
    resized: Tensor = vision.resize(image, [size, size], antialias=antialias)
    return resized.contiguous()
