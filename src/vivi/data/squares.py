"""The central squares of image files, which classifiers are tested on."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as vision

from vivi.data.decode import read_image
from vivi.data.images import LabelledImages
from vivi.data.packed import Image
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.machine import available_cores
from vivi.runtime.read_ahead import map_ahead

BATCH = 256
_BATCHES_AHEAD = 3


@dataclass(frozen=True)
class Squares:
    """A batch of what the network sees."""

    numbers: list[int]  # of the files
    squares: Tensor  # uint8 (n, 3, size, size)
    unreadable: list[str]  # a line for each file of the batch that cannot be read


def central_square(image: Image, size: int) -> Tensor:
    """As in S4L's evaluation: the short side resized to size · 256 / 224, and of that the central square.

    uint8 (height, width, 3) -> (3, size, size)
    """
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    # A strip of 1 × 2000 pixels would be 400 MB once resized; its ends are cut off in any case.
    most = 4 * min(pixels.shape[1:])
    pixels = vision.center_crop(pixels, [min(side, most) for side in pixels.shape[1:]])
    resized = vision.resize(pixels, [round(size * 256 / 224)], antialias=True)
    square: Tensor = vision.center_crop(resized, [size, size])
    return square.contiguous()


def read_squares(files: Iterable[tuple[int, Path]], size: int) -> Generator[Squares, None, None]:
    """The central squares of numbered files, in batches and in their order."""

    def read(file: tuple[int, Path]) -> tuple[int, Tensor | str]:
        number, path = file
        try:
            return number, central_square(read_image(path), size)
        except (OSError, ValueError) as error:
            return number, f"{str(path)!r}: {first_line(error)}"

    with closing(map_ahead(read, files, available_cores(), _BATCHES_AHEAD * BATCH)) as results:
        while batch := list(itertools.islice(results, BATCH)):
            squares = [square for _, square in batch if isinstance(square, Tensor)]
            yield Squares(
                [number for number, square in batch if isinstance(square, Tensor)],
                torch.stack(squares) if squares else torch.empty(0, 3, size, size, dtype=torch.uint8),
                [reason for _, reason in batch if isinstance(reason, str)],
            )


def labelled_squares(
    images: LabelledImages, chosen: Iterable[int], size: int
) -> Generator[tuple[Tensor, Tensor, list[str]], None, None]:
    """Batches of squares (n, 3, size, size), their labels (n,), and a line for each image that cannot be read."""
    for batch in read_squares(((image, images.path(image)) for image in chosen), size):
        yield batch.squares, torch.from_numpy(images.labels[batch.numbers]), batch.unreadable


def sample_squares(images: LabelledImages, size: int, most: int) -> tuple[Tensor, Tensor, list[str]]:
    """At most so many images, evenly over all: uint8 (n, 3, size, size), their labels (n,), and a line for each that
    cannot be read and is left out."""
    count = min(most, len(images))
    chosen = [number * len(images) // count for number in range(count)]
    squares, labels, unreadable = zip(*labelled_squares(images, chosen, size), strict=True)
    lines = [line for part in unreadable for line in part]
    check_some_readable(images, count, lines)
    return torch.cat(squares), torch.cat(labels), lines


def check_some_readable(images: LabelledImages, count: int, unreadable: list[str]) -> None:
    if len(unreadable) == count:
        raise UserError(f"none of {count:,} test images of {images.root} can be read (the first: {unreadable[0]})")
