"""Nine of VTAB's data sets as their authors give them, on splits of the right sizes that are not VTAB's.

They are a folder of images for each class, one of torchvision's data sets, or CIFAR-100's binary files; no pickle is
ever loaded. The other ten tasks are read from TFDS folders only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
from torchvision import datasets

from vivi.evaluate.results import Protocol
from vivi.evaluate.tasks.definitions import Definition, definition
from vivi.evaluate.tasks.examples import Examples, Original, Task, damaged, unreadable, vtab_task
from vivi.runtime.errors import UserError, first_line

# Of the draws of 1000, 800 and 200 images, which are the same for everyone.
DRAW = 2020
_SPLIT_SEED = 1910
_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".webp")
_CIFAR_RECORD = np.dtype([("coarse", "u1"), ("fine", "u1"), ("pixels", "u1", (3, 32, 32))])
# Cannot be decoded rightly, so that VTAB leaves it out.
_BAD_IMAGE_OF_SUN397 = "c/church/outdoor/sun_bhenjvsvrtumjuri.jpg"


@dataclass(frozen=True)
class Source:
    """Where a data set may lie under the user's folder, what must be there, where to get it, how it is read."""

    folders: tuple[str, ...]
    needs: tuple[str, ...]
    where: str
    read: Callable[[Path], list[Examples]]
    """Train, val and test; or train and val in one, or all three, dealt in these shares."""
    shares: tuple[int, ...] = ()


def find_original(name: str, data: Path) -> tuple[Path, tuple[str, ...]]:
    """The first folder in which everything lies, or else the one in which most does; and what is missing in it."""
    source, known = SOURCES[name], definition(name)
    names = dict.fromkeys([*source.folders, name, *(known.folders if known else ()), "."])
    missing = {data / folder: tuple(n for n in source.needs if not (data / folder / n).exists()) for folder in names}
    place = min(missing, key=lambda folder: len(missing[folder]))  # the first of several
    return place, missing[place]


def read_original(name: str, data: Path) -> Original:
    """A task's data set from under a folder; images are read when they are asked for."""
    source, (place, missing) = SOURCES[name], find_original(name, data)
    if missing:
        raise UserError(f"{place} has no {', '.join(missing)}, which {name} needs; get it: {source.where}")
    try:
        parts = source.read(place)
    except OSError as error:
        raise unreadable(error) from None
    return Original._make([*deal(parts[0], source.shares), *parts[1:]] if source.shares else parts)


def original_task(known: Definition, original: Original, protocol: Protocol) -> Task:
    """The task of an original data set; the draws are fixed, but not those of VTAB."""
    train, val, test = original
    if protocol == "v1":
        sweep, validation, final = train.draw(1000, DRAW), val, train.and_then(val).draw(1000, DRAW + 1)
    else:
        sweep, validation = (train.draw(800, DRAW), val.draw(200, DRAW)) if protocol == "v2" else (train, val)
        final = sweep.and_then(validation)
    return vtab_task(known, "own split", sweep, validation, final, test)


def sizes(count: int, shares: Sequence[int]) -> list[int]:
    """How many of `count` go to each share: shares (9, 1) of 50000 are 45000 and 5000."""
    ends = [count * part // sum(shares) for part in accumulate(shares)]
    return [end - start for start, end in pairwise([0, *ends])]


def deal(examples: Examples, shares: Sequence[int]) -> list[Examples]:
    """All examples in random parts of these shares: always the same for the same number of examples."""
    # numpy promises never to change what RandomState draws, so that a split outlives the numpy it was made with.
    shuffled = torch.from_numpy(np.random.RandomState(_SPLIT_SEED).permutation(len(examples)))
    return [examples.take(part.sort().values) for part in shuffled.split(sizes(len(examples), shares))]


def read_classes(folder: Path) -> list[Examples]:
    """The images of each folder below that has some, at any depth (Sun397's c/church/outdoor); classes are in
    alphabetic order, whatever their case."""
    classes: dict[str, list[Path]] = {}
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith((".", "__MACOSX"))]
        images = [Path(place, n) for n in sorted(names) if n.lower().endswith(_EXTENSIONS) and n[0] != "."]
        if images and Path(place) != folder:
            classes[Path(place).relative_to(folder).as_posix()] = images
    if not classes:
        raise UserError(f"{folder} has no images in the folders of its classes; unpack the data set's archive again")
    ordered = sorted(classes, key=lambda name: (name.lower(), name))
    pairs = [(path, label) for label, name in enumerate(ordered) for path in classes[name]]
    pairs = [(path, label) for path, label in pairs if path != folder / _BAD_IMAGE_OF_SUN397]
    return [Examples([path for path, _ in pairs], torch.tensor([label for _, label in pairs]))]


def read_caltech101(folder: Path) -> list[Examples]:
    """30 images of each class, or a third of one with no more, for train and val together; the others for test."""
    (everything,) = read_classes(folder)
    learn = torch.zeros(len(everything), dtype=torch.bool)
    for label in everything.labels.unique():
        images = (everything.labels == label).nonzero().flatten()
        drawn = 30 if len(images) > 30 else (len(images) + 2) // 3
        learn[images[np.random.RandomState(_SPLIT_SEED).permutation(len(images))[:drawn]]] = True
    return [everything.take(part.nonzero().flatten()) for part in (learn, ~learn)]


def read_torchvision(folder: Path, name: str, above: int, splits: Sequence[str]) -> list[Examples]:
    """The files and labels of a data set that torchvision looks for so many folders above."""
    parts = []
    for split in splits:
        try:
            found = getattr(datasets, name)([folder, *folder.parents][above], split=split, download=False)
        except (FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # torchvision's own, scipy's, those of odd lines: whatever the damage leads to
            raise damaged(folder, f"torchvision.datasets.{name}, {split}: {first_line(error)}") from None
        if name == "SVHN":
            parts.append(Examples([*torch.from_numpy(found.data)], torch.from_numpy(found.labels)))
            continue
        files: list[Path] = found._images if name == "OxfordIIITPet" else found._image_files
        for file in files:
            if ".." in file.parts:
                raise damaged(folder, f"it lists {file}, which leads out of it")
            if not file.is_file():
                raise UserError(f"image {file} is listed but missing; unpack the data set's archive again")
        if not files:
            raise damaged(folder, "it lists no images")
        parts.append(Examples(files, torch.tensor(found._labels, dtype=torch.int64)))
    return parts


def read_cifar100(folder: Path) -> list[Examples]:
    """The binary version; the Python version, which torchvision reads, is a pickle."""
    parts = []
    for path in (folder / "train.bin", folder / "test.bin"):
        size = path.stat().st_size
        if size == 0 or size % _CIFAR_RECORD.itemsize:
            raise damaged(path, f"its {size} bytes are no whole number of {_CIFAR_RECORD.itemsize}-byte images")
        records = np.memmap(path, dtype=_CIFAR_RECORD, mode="c")
        labels = torch.from_numpy(records["fine"].astype(np.int64))
        parts.append(Examples([*torch.from_numpy(records["pixels"])], labels))
    return parts


# One class's folder tells the data set from another's when both have one folder for each class.
SOURCES = {
    "caltech101": Source(
        ("caltech101/101_ObjectCategories", "101_ObjectCategories", "caltech-101/101_ObjectCategories"),
        ("BACKGROUND_Google",),
        "https://data.caltech.edu/records/mzrjq-6wc02: caltech-101.zip, and in it 101_ObjectCategories.tar.gz",
        read_caltech101,
        (9, 1),
    ),
    "cifar100": Source(
        ("cifar-100-binary", "cifar100/cifar-100-binary"),
        ("train.bin", "test.bin"),
        "https://www.cs.toronto.edu/~kriz/cifar.html: the binary version, cifar-100-binary.tar.gz",
        read_cifar100,
        (9, 1),
    ),
    "dtd": Source(
        ("dtd/dtd",),
        ("labels/train1.txt", "labels/val1.txt", "labels/test1.txt", "images"),
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/: dtd-r1.0.1.tar.gz, unpacked in a folder dtd",
        # The first of its ten official partitions.
        partial(read_torchvision, name="DTD", above=2, splits=("train", "val", "test")),
    ),
    "flowers102": Source(
        ("flowers-102",),
        ("jpg", "imagelabels.mat", "setid.mat"),
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/: 102flowers.tgz, imagelabels.mat and setid.mat",
        partial(read_torchvision, name="Flowers102", above=1, splits=("train", "val", "test")),
    ),
    "pets": Source(
        ("oxford-iiit-pet",),
        ("images", "annotations/trainval.txt", "annotations/test.txt"),
        "https://www.robots.ox.ac.uk/~vgg/data/pets/: images.tar.gz and annotations.tar.gz",
        partial(read_torchvision, name="OxfordIIITPet", above=1, splits=("trainval", "test")),
        (4, 1),
    ),
    "svhn": Source(
        ("svhn", "SVHN"),
        ("train_32x32.mat", "test_32x32.mat"),
        "http://ufldl.stanford.edu/housenumbers/: train_32x32.mat and test_32x32.mat",
        partial(read_torchvision, name="SVHN", above=0, splits=("train", "test")),
        (9, 1),
    ),
    "sun397": Source(
        ("SUN397", "sun397/SUN397"),
        ("a/abbey",),
        "https://vision.princeton.edu/projects/2010/SUN/: SUN397.tar.gz",
        read_classes,
        (76128, 10875, 21750),
    ),
    "eurosat": Source(
        ("eurosat/2750", "eurosat/EuroSAT_RGB", "EuroSAT_RGB", "2750", "EuroSAT"),
        ("AnnualCrop",),
        "https://github.com/phelber/eurosat: EuroSAT.zip, the RGB version",
        read_classes,
        (3, 1, 1),
    ),
    "resisc45": Source(
        ("NWPU-RESISC45", "resisc45/NWPU-RESISC45"),
        ("airplane", "wetland"),
        "https://gcheng-nwpu.github.io/#Datasets: NWPU-RESISC45.rar",
        read_classes,
        (3, 1, 1),
    ),
}
