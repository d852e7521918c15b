"""Images at the size an encoder sees, kept on the device where they fit, else read as needed; features of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice, tee
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as vision

from vivi.evaluate.tasks.examples import Examples, Image
from vivi.model.features import encode
from vivi.runtime.errors import UserError
from vivi.runtime.image_files import as_rgb, open_image
from vivi.runtime.machine import available_cores
from vivi.runtime.read_ahead import map_ahead

# The share of the device's memory that the images of a split may take. The rest is for the network.
SHARE = 0.2
BATCH = 256
_AHEAD = 3 * BATCH


def read_image(path: Path) -> Tensor:
    """An image file of any kind as RGB: uint8 (3, height, width)."""
    try:
        with open_image(path) as image:
            pixels = np.array(as_rgb(image))  # (height, width, 3)
    except (OSError, ValueError) as error:
        raise UserError(f"image {path} cannot be read: {error}; replace it or take it off its list") from None
    return torch.from_numpy(pixels).permute(2, 0, 1)


def square(image: Image, size: int, antialias: bool = True) -> Tensor:
    """The whole image resized to uint8 (3, size, size), as VTAB does; its sides may change their ratio."""
    if not isinstance(image, Tensor):
        image = read_image(image) if isinstance(image, Path) else image.read()
    resized: Tensor = vision.resize(image, [size, size], antialias=antialias)
    return resized.contiguous()


def embed(
    encoder: nn.Module,
    images: Iterable[Image],
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
    batch: int = BATCH,
    report: Callable[[int], None] = lambda images: None,
) -> Tensor:
    """The encoder's features (images, d) of images, float32 on the CPU; `mean` and `std` are those of the three
    channels where pixels lie between 0 and 1. `report` is called with the number of images of each batch."""
    with closing(map_ahead(partial(square, size=size), images, available_cores(), 2 * batch)) as squares:

        def batches() -> Iterator[Tensor]:
            while part := list(islice(squares, batch)):
                yield torch.stack(part)
                report(len(part))

        return encode(encoder, batches(), mean, std, device)


class Pictures:
    """The images of a split as uint8 (height, width, 3), which is channels_last from the start, and their labels."""

    def __init__(
        self, examples: Examples, size: int, antialias: bool, device: torch.device, threads: int = 0
    ) -> None:
        self.examples, self.size, self.antialias, self.device = examples, size, antialias, device
        self.threads = threads or available_cores()
        self.labels = examples.labels.to(device)
        self.resident: Tensor | None = None
        if len(self) * size * size * 3 <= SHARE * _memory(device):
            self.resident = torch.empty(len(self), size, size, 3, dtype=torch.uint8, device=device)
            for indices, images in self._read(torch.arange(len(self)).split(BATCH)):
                self.resident[indices[0] : indices[-1] + 1] = images.to(device)

    def __len__(self) -> int:
        return len(self.examples)

    def batches(self, order: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each (n,) of indices: images uint8 (n, size, size, 3) and labels (n,), on the device."""
        if self.resident is not None:
            for indices in order:
                on_device = indices.to(self.device, non_blocking=True)
                yield self.resident[on_device], self.labels[on_device]
            return
        for indices, images in self._read(order):
            pixels = images.pin_memory() if self.device.type == "cuda" else images
            yield pixels.to(self.device, non_blocking=True), self.labels[indices.to(self.device)]

    def _read(self, order: Iterable[Tensor]) -> Generator[tuple[Tensor, Tensor], None, None]:
        """Indices and their images, read and resized in threads: both release Python's lock."""

        def read(index: int) -> Tensor:
            return square(self.examples.images[index], self.size, self.antialias).permute(1, 2, 0)

        order, again = tee(order)
        indices = (index for batch in again for index in batch.tolist())
        with closing(map_ahead(read, indices, self.threads, _AHEAD)) as images:
            for batch in order:
                yield batch, torch.stack(list(islice(images, len(batch))))


def _memory(device: torch.device) -> float:
    """Bytes of memory that the device has."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
