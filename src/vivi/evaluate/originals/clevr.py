"""CLEVR: images and a JSON file of scenes for each split; how many objects there are, or how near the nearest is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.deal import deal, sizes
from vivi.evaluate.originals.files import examples, image_names
from vivi.evaluate.originals.source import Sizes, Source, damaged
from vivi.runtime.storage import leads_out

SHARES = (9, 1)
# Distances up to and including the first are class 0, beyond the last class 5; VTAB compares them in 32 bits.
_DISTANCES = np.array([8.0, 8.5, 9.0, 9.5, 10.0], dtype=np.float32)

Label = Callable[[list[Any]], int]


def object_count(objects: list[Any]) -> int:
    """Scenes have 3 to 10 objects: classes 0 to 7."""
    if not 3 <= len(objects) <= 10:
        raise ValueError(f"{len(objects)} objects, not 3 to 10")
    return len(objects) - 3


def nearest_distance(objects: list[Any]) -> int:
    """The class of the distance from the camera, the third pixel coordinate, of the nearest object."""
    return distance_class(min(float(each["pixel_coords"][2]) for each in objects))


def distance_class(distance: float) -> int:
    return int(np.searchsorted(_DISTANCES, np.float32(distance), side="left"))


def read(folder: Path, label: Label) -> Original:
    labelled = _read_split(folder, "train", label)
    train, val = deal(len(labelled), SHARES)
    # CLEVR's own test images have no scenes: VTAB tests on the validation split.
    return Original(labelled.take(train), labelled.take(val), _read_split(folder, "val", label))


def count(folder: Path) -> Sizes:
    """By the images: the scenes are hundreds of megabytes of JSON."""
    train, val = sizes(len(image_names(folder / "images/train")), SHARES)
    return train, val, len(image_names(folder / "images/val"))


def _read_split(folder: Path, split: str, label: Label) -> Examples:
    path = folder / "scenes" / f"CLEVR_{split}_scenes.json"
    labels: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8") as file:
            scenes = json.load(file)["scenes"]
        for scene in scenes:
            name = scene["image_filename"]
            if not isinstance(name, str) or leads_out(name):
                raise ValueError(f"{name!r} is no file in images/{split}")
            labels[name] = label(scene["objects"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from None
    if not labels:
        raise damaged(path, "it has no scenes")
    names = sorted(labels)
    return examples([folder / "images" / split / name for name in names], [labels[name] for name in names])


def _source(label: Label) -> Source:
    return Source(
        folders=("clevr/CLEVR_v1.0", "CLEVR_v1.0", "clevr"),
        needs=("scenes/CLEVR_train_scenes.json", "scenes/CLEVR_val_scenes.json", "images/train", "images/val"),
        where="https://cs.stanford.edu/people/jcjohns/clevr/: CLEVR_v1.0.zip",
        read=partial(read, label=label),
        count=count,
    )


CLEVR_COUNT = _source(object_count)
CLEVR_DISTANCE = _source(nearest_distance)
