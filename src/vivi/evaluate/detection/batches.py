"""Batches of images and boxes, read ahead by threads: what a step sees is a function of (data, batch, seed, step)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, tee

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.decode import read_image
from vivi.data.packed import upload
from vivi.evaluate.detection.sets import DetectionImage, DetectionSet
from vivi.runtime.distributed import World
from vivi.runtime.errors import first_line
from vivi.runtime.machine import available_cores
from vivi.runtime.read_ahead import map_ahead

_AHEAD = 3  # batches that are being read while another one is computed
_MOST_AHEAD = 2 << 30  # bytes of them, if one alone is not more
_GREY = 128
_ORDER, _FLIP = 0, 1  # what random numbers are for: a part of what a seed means

Target = dict[str, Tensor]  # boxes float32 (n, 4), x1 y1 x2 y2 in pixels; labels int64 (n,) from 0; no crowds


@dataclass(frozen=True)
class Batch:
    """Images and the objects to be found in them."""

    indices: tuple[int, ...]  # of the images in their set
    images: list[Tensor]  # uint8 (3, height, width), on the CPU
    targets: list[Target]
    unreadable: tuple[str, ...]  # what is grey and without boxes because it could not be decoded
    shapes: tuple[tuple[int, int], ...]  # height and width of all images of the step, those of other processes too

    def pieces(self, at_once: int, device: torch.device) -> Iterator[tuple[list[Tensor], list[Target]]]:
        """Images and targets on the device, so many at once; 0: all."""
        at_once = at_once or len(self.images)
        for first in range(0, len(self.images), at_once):
            some = slice(first, first + at_once)
            targets = [{name: upload(part, device) for name, part in one.items()} for one in self.targets[some]]
            yield [upload(image, device) for image in self.images[some]], targets


# All images of a step; and those of this process, each with whether it is mirrored.
_Plan = tuple[Sequence[int], Sequence[tuple[int, bool]]]


def train_batches(
    data: DetectionSet, batch: int, seed: int, start: int, stop: int, threads: int, world: World
) -> Generator[Batch, None, None]:
    """This process's share of each step from `start` to `stop` - 1. Closing the generator ends its threads."""
    portrait = bytes(image.height > image.width for image in data.images)
    share = slice(world.rank * batch // world.size, (world.rank + 1) * batch // world.size)

    def plan(step: int) -> _Plan:
        order = batch_order(portrait, batch, seed, step)
        flips = _random(seed, step, _FLIP).random(batch) < 0.5
        return order, list(zip(order, flips.tolist(), strict=True))[share]

    return _read_ahead(data, map(plan, range(start, stop)), batch // world.size, threads, world)


def test_batches(data: DetectionSet, batch: int, threads: int, world: World) -> Generator[Batch, None, None]:
    """Every image once, in order, as it is, in batches that are the same for any number of processes: every so many
    of them is this process's."""
    firsts = range(world.rank * batch, len(data.images), world.size * batch)
    mine = (range(len(data.images))[first : first + batch] for first in firsts)
    plans = ((some, [(index, False) for index in some]) for some in mine)
    return _read_ahead(data, plans, batch, threads, world)


# --- which images ---


def batch_order(portrait: bytes, batch: int, seed: int, step: int) -> list[int]:
    """The images of a step; `portrait` says of each whether it is higher than wide. All but one batch an epoch are of
    one orientation, so that little is padded."""
    epoch, number = divmod(step, max(1, len(portrait) // batch))
    order: list[int] = _epoch(portrait, batch, seed, epoch)[number].tolist()
    return order


@lru_cache(maxsize=2)  # so that the cost of a step does not grow with the set
def _epoch(portrait: bytes, batch: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The batches of an epoch, (batches, batch). What is left over, any images, is left to the next permutation; a
    set smaller than a batch is repeated."""
    random = _random(seed, epoch, _ORDER)
    count = len(portrait)
    some = np.concatenate([random.permutation(count) for _ in range(-(-batch // count))])
    some = some[: max(1, count // batch) * batch]
    high = np.frombuffer(portrait, np.bool_)[some]
    parts = [(part, len(part) // batch * batch) for part in (some[~high], some[high])]
    # The rests of both are one batch together, or none: all are a whole number of batches.
    some = np.concatenate([part[:whole] for part, whole in parts] + [part[whole:] for part, whole in parts])
    batches = some.reshape(-1, batch)
    return batches[random.permutation(len(batches))]


def _random(seed: int, number: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, number, purpose])))


# --- reading ahead ---


def _read_ahead(
    data: DetectionSet, plans: Iterable[_Plan], size: int, threads: int, world: World
) -> Generator[Batch, None, None]:
    """Planned batches of this size, in order, a few of them ahead of whoever asks: fewer of large images."""
    pixels = sum(image.width * image.height for image in data.images) / len(data.images)
    ahead = max(1, min(_AHEAD, int(_MOST_AHEAD / (3 * pixels * size))))
    plans, again = tee(plans)
    images = ((data.images[index], flip) for _, mine in again for index, flip in mine)
    pin = world.device.type == "cuda"  # a GPU copies from page-locked memory by itself
    reading = map_ahead(lambda image: _read(*image, pin), images, threads or available_cores(), size * ahead)
    with closing(reading) as read:
        for everyone, mine in plans:
            pictures, targets, unreadable = zip(*islice(read, len(mine)), strict=True)
            shapes = tuple((data.images[index].height, data.images[index].width) for index in everyone)
            indices = tuple(index for index, _ in mine)
            yield Batch(indices, list(pictures), list(targets), tuple(filter(None, unreadable)), shapes)


def _read(image: DetectionImage, flip: bool, pin: bool) -> tuple[Tensor, Target, str]:
    """An image with its objects, mirrored or not; grey without any, and why, where it cannot be read."""
    try:
        pixels, objects, unreadable = read_image(image.path, reduce=False), ~image.crowd, ""
        height, width = pixels.shape[:2]
        if (width, height) != (image.width, image.height):
            raise ValueError(f"it is {width} × {height} now, not {image.width} × {image.height}")
    except (OSError, ValueError) as error:
        pixels = np.full((image.height, image.width, 3), _GREY, np.uint8)
        objects, unreadable = np.zeros_like(image.crowd), f"{str(image.path)!r}: {first_line(error)}"
    boxes = image.boxes[objects]  # (n, 4)
    if flip:
        pixels = pixels[:, ::-1]
        boxes = np.stack([image.width - boxes[:, 2], boxes[:, 1], image.width - boxes[:, 0], boxes[:, 3]], axis=1)
    memory = torch.empty((3, image.height, image.width), dtype=torch.uint8, pin_memory=pin)
    # NumPy copies in this thread; torch would start threads of its own in each of ours.
    np.copyto(memory.numpy(), pixels.transpose(2, 0, 1))
    target = {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(image.labels[objects])}
    return memory, target, unreadable
