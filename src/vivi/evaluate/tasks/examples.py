"""Labelled images and the tasks made of them, wherever they come from."""

from __future__ import annotations

import errno
import hashlib
import io
import stat
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vivi.evaluate.tasks.definitions import Definition, Group
from vivi.runtime.errors import UserError
from vivi.runtime.image_files import as_rgb, open_image

# Images of each part whose content counts in the checksum: all of them may be many gigabytes.
SAMPLED = 32


class EncodedImage(NamedTuple):
    """A PNG or JPEG inside a file. No file stays open, so that threads do not meet."""

    path: Path
    start: int
    length: int
    scale: int = 1  # pixels are multiplied by it

    def read(self) -> Tensor:
        """uint8 (3, height, width)"""
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                encoded = file.read(self.length)
            with open_image(io.BytesIO(encoded)) as image:
                pixels = np.array(as_rgb(image)) * np.uint8(self.scale)
        except (OSError, ValueError) as error:
            raise damaged(self.path, f"the image at byte {self.start}: {error}") from None
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


Image = Path | EncodedImage | Tensor
"""A file, a part of one, or uint8 (3, height, width)."""


@dataclass(frozen=True)
class Examples:
    """Images and their labels."""

    images: Sequence[Image]
    labels: Tensor  # (images,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Examples:
        return Examples([self.images[index] for index in indices.tolist()], self.labels[indices])

    def draw(self, count: int, seed: int) -> Examples:
        """So many of them, always the same ones for the same seed, in the order they have here."""
        random = torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=random)[:count].sort().values)

    def and_then(self, others: Examples) -> Examples:
        return Examples([*self.images, *others.images], torch.cat([self.labels, others.labels]))


class Original(NamedTuple):
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
    _: KW_ONLY
    notes: tuple[str, ...] = ()  # how users' own images were split, what was left out and why, a line each

    def parts(self) -> dict[str, Examples]:
        return {"sweep": self.sweep, "validation": self.validation, "final": self.final, "test": self.test}

    def checksum(self) -> str:
        """Tells whether the data is the same: by its labels, the names and sizes of its files, and some images."""
        digest = hashlib.sha256(str(self.classes).encode())
        for name, examples in self.parts().items():
            digest.update(f"{name} {len(examples)}".encode())
            digest.update(examples.labels.numpy().tobytes())
            try:
                for image in examples.images:
                    if isinstance(image, Path):
                        name = f"{image.parent.name}/{image.name} {_size(image)}"
                        digest.update(name.encode("utf-8", "surrogateescape"))  # names of files need not be text
                for image in examples.images[:: max(1, len(examples) // SAMPLED)]:
                    if isinstance(image, Path):
                        digest.update(image.read_bytes())
                    else:
                        digest.update((image.read() if isinstance(image, EncodedImage) else image).numpy().tobytes())
            except OSError as error:
                raise unreadable(error) from None
        return digest.hexdigest()


def _size(image: Path) -> int:
    found = image.stat()
    if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for without end
        raise OSError(errno.EINVAL, "it is no file", str(image))
    return found.st_size


def vtab_task(
    known: Definition, split: str, sweep: Examples, validation: Examples, final: Examples, test: Examples
) -> Task:
    """A task of VTAB; raises where images are missing, or there are other classes."""
    task = Task(known.name, known.title, known.group, known.classes, split, sweep, validation, final, test)
    for part, examples in task.parts().items():
        if not len(examples):
            raise UserError(f"{known.title} has too few images: none is left for {part}; get the whole data set")
        if (classes := int(examples.labels.max()) + 1) > known.classes:
            raise UserError(
                f"{known.title} has {classes} classes, {known.classes} are known; "
                "take away the folders that are no classes"
            )
    return task


def damaged(path: Path, reason: str) -> UserError:
    """The error for a file that is there but not what it should be."""
    return UserError(f"{path} is damaged or not the right file ({reason}); get it again")


def unreadable(error: OSError) -> UserError:
    """The error for a file that is missing, or that the system does not let us read."""
    return UserError(f"{error.filename} cannot be read: {error.strerror}; put it there, or see to its permissions")
