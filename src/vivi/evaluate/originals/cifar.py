"""CIFAR-100 in its binary version; the Python version is a pickle and is not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.deal import deal
from vivi.evaluate.originals.pixels import Pixels
from vivi.evaluate.originals.source import Source, by_reading, damaged

SHARES = (9, 1)
_RECORD = np.dtype([("coarse", "u1"), ("fine", "u1"), ("pixels", "u1", (3, 32, 32))])


def read(folder: Path) -> Original:
    labelled = _read_file(folder / "train.bin")
    train, val = deal(len(labelled), SHARES)
    return Original(labelled.take(train), labelled.take(val), _read_file(folder / "test.bin"))


def _read_file(path: Path) -> Examples:
    size = path.stat().st_size
    if size == 0 or size % _RECORD.itemsize:
        raise damaged(path, f"its {size} bytes are no whole number of {_RECORD.itemsize}-byte images")
    records = np.memmap(path, dtype=_RECORD, mode="r")
    labels = torch.from_numpy(records["fine"].astype(np.int64))
    if int(labels.max()) > 99:
        raise damaged(path, f"it has a label {int(labels.max())}, above 99")
    return Examples(Pixels(records["pixels"]), labels)


CIFAR100 = Source(
    folders=("cifar-100-binary", "cifar100/cifar-100-binary", "cifar/cifar-100-binary"),
    needs=("train.bin", "test.bin"),
    where="https://www.cs.toronto.edu/~kriz/cifar.html: the binary version, cifar-100-binary.tar.gz",
    read=read,
    count=by_reading(read),
)
