"""Labelled images and the tasks made of them, wherever they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vivi.transfer.tasks import Group


@dataclass(frozen=True)
class Examples:
    """Images and their labels. An image is a file, or uint8 (3, height, width) that is read when it is asked for."""

    images: Sequence[Path] | Sequence[Tensor]
    labels: Tensor  # (images,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def draw(self, count: int, seed: int) -> Examples:
        """So many of them, always the same for the same seed, in the order they have here."""
        random = torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=random)[:count].sort().values.tolist())

    def take(self, indices: Sequence[int]) -> Examples:
        return Examples(Chosen(self.images, indices), self.labels[torch.tensor(indices, dtype=torch.int64)])

    def and_then(self, others: Examples) -> Examples:
        return Examples(Joined(self.images, others.images), torch.cat([self.labels, others.labels]))


@dataclass(frozen=True)
class Chosen(Sequence):  # type: ignore[type-arg]
    """Some of a sequence."""

    items: Sequence[Path] | Sequence[Tensor]
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.items[self.indices[index]]


@dataclass(frozen=True)
class Joined(Sequence):  # type: ignore[type-arg]
    """One sequence, then another."""

    first: Sequence[Path] | Sequence[Tensor]
    second: Sequence[Path] | Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.first[index] if index < len(self.first) else self.second[index - len(self.first)]


@dataclass(frozen=True)
class Original:
    """A data set as its authors give it, in the splits of VTAB's full regime (of the right sizes, but dealt by us where
    it has none of its own)."""

    train: Examples
    val: Examples
    test: Examples
