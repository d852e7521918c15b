"""Patch Camelyon: six HDF5 files, images and labels of three official splits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.source import Source, by_reading, damaged, need_module

# HDF5 forgets unpacked chunks beyond this many bytes; its default of 1 MiB may be less than a single one.
_CACHE = 64 << 20


class Patches(Sequence[Tensor]):
    """The images of one file, read when asked for. h5py lets one thread at a time into a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[type[Patches], tuple[Path]]:
        return Patches, (self.path,)  # an open file cannot be pickled: the other process opens it anew

    @cached_property
    def pixels(self) -> Any:
        return _open(self.path, "x")

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        try:
            pixels = self.pixels[index]  # (height, width, 3)
        except OSError as error:
            raise damaged(self.path, error) from None
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def read(folder: Path) -> Original:
    return Original(*(_read_split(folder, split) for split in ("train", "valid", "test")))


def _read_split(folder: Path, split: str) -> Examples:
    path = folder / f"camelyonpatch_level_2_split_{split}_y.h5"
    labels = torch.from_numpy(np.asarray(_open(path, "y")).reshape(-1).astype(np.int64))
    images = Patches(folder / f"camelyonpatch_level_2_split_{split}_x.h5")
    shape, kind = images.pixels.shape, images.pixels.dtype
    if len(shape) != 4 or shape[3] != 3 or kind != np.uint8 or shape[0] != len(labels):
        raise damaged(images.path, f"x is {kind} {shape} for {len(labels)} labels")
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise damaged(path, "it has labels other than 0 and 1")
    return Examples(images, labels)


def _open(path: Path, name: str) -> Any:
    h5py = need_module("h5py", "h5py")
    try:
        return h5py.File(path, "r", rdcc_nbytes=_CACHE)[name]
    except (FileNotFoundError, PermissionError):
        raise
    except (OSError, KeyError) as error:
        raise damaged(path, error) from None


PATCH_CAMELYON = Source(
    folders=("pcam", "pcamv1"),
    needs=tuple(
        f"camelyonpatch_level_2_split_{split}_{part}.h5" for split in ("train", "valid", "test") for part in "xy"
    ),
    where="https://github.com/basveeling/pcam: six files camelyonpatch_level_2_split_*.h5.gz, to be unpacked",
    read=read,
    count=by_reading(read),
)
