"""Pictures of different sizes in one piece of memory, on any device: what is decoded, kept and cropped from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Pixels:
    """n pictures; several may be the same one, in the same place."""

    memory: Tensor  # uint8 (bytes,)
    places: NDArray[np.int64]  # (n,): where each picture begins
    sizes: NDArray[np.int32]  # (n, 2): height and width
    planar: bool  # (3, height, width) in memory, as GPUs decode; else (height, width, 3), as CPUs do

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, which: slice | NDArray[np.int64]) -> Pixels:
        return replace(self, places=self.places[which], sizes=self.sizes[which])

    def picture(self, number: int) -> Tensor:
        """One of them: (3, height, width)."""
        place, (height, width) = int(self.places[number]), self.sizes[number].tolist()
        flat = self.memory[place : place + 3 * height * width]
        return flat.view(3, height, width) if self.planar else flat.view(height, width, 3).permute(2, 0, 1)

    def to(self, device: torch.device) -> Pixels:
        return replace(self, memory=self.memory.to(device, non_blocking=True))


@dataclass(frozen=True)
class Samples:
    """Pictures to be augmented, each by its own draws."""

    pixels: Pixels  # n
    draws: NDArray[np.float32]  # (n, DRAWS), in [0, 1)


def upload(values: Tensor, device: torch.device) -> Tensor:
    """On the device, without the host waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def pack(pictures: Sequence[Tensor], pin: bool = False) -> Pixels:
    """Pictures (3, height, width), all on one device, one after the other; with `pin`, in page-locked memory."""
    sizes = np.array([picture.shape[1:] for picture in pictures], np.int32).reshape(-1, 2)
    ends = np.cumsum(3 * sizes.prod(axis=1, dtype=np.int64))
    places = np.concatenate([[0], ends[:-1]]) if len(ends) else np.zeros(0, np.int64)
    if pictures and pictures[0].device.type != "cpu":
        return Pixels(torch.cat([picture.flatten() for picture in pictures]), places, sizes, planar=True)
    memory = torch.empty(int(ends[-1]) if len(ends) else 0, dtype=torch.uint8, pin_memory=pin)
    # As they come from the decoder, and through numpy: torch would start threads to copy.
    for place, end, picture in zip(places.tolist(), ends.tolist(), pictures, strict=True):
        memory.numpy()[place:end] = picture.permute(1, 2, 0).numpy().reshape(-1)
    return Pixels(memory, places, sizes, planar=False)


def join(parts: Sequence[Pixels]) -> Pixels:
    """All pictures of the parts, which lie on one device; nothing is copied where they share their memory."""
    first = parts[0]
    if all(part.memory is first.memory for part in parts):
        memory, before = first.memory, [0] * len(parts)
    else:
        memory = torch.cat([part.memory for part in parts])
        before = np.cumsum([0, *(len(part.memory) for part in parts[:-1])]).tolist()
    assert all(part.planar == first.planar for part in parts)
    places = np.concatenate([part.places + start for part, start in zip(parts, before, strict=True)])
    return Pixels(memory, places, np.concatenate([part.sizes for part in parts]), first.planar)
