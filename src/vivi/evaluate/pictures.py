"""The images of a split at the size an encoder sees: on the device where they fit, else read as they go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice, tee

import torch
from torch import Tensor

from vivi.evaluate.features import square
from vivi.evaluate.tasks.examples import Examples
from vivi.runtime.machine import available_cores
from vivi.runtime.read_ahead import map_ahead

# The share of the device's memory that the images of a split may take. The rest is for the network.
SHARE = 0.2
_CHUNK = 256
_AHEAD = 3 * _CHUNK


class Pictures:
    """Images as uint8 (height, width, 3), which is channels_last from the start, and their labels."""

    def __init__(
        self,
        examples: Examples,
        size: int,
        antialias: bool,
        device: torch.device,
        threads: int = 0,
        most_bytes: float | None = None,
    ) -> None:
        self.examples, self.size, self.antialias, self.device = examples, size, antialias, device
        self.threads = threads or available_cores()
        self.labels = examples.labels.to(device)
        self.resident: Tensor | None = None
        if len(self) * size * size * 3 <= (_memory(device) * SHARE if most_bytes is None else most_bytes):
            self.resident = torch.empty(len(self), size, size, 3, dtype=torch.uint8, device=device)
            for indices, images in self._read(torch.arange(len(self)).split(_CHUNK)):
                self.resident[indices[0] : indices[-1] + 1] = images.to(device)

    def __len__(self) -> int:
        return len(self.examples)

    def batches(self, order: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """For each (n,) of indices: images uint8 (n, size, size, 3) and labels (n,), on the device."""
        if self.resident is not None:
            for indices in order:
                here = indices.to(self.device, non_blocking=True)
                yield self.resident[here], self.labels[here]
            return
        for indices, images in self._read(order):
            pixels = images.pin_memory() if self.device.type == "cuda" else images
            yield pixels.to(self.device, non_blocking=True), self.labels[indices.to(self.device)]

    def _read(self, order: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Indices and their images, in threads: reading and resizing leaves Python to itself."""

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
