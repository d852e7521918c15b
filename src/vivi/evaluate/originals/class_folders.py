"""Data sets with one folder of images for each class: Caltech101, EuroSAT, Resisc45, Sun397."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.deal import deal
from vivi.evaluate.originals.files import images_among
from vivi.evaluate.originals.source import Source, by_reading
from vivi.runtime.errors import UserError

EUROSAT_SHARES = RESISC45_SHARES = (3, 1, 1)
SUN397_SHARES = (76128, 10875, 21750)
CALTECH101_SHARES = (9, 1)
CALTECH101_TRAIN = 30
"""Images of each class for training and validation."""

# Cannot be decoded rightly, so that VTAB leaves it out.
_BAD_IMAGE = "c/church/outdoor/sun_bhenjvsvrtumjuri.jpg"


def read(folder: Path, shares: tuple[int, int, int]) -> Original:
    """All images dealt over train, val and test."""
    everything, _ = _read_classes(folder)
    return Original(*(everything.take(part) for part in deal(len(everything), shares)))


def read_caltech101(folder: Path) -> Original:
    """So many images of each class for train and val together, the others for test."""
    everything, counts = _read_classes(folder)
    labelled, test = deal_caltech101(counts)
    train, val = deal(len(labelled), CALTECH101_SHARES)
    learn = everything.take(labelled)
    return Original(learn.take(train), learn.take(val), everything.take(test))


def deal_caltech101(counts: list[int]) -> tuple[list[int], list[int]]:
    """Indices for training and for test of images that are ordered by class, so many of each."""
    train: list[int] = []
    test: list[int] = []
    start = 0
    for count in counts:
        # Every class of the whole data set has more than 30; a piece of it keeps about the proportion.
        drawn = CALTECH101_TRAIN if count > CALTECH101_TRAIN else (count + 2) // 3
        chosen, rest = deal(count, (drawn, count - drawn))
        train += [start + index for index in chosen]
        test += [start + index for index in rest]
        start += count
    return train, test


def _read_classes(folder: Path) -> tuple[Examples, list[int]]:
    """All images of a folder, by class, and how many each class has."""
    classes = class_images(folder)
    if not classes:
        raise UserError(f"{folder} has no images in the folders of its classes; unpack the data set's archive again")
    counts = [len(images) for images in classes.values()]
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    return Examples(tuple(path for images in classes.values() for path in images), torch.tensor(labels)), counts


def class_images(folder: Path) -> dict[str, list[Path]]:
    """The images of each class, that is of each folder below that has some, at any depth (Sun397's c/church/outdoor).

    Classes are in alphabetic order, whatever their case.
    """
    classes: dict[str, list[Path]] = {}
    for place, below, files in os.walk(folder):
        below[:] = [name for name in below if not name.startswith((".", "__MACOSX"))]
        images = [path for name in images_among(files) if (path := Path(place, name)) != folder / _BAD_IMAGE]
        if images and Path(place) != folder:
            classes[Path(place).relative_to(folder).as_posix()] = images
    return {name: classes[name] for name in sorted(classes, key=lambda name: (name.lower(), name))}


_read_eurosat = partial(read, shares=EUROSAT_SHARES)
_read_resisc45 = partial(read, shares=RESISC45_SHARES)
_read_sun397 = partial(read, shares=SUN397_SHARES)

# One class's folder tells the data set from another's when both have one folder for each class.
CALTECH101 = Source(
    folders=(
        "caltech101/101_ObjectCategories",
        "101_ObjectCategories",
        "caltech-101/101_ObjectCategories",
        "caltech101/caltech-101/101_ObjectCategories",
    ),
    needs=("BACKGROUND_Google",),
    where="https://data.caltech.edu/records/mzrjq-6wc02: caltech-101.zip, and in it 101_ObjectCategories.tar.gz",
    read=read_caltech101,
    count=by_reading(read_caltech101),
)
EUROSAT = Source(
    folders=("eurosat/2750", "eurosat/EuroSAT_RGB", "EuroSAT_RGB", "EuroSAT/2750", "2750", "EuroSAT"),
    needs=("AnnualCrop",),
    where="https://github.com/phelber/eurosat: EuroSAT.zip, the RGB version",
    read=_read_eurosat,
    count=by_reading(_read_eurosat),
)
RESISC45 = Source(
    folders=("NWPU-RESISC45", "resisc45/NWPU-RESISC45"),
    needs=("airplane",),
    where="https://gcheng-nwpu.github.io/#Datasets: NWPU-RESISC45.rar",
    read=_read_resisc45,
    count=by_reading(_read_resisc45),
)
SUN397 = Source(
    folders=("SUN397", "sun397/SUN397"),
    needs=("a/abbey",),
    where="https://vision.princeton.edu/projects/2010/SUN/: SUN397.tar.gz",
    read=_read_sun397,
    count=by_reading(_read_sun397),
)
