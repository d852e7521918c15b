"""Batches for detectors: what a step sees depends on data, batch, seed and step alone."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vivi.evaluate.detection import batches
from vivi.evaluate.detection.batches import Batch, batch_order, train_batches
from vivi.evaluate.detection.sets import DetectionImage, DetectionSet
from vivi.runtime.distributed import World

ALONE = World(torch.device("cpu"))


def epoch(portrait: bytes, batch: int, number: int, seed: int = 0) -> list[list[int]]:
    steps = len(portrait) // batch
    return [batch_order(portrait, batch, seed, number * steps + step) for step in range(steps)]


@pytest.mark.parametrize(("wide", "tall", "batch"), [(32, 16, 8), (25, 3, 8), (13, 14, 4), (5, 5, 10), (7, 0, 3)])
def test_an_epoch_has_each_image_once_at_most_and_one_mixed_batch_at_most(wide: int, tall: int, batch: int) -> None:
    portrait = bytes([0] * wide + [1] * tall)
    for number in range(4):
        orders = epoch(portrait, batch, number)
        assert all(len(order) == batch for order in orders)
        seen = Counter(image for order in orders for image in order)
        assert set(seen.values()) == {1} and len(seen) == len(portrait) // batch * batch
        assert sum(len({portrait[image] for image in order}) > 1 for order in orders) <= 1


def test_every_image_is_seen_equally_often_in_the_long_run() -> None:
    portrait = bytes([0] * 9 + [1] * 2)  # too few of one orientation for a batch of their own
    seen = Counter(image for number in range(600) for order in epoch(portrait, 4, number) for image in order)
    assert min(seen.values()) > 0.85 * 600 * 8 / 11 and max(seen.values()) < 1.15 * 600 * 8 / 11


def test_the_order_is_shuffled_and_a_function_of_seed_and_step() -> None:
    portrait = bytes([0] * 20 + [1] * 20)
    assert epoch(portrait, 4, 0) == epoch(portrait, 4, 0) != epoch(portrait, 4, 1)
    assert epoch(portrait, 4, 0) != epoch(portrait, 4, 0, seed=1)
    kinds = ["".join(str(portrait[order[0]]) for order in epoch(portrait, 4, number)) for number in range(20)]
    assert len(set(kinds)) > 10  # not all of one orientation first


def test_a_set_smaller_than_the_batch_is_repeated() -> None:
    order = batch_order(bytes([0, 1, 0]), 8, 0, 5)
    assert len(order) == 8 and set(Counter(order).values()) <= {2, 3}


@pytest.fixture
def data(tmp_path: Path) -> DetectionSet:
    """Ten noise images as PNG, of two orientations; the third has a crowd, too."""
    random = np.random.default_rng(0)
    images = []
    for number in range(10):
        width, height = (30, 20) if number % 3 else (16, 24)
        path = tmp_path / f"{number}.png"
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(path)
        boxes = np.array([[1, 2, 9, 8], [3, 4, 12, 16]], np.float32)
        crowd = np.array([False, number == 2])
        images.append(DetectionImage(number, path, width, height, boxes, np.array([0, 1]), boxes[:, 2], crowd))
    return DetectionSet("noise", tuple(images), ("a", "b"))


def same(one: Batch, other: Batch) -> bool:
    return one.indices == other.indices and all(
        torch.equal(a, b) and torch.equal(s["boxes"], t["boxes"]) and torch.equal(s["labels"], t["labels"])
        for a, b, s, t in zip(one.images, other.images, one.targets, other.targets, strict=True)
    )


def pixels(data: DetectionSet, index: int) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(data.images[index].path))).permute(2, 0, 1)


def test_images_and_boxes_are_mirrored_together(data: DetectionSet) -> None:
    flipped = 0
    for batch in train_batches(data, 4, seed=3, start=0, stop=6, threads=2, world=ALONE):
        for place, index in enumerate(batch.indices):
            original = pixels(data, index)
            flip = not torch.equal(batch.images[place], original)
            flipped += flip
            assert torch.equal(batch.images[place], original.flip(-1) if flip else original)
            for box, label in zip(*(batch.targets[place][key] for key in ("boxes", "labels")), strict=True):
                x1, y1, x2, y2 = map(int, box.tolist())
                a, b, c, d = map(int, data.images[index].boxes[int(label)])
                # The same pixels are inside, whichever way round.
                inside = batch.images[place][:, y1:y2, x1:x2]
                assert torch.equal(inside.flip(-1) if flip else inside, original[:, b:d, a:c])
    assert 6 < flipped < 18


def test_crowds_are_left_out(data: DetectionSet) -> None:
    (batch,) = batches.test_batches(data, 10, threads=2, world=ALONE)
    assert [len(target["labels"]) for target in batch.targets] == [2, 2, 1, *[2] * 7]


def test_a_step_is_the_same_wherever_a_run_starts_and_however_many_threads(data: DetectionSet) -> None:
    whole = list(train_batches(data, 4, seed=0, start=0, stop=7, threads=1, world=ALONE))
    late = list(train_batches(data, 4, seed=0, start=5, stop=7, threads=4, world=ALONE))
    assert len(whole) == 7 and all(map(same, whole[5:], late))


def test_processes_share_a_batch(data: DetectionSet) -> None:
    (whole,) = train_batches(data, 6, 0, 3, 4, 2, ALONE)
    parts = [next(train_batches(data, 6, 0, 3, 4, 2, World(ALONE.device, rank, 3))) for rank in range(3)]
    assert sum((part.indices for part in parts), ()) == whole.indices
    images, targets = [i for p in parts for i in p.images], [t for p in parts for t in p.targets]
    assert same(whole, Batch(whole.indices, images, targets, (), whole.shapes))
    assert whole.shapes == tuple(image.shape[1:] for image in images)
    assert all(part.shapes == whole.shapes for part in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_tests_see_every_image_once_as_it_is(data: DetectionSet, size: int) -> None:
    worlds = [World(ALONE.device, rank, size) for rank in range(size)]
    found = [batch for world in worlds for batch in batches.test_batches(data, 4, 2, world)]
    assert sorted(batch.indices for batch in found) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    for batch in found:
        for index, image in zip(batch.indices, batch.images, strict=True):
            assert torch.equal(image, pixels(data, index))


def test_an_undecodable_file_is_grey_without_boxes_and_named(data: DetectionSet) -> None:
    path = data.images[3].path
    path.write_bytes(path.read_bytes()[:200])
    Image.new("RGB", (5, 5)).save(data.images[4].path)
    data.images[5].path.unlink()
    (batch,) = batches.test_batches(data, 10, threads=2, world=ALONE)
    for index in (3, 4, 5):
        image = data.images[index]
        assert torch.equal(batch.images[index], torch.full((3, image.height, image.width), 128, dtype=torch.uint8))
        assert batch.targets[index]["boxes"].shape == (0, 4) and len(batch.targets[index]["labels"]) == 0
    assert len(batch.unreadable) == 3 and all("\n" not in line for line in batch.unreadable)
    assert "3.png" in batch.unreadable[0] and "5 × 5 now, not 30 × 20" in batch.unreadable[1]
    assert torch.equal(batch.images[6], pixels(data, 6))


def test_threads_end_when_the_generator_is_closed(data: DetectionSet) -> None:
    before = threading.active_count()
    stream = train_batches(data, 4, 0, 0, 10**9, 3, ALONE)
    next(stream)
    assert threading.active_count() > before
    stream.close()
    assert threading.active_count() == before
