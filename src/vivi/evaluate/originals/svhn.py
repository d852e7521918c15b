"""SVHN's cropped digits: two MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.deal import deal, sizes
from vivi.evaluate.originals.matlab import read_matlab, shapes
from vivi.evaluate.originals.pixels import Pixels
from vivi.evaluate.originals.source import Sizes, Source, damaged

SHARES = (9, 1)
_TRAIN, _TEST = "train_32x32.mat", "test_32x32.mat"


def read(folder: Path) -> Original:
    labelled = _read_file(folder / _TRAIN)
    train, val = deal(len(labelled), SHARES)
    return Original(labelled.take(train), labelled.take(val), _read_file(folder / _TEST))


def count(folder: Path) -> Sizes:
    labelled, test = (shapes(folder / name).get("y", (0,))[0] for name in (_TRAIN, _TEST))
    train, val = sizes(labelled, SHARES)
    return train, val, test


def _read_file(path: Path) -> Examples:
    pixels, digits = read_matlab(path, "X", "y")
    if pixels.ndim != 4 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or pixels.shape[3] != digits.size:
        raise damaged(path, f"X is {pixels.dtype} {pixels.shape} for {digits.size} labels")
    labels = torch.from_numpy(digits.reshape(-1).astype(np.int64)) % 10  # 10 is the digit 0
    return Examples(Pixels(pixels.transpose(3, 2, 0, 1)), labels)


SVHN = Source(
    folders=("svhn", "SVHN"),
    needs=(_TRAIN, _TEST),
    where="http://ufldl.stanford.edu/housenumbers/: train_32x32.mat and test_32x32.mat",
    read=read,
    count=count,
)
