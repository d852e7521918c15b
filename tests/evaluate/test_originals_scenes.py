"""CLEVR and KITTI from original files: images and descriptions of the objects in them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_originals import error, labelled, lengths, picture, text, together

from vivi.evaluate.originals import clevr, look, read_original
from vivi.runtime.errors import UserError

# --- CLEVR


def clevr_bin(distance: float) -> int:
    if distance <= 8:
        return 0
    if distance <= 8.5:
        return 1
    if distance <= 9:
        return 2
    if distance <= 9.5:
        return 3
    return 4 if distance <= 10 else 5


def write_clevr(folder: Path) -> dict[str, list[float]]:
    """Distances of the objects by image."""
    chance = random.Random(3)
    scenes: dict[str, list[float]] = {}
    for split, count in (("train", 40), ("val", 12)):
        listed_scenes: list[dict[str, Any]] = []
        for index in range(count):
            count_here = chance.randint(3, 10)
            edges = [8.0, 8.5, 9.0, 9.5, 10.0, chance.uniform(7, 12)]
            distances = [chance.choice(edges) + chance.choice([0, 0, 1]) for _ in range(count_here)]
            name = picture(folder / "images" / split / f"CLEVR_{split}_{index:06d}.png").name
            objects = [{"pixel_coords": [1, 2, d], "3d_coords": [0, 0, 0]} for d in distances]
            listed_scenes.append({"image_filename": name, "objects": objects})
            scenes[name] = distances
        chance.shuffle(listed_scenes)
        text(folder / "scenes" / f"CLEVR_{split}_scenes.json", json.dumps({"info": {}, "scenes": listed_scenes}))
    return scenes


def test_clevr_counts_objects_and_measures_the_nearest(tmp_path: Path) -> None:
    scenes = write_clevr(tmp_path / "clevr" / "CLEVR_v1.0")
    counts, nearest = read_original("clevr_count", tmp_path), read_original("clevr_distance", tmp_path)
    assert together(counts) == {name: len(distances) - 3 for name, distances in scenes.items()}
    assert together(nearest) == {name: clevr_bin(min(distances)) for name, distances in scenes.items()}
    assert lengths(counts) == lengths(nearest) == (36, 4, 12)
    assert list(counts.train.images) == list(nearest.train.images)
    assert all("_val_" in name for name in labelled(counts.test))
    assert look("clevr_distance", tmp_path).counts == {"train": 36, "val": 4, "test": 12}


def test_clevrs_distances_fall_into_bins_that_end_on_their_thresholds() -> None:
    chance = random.Random(1)
    for distance in [8.0, 8.5, 9.0, 9.5, 10.0, 0.1, 8.001, 9.999, 10.001, 99.0] + [
        chance.uniform(5, 15) for _ in range(500)
    ]:
        assert clevr.distance_class(distance) == clevr_bin(distance)


OUTSIDE = {"image_filename": "../train/CLEVR_train_000000.png", "objects": [{"pixel_coords": [0, 0, 9]}] * 3}
NAMELESS = OUTSIDE | {"image_filename": None}


@pytest.mark.parametrize(
    "content",
    [
        *('{"scenes": [{"image_', "[]", '{"scenes": []}', '{"scenes": [{"objects": []}]}'),
        *(json.dumps({"scenes": [scene]}) for scene in (OUTSIDE, NAMELESS)),
    ],
)
@pytest.mark.parametrize("name", ["clevr_count", "clevr_distance"])
def test_bad_scenes_of_clevr_are_told(name: str, content: str, tmp_path: Path) -> None:
    write_clevr(tmp_path / "CLEVR_v1.0")
    text(tmp_path / "CLEVR_v1.0/scenes/CLEVR_val_scenes.json", content)
    with pytest.raises(UserError, match=r"^[^\n]*CLEVR_val_scenes.json is damaged[^\n]*download it again$"):
        read_original(name, tmp_path)


# --- KITTI


def kitti_bin(distances: list[float]) -> int:
    if not distances:
        return 3
    nearest = min(distances)
    return 0 if nearest <= 8 else 1 if nearest <= 20 else 2


def write_kitti(folder: Path, count: int) -> dict[str, int]:
    chance = random.Random(5)
    wanted = {}
    for index in range(count):
        lines, distances = ["DontCare -1 -1 -10 1 1 2 2 -1 -1 -1 -1000 -1000 -1000 -10"], []
        for _ in range(chance.choice([0, 1, 2, 3])):
            kind = chance.choice(["Car", "Van", "Truck", "Pedestrian", "Tram", "Misc"])
            metres = chance.choice([8.0, 20.0, -0.5, round(chance.uniform(0, 60), 2)])
            lines.append(f"{kind} 0.00 0 -1.58 587 173 614 200 1.65 1.67 3.64 -0.65 1.71 {metres:.2f} -1.59")
            distances += [metres] if kind in ("Car", "Van", "Truck") else []
        text(folder / "training/label_2" / f"{index:06d}.txt", "\n".join(lines) + "\n")
        wanted[picture(folder / "training/image_2" / f"{index:06d}.png").name] = kitti_bin(distances)
    return wanted


def test_kitti_measures_the_nearest_vehicle(tmp_path: Path) -> None:
    wanted = write_kitti(tmp_path / "Kitti" / "raw", 100)
    original = read_original("kitti_distance", tmp_path)
    assert together(original) == wanted and set(wanted.values()) == {0, 1, 2, 3}
    assert lengths(original) == (84, 6, 10)
    assert look("kitti_distance", tmp_path).counts == {"train": 84, "val": 6, "test": 10}
    text(tmp_path / "Kitti/raw/training/label_2/000007.txt", "Car 0.00 0\n")
    assert re.search(r"000007.txt is damaged.*no distance", error("kitti_distance", tmp_path))
    (tmp_path / "Kitti/raw/training/label_2/000007.txt").unlink()
    assert re.search(r"000007.txt is missing", error("kitti_distance", tmp_path))


def test_with_kittis_devkit_no_video_crosses_splits_and_the_draw_is_vtabs(tmp_path: Path) -> None:
    wanted = write_kitti(tmp_path / "kitti", 60)
    videos = [f"2011_09_26_drive_{index % 30:04d}_sync" for index in range(60)]
    order = random.Random(2).sample(range(60), 60)
    lines = [""] * 60
    for image, line in enumerate(order):
        lines[line] = f"2011_09_26 {videos[image]} {image:010d}"
    text(tmp_path / "kitti/mapping/train_mapping.txt", "\n".join(lines) + "\n")
    text(tmp_path / "kitti/mapping/train_rand.txt", ",".join(str(line + 1) for line in order) + "\n")
    original = read_original("kitti_distance", tmp_path)
    assert together(original) == wanted and lengths(original) == (48, 6, 6)
    state = np.random.get_state()
    np.random.seed(123)  # as TFDS does, from which VTAB's split comes
    test = set(np.random.choice(sorted(set(videos)), 3, replace=False))
    val = set(np.random.choice(sorted(set(videos) - test), 3, replace=False))
    np.random.set_state(state)
    assert {videos[int(name[:6])] for name in labelled(original.test)} == test
    assert {videos[int(name[:6])] for name in labelled(original.val)} == val
    text(tmp_path / "kitti/mapping/train_rand.txt", "0,61\n")
    assert re.search(r"train_rand.txt is damaged", error("kitti_distance", tmp_path))
    text(tmp_path / "kitti/mapping/train_rand.txt", "1,2\n")
    assert re.search(r"000002.png is not in mapping", error("kitti_distance", tmp_path))
