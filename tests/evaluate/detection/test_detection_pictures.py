"""The contact sheet of detections."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from vivi.evaluate.detection.pictures import class_colour, draw_detections
from vivi.evaluate.detection.score import Detections
from vivi.evaluate.detection.sets import DetectionImage, DetectionSet


def made(folder: Path, count: int, width: int = 120, height: int = 90) -> DetectionSet:
    """Grey images, each a little lighter than the one before; the first of three has no objects."""
    images = []
    for number in range(count):
        path = folder / f"{number}.png"
        Image.new("RGB", (width, height), (90 + number,) * 3).save(path)
        boxes = np.array([[10, 10, 50, 60]], np.float32)[: number % 3]
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


def drawn(data: DetectionSet, detections: list[Detections]) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(draw_detections(data, detections))) as image:
        assert image.format == "PNG"
        return np.array(image)


def count_of(sheet: NDArray[np.uint8], colour: tuple[int, int, int]) -> int:
    return int((sheet == np.array(colour)).all(axis=2).sum())


def test_eight_images_with_objects_are_shown_evenly_over_all(tmp_path: Path) -> None:
    sheet = drawn(made(tmp_path, 30), [found(0.0)] * 30)
    shown = [number for number in range(30) if count_of(sheet, (90 + number,) * 3) > 10_000]
    assert len(shown) == 8 and max(shown) - min(shown) > 15 and all(number % 3 for number in shown)


def test_detections_above_the_threshold_are_drawn_in_the_colour_of_their_class(tmp_path: Path) -> None:
    data = made(tmp_path, 4)
    assert count_of(drawn(data, [found(0.9)] * 4), class_colour(1)) > 1000
    assert count_of(drawn(data, [found(0.2)] * 4), class_colour(1)) == 0
    assert class_colour(0) != class_colour(1) != class_colour(2)


@pytest.mark.parametrize(("width", "height"), [(2, 3), (1, 400), (900, 1), (40, 400)])
def test_images_of_odd_shapes_and_boxes_anywhere_are_drawn(tmp_path: Path, width: int, height: int) -> None:
    boxes = np.array([[-50, -50, 9999, 9999], [5, 5, 1, 1], [np.nan, 0, np.inf, 3]], np.float32)
    wild = Detections(boxes, np.ones(3, np.float32), np.array([0, 1, 0]))
    assert drawn(made(tmp_path, 3, width, height), [wild] * 3).shape[1] <= 1600


def test_an_unreadable_image_is_grey(tmp_path: Path) -> None:
    data = made(tmp_path, 2)
    data.images[1].path.unlink()
    assert count_of(drawn(data, [found(0.9)] * 2), (128, 128, 128)) > 10_000
