"""KITTI's object detection images: how near the nearest car, van or truck is."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.deal import deal
from vivi.evaluate.originals.files import image_names
from vivi.evaluate.originals.source import Source, by_reading, damaged, read_text
from vivi.runtime.errors import UserError

SHARES = (6347, 423, 711)
"""Where the videos of the images are not known."""
_VEHICLES = {"Car", "Van", "Truck"}
_METRES = (8.0, 20.0, 999.0)
_NO_VEHICLE = 1000.0


def read(folder: Path) -> Original:
    images = folder / "training" / "image_2"
    names = image_names(images)
    labels = [_label(folder / "training" / "label_2" / f"{Path(name).stem}.txt") for name in names]
    if not names:
        raise UserError(f"{images} has no images; unpack data_object_image_2.zip again")
    everything = Examples(tuple(images / name for name in names), torch.tensor(labels))
    mapping = _mapping(folder)
    parts = deal(len(names), SHARES) if mapping is None else _by_video(names, mapping)
    return Original(*(everything.take(part) for part in parts))


def _label(path: Path) -> int:
    """Of a file with a line for each object: its type, and 14 numbers of which the 13th is the distance in metres."""
    if not path.is_file():
        raise UserError(f"{path} is missing though its image is there; unpack data_object_label_2.zip again")
    distances = [_NO_VEHICLE]
    for line in read_text(path).splitlines():
        words = line.split()
        if words and words[0] in _VEHICLES:
            try:
                distances.append(float(words[13]))
            except (ValueError, IndexError):
                raise damaged(path, f"its line {line!r} has no distance") from None
    return distance_class(min(distances))


def distance_class(metres: float) -> int:
    """Up to and including 8 m, up to 20 m, farther, and no vehicle."""
    return bisect.bisect_left(_METRES, metres)


def _mapping(folder: Path) -> list[str] | None:
    """The video of each image by its number, if the object development kit lies there."""
    kits = ("", "devkit_object", "devkit")
    for place in (*(folder / kit for kit in kits), *(folder.parent / kit for kit in kits)):
        mapping, order = place / "mapping" / "train_mapping.txt", place / "mapping" / "train_rand.txt"
        if mapping.is_file() and order.is_file():
            return read_mapping(mapping, order)
    return None


def read_mapping(mapping: Path, order: Path) -> list[str]:
    """Videos of images: `order` has a line number, from 1, for each image, and `mapping` lines `date video frame`."""
    lines = [line.split() for line in read_text(mapping).splitlines()]
    try:
        return [lines[_from_one(number)][1] for number in read_text(order).replace(",", " ").split()]
    except (ValueError, IndexError):
        raise damaged(order, f"its numbers must be lines `date video frame` of {mapping.name}") from None


def _from_one(number: str) -> int:
    if int(number) < 1:
        raise ValueError(number)
    return int(number) - 1


def _by_video(names: Sequence[str], mapping: Sequence[str]) -> list[list[int]]:
    train, val, _ = deal_videos(mapping)
    parts: list[list[int]] = [[], [], []]
    for index, name in enumerate(names):
        stem = Path(name).stem
        if not stem.isdecimal() or int(stem) >= len(mapping):
            raise UserError(f"image {name} is not in mapping/train_rand.txt of KITTI's devkit; get the kit again")
        video = mapping[int(stem)]
        parts[0 if video in train else 1 if video in val else 2].append(index)
    return parts


def deal_videos(mapping: Sequence[str]) -> tuple[set[str], set[str], set[str]]:
    """A tenth of the videos for val and a tenth for test, drawn as TFDS draws them: VTAB's own split."""
    videos = sorted(set(mapping))
    tenth = max(1, len(videos) // 10)
    random = np.random.RandomState(123)
    test = {str(video) for video in random.choice(videos, tenth, replace=False)}
    rest = [video for video in videos if video not in test]
    val = {str(video) for video in random.choice(rest, min(tenth, len(rest)), replace=False)} if rest else set()
    return set(rest) - val, val, test


KITTI_DISTANCE = Source(
    folders=("Kitti/raw", "kitti", "KITTI", "Kitti"),
    needs=("training/image_2", "training/label_2"),
    where=(
        "https://www.cvlibs.net/datasets/kitti/eval_object.php?obj_benchmark: data_object_image_2.zip and "
        "data_object_label_2.zip, and devkit_object.zip for VTAB's own split"
    ),
    read=read,
    count=by_reading(read),
)
