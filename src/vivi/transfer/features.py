"""Features of labelled images: read a task's lists, read its images, run the encoder over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as vision

from vivi.errors import UserError
from vivi.images import as_rgb


@dataclass(frozen=True)
class Examples:
    """Images and their labels, in the order of their list."""

    paths: tuple[Path, ...]
    labels: Tensor  # (images,) int64


@dataclass(frozen=True)
class Task:
    """A task in VTAB-1k layout: training images in two parts and together, test images, the number of classes."""

    name: str
    classes: int
    train800: Examples
    val200: Examples
    train800val200: Examples
    test: Examples


def read_task(folder: Path) -> Task:
    """Reads a folder with train800.txt, val200.txt, train800val200.txt and test.txt; images are read by embed."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder of a task: it does not exist")
    lists = {name: read_list(folder / f"{name}.txt") for name in ("train800", "val200", "train800val200", "test")}
    classes = 1 + max(int(examples.labels.max()) for examples in lists.values())
    return Task(folder.name, classes, **lists)


def read_list(path: Path) -> Examples:
    """The images, relative to the list's folder, and labels of a list with lines `images/000000.jpg 3`."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{path} cannot be read ({reason}); a task needs this list of images and labels") from None
    paths: list[Path] = []
    labels: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        words = line.rsplit(maxsplit=1)
        if len(words) != 2 or not (words[1].isascii() and words[1].isdecimal()):
            raise UserError(
                f"{path} line {number} is {line!r}; it must be the path of an image and a label, 0 or more"
            )
        paths.append(path.parent / words[0].strip())
        labels.append(int(words[1]))
    if not paths:
        raise UserError(f"{path} lists no images; each line must be the path of an image and its label")
    return Examples(tuple(paths), torch.tensor(labels))


def embed(
    encoder: nn.Module,
    images: Iterable[Tensor] | Sequence[Path],
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
        pieces = (torch.stack(list(threads.map(partial(_square, size=size), part))) for part in _parts(images, batch))
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
        with Image.open(path) as image:
            pixels = np.array(as_rgb(image))  # (height, width, 3)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        raise UserError(f"image {path} cannot be read: {reason}; replace it or take it off its list") from None
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _square(image: Tensor | Path, size: int) -> Tensor:
    pixels = read_image(image) if isinstance(image, Path) else image
    resized: Tensor = vision.resize(pixels, [size, size], antialias=True)
    return resized.contiguous()


def _parts(images: Iterable[Tensor | Path], batch: int) -> Iterator[list[Tensor | Path]]:
    rest = iter(images)
    while part := list(itertools.islice(rest, batch)):
        yield part
