"""Features of images: read them, make them square, run the encoder over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as vision

from vivi.errors import UserError
from vivi.images import as_rgb, open_image


def embed(
    encoder: nn.Module,
    images: Iterable[Tensor | Path],
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
    # Threads: reading and resizing images leaves Python to itself.
    with ThreadPoolExecutor() as threads:
        pieces = (torch.stack(list(threads.map(partial(square, size=size), part))) for part in _parts(images, batch))
        return encode(encoder, pieces, mean, std, device)


def encode(
    encoder: nn.Module,
    batches: Iterable[Tensor],
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
) -> Tensor:
    """The encoder's features (images, d) of batches of uint8 images (batch, 3, size, size), float32 on the CPU."""
    centre = torch.tensor(mean, device=device).view(3, 1, 1) * 255
    scale = torch.tensor(std, device=device).view(3, 1, 1) * 255
    with evaluating(encoder), torch.no_grad():
        features = [encoder((images.to(device).float() - centre) / scale).float().cpu() for images in batches]
    return torch.cat(features)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Puts a module and all in it in evaluation mode, and each back as it was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def read_image(path: Path) -> Tensor:
    """An image file of any kind as RGB: uint8 (3, height, width)."""
    try:
        with open_image(path) as image:
            pixels = np.array(as_rgb(image))  # (height, width, 3)
    except (OSError, ValueError) as error:
        raise UserError(f"image {path} cannot be read: {error}; replace it or take it off its list") from None
    return torch.from_numpy(pixels).permute(2, 0, 1)


def square(image: Tensor | Path, size: int, antialias: bool = True) -> Tensor:
    """The whole image resized to uint8 (3, size, size); its sides may change their ratio."""
    pixels = read_image(image) if isinstance(image, Path) else image
    resized: Tensor = vision.resize(pixels, [size, size], antialias=antialias)
    return resized.contiguous()


def _parts(images: Iterable[Tensor | Path], batch: int) -> Iterator[list[Tensor | Path]]:
    rest = iter(images)
    while part := list(itertools.islice(rest, batch)):
        yield part
