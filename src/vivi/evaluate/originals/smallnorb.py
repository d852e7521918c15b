"""SmallNORB: binary matrices of photographed toys, with the azimuth and the elevation of the camera."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.deal import deal, sizes
from vivi.evaluate.originals.pixels import Pixels
from vivi.evaluate.originals.source import Sizes, Source, damaged
from vivi.evaluate.originals.unpack import Readable, unpack

SHARES = (1, 1)
"""Of the official test images, to val and test."""
_TRAINING = "smallnorb-5x46789x9x18x6x2x96x96-training"
_TESTING = "smallnorb-5x01235x9x18x6x2x96x96-testing"
_ELEVATION, _AZIMUTH = 1, 2  # of instance, elevation, azimuth, lighting
_KINDS: dict[int, np.dtype[Any]] = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
_DAMAGE = (gzip.BadGzipFile, zlib.error, EOFError, struct.error, ValueError)


def read(folder: Path, column: int) -> Original:
    test = _read_split(folder, _TESTING, column)
    first, second = deal(len(test), SHARES)
    return Original(_read_split(folder, _TRAINING, column), test.take(first), test.take(second))


def count(folder: Path) -> Sizes:
    train, test = (len(_labels(folder, split, _ELEVATION)) for split in (_TRAINING, _TESTING))
    first, second = sizes(test, SHARES)
    return train, first, second


def _read_split(folder: Path, split: str, column: int) -> Examples:
    labels = _labels(folder, split, column)
    path = _file(folder, f"{split}-dat.mat")
    pairs = map_matrix(path)
    if pairs.ndim != 4 or pairs.shape[:2] != (len(labels), 2) or pairs.dtype != np.uint8:
        raise damaged(path, f"it holds {pairs.dtype} {pairs.shape} for {len(labels)} labels")
    return Examples(Pixels(pairs[:, 0]), torch.from_numpy(labels))  # the first of two cameras


def _labels(folder: Path, split: str, column: int) -> NDArray[np.int64]:
    path = _file(folder, f"{split}-info.mat")
    info = load_matrix(path)
    if info.ndim != 2 or info.shape[1] != 4 or len(info) == 0:
        raise damaged(path, f"it holds {info.shape}, not four numbers for every image")
    values = info[:, column].astype(np.int64)
    # Azimuths are 0, 2, ... 34, in tens of degrees.
    step, classes = (2, 18) if column == _AZIMUTH else (1, 9)
    if (values % step).any() or values.min() < 0 or values.max() >= step * classes:
        reason = f"column {column} has values from {values.min()} to {values.max()}, not 0 to {step * (classes - 1)}"
        raise damaged(path, reason)
    return values // step


def _file(folder: Path, name: str) -> Path:
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"


def load_matrix(path: Path) -> NDArray[Any]:
    """A matrix file: magic number for the type, number of dimensions, dimensions (at least three), values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            kind, shape, _ = _header(file, path)
            return np.frombuffer(file.read(), dtype=kind, count=math.prod(shape)).reshape(shape)
    except _DAMAGE as error:
        raise damaged(path, error) from None


def map_matrix(path: Path) -> NDArray[Any]:
    """A matrix that is left in its file. One with the ending .gz is unpacked beside it, or else read into memory."""
    if path.suffix == ".gz":
        plain = path.with_suffix("")
        try:
            with gzip.open(path) as packed:
                unpacked = unpack(packed, plain)
        except _DAMAGE as error:
            raise damaged(path, error) from None
        return map_matrix(plain) if unpacked else load_matrix(path)
    try:
        with path.open("rb") as file:
            kind, shape, start = _header(file, path)
        return np.memmap(path, dtype=kind, mode="r", offset=start, shape=shape)
    except _DAMAGE as error:
        raise damaged(path, error) from None


def _header(file: Readable, path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Type, shape and where the values begin."""
    magic, dimensions = struct.unpack("<Ii", file.read(8))
    if magic not in _KINDS or not 1 <= dimensions <= 8:
        raise damaged(path, f"its magic number is {magic:#x}")
    stored = max(3, dimensions)
    shape = struct.unpack(f"<{stored}i", file.read(4 * stored))[:dimensions]
    if min(shape) < 1:
        raise damaged(path, f"its dimensions are {shape}")
    return _KINDS[magic], shape, 8 + 4 * stored


def _source(column: int) -> Source:
    return Source(
        folders=("smallnorb", "small_norb", "norb-v1.0-small"),
        needs=tuple(f"{split}-{part}.mat*" for split in (_TRAINING, _TESTING) for part in ("dat", "info")),
        where="https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/: -dat.mat.gz and -info.mat.gz, training and testing",
        read=partial(read, column=column),
        count=count,
    )


SMALLNORB_AZIMUTH = _source(_AZIMUTH)
SMALLNORB_ELEVATION = _source(_ELEVATION)
