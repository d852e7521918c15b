"""COCO's average precision against a slow, obvious one."""

from __future__ import annotations

import time
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from vivi.evaluate.detection.score import MOST, Detections, average_precision
from vivi.evaluate.detection.sets import DetectionImage, DetectionSet

SIZES = {"all": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}


def some_boxes(random: np.random.Generator, count: int) -> NDArray[np.float32]:
    corner = random.uniform(0, 200, (count, 2))
    return np.concatenate([corner, corner + random.uniform(8, 150, (count, 2))], axis=1).astype(np.float32)


def some_case(seed: int, images: int = 6, classes: int = 3) -> tuple[DetectionSet, list[Detections]]:
    """Objects, some of them crowds, and detections: of most objects, not quite in place, and of nothing."""
    random = np.random.default_rng(seed)
    truth, found = [], []
    for number in range(images):
        count = int(random.integers(0, 7))
        boxes, labels = some_boxes(random, count), random.integers(0, classes, count)
        areas = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) * 0.8).astype(np.float32)
        crowd = random.random(count) < 0.15
        truth.append(DetectionImage(number, Path(f"{number}.jpg"), 400, 400, boxes, labels, areas, crowd))
        near = boxes.repeat(2, axis=0) + random.normal(0, 5, (2 * count, 4)).astype(np.float32)
        others = some_boxes(random, int(random.integers(0, 6)))
        labels = np.concatenate([labels.repeat(2), random.integers(0, classes, len(others))])
        # Few different scores would leave their order to chance.
        found.append(Detections(np.concatenate([near, others]), random.random(len(labels), np.float32), labels))
    return DetectionSet("made", tuple(truth), tuple("abcdefgh"[:classes])), found


def overlap(found: NDArray[np.float32], box: NDArray[np.float32], crowd: bool) -> float:
    """Intersection over union; over the detection alone where the box is a crowd."""
    x1, y1, x2, y2 = found.tolist()
    a, b, c, d = box.tolist()
    inside = max(0.0, min(x2, c) - max(x1, a)) * max(0.0, min(y2, d) - max(y1, b))
    own = (x2 - x1) * (y2 - y1)
    union = own if crowd else own + (c - a) * (d - b) - inside
    return float(inside / union)


def slow_class(data: DetectionSet, found: list[Detections], label: int, iou: float, size: str) -> float | None:
    """The precision of one class at one IoU, over 101 recalls; None where it has no objects."""
    low, high = SIZES[size]
    hits: list[tuple[float, bool]] = []  # score, right; those that do not count are not in it
    objects = 0
    for image, some in zip(data.images, found, strict=True):
        mine = [n for n in range(len(image.labels)) if image.labels[n] == label]
        ignored = {n: bool(image.crowd[n]) or not low <= image.areas[n] <= high for n in mine}
        objects += sum(not ignored[n] for n in mine)
        used: set[int] = set()
        for d in np.argsort(-some.scores):  # the best first
            if some.labels[d] != label:
                continue
            fits = [
                (not ignored[n], overlap(some.boxes[d], image.boxes[n], bool(image.crowd[n])), n)
                for n in mine
                if n not in used or image.crowd[n]
            ]
            fits = [fit for fit in fits if fit[1] >= iou]
            x1, y1, x2, y2 = some.boxes[d]
            if fits:
                counts, _, n = max(fits)
                used.add(n)
                if counts:
                    hits.append((float(some.scores[d]), True))
            elif low <= (x2 - x1) * (y2 - y1) <= high:
                hits.append((float(some.scores[d]), False))
    if not objects:
        return None
    right = np.cumsum([hit for _, hit in sorted(hits, reverse=True)])  # (n,)
    recall, precision = right / objects, right / np.arange(1, len(right) + 1)
    reached = [precision[recall >= wanted] for wanted in np.linspace(0, 1, 101)]
    return float(np.mean([part.max() if len(part) else 0.0 for part in reached]))


def slow(data: DetectionSet, found: list[Detections], ious: tuple[float, ...], size: str) -> float | None:
    each = [slow_class(data, found, label, iou, size) for label in range(len(data.classes)) for iou in ious]
    known = [value for value in each if value is not None]
    return float(np.mean(known)) if known else None


@pytest.mark.parametrize("seed", range(8))
def test_precision_is_what_the_obvious_way_gives(seed: int) -> None:
    data, found = some_case(seed, images=3 + 2 * seed, classes=1 + seed % 4)
    every = tuple(0.5 + 0.05 * number for number in range(10))
    wanted = [slow(data, found, ious, "all") for ious in (every, (0.5,), (0.75,))]
    wanted += [slow(data, found, every, size) for size in ("small", "medium", "large")]
    assert astuple(average_precision(data, found)) == pytest.approx(tuple(wanted), abs=1e-6)


def objects_as_detections(data: DetectionSet) -> list[Detections]:
    return [Detections(one.boxes, np.ones(len(one.labels), np.float32), one.labels) for one in data.images]


def test_the_truth_itself_is_perfect() -> None:
    data, _ = some_case(2, images=20)
    scores = astuple(average_precision(data, objects_as_detections(data)))
    assert scores[0] == pytest.approx(1.0) and all(score in (None, pytest.approx(1.0)) for score in scores)


def nothing() -> Detections:
    return Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def test_nothing_found_is_zero() -> None:
    data, _ = some_case(2, images=20)
    assert set(astuple(average_precision(data, [nothing()] * 20))) <= {0.0, None}


def one_box(side: float, label: int = 0) -> DetectionImage:
    boxes = np.array([[0, 0, side, side]], np.float32)
    return DetectionImage(
        1, Path("x.jpg"), 300, 300, boxes, np.array([label]), np.array([side**2], np.float32), np.array([False])
    )


def test_sizes_without_objects_are_none() -> None:
    data = DetectionSet("one", (one_box(50),), ("a", "b"))
    scores = average_precision(data, objects_as_detections(data))
    assert (scores.small, scores.medium, scores.large) == (None, pytest.approx(1.0), None)


def test_detections_in_an_image_without_objects_count_as_wrong() -> None:
    full = one_box(50)
    empty = replace(full, boxes=full.boxes[:0], labels=full.labels[:0], areas=full.areas[:0], crowd=full.crowd[:0])
    data = DetectionSet("two", (full, empty), ("a",))
    sure = objects_as_detections(data)[0]
    unsure = replace(sure, scores=np.array([0.5], np.float32))
    assert average_precision(data, [sure, nothing()]).ap == pytest.approx(1.0)
    assert average_precision(data, [unsure, sure]).ap == pytest.approx(0.5)


def test_only_the_best_of_an_image_and_class_count() -> None:
    data = DetectionSet("one", (one_box(50),), ("a",))
    boxes = np.array([[100, 100, 150, 150]] * MOST + [[0, 0, 50, 50]], np.float32)
    for first, ap in ((0, 0.0), (1, 1 / MOST)):
        scores = np.linspace(0.9, 0.8, MOST + 1, dtype=np.float32)[first:]
        found = [Detections(boxes[first:], scores, np.zeros(len(scores), np.int64))]
        assert average_precision(data, found).ap == pytest.approx(ap)


def test_detections_that_are_not_finite_are_not_found() -> None:
    data = DetectionSet("one", (one_box(50),), ("a",))
    boxes = np.array([[0, 0, 50, np.nan], [0, 0, 50, 50], [0, 0, 50, 50]], np.float32)
    found = [Detections(boxes, np.array([0.9, np.nan, 0.5], np.float32), np.zeros(3, np.int64))]
    assert average_precision(data, found).ap == pytest.approx(1.0)


def test_it_prints_nothing_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    data, found = some_case(4)
    before = data.fingerprint(), [part.boxes.copy() for part in found]
    first = average_precision(data, found)
    assert average_precision(data, found) == first and data.fingerprint() == before[0]
    assert all(np.array_equal(part.boxes, old) for part, old in zip(found, before[1], strict=True))
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_scored_is_said() -> None:
    data, found = some_case(4)
    with pytest.raises(ValueError, match="zip"):
        average_precision(data, found[1:])


def test_128_images_of_80_classes_take_seconds() -> None:
    random = np.random.default_rng(0)
    images = tuple(one_box(40 + number, number % 80) for number in range(128))
    labels = random.integers(0, 80, (128, 100))
    found = [Detections(some_boxes(random, 100), random.random(100, np.float32), some) for some in labels]
    began = time.process_time()
    average_precision(DetectionSet("many", images, tuple(map(str, range(80)))), found)
    assert time.process_time() - began < 20  # two on a quiet machine
