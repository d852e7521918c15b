"""Data sets whose authors' lists say which image belongs where: DTD, Flowers102, Pets."""

from __future__ import annotations

from pathlib import Path

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.deal import deal
from vivi.evaluate.originals.files import examples
from vivi.evaluate.originals.matlab import read_matlab
from vivi.evaluate.originals.source import Source, by_reading, damaged, read_text
from vivi.runtime.storage import leads_out

PETS_SHARES = (4, 1)
_DTD_LISTS = tuple(f"labels/{split}1.txt" for split in ("train", "val", "test"))


def read_dtd(folder: Path) -> Original:
    """The first of its ten official splits; the class is the folder of an image."""
    lists = [_dtd_list(folder / name) for name in _DTD_LISTS]
    classes = sorted({_class(line) for lines in lists for line in lines})
    images = folder / "images"
    return Original(
        *(
            examples([images / line for line in lines], [classes.index(_class(line)) for line in lines])
            for lines in lists
        )
    )


def _class(line: str) -> str:
    return line.split("/")[0]


def _dtd_list(path: Path) -> list[str]:
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    wrong = next((line for line in lines if line.count("/") != 1 or leads_out(line)), None)
    if wrong is not None or not lines:
        raise damaged(path, f"its lines must be like banded/banded_0002.jpg, not {wrong or 'none'!r}")
    return lines


def read_flowers102(folder: Path) -> Original:
    (numbers,) = read_matlab(folder / "imagelabels.mat", "labels")
    labels = [int(number) - 1 for number in numbers.reshape(-1)]
    splits = read_matlab(folder / "setid.mat", "trnid", "valid", "tstid")
    return Original(*(_flowers(folder, labels, [int(image) for image in split.reshape(-1)]) for split in splits))


def _flowers(folder: Path, labels: list[int], images: list[int]) -> Examples:
    """Images are numbered from 1."""
    wrong = next((image for image in images if not 1 <= image <= len(labels)), None)
    if wrong is not None:
        raise damaged(folder / "setid.mat", f"it names image {wrong} but imagelabels.mat has {len(labels)} labels")
    paths = [folder / "jpg" / f"image_{image:05d}.jpg" for image in images]
    return examples(paths, [labels[image - 1] for image in images])


def read_pets(folder: Path) -> Original:
    labelled = _pets(folder, "trainval")
    train, val = deal(len(labelled), PETS_SHARES)
    return Original(labelled.take(train), labelled.take(val), _pets(folder, "test"))


def _pets(folder: Path, split: str) -> Examples:
    """The images of a list of lines like `Abyssinian_100 1 1 1`: image, class from 1, species, breed."""
    path = folder / "annotations" / f"{split}.txt"
    paths: list[Path] = []
    labels: list[int] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) < 2 or not words[1].isdecimal() or not 1 <= int(words[1]) <= 37 or leads_out(words[0]):
            raise damaged(path, f"line {number} is {line!r}, not an image and a class from 1 to 37")
        paths.append(folder / "images" / f"{words[0]}.jpg")
        labels.append(int(words[1]) - 1)
    if not paths:
        raise damaged(path, "it lists no images")
    return examples(paths, labels)


DTD = Source(
    folders=("dtd/dtd", "dtd"),
    needs=(*_DTD_LISTS, "images"),
    where="https://www.robots.ox.ac.uk/~vgg/data/dtd/: dtd-r1.0.1.tar.gz",
    read=read_dtd,
    count=by_reading(read_dtd),
)
FLOWERS102 = Source(
    folders=("flowers-102",),
    needs=("jpg", "imagelabels.mat", "setid.mat"),
    where="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/: 102flowers.tgz, imagelabels.mat and setid.mat",
    read=read_flowers102,
    count=by_reading(read_flowers102),
)
PETS = Source(
    folders=("oxford-iiit-pet",),
    needs=("images", "annotations/trainval.txt", "annotations/test.txt"),
    where="https://www.robots.ox.ac.uk/~vgg/data/pets/: images.tar.gz and annotations.tar.gz",
    read=read_pets,
    count=by_reading(read_pets),
)
