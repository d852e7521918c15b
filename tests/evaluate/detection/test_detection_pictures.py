"""The contact sheet of detections."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from vivi.evaluate.detection.pictures import LARGEST, WIDTH, choose_images, class_colour, draw_detections
from vivi.evaluate.detection.score import Detections
from vivi.evaluate.detection.sets import DetectionImage, DetectionSet


def made(folder: Path, count: int, width: int = 120, height: int = 90, noise: bool = False) -> DetectionSet:
    random = np.random.default_rng(0)
    images = []
    for number in range(count):
        path = folder / f"{number}.png"
        grey = np.full((height, width, 3), 90, np.uint8)
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8) if noise else grey).save(path)
        boxes = np.array([[10, 10, 50, 60]], np.float32)[: number % 3]  # the first of three has no objects
        n = len(boxes)
        images.append(
            DetectionImage(
                number, path, width, height, boxes, np.zeros(n, np.int64), boxes[:, 2], np.zeros(n, np.bool_)
            )
        )
    return DetectionSet("made", tuple(images), ("cat", "dog"))


def found(score: float, label: int = 1) -> Detections:
    return Detections(
        np.array([[60, 20, 110, 80]], np.float32), np.array([score], np.float32), np.array([label], np.int64)
    )


def drawn(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.array(image)


def count_of(sheet: NDArray[np.uint8], colour: tuple[int, int, int]) -> int:
    return int((sheet == np.array(colour)).all(axis=2).sum())


def test_images_with_objects_are_chosen_evenly(tmp_path: Path) -> None:
    data = made(tmp_path, 30)
    chosen = choose_images(data, 5)
    assert chosen == sorted(set(chosen)) and len(chosen) == 5 and max(chosen) - min(chosen) > 15
    assert all(len(data.images[number].labels) for number in chosen)
    assert len(choose_images(data, 100)) == 20


def test_detections_above_the_threshold_are_drawn_in_the_colour_of_their_class(tmp_path: Path) -> None:
    data, path = made(tmp_path, 4), tmp_path / "sheet.png"
    draw_detections(data, [1, 2], [found(0.9)] * 4, path)
    with_one = count_of(drawn(path), class_colour(1))
    draw_detections(data, [1, 2], [found(0.2)] * 4, path)
    assert with_one > 1000 and count_of(drawn(path), class_colour(1)) == 0
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_sheet_of_noise_stays_within_its_limits(tmp_path: Path) -> None:
    data, path = made(tmp_path, 24, 640, 640, noise=True), tmp_path / "sheet.png"
    draw_detections(data, choose_images(data), [found(0.9)] * 24, path)
    assert drawn(path).shape[1] <= WIDTH and path.stat().st_size <= LARGEST
    data = made(tmp_path, 24, 640, 480)
    draw_detections(data, choose_images(data), [found(0.9)] * 24, path)
    assert drawn(path).shape[1] == WIDTH and path.stat().st_size <= LARGEST


@pytest.mark.parametrize(("width", "height"), [(2, 3), (1, 400), (900, 1), (40, 400)])
def test_images_of_odd_shapes_and_boxes_anywhere_are_drawn(tmp_path: Path, width: int, height: int) -> None:
    data, path = made(tmp_path, 3, width, height), tmp_path / "sheet.png"
    boxes = np.array([[-50, -50, 9999, 9999], [5, 5, 1, 1], [np.nan, 0, np.inf, 3]], np.float32)
    wild = Detections(boxes, np.ones(3, np.float32), np.array([0, 1, 0]))
    draw_detections(data, [0, 1, 2], [wild] * 3, path)
    assert drawn(path).shape[1] <= WIDTH


def test_an_unreadable_image_is_grey(tmp_path: Path) -> None:
    data, path = made(tmp_path, 3), tmp_path / "sheet.png"
    data.images[1].path.unlink()
    draw_detections(data, [1], [found(0.9)] * 3, path)
    assert count_of(drawn(path), (128, 128, 128)) > 10_000
