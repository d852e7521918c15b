"""Labelled images and the tasks made of them, wherever they come from."""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivi.evaluate.tasks.definitions import Group
from vivi.runtime.errors import UserError, first_line

# Images of each part whose content counts: all of them may be many gigabytes.
SAMPLED = 32


@dataclass(frozen=True)
class Examples:
    """Images and their labels. An image is a file, or uint8 (3, height, width) that is read when it is asked for."""

    images: Sequence[Path | Tensor]
    labels: Tensor  # (images,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Examples:
        return Examples(Chosen(self.images, indices), self.labels[torch.tensor(indices, dtype=torch.int64)])

    def draw(self, count: int, seed: int) -> Examples:
        """So many of them, always the same ones for the same seed, in the order they have here."""
        random = torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=random)[:count].sort().values.tolist())

    def and_then(self, others: Examples) -> Examples:
        return Examples(Joined(self.images, others.images), torch.cat([self.labels, others.labels]))


class Chosen(Sequence[Any]):
    """Some of a sequence."""

    def __init__(self, items: Sequence[Any], indices: Sequence[int]) -> None:
        self.items, self.indices = items, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.items[self.indices[index]]


class Joined(Sequence[Any]):
    """One sequence, then another."""

    def __init__(self, first: Sequence[Any], second: Sequence[Any]) -> None:
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.first[index] if index < len(self.first) else self.second[index - len(self.first)]


@dataclass(frozen=True)
class Original:
    """A data set as its authors give it, in the splits of VTAB's full regime: of the right sizes, but dealt by us
    where it has none of its own."""

    train: Examples
    val: Examples
    test: Examples


@dataclass(frozen=True)
class Task:
    """A task under a protocol: settings are tried on `sweep` and judged on `validation`; the chosen one is trained on
    `final` and judged on `test`."""

    name: str
    title: str
    group: Group
    classes: int
    split: str  # "lists" or "tfds": the images of VTAB; "own split": others, or not all of them, or dealt by us
    sweep: Examples
    validation: Examples
    final: Examples
    test: Examples

    def parts(self) -> dict[str, Examples]:
        return {"sweep": self.sweep, "validation": self.validation, "final": self.final, "test": self.test}

    def checksum(self) -> str:
        """Tells whether the data is the same: by its labels, the names and sizes of its files, and some images."""
        digest = hashlib.sha256(str(self.classes).encode())
        for name, examples in self.parts().items():
            digest.update(f"{name} {len(examples)}".encode())
            digest.update(examples.labels.numpy().tobytes())
            for image in examples.images if isinstance(examples.images[0], Path) else ():
                assert isinstance(image, Path)
                name = f"{image.parent.name}/{image.name} {_size(image)}"
                digest.update(name.encode("utf-8", "surrogateescape"))  # names of files need not be text
            for index in range(0, len(examples), max(1, len(examples) // SAMPLED)):
                sampled = examples.images[index]
                digest.update(_content(sampled) if isinstance(sampled, Path) else sampled.numpy().tobytes())
        return digest.hexdigest()


def _size(image: Path) -> int:
    with _unreadable_named(image):
        found = image.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        return found.st_size


def _content(image: Path) -> bytes:
    with _unreadable_named(image):
        return image.read_bytes()


@contextmanager
def _unreadable_named(image: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"image {image} cannot be read: {error.strerror}; put it there or take it off its list"
        ) from None


def damaged(path: Path, reason: str | BaseException) -> UserError:
    """The error for a file that is there but not what it should be."""
    text = reason if isinstance(reason, str) else first_line(reason)
    return UserError(f"{path} is damaged or not the right file ({text}); get it again")


def unreadable(error: OSError, folder: Path) -> UserError:
    """The error for a file that the system does not let us read."""
    reason = error.strerror or first_line(error)
    return UserError(f"{error.filename or folder} cannot be read: {reason}; see to its permissions")
