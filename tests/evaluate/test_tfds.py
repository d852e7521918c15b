"""VTAB's own splits from TFDS folders. The folders are written to the format's specification (tests/tfds_folders.py);
the splits are compared with slow references that follow google-research/task_adaptation and tf.data's interleave."""

from __future__ import annotations

import json
import pickle
import random
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import vivi_here
from tfds_folders import Features, crc32c, encoded, example, feature, field, picture, record, write_folder
from torch import Tensor

from vivi.evaluate.results import Protocol, read_results
from vivi.evaluate.tasks import VTAB, definition
from vivi.evaluate.tasks.examples import EncodedImage, Examples, Task
from vivi.evaluate.tasks.find import find_tasks
from vivi.evaluate.tasks.tfds import SOURCES, Folder, clevr_distance, in_reading_order, kitti_distance
from vivi.evaluate.tasks.tfrecord import masked_crc32c
from vivi.runtime.errors import UserError


def classified(first: int, count: int, classes: int = 5) -> list[Features]:
    return [{"image": picture(k), "label": [k % classes], "file_name": b"x"} for k in range(first, first + count)]


def read_pixels(image: object) -> Tensor:
    assert isinstance(image, EncodedImage)
    return image.read()


def which(examples: Examples) -> list[int]:
    """The numbers of the images, in their order."""
    numbers = []
    for image in examples.images:
        pixels = read_pixels(image)
        assert pixels.dtype == torch.uint8 and pixels.shape == (3, 4, 5)
        numbers.append(int(pixels[0, 0, 0]) * 256 + int(pixels[1, 0, 0]))
    return numbers


def read(data: Path, protocol: Protocol = "full", name: str = "") -> Task:
    found = find_tasks(data, protocol, [name] if name else [], {})
    for error in found.failures.values():
        raise error
    (task,) = found.tasks
    return task


def failure(data: Path, protocol: Protocol = "full") -> str:
    with pytest.raises(UserError) as raised:
        read(data, protocol)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- splits


def tf_interleave(files: Sequence[Sequence[int]], cycle: int = 16, block: int = 16) -> list[int]:
    """tf.data's InterleaveDataset, one element after the other, as its documentation and kernel have it."""
    waiting = [list(file) for file in files]
    current: list[list[int] | None] = [None] * cycle
    read: list[int] = []
    index = in_block = 0
    while waiting or any(open_ is not None for open_ in current):
        here = current[index]
        if here is not None:
            if here:
                read.append(here.pop(0))
                in_block += 1
                if in_block < block:
                    continue
            else:
                current[index] = None
        elif waiting:
            current[index] = waiting.pop(0)
            continue
        index, in_block = (index + 1) % cycle, 0
    return read


@pytest.mark.parametrize("seed", range(12))
def test_files_are_read_16_at_a_time_16_records_in_turn(seed: int) -> None:
    chance = random.Random(seed)
    lengths = [chance.choice([1, 15, 16, 17, 32, 48, chance.randint(1, 90)]) for _ in range(chance.randint(1, 50))]
    records = [(Path(str(number)), k) for number, length in enumerate(lengths) for k in range(length)]
    files, start = [], 0
    for length in lengths:
        files.append(list(range(start, start + length)))
        start += length
    wanted = [records[k] for k in tf_interleave(files)]
    assert list(in_reading_order(records)) == wanted
    assert sorted(wanted) == sorted(records)


def test_version_1_takes_the_first_1000_in_reading_order(tmp_path: Path) -> None:
    lengths = [100, 90, 33, 16, 200, 7, *[64] * 14, 158]  # 1500 in 21 files
    write_folder(
        tmp_path / "caltech101/3.0.1",
        {"train": classified(0, 1500), "test": classified(2000, 9)},
        {"train": lengths, "test": [2, 7]},
    )
    task = read(tmp_path, "v1")
    files, start = [], 0
    for length in lengths:
        files.append(list(range(start, start + length)))
        start += length
    assert which(task.final) == tf_interleave(files)[:1000]
    cut = [[number for number in file if number < 1350] for file in files]  # train[:1350]
    assert which(task.sweep) == tf_interleave([file for file in cut if file])[:1000]
    assert which(task.validation) == list(range(1350, 1500))
    assert which(task.test) == list(range(2000, 2009))
    for part in task.parts().values():
        assert part.labels.tolist() == [number % 5 for number in which(part)]


def test_version_2_takes_800_of_train_and_200_of_val_in_the_order_of_files(tmp_path: Path) -> None:
    splits = {
        "train": classified(0, 900),
        "validation": classified(1000, 300),
        "test": classified(2000, 20),
    }
    write_folder(tmp_path / "dtd/3.0.1", splits, {"train": [1, 0, 500, 399], "validation": [150, 150]})
    task = read(tmp_path, "v2")
    assert which(task.sweep) == list(range(800)) and which(task.validation) == list(range(1000, 1200))
    assert which(task.final) == which(task.sweep) + which(task.validation)
    assert which(task.test) == list(range(2000, 2020))
    full = read(tmp_path, "full")
    assert which(full.sweep) == list(range(900)) and which(full.validation) == list(range(1000, 1300))
    assert which(full.final) == which(full.sweep) + which(full.validation)


# The number of records of TFDS's splits, and where task_adaptation cuts them.
WHOLE = {
    "caltech101": {"train": 3060, "test": 6084},
    "cifar100": {"train": 50000, "test": 10000},
    "dtd": {"train": 1880, "validation": 1880, "test": 1880},
    "flowers102": {"train": 1020, "validation": 1020, "test": 6149},
    "pets": {"train": 3680, "test": 3669},
    "svhn": {"train": 73257, "test": 26032, "extra": 531131},
    "sun397": {"train": 76128, "validation": 10875, "test": 21750},
    "patch_camelyon": {"train": 262144, "validation": 32768, "test": 32768},
    "eurosat": {"train": 27000},
    "resisc45": {"train": 31500},
    "diabetic_retinopathy": {"train": 35126, "validation": 10906, "test": 42670, "sample": 10},
    "clevr_count": {"train": 70000, "validation": 15000, "test": 15000},
    "clevr_distance": {"train": 70000, "validation": 15000, "test": 15000},
    "dmlab": {"train": 65550, "validation": 22628, "test": 22735},
    "kitti_distance": {"train": 6347, "validation": 423, "test": 711},
    "dsprites_location": {"train": 737280},
    "dsprites_orientation": {"train": 737280},
    "smallnorb_azimuth": {"train": 24300, "test": 24300},
    "smallnorb_elevation": {"train": 24300, "test": 24300},
}


@pytest.mark.parametrize("known", VTAB, ids=lambda known: known.name)
def test_complete_data_sets_have_vtabs_sizes(known: object, tmp_path: Path) -> None:
    found = definition(str(getattr(known, "name", "")))
    assert found is not None
    source = SOURCES[found.name]
    folder = write_folder(tmp_path / source.folder / f"{source.version}.0.0", {})
    content = json.loads((folder / "dataset_info.json").read_text())
    for split, count in WHOLE[found.name].items():
        content["splits"].append({"name": split, "shardLengths": [str(count // 3), str(count - count // 3)]})
        for index in range(2):
            (folder / f"{content['name']}-{split}.tfrecord-{index:05d}-of-00002").touch()
    (folder / "dataset_info.json").write_text(json.dumps(content))
    prepared = Folder(found, folder)
    assert prepared.counts() == (found.train, found.val, found.test) and prepared.is_exact()
    train, val, test = (prepared.records(part) for part in (source.train, source.val, source.test))
    parts = [*train, *val, *test]
    assert len(set(parts)) == len(parts), "no record lies in two splits"
    if found.name.startswith("dsprites"):
        assert parts == sorted(parts), "contiguous"


def exact_flowers(data: Path, version: str) -> None:
    """A folder of VTAB's sizes; its images are one and the same."""
    image = picture(3)
    same: dict[str, list[Features]] = {
        split: [{"image": image, "label": [k % 102]} for k in range(count)]
        for split, count in (("train", 1020), ("validation", 1020), ("test", 6149))
    }
    write_folder(data / "oxford_flowers102" / version, same, {"test": [3000, 3149]})


def test_only_vtabs_version_and_sizes_are_exact(tmp_path: Path) -> None:
    exact_flowers(tmp_path / "a", "2.1.1")
    exact_flowers(tmp_path / "b", "3.0.0")
    write_folder(
        tmp_path / "c/oxford_flowers102/2.1.1", {name: classified(0, 9) for name in ("train", "validation", "test")}
    )
    for protocol in ("v1", "v2", "full"):
        assert read(tmp_path / "a", protocol).split == "tfds"
        assert read(tmp_path / "b", protocol).split == "own split"
        assert read(tmp_path / "c", protocol).split == "own split"
    said = vivi_here("evaluate", "vtab", "--check", tmp_path / "a")
    assert re.search(r"Flowers102 +│ TFDS 2.1.1 +│ 1,020 / 1,020 / 6,149", said)
    assert "1 of VTAB's 19 tasks are exact, 0 on a split of their own, 18 missing" in said
    said = vivi_here("evaluate", "vtab", "--check", tmp_path / "b")
    assert "TFDS 3.0.0, own split" in said and "VTAB uses version 2.*, not 3.0.0" in said


def test_the_version_of_vtab_is_preferred_to_a_newer_one(tmp_path: Path) -> None:
    for version, first in (("3.1.0", 0), ("3.2.0", 100), ("4.0.0", 200)):
        splits = {"train": classified(first, 20), "test": classified(first + 20, 5)}
        write_folder(tmp_path / "oxford_iiit_pet" / version, splits)
    assert which(read(tmp_path).sweep) == list(range(100, 116))


# --- labels


def test_clevr_counts_objects_and_measures_the_nearest(tmp_path: Path) -> None:
    chance = random.Random(3)
    scenes = []
    for _ in range(60):
        distances = [
            chance.choice([8.0, 8.5, 9.0, 9.5, 10.0, chance.uniform(7, 12)]) for _ in range(chance.randint(3, 10))
        ]
        farther = chance.choice([0, 0, 1, 2, 3])
        scenes.append([distance + farther for distance in distances])
    features: list[Features] = [
        {
            "image": picture(number),
            "objects/size": [1] * len(distances),
            "objects/3d_coords": [0.0] * 3 * len(distances),
            "objects/pixel_coords": [float(x) for distance in distances for x in (1, 2, distance)],
            "question_answer/question": b"?",
        }
        for number, distances in enumerate(scenes)
    ]
    unlabelled: list[Features] = [{"image": picture(99), "objects/size": []}]
    splits = {"train": features[:50], "validation": features[50:], "test": unlabelled}
    write_folder(tmp_path / "clevr/3.1.0", splits, {"train": [20, 13, 17]})
    counts, nearest = read(tmp_path, name="clevr_count"), read(tmp_path, name="clevr_dist")
    bins = [sum(np.float32(min(distances)) > edge for edge in (8.0, 8.5, 9.0, 9.5, 10.0)) for distances in scenes]
    assert which(counts.test) == list(range(50, 60)), "VTAB tests on the validation split"
    for task, labels in ((counts, [len(distances) - 3 for distances in scenes]), (nearest, bins)):
        assert task.final.labels.tolist() + task.test.labels.tolist() == labels
        assert [len(part) for part in task.parts().values()] == [45, 5, 50, 10]
    assert set(bins) == set(range(6))


def test_kitti_measures_the_nearest_car_van_or_truck(tmp_path: Path) -> None:
    chance = random.Random(5)
    features: list[Features] = []
    wanted = []
    for number in range(60):
        kinds = [chance.randrange(8) for _ in range(chance.choice([0, 1, 2, 3]))]
        metres = [chance.choice([8.0, 20.0, -0.5, chance.uniform(0, 60)]) for _ in kinds]
        places = [float(x) for distance in metres for x in (-0.65, 1.71, distance)]
        features.append({"image": picture(number), "objects/type": kinds, "objects/location": places})
        vehicles = [distance for kind, distance in zip(kinds, metres, strict=True) if kind < 3]
        nearest = min(vehicles, default=1000.0)
        wanted.append(3 if not vehicles else 0 if nearest <= 8 else 1 if nearest <= 20 else 2)
    splits = {"train": features[:40], "validation": features[40:48], "test": features[48:]}
    write_folder(tmp_path / "kitti/3.1.0", splits, {"train": [5, 35]})
    task = read(tmp_path)
    assert task.final.labels.tolist() + task.test.labels.tolist() == wanted and set(wanted) == {0, 1, 2, 3}


def test_distances_fall_into_bins_that_end_on_their_thresholds() -> None:
    for distance, label in ((0.1, 0), (8.0, 0), (8.001, 1), (8.5, 1), (9.0, 2), (9.5, 3), (10.0, 4), (10.001, 5)):
        assert clevr_distance(distance) == label
    for metres, label in (([], 3), ([-3.0], 0), ([8.0], 0), ([8.01, 30.0], 1), ([20.0], 1), ([20.01], 2)):
        assert kitti_distance(metres) == label


def test_dsprites_groups_its_positions_and_orientations(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    masks = chance.integers(0, 2, (80, 6, 6), dtype=np.uint8)
    features: list[Features] = [
        {"image": encoded(masks[k]), "label_x_position": [k % 32], "label_orientation": [k % 40]} for k in range(80)
    ]
    write_folder(tmp_path / "dsprites/2.0.0", {"train": features}, {"train": [30, 50]})
    place, turn = read(tmp_path, name="dsprites_location"), read(tmp_path, name="dsprites_orientation")
    assert [len(part) for part in place.parts().values()] == [64, 8, 72, 8]
    assert place.final.labels.tolist() == [int(np.floor(np.float32(k % 32) / 2.0)) for k in range(72)]
    assert turn.final.labels.tolist() == [int(np.floor(np.float32(k % 40) / 2.5)) for k in range(72)]
    assert Counter(turn.final.labels.tolist()[:40]) == {k: 3 - k % 2 for k in range(16)}
    for image, mask in zip(place.test.images, masks[72:], strict=True):
        assert np.array_equal(read_pixels(image).numpy(), np.stack([mask * 255] * 3))


def test_smallnorb_validates_on_the_first_half_of_test(tmp_path: Path) -> None:
    grey = np.random.default_rng(2).integers(0, 256, (40, 6, 6), dtype=np.uint8)
    features: list[Features] = [
        {"image": encoded(grey[k]), "label_azimuth": [k % 18], "label_elevation": [k % 9]} for k in range(40)
    ]
    write_folder(tmp_path / "smallnorb/2.0.0", {"train": features[:20], "test": features[20:]})
    azimuth, elevation = read(tmp_path, name="smallnorb_azi"), read(tmp_path, name="smallnorb_ele")
    assert azimuth.validation.labels.tolist() == [k % 18 for k in range(20, 30)]
    assert elevation.test.labels.tolist() == [k % 9 for k in range(30, 40)]
    pixels = read_pixels(elevation.test.images[0])
    assert np.array_equal(pixels.numpy(), np.stack([grey[30]] * 3))


# --- folders


@pytest.mark.parametrize("template", [None, "{SPLIT}/{FILEFORMAT}_{SHARD_INDEX}_{NUM_SHARDS}"])
def test_files_are_named_by_the_template_or_as_ever(tmp_path: Path, template: str | None) -> None:
    splits = {"train": classified(0, 20), "test": classified(20, 4)}
    folder = write_folder(tmp_path / "cifar100/3.0.2", splits, {"train": [12, 8]}, template)
    if template:
        for path in list(folder.glob("*.tfrecord-*")):
            split, number, total = re.findall(r"-(\w+)\.tfrecord-(\d+)-of-(\d+)", path.name)[0]
            (folder / split).mkdir(exist_ok=True)
            path.rename(folder / split / f"tfrecord_{number}_{total}")
    assert which(read(tmp_path).final) == list(range(20))


def test_configurations_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    write_folder(tmp_path / "data/eurosat/rgb/2.0.0", {"train": classified(0, 50)}, {"train": [3, 47]})
    task = read(tmp_path / "data")
    assert [which(part) for part in (task.sweep, task.validation, task.test)] == [
        list(range(30)),
        list(range(30, 40)),
        list(range(40, 50)),
    ]
    (tmp_path / "data/eurosat/rgb/2.0.0").rename(tmp_path / "data/eurosat/2.0.0")  # no configuration
    with pytest.raises(UserError, match="holds no folder with images"):
        read(tmp_path / "data")


def test_images_are_read_by_threads_and_after_pickling(tmp_path: Path) -> None:
    features: list[Features] = [{"image": picture(k, "JPEG"), "label": [0]} for k in range(20)]
    write_folder(tmp_path / "cifar100/3.0.2", {"train": features, "test": classified(20, 6)})
    images = read(tmp_path).test.images
    with ThreadPoolExecutor(4) as threads:
        read_by_threads = list(threads.map(read_pixels, images))
    assert [int(pixels[1, 0, 0]) for pixels in read_by_threads] == list(range(20, 26))
    again = list(pickle.loads(pickle.dumps(images)))
    assert which(Examples(again, torch.zeros(6))) == list(range(20, 26))
    assert read_pixels(read(tmp_path).sweep.images[0]).shape == (3, 4, 5)


def test_an_encoder_is_evaluated_on_a_tfds_folder(tmp_path: Path) -> None:
    exact_flowers(tmp_path / "data", "2.1.1")
    flags = ["--encoder", "untrained:test_resnet", "--size", "32", "--device", "cpu", "--batch", "8", "--seeds", "1"]
    flags += ["--protocol", "v1", "--schedules", "2", "--learning-rates", "0.01"]
    said = vivi_here("evaluate", "vtab", *flags, "--data", tmp_path / "data", "--out", tmp_path / "results")
    (result,) = read_results(tmp_path / "results")[0]
    assert (result.task, result.split) == ("flowers102", "tfds")
    assert result.images == {"sweep": 1000, "validation": 1020, "final": 1000, "test": 6149}
    assert "1 of VTAB's 19 tasks" in said and "splits of their own" not in said


def test_lists_come_first_and_tfds_before_originals(tmp_path: Path) -> None:
    records = bytes(2 + 3072) * 20
    for name in ("train.bin", "test.bin"):
        (tmp_path / "cifar-100-binary").mkdir(exist_ok=True)
        (tmp_path / "cifar-100-binary" / name).write_bytes(records)
    assert len(read(tmp_path).test) == 20
    write_folder(tmp_path / "cifar100/3.0.2", {"train": classified(0, 20), "test": classified(20, 3)})
    assert len(read(tmp_path).test) == 3


# --- damage


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    splits = {"train": classified(0, 20), "test": classified(20, 8)}
    return write_folder(tmp_path / "data/cifar100/3.0.2", splits, {"train": [13, 7], "test": [5, 3]})


def test_the_checksum_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    data = np.random.default_rng(0).bytes(99)
    assert masked_crc32c(data) == ((crc32c(data) >> 15 | crc32c(data) << 17) + 0xA282EAD8) & 0xFFFFFFFF


GOOD = record(example({"image": b"x", "label": [1]}))
BAD: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda whole: whole[:-1], "ends inside record 2"),
    (lambda whole: whole[:7], "ends before record 0, and must have 3 records"),
    (lambda whole: b"", "ends before record 0"),
    (lambda whole: b"GIF89a and more of it", "record 0 does not begin at byte 0"),
    (lambda whole: GOOD + bytes(20), f"record 1 does not begin at byte {len(GOOD)}"),
    (lambda whole: GOOD * 4, "more than the 3 records"),
    (lambda whole: GOOD + struct.pack("<Q", 1 << 60) + whole[8:], "record 1 does not begin"),
    (lambda whole: GOOD * 2 + record(example({"label": [1]})), "record 2: it has no image"),
    (lambda whole: GOOD * 2 + record(example({"image": b"x"})), "record 2: it has no label"),
    (
        lambda whole: GOOD * 2 + record(example({"image": b"x", "label": [1, 2]})),
        "record 2: it has 2 values of label",
    ),
    (lambda whole: GOOD * 2 + record(example({"image": b"x", "label": [100]})), "record 2: its label 100"),
    (lambda whole: GOOD * 2 + record(example({"image": b"x", "label": [-1]})), "record 2: its label -1"),
    (lambda whole: GOOD * 2 + record(example({"image": [1], "label": [1]})), "record 2: its image has no bytes"),
    (lambda whole: GOOD * 2 + record(b"\x0b\x0c"), "record 2: it is not in protobuf"),
    (lambda whole: GOOD * 2 + record(b"\x0a\xff"), "record 2: a number in it has no end"),
    (lambda whole: GOOD * 2 + record(b"\x0a\x7f"), "record 2: a field is longer"),
]


@pytest.mark.parametrize(("damage", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_record_is_named(prepared: Path, damage: Callable[[bytes], bytes], reason: str) -> None:
    path = prepared / "cifar100-test.tfrecord-00001-of-00002"
    path.write_bytes(damage(path.read_bytes()))
    said = failure(prepared.parents[1])
    assert "cifar100-test.tfrecord-00001-of-00002 is damaged" in said and reason in said and "get it again" in said


def test_garbage_is_never_taken_for_records(prepared: Path) -> None:
    path = prepared / "cifar100-test.tfrecord-00001-of-00002"
    for length in (1, 11, 12, 16, 500):
        path.write_bytes(np.random.default_rng(length).bytes(length))
        assert "is damaged" in failure(prepared.parents[1])


def test_a_bad_image_is_named_when_it_is_read(prepared: Path) -> None:
    (prepared / "cifar100-test.tfrecord-00001-of-00002").write_bytes(GOOD * 3)
    images = read(prepared.parents[1]).test.images
    with pytest.raises(UserError, match=r"^[^\n]*00001-of-00002 is damaged[^\n]*the image at byte \d+[^\n]*$"):
        read_pixels(images[5])


def test_a_missing_file_is_named(prepared: Path) -> None:
    (prepared / "cifar100-train.tfrecord-00001-of-00002").unlink()
    assert "cifar100-train.tfrecord-00001-of-00002 is missing" in failure(prepared.parents[1])
    said = vivi_here("evaluate", "vtab", "--check", prepared.parents[1])
    assert "train.tfrecord-00001-of-00002 is missing" in said


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"name": "cifar100"}', "'splits'"),
        ('{"name": "cifar100", "splits": []}', "no split train"),
        ('{"name": "cifar100", "splits": [{"name": "train", "shardLengths": ["x"]}]}', "is damaged"),
        ('{"name": "cifar100", "splits": [{"name": "train", "shardLengths": ["-2"]}]}', "is no file in the folder"),
        ('{"name": "../../a", "splits": [{"name": "train", "shardLengths": ["2"]}]}', "is no file in the folder"),
        (
            '{"name": "a", "splits": [{"name": "b", "shardLengths": ["2"], "filepathTemplate": "{HOME}"}]}',
            "KeyError: 'HOME'",
        ),
        ('{"name": "a", "fileFormat": "array_record", "splits": []}', "TFDS's format array_record"),
    ],
)
def test_a_bad_description_is_told(prepared: Path, content: str, reason: str) -> None:
    (prepared / "dataset_info.json").write_text(content)
    assert reason in failure(prepared.parents[1])


def test_too_few_records_are_told(tmp_path: Path) -> None:
    write_folder(tmp_path / "cifar100/3.0.2", {"train": classified(0, 20), "test": []}, {"test": [0]})
    assert "too few images: none is left for test" in failure(tmp_path)


def test_objects_without_places_are_told(tmp_path: Path) -> None:
    odd: Features = {"image": picture(0), "objects/type": [0, 1], "objects/location": [1.0, 2.0, 3.0]}
    write_folder(tmp_path / "kitti/3.1.0", {name: [odd] for name in ("train", "validation", "test")})
    assert "record 0: it has 2 objects and 1 places" in failure(tmp_path)


def test_a_number_that_takes_ten_bytes_is_read() -> None:
    assert feature([-1]) == field(3, field(1, b"\xff" * 9 + b"\x01"))
