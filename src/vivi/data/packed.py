"""Decoded images of different sizes in one piece of memory, on any device: what is cropped from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    unique = [np.unique(part.starts, return_index=True, return_inverse=True) for part in parts]
    sizes_of = (part.sizes[first] for part, (_, first, _) in zip(parts, unique, strict=True))
    lengths = [3 * each.prod(axis=1, dtype=np.int64) for each in sizes_of]
    memory = torch.empty(sum(int(part.sum()) for part in lengths), dtype=torch.uint8, device=device)
    starts, used = [], 0
    for part, (begins, _, inverse), length in zip(parts, unique, lengths, strict=True):
        there = used + np.cumsum(length) - length
        for first, last in adjacent(begins, length):
            count = int(length[first:last].sum())
            source = part.memory[int(begins[first]) : int(begins[first]) + count]
            memory[int(there[first]) : int(there[first]) + count].copy_(source, non_blocking=True)
        starts.append(there[inverse])
        used += int(length.sum())
    return PackedImages(memory, np.concatenate(starts), sizes)


def adjacent(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Of pieces in the order of their starts: from where to where they follow each other without a gap."""
    if not len(starts):
        return []
    begins = np.flatnonzero(np.concatenate([[True], starts[1:] != starts[:-1] + lengths[:-1]]))
    return list(zip(begins.tolist(), [*begins[1:].tolist(), len(starts)], strict=True))


def upload(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device, without the host waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
