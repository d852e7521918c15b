"""VTAB's own splits, out of folders that TensorFlow Datasets (TFDS) prepared; TensorFlow is not needed.

<data>/<name>/[<config>/]<version>/dataset_info.json                      splits, and the records in each file
                                  <name>-<split>.tfrecord-00000-of-00005  records in the order of VTAB's splits

VTAB's first 800 of train are the first in the order of files. Its `take(1000)` of Version 1 is different: there TFDS
reads 16 files at a time, 16 records of each in turn. The rules are those of google-research/task_adaptation.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.evaluate.tasks.definitions import Definition
from vivi.evaluate.tasks.examples import Examples, damaged, unreadable
from vivi.evaluate.tasks.tfrecord import Example, map_file, read_example, record_starts
from vivi.runtime.errors import UserError
from vivi.runtime.image_files import as_rgb, open_image
from vivi.runtime.storage import leads_out, read_file

Cut = tuple[str, int, int]
"""A part of one of TFDS's splits: its name, and from how many to how many per cent of its records."""
Label = Callable[[Example], int]
Records = NDArray[np.int64]
"""(records, 2): the number of a record's file, and its number in there."""

TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
FILES_AT_ONCE = RECORDS_IN_TURN = 16


@dataclass(frozen=True)
class Source:
    """Where TFDS keeps a task's data set, which major version VTAB uses, and how VTAB cuts it."""

    folder: str
    version: int
    train: Cut
    val: Cut
    test: Cut
    label: Label
    scale: int = 1  # pixels are multiplied by it


def class_of(feature: str, first: int = 1, of: int = 1) -> Label:
    """The label is an integer feature; where one class stands for several of its values, times `first` // `of`."""

    def label(example: Example) -> int:
        values = example.integers(feature)
        if len(values) != 1:
            raise ValueError(f"it has {len(values)} values of {feature}, not one")
        return values[0] * first // of

    return label


def object_count(example: Example) -> int:
    """CLEVR's scenes have 3 to 10 objects: classes 0 to 7."""
    return len(example.integers("objects/size")) - 3


def nearest_object(example: Example) -> int:
    """The class of the smallest third pixel coordinate, the distance from CLEVR's camera."""
    distances = example.floats("objects/pixel_coords")[2::3]
    if not len(distances):
        raise ValueError("it has no objects")
    return clevr_distance(float(distances.min()))


def clevr_distance(distance: float) -> int:
    """Up to and including 8, 8.5, 9, 9.5, 10, and farther; VTAB compares in 32 bits."""
    edges = np.array([8.0, 8.5, 9.0, 9.5, 10.0], dtype=np.float32)
    return int(np.searchsorted(edges, np.float32(distance), side="left"))


def nearest_vehicle(example: Example) -> int:
    """The class of the distance in metres to KITTI's nearest car, van or truck, which are types 0, 1 and 2."""
    kinds = np.array(example.integers("objects/type"), dtype=np.int64)
    distances = example.floats("objects/location")[2::3]
    if len(distances) != len(kinds):
        raise ValueError(f"it has {len(kinds)} objects and {len(distances)} places of objects")
    return kitti_distance(distances[kinds < 3].tolist())


def kitti_distance(metres: Sequence[float]) -> int:
    """Of the nearest: up to and including 8 m, up to 20 m, farther, or no vehicle."""
    edges = np.array([8.0, 20.0, 999.0], dtype=np.float32)
    return int(np.searchsorted(edges, np.float32(min([*metres, 1000.0])), side="left"))


def _cut(
    folder: str, version: int, percents: Sequence[int], test: str = "test", label: Label | None = None
) -> Source:
    """TFDS's train split cut at these per cents; what is left, or another split, is for the test."""
    ends = [0, *percents, 100]
    train, val, *rest = [("train", start, end) for start, end in pairwise(ends)]
    return Source(folder, version, train, val, rest[0] if rest else (test, 0, 100), label or class_of("label"))


def _own(folder: str, version: int, label: Label | None = None) -> Source:
    """The splits of TFDS."""
    train, val, test = ((split, 0, 100) for split in ("train", "validation", "test"))
    return Source(folder, version, train, val, test, label or class_of("label"))


def _dsprites(label: Label) -> Source:
    cut = _cut("dsprites", 2, (80, 90), label=label)
    return Source(cut.folder, cut.version, cut.train, cut.val, cut.test, label, scale=255)  # its pixels are 0 and 1


def _smallnorb(feature: str) -> Source:
    return Source("smallnorb", 2, ("train", 0, 100), ("test", 0, 50), ("test", 50, 100), class_of(feature))


SOURCES = {
    "caltech101": _cut("caltech101", 3, (90,)),
    "cifar100": _cut("cifar100", 3, (90,)),
    "dtd": _own("dtd", 3),
    "flowers102": _own("oxford_flowers102", 2),
    "pets": _cut("oxford_iiit_pet", 3, (80,)),
    "svhn": _cut("svhn_cropped", 3, (90,)),
    "sun397": _own("sun397/tfds", 4),
    "patch_camelyon": _own("patch_camelyon", 2),
    "eurosat": _cut("eurosat/rgb", 2, (60, 80)),
    "resisc45": _cut("resisc45", 3, (60, 80)),
    "diabetic_retinopathy": _own("diabetic_retinopathy_detection/btgraham-300", 3),
    # CLEVR's test images have no scenes: VTAB tests on its validation split.
    "clevr_count": _cut("clevr", 3, (90,), "validation", object_count),
    "clevr_distance": _cut("clevr", 3, (90,), "validation", nearest_object),
    "dmlab": _own("dmlab", 2),
    "kitti_distance": _own("kitti", 3, nearest_vehicle),
    "dsprites_location": _dsprites(class_of("label_x_position", 1, 2)),  # 32 positions, two in a class
    "dsprites_orientation": _dsprites(class_of("label_orientation", 2, 5)),  # 40 orientations in 16 classes
    "smallnorb_azimuth": _smallnorb("label_azimuth"),
    "smallnorb_elevation": _smallnorb("label_elevation"),
}


def find_folder(name: str, data: Path) -> Path | None:
    """The folder of the version that VTAB uses, or else of the newest; None where TFDS prepared nothing."""
    source = SOURCES[name]
    versions = {}
    for path in (data / source.folder).glob("*/dataset_info.json"):
        numbers = path.parent.name.split(".")
        if all(number.isdecimal() for number in numbers):
            versions[tuple(int(number) for number in numbers)] = path.parent
    if not versions:
        return None
    return versions[max(versions, key=lambda version: (version[0] == source.version, version))]


class Folder:
    """A data set of one task as TFDS prepared it: its files, and how many records each of them has."""

    def __init__(self, known: Definition, folder: Path) -> None:
        self.known, self.folder, self.source = known, folder, SOURCES[known.name]
        self.files: list[Path] = []
        self.lengths: list[int] = []
        self.splits: dict[str, range] = {}  # the numbers of its files
        info = folder / "dataset_info.json"
        try:
            content = json.loads(read_file(info))
            form = content.get("fileFormat") or "tfrecord"
            if form != "tfrecord":
                raise UserError(f"{folder} is in TFDS's format {form}; prepare it again with file_format='tfrecord'")
            for split in content["splits"]:
                self._add(split, content["name"], form)
        except OSError as error:
            raise unreadable(error, info) from None
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise damaged(info, f"{type(error).__name__}: {error}") from None
        for split, _, _ in (self.source.train, self.source.val, self.source.test):
            if split not in self.splits:
                raise damaged(info, f"it has no split {split}")
            for number in self.splits[split]:
                if not self.files[number].is_file():
                    raise UserError(f"{self.files[number]} is missing; get it again, or prepare the data set again")

    def _add(self, split: dict[str, object], dataset: str, form: str) -> None:
        lengths = [int(length) for length in split["shardLengths"]]  # type: ignore[attr-defined]
        template = str(split.get("filepathTemplate") or TEMPLATE)
        for index, length in enumerate(lengths):
            words = {
                "DATASET": dataset,
                "SPLIT": split["name"],
                "FILEFORMAT": form,
                "SHARD_INDEX": f"{index:05d}",
                "NUM_SHARDS": f"{len(lengths):05d}",
                "SHARD_X_OF_Y": f"{index:05d}-of-{len(lengths):05d}",
            }
            name = template.format(**words)
            if leads_out(name) or length < 0:
                raise ValueError(f"{name} of {length} records is no file in the folder")
            self.files.append(self.folder / name)
        self.splits[str(split["name"])] = range(len(self.lengths), len(self.files))
        self.lengths += lengths

    def records(self, cut: Cut) -> Records:
        """The records of a part of a split, in the order of the files. VTAB cuts at whole per cents, rounded down."""
        split, start, end = cut
        pairs = [
            np.stack([np.full(length, number), np.arange(length)], axis=1)
            for number in self.splits[split]
            if (length := self.lengths[number])
        ]
        whole = np.concatenate(pairs) if pairs else np.empty((0, 2), dtype=np.int64)
        return whole[len(whole) * start // 100 : len(whole) * end // 100]

    def counts(self) -> tuple[int, int, int]:
        """The sizes of VTAB's train, val and test."""
        train, val, test = (len(self.records(cut)) for cut in (self.source.train, self.source.val, self.source.test))
        return train, val, test

    def is_exact(self) -> bool:
        """Whether it is the data of VTAB: TFDS promises the same records in one order within a major version."""
        known = self.known
        return self.is_version() and self.counts() == (known.train, known.val, known.test)

    def is_version(self) -> bool:
        return self.folder.name.split(".")[0] == str(self.source.version)

    def read(self, records: Records) -> Examples:
        """These records; their labels are read now, their images when they are asked for."""
        spans = np.empty((len(records), 3), dtype=np.int64)
        labels = np.empty(len(records), dtype=np.int64)
        for number in np.unique(records[:, 0]):
            here = np.flatnonzero(records[:, 0] == number)
            path, wanted = self.files[number], records[here, 1]
            try:
                data = map_file(path)
            except OSError as error:
                raise unreadable(error, path) from None
            starts = record_starts(path, data, int(wanted.max()) + 1, self.lengths[number])
            for at, record in zip(here.tolist(), wanted.tolist(), strict=True):
                try:
                    example = read_example(data, (int(starts[record]), int(starts[record + 1]) - 16))
                    labels[at] = self._label(example)
                    start, end = example.image()
                except ValueError as error:
                    raise damaged(path, f"record {record}: {error}") from None
                spans[at] = number, start, end - start
        images = EncodedImages(tuple(self.files), spans, self.source.scale)
        return Examples(images, torch.from_numpy(labels))

    def _label(self, example: Example) -> int:
        label = self.source.label(example)
        if not 0 <= label < self.known.classes:
            raise ValueError(f"its label {label} is none of 0 to {self.known.classes - 1}")
        return label


def in_reading_order(records: Records) -> Iterator[NDArray[np.int64]]:
    """Records as TFDS reads them: 16 of each of 16 files in turn; a file that has ended makes room for the next one
    when its turn comes again."""
    files = iter(np.split(records, np.flatnonzero(np.diff(records[:, 0])) + 1))
    places: list[Iterator[NDArray[np.int64]] | None] = [None] * FILES_AT_ONCE
    more = True
    while more or any(places):
        for place, current in enumerate(places):
            if current is None and more:
                following = next(files, None)
                more = following is not None
                current = places[place] = None if following is None else iter(following)
            if current is not None:
                turn = list(islice(current, RECORDS_IN_TURN))
                yield from turn
                if len(turn) < RECORDS_IN_TURN:
                    places[place] = None


def first_read(records: Records, count: int) -> Records:
    """TFDS's take(count)."""
    return np.array(list(islice(in_reading_order(records), count)), dtype=np.int64).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class EncodedImages(Sequence[Tensor]):
    """PNG or JPEG inside files, decoded when asked for; no file stays open, so that threads do not meet."""

    files: tuple[Path, ...]
    spans: NDArray[np.int64]
    """For each image: which file, its first byte there, its length."""
    scale: int

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        file, start, length = (int(number) for number in self.spans[index])
        path = self.files[file]
        try:
            with path.open("rb") as opened:
                opened.seek(start)
                encoded = opened.read(length)
            with open_image(io.BytesIO(encoded)) as image:
                pixels = np.array(as_rgb(image)) * np.uint8(self.scale)
        except (OSError, ValueError) as error:
            raise damaged(path, f"the image at byte {start}: {error}") from None
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
