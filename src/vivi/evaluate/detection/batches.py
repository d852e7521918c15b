"""Batches of images and boxes, read ahead by threads: what a step sees is a function of (data, batch, seed, step)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import islice, tee

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.decode import read_image
from vivi.evaluate.detection.sets import DetectionImage, DetectionSet
from vivi.runtime.errors import first_line
from vivi.runtime.machine import available_cores
from vivi.runtime.read_ahead import map_ahead

_AHEAD = 3  # batches that are being read while another one is computed
_MOST_AHEAD = 2 << 30  # bytes of them, if one alone is not more
_GREY = 128


class _Purpose(IntEnum):
    """What a stream of random numbers is for; the numbers are part of what a seed means."""

    ORDER = 0
    FLIP = 1


@dataclass(frozen=True)
class Batch:
    """Images and the objects to be found in them."""

    indices: tuple[int, ...]  # of the images in their set
    images: list[Tensor]  # uint8 (3, height, width), on the CPU
    targets: list[dict[str, Tensor]]  # boxes float32 (n, 4), x1 y1 x2 y2 in pixels; labels int64 (n,); no crowds
    unreadable: tuple[str, ...]  # what is grey and without boxes because it could not be decoded
    shapes: tuple[tuple[int, int], ...]  # height and width of all images of the step, those of other processes too


# Images of a batch (index, flipped), and the shapes of all that it is a share of.
_Plan = tuple[Sequence[tuple[int, bool]], tuple[tuple[int, int], ...]]


# --- which images ---


def orientations(data: DetectionSet) -> bytes:
    """One byte for each image: 1 for those that are higher than wide."""
    return bytes(image.height > image.width for image in data.images)


def batch_order(portrait: bytes, batch: int, seed: int, step: int) -> list[int]:
    """The images of a step. All but one batch an epoch are of one orientation, so that little is padded."""
    epoch, number = divmod(step, max(1, len(portrait) // batch))
    order: list[int] = _epoch(portrait, batch, seed, epoch)[number].tolist()
    return order


@lru_cache(maxsize=2)  # so that the cost of a step does not grow with the set
def _epoch(portrait: bytes, batch: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The batches of an epoch, (batches, batch). What is left over, any images, is left to the next permutation; a
    set smaller than a batch is repeated."""
    random = _generator(seed, epoch, _Purpose.ORDER)
    count = len(portrait)
    repeats = -(-batch // count)
    some = np.concatenate([random.permutation(count) for _ in range(repeats)])
    some = some[: max(1, count // batch) * batch]
    high = np.frombuffer(portrait, np.bool_)[some]
    wide, tall = some[~high], some[high]
    # The rests of both are one batch together, or none: all are a whole number of batches.
    rests = [part[len(part) // batch * batch :] for part in (wide, tall)]
    whole = [part[: len(part) // batch * batch] for part in (wide, tall)]
    batches = np.concatenate([*whole, *rests]).reshape(-1, batch)
    return batches[random.permutation(len(batches))]


def flips(batch: int, seed: int, step: int) -> list[bool]:
    """Which images of a step, all processes together, are mirrored."""
    flipped: list[bool] = (_generator(seed, step, _Purpose.FLIP).random(batch) < 0.5).tolist()
    return flipped


def _generator(seed: int, number: int, purpose: _Purpose) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, number, int(purpose)])))


# --- reading ahead ---


def train_batches(
    data: DetectionSet,
    batch: int,
    seed: int,
    start: int,
    stop: int,
    threads: int,
    rank: int = 0,
    world: int = 1,
    pin: bool = False,
) -> Generator[Batch, None, None]:
    """This process's share, batch // world images, of each step from `start` to `stop` - 1.

    With `pin`, for a GPU, images lie in page-locked memory. Closing the generator ends its threads.
    """
    if batch % world:
        raise ValueError(f"{world} processes cannot share a batch of {batch} equally")
    portrait = orientations(data)
    share = slice(rank * batch // world, (rank + 1) * batch // world)

    def plan(step: int) -> _Plan:
        order = batch_order(portrait, batch, seed, step)
        return list(zip(order, flips(batch, seed, step), strict=True))[share], _shapes(data, order)

    return _read_ahead(data, map(plan, range(start, stop)), batch // world, threads, pin)


def test_batches(
    data: DetectionSet, batch: int, threads: int, rank: int = 0, world: int = 1, pin: bool = False
) -> Generator[Batch, None, None]:
    """Every image once, in order, as it is, in batches that are the same for any number of processes: every world-th
    of them is this process's."""
    numbers = range(len(data.images))
    mine = (numbers[first : first + batch] for first in range(rank * batch, len(numbers), world * batch))
    plans = (([(index, False) for index in some], _shapes(data, some)) for some in mine)
    return _read_ahead(data, plans, batch, threads, pin)


def _shapes(data: DetectionSet, indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    return tuple((data.images[index].height, data.images[index].width) for index in indices)


def _read_ahead(
    data: DetectionSet, plans: Iterable[_Plan], size: int, threads: int, pin: bool
) -> Generator[Batch, None, None]:
    """Planned batches, in order, a few of them ahead of whoever asks."""
    ahead = size * _batches_ahead(data, size)
    plans, again = tee(plans)
    images = ((data.images[index], flip) for plan in again for index, flip in plan[0])
    with closing(map_ahead(lambda image: _read(*image, pin), images, threads or available_cores(), ahead)) as read:
        for plan in plans:
            yield _gathered(plan, list(islice(read, len(plan[0]))))


def _batches_ahead(data: DetectionSet, size: int) -> int:
    """How many batches lie in memory beside the one that is used: fewer of large images."""
    pixels = sum(image.width * image.height for image in data.images) / len(data.images)
    return max(1, min(_AHEAD, int(_MOST_AHEAD / (3 * pixels * size))))


@dataclass(frozen=True)
class _Read:
    """An image as a batch has it."""

    pixels: Tensor
    target: dict[str, Tensor]
    unreadable: str


def _gathered(plan: _Plan, read: Sequence[_Read]) -> Batch:
    return Batch(
        indices=tuple(index for index, _ in plan[0]),
        images=[one.pixels for one in read],
        targets=[one.target for one in read],
        unreadable=tuple(one.unreadable for one in read if one.unreadable),
        shapes=plan[1],
    )


# --- one image ---


def _read(image: DetectionImage, flip: bool, pin: bool) -> _Read:
    try:
        pixels = _whole_image(image)
    except (OSError, ValueError) as error:
        grey = torch.full((3, image.height, image.width), _GREY, dtype=torch.uint8, pin_memory=pin)
        return _Read(grey, _target(image, np.zeros(0, np.int64), False), f"{str(image.path)!r}: {first_line(error)}")
    memory = torch.empty((3, image.height, image.width), dtype=torch.uint8, pin_memory=pin)
    # NumPy copies in this thread; torch would start threads of its own in each of ours.
    np.copyto(memory.numpy(), pixels.numpy()[:, :, ::-1] if flip else pixels.numpy())
    return _Read(memory, _target(image, np.flatnonzero(~image.crowd), flip), "")


def _target(image: DetectionImage, some: NDArray[np.int64], flip: bool) -> dict[str, Tensor]:
    """Some of the objects in an image, mirrored with it."""
    boxes = image.boxes[some]  # (n, 4)
    if flip:
        boxes = np.stack([image.width - boxes[:, 2], boxes[:, 1], image.width - boxes[:, 0], boxes[:, 3]], axis=1)
    return {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(image.labels[some])}


def _whole_image(image: DetectionImage) -> Tensor:
    """uint8 (3, height, width) of the size it had when the set was opened."""
    pixels = torch.from_numpy(read_image(image.path, reduce=False)).permute(2, 0, 1)
    height, width = pixels.shape[1:]
    if (width, height) != (image.width, image.height):
        raise ValueError(f"it is {width} × {height} now, not {image.width} × {image.height}")
    return pixels
