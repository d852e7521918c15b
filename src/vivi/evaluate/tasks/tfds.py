"""VTAB's own splits, out of folders that TensorFlow Datasets (TFDS) prepared; TensorFlow is not needed.

<data>/<name>/[<config>/]<version>/dataset_info.json                      splits, and the records in each file
                                  <name>-<split>.tfrecord-00000-of-00005  records in the order of VTAB's splits

VTAB's first 800 of train are the first in the order of files. Its `take(1000)` of Version 1 is different: there TFDS
reads 16 files at a time, 16 records of each in turn. The rules are those of google-research/task_adaptation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vivi.evaluate.results import Protocol
from vivi.evaluate.tasks.definitions import Definition
from vivi.evaluate.tasks.examples import EncodedImage, Examples, Image, Task, damaged, vtab_task
from vivi.evaluate.tasks.tfrecord import Example, open_records
from vivi.runtime.errors import UserError
from vivi.runtime.storage import leads_out, read_file

Label = Callable[[Example], int]
Record = tuple[Path, int]
"""A file, and the number of a record in there."""
FILES_AT_ONCE = RECORDS_IN_TURN = 16


def object_count(example: Example) -> int:
    """CLEVR's scenes have 3 to 10 objects: classes 0 to 7."""
    return len(example.integers("objects/size")) - 3


def nearest_object(example: Example) -> int:
    """The class of the smallest third pixel coordinate, the distance from CLEVR's camera."""
    return clevr_distance(float(example.floats("objects/pixel_coords")[2::3].min()))


def clevr_distance(distance: float) -> int:
    """Up to and including 8, 8.5, 9, 9.5, 10, and farther."""
    return _bin(distance, (8.0, 8.5, 9.0, 9.5, 10.0))


def nearest_vehicle(example: Example) -> int:
    """The class of the distance in metres to KITTI's nearest car, van or truck, which are types 0, 1 and 2."""
    kinds = np.array(example.integers("objects/type"), dtype=np.int64)
    distances = example.floats("objects/location")[2::3]
    if len(distances) != len(kinds):
        raise ValueError(f"it has {len(kinds)} objects and {len(distances)} places of objects")
    return kitti_distance(distances[kinds < 3].tolist())


def kitti_distance(metres: Sequence[float]) -> int:
    """Of the nearest: up to and including 8 m, up to 20 m, farther, or no vehicle."""
    return _bin(min([*metres, 1000.0]), (8.0, 20.0, 999.0))


def _bin(value: float, ends: Sequence[float]) -> int:
    """VTAB compares in 32 bits."""
    return int(np.searchsorted(np.array(ends, dtype=np.float32), np.float32(value), side="left"))


def by_label(example: Example) -> int:
    return example.integer("label")


@dataclass(frozen=True)
class Source:
    """Where TFDS keeps a task's data set, which major version VTAB uses, and which parts of its splits are VTAB's."""

    folder: str
    version: int
    train: str = "train"
    val: str = "validation"
    test: str = "test"
    label: Label = by_label
    scale: int = 1  # pixels are multiplied by it


_CLEVR = ("clevr", 3, "train[:90%]", "train[90%:]", "validation")  # its test images have no scenes
_DSPRITES = ("dsprites", 2, "train[:80%]", "train[80%:90%]", "train[90%:]")
_SMALLNORB = ("smallnorb", 2, "train", "test[:50%]", "test[50%:]")
SOURCES = {
    "caltech101": Source("caltech101", 3, "train[:90%]", "train[90%:]"),
    "cifar100": Source("cifar100", 3, "train[:90%]", "train[90%:]"),
    "dtd": Source("dtd", 3),
    "flowers102": Source("oxford_flowers102", 2),
    "pets": Source("oxford_iiit_pet", 3, "train[:80%]", "train[80%:]"),
    "svhn": Source("svhn_cropped", 3, "train[:90%]", "train[90%:]"),
    "sun397": Source("sun397/tfds", 4),
    "patch_camelyon": Source("patch_camelyon", 2),
    "eurosat": Source("eurosat/rgb", 2, "train[:60%]", "train[60%:80%]", "train[80%:]"),
    "resisc45": Source("resisc45", 3, "train[:60%]", "train[60%:80%]", "train[80%:]"),
    "diabetic_retinopathy": Source("diabetic_retinopathy_detection/btgraham-300", 3),
    "clevr_count": Source(*_CLEVR, object_count),
    "clevr_distance": Source(*_CLEVR, nearest_object),
    "dmlab": Source("dmlab", 2),
    "kitti_distance": Source("kitti", 3, label=nearest_vehicle),
    # 32 positions, two in a class; 40 orientations in 16 classes; pixels are 0 and 1.
    "dsprites_location": Source(*_DSPRITES, lambda e: e.integer("label_x_position") // 2, 255),
    "dsprites_orientation": Source(*_DSPRITES, lambda e: e.integer("label_orientation") * 2 // 5, 255),
    "smallnorb_azimuth": Source(*_SMALLNORB, lambda e: e.integer("label_azimuth")),
    "smallnorb_elevation": Source(*_SMALLNORB, lambda e: e.integer("label_elevation")),
}


def find_folder(name: str, data: Path) -> Path | None:
    """The folder of the version that VTAB uses, or else of the newest; None where TFDS prepared nothing."""
    source = SOURCES[name]
    folders = [path.parent for path in (data / source.folder).glob("*/dataset_info.json")]

    def preference(folder: Path) -> tuple[bool, list[int]]:
        version = [int(number) for number in folder.name.split(".")]
        return version[0] == source.version, version

    return max((f for f in folders if re.fullmatch(r"\d+(\.\d+)*", f.name)), key=preference, default=None)


class Folder:
    """A data set of one task as TFDS prepared it."""

    def __init__(self, known: Definition, folder: Path) -> None:
        self.known, self.folder, self.source = known, folder, SOURCES[known.name]
        self.parts = (self.source.train, self.source.val, self.source.test)
        info = folder / "dataset_info.json"
        try:
            content = json.loads(read_file(info))
            form = content.get("fileFormat") or "tfrecord"
            # Of each split the files, and how many records they have.
            self.splits = {str(split["name"]): self._files(split, content["name"]) for split in content["splits"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise damaged(info, f"{type(error).__name__}: {error}") from None
        if form != "tfrecord":
            raise UserError(f"{folder} is in TFDS's format {form}; prepare it again with file_format='tfrecord'")
        for split in (part.partition("[")[0] for part in self.parts):
            if split not in self.splits:
                raise damaged(info, f"it has no split {split}")
            for file in self.splits[split]:
                if not file.is_file():
                    raise UserError(f"{file} is missing; get it again, or prepare the data set again")

    def _files(self, split: dict[str, Any], dataset: str) -> dict[Path, int]:
        template = split.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        words = {"DATASET": dataset, "SPLIT": split["name"], "FILEFORMAT": "tfrecord"}
        lengths = [int(length) for length in split["shardLengths"]]
        files = {}
        for index, length in enumerate(lengths):
            shard, shards = f"{index:05d}", f"{len(lengths):05d}"
            numbers = {"SHARD_INDEX": shard, "NUM_SHARDS": shards, "SHARD_X_OF_Y": f"{shard}-of-{shards}"}
            name = template.format(**words, **numbers)
            if leads_out(name) or length < 0:
                raise ValueError(f"{name} of {length} records is no file in the folder")
            files[self.folder / name] = length
        return files

    def records(self, part: str) -> list[Record]:
        """Those of a part of a split, in the order of the files. VTAB cuts at whole per cents, rounded down."""
        split, _, cut = part.removesuffix("]").replace("%", "").partition("[")
        start, _, end = cut.partition(":")
        whole = [(path, number) for path, length in self.splits[split].items() for number in range(length)]
        return whole[len(whole) * int(start or 0) // 100 : len(whole) * int(end or 100) // 100]

    def counts(self) -> tuple[int, ...]:
        """The sizes of VTAB's train, val and test."""
        return tuple(len(self.records(part)) for part in self.parts)

    def is_version(self) -> bool:
        return self.folder.name.split(".")[0] == str(self.source.version)

    def is_exact(self) -> bool:
        """Whether it is the data of VTAB: TFDS promises the same records in one order within a major version."""
        return self.is_version() and self.counts() == (self.known.train, self.known.val, self.known.test)

    def read(self, records: Sequence[Record]) -> Examples:
        """These records; their labels are read now, their images when they are asked for."""
        lengths = {path: length for files in self.splits.values() for path, length in files.items()}
        opened = lru_cache(FILES_AT_ONCE)(open_records)
        images: list[Image] = []
        labels: list[int] = []
        for path, number in records:
            data, spans = opened(path, lengths[path])
            try:
                example = Example(data, spans[number])
                label, (start, end) = self.source.label(example), example.image()
                if not 0 <= label < self.known.classes:
                    raise ValueError(f"its label {label} is none of 0 to {self.known.classes - 1}")
            except ValueError as error:
                raise damaged(path, f"record {number}: {error}") from None
            images.append(EncodedImage(path, start, end - start, self.source.scale))
            labels.append(label)
        return Examples(images, torch.tensor(labels, dtype=torch.int64))


def in_reading_order(records: Iterable[Record]) -> Iterator[Record]:
    """Records as TFDS reads them: 16 of each of 16 files in turn. A file that has ended makes room for the next."""
    files = (iter(list(same)) for _, same in groupby(records, lambda record: record[0]))
    places: list[Iterator[Record] | None] = [*islice(files, FILES_AT_ONCE)]
    while any(places):
        for place, file in enumerate(places):
            if file is not None:
                turn = list(islice(file, RECORDS_IN_TURN))
                yield from turn
                if len(turn) < RECORDS_IN_TURN:
                    places[place] = next(files, None)


def read_task(known: Definition, place: Path, protocol: Protocol) -> Task:
    """A task of VTAB with its own splits, if the folder has the version and the sizes of VTAB."""
    folder = Folder(known, place)
    train, val, test = (folder.records(part) for part in folder.parts)
    if protocol == "v1":
        sweep, validation = folder.read(list(islice(in_reading_order(train), 1000))), folder.read(val)
        final = folder.read(list(islice(in_reading_order(train + val), 1000)))
    else:
        small = protocol == "v2"
        sweep, validation = folder.read(train[:800] if small else train), folder.read(val[:200] if small else val)
        final = sweep.and_then(validation)
    split = "tfds" if folder.is_exact() else "own split"
    return vtab_task(known, split, sweep, validation, final, folder.read(test))
