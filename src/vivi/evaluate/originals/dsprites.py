"""dSprites: one npz file of 737280 pictures of zeros and ones, and the factors that they were drawn from.

Its member `metadata` is a pickle and is never touched.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.deal import deal, sizes
from vivi.evaluate.originals.pixels import Pixels
from vivi.evaluate.originals.source import Sizes, Source, damaged
from vivi.evaluate.originals.unpack import unpack

SHARES = (8, 1, 1)
_NAME = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
_ORIENTATION, _X = 3, 4  # of colour, shape, scale, orientation, x, y
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError)

Label = Callable[[NDArray[Any]], NDArray[Any]]


def location(factors: NDArray[Any]) -> NDArray[Any]:
    """32 horizontal positions in 16 classes of two."""
    return factors[:, _X] // 2


def orientation(factors: NDArray[Any]) -> NDArray[Any]:
    """40 orientations in 16 classes of two and a half: of 3, 2, 3, 2, ... orientations."""
    return factors[:, _ORIENTATION] * 2 // 5


def read(folder: Path, label: Label) -> Original:
    path = folder / _NAME
    factors = _factors(path)
    pictures = _pictures(path)
    if pictures.ndim != 3 or pictures.dtype != np.uint8 or len(pictures) != len(factors):
        raise damaged(path, f"imgs is {pictures.dtype} {pictures.shape} for {len(factors)} rows of factors")
    everything = Examples(Pixels(pictures, scale=255), torch.from_numpy(label(factors).astype(np.int64)))
    return Original(*(everything.take(part) for part in deal(len(everything), SHARES)))


def count(folder: Path) -> Sizes:
    train, val, test = sizes(len(_factors(folder / _NAME)), SHARES)
    return train, val, test


def _factors(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            factors = cast("NDArray[Any]", arrays["latents_classes"])
    except _DAMAGE as error:
        raise damaged(path, error) from None
    if factors.ndim != 2 or factors.shape[1] != 6 or len(factors) == 0:
        raise damaged(path, f"latents_classes has shape {factors.shape}")
    if factors.min() < 0 or factors[:, _ORIENTATION].max() > 39 or factors[:, _X].max() > 31:
        raise damaged(path, "latents_classes has orientations beyond 39 or positions beyond 31")
    return factors


def _pictures(path: Path) -> NDArray[Any]:
    """3 GB when unpacked: mapped from a file beside the npz, or in memory where that cannot be written."""
    target = path.with_name(f"{path.stem}.imgs.npy")
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo("imgs.npy")
            there = target.is_file() and target.stat().st_size == member.file_size
            with archive.open(member) as packed:
                if there or unpack(packed, target):
                    return cast("NDArray[Any]", np.load(target, mmap_mode="r", allow_pickle=False))
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return cast("NDArray[Any]", arrays["imgs"])
    except _DAMAGE as error:
        raise damaged(path, error) from None


def _source(label: Label) -> Source:
    return Source(
        folders=("dsprites", "dsprites-dataset"),
        needs=(_NAME,),
        where=f"https://github.com/google-deepmind/dsprites-dataset: {_NAME}",
        read=partial(read, label=label),
        count=count,
    )


DSPRITES_LOCATION = _source(location)
DSPRITES_ORIENTATION = _source(orientation)
