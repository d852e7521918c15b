"""Decoded images of different sizes in one piece of memory, on any device: what is cropped from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Image = NDArray[np.uint8]  # (height, width, 3), RGB


@dataclass(frozen=True)
class PackedImages:
    """n images, uint8 (height, width, 3) each; several may be the same one, in the same place."""

    memory: Tensor  # uint8 (bytes,)
    starts: NDArray[np.int64]  # (n,): where each image begins
    sizes: NDArray[np.int32]  # (n, 2): height and width

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, which: slice | NDArray[np.int64]) -> PackedImages:
        return PackedImages(self.memory, self.starts[which], self.sizes[which])

    def image(self, number: int) -> Tensor:
        """One of them: (height, width, 3)."""
        start, (height, width) = int(self.starts[number]), self.sizes[number].tolist()
        return self.memory[start : start + 3 * height * width].view(height, width, 3)


def pack(images: Sequence[Image], pin: bool = False) -> PackedImages:
    """Images one after the other; with `pin`, in page-locked memory, from which a GPU copies by itself."""
    sizes = np.array([image.shape[:2] for image in images], np.int32).reshape(-1, 2)
    lengths = 3 * sizes.prod(axis=1, dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    memory = torch.empty(int(lengths.sum()), dtype=torch.uint8, pin_memory=pin)
    content = memory.numpy()  # torch would start threads to copy
    for start, length, image in zip(starts.tolist(), lengths.tolist(), images, strict=True):
        content[start : start + length] = image.reshape(-1)
    return PackedImages(memory, starts, sizes)


def on_device(parts: Sequence[PackedImages], device: torch.device) -> PackedImages:
    """All images of the parts on the device, of which only what they need is copied there, each image once."""
    sizes = np.concatenate([part.sizes for part in parts])
    shared = parts[0].memory
    if shared.device.type == device.type and all(part.memory is shared for part in parts):
        return PackedImages(shared, np.concatenate([part.starts for part in parts]), sizes)
    pieces, starts, used = [], [], 0
    for part in parts:
        begins, first, inverse = np.unique(part.starts, return_index=True, return_inverse=True)
        lengths = 3 * part.sizes[first].prod(axis=1, dtype=np.int64)
        starts.append((used + np.cumsum(lengths) - lengths)[inverse])
        used += int(lengths.sum())
        ends = begins + lengths
        pieces += [part.memory[begins[low] : ends[high - 1]] for low, high in adjacent(begins, lengths)]
    memory = torch.empty(used, dtype=torch.uint8, device=device)
    for target, piece in zip(memory.split([len(piece) for piece in pieces]), pieces, strict=True):
        target.copy_(piece, non_blocking=True)
    return PackedImages(memory, np.concatenate(starts), sizes)


def adjacent(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """First and end of each run of pieces, sorted by their starts, that follow each other without a gap."""
    gaps = np.flatnonzero(starts[1:] != starts[:-1] + lengths[:-1]) + 1
    return list(pairwise([0, *gaps.tolist(), len(starts)])) if len(starts) else []


def upload(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device, without the host waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
