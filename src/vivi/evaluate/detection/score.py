"""COCO's average precision of detections, as pycocotools computes it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivi.evaluate.detection.sets import DetectionSet
from vivi.evaluate.results import Precision

_SIZES = ("all", "small", "medium", "large")  # in the order of pycocotools' areaRng
_IOUS = tuple(round(0.5 + 0.05 * number, 2) for number in range(10))  # in the order of its iouThrs


@dataclass(frozen=True, eq=False)
class Detections:
    """What a detector found in an image, in the pixels of its file."""

    boxes: NDArray[np.float32]  # (n, 4): x1 y1 x2 y2
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) from 0


def average_precision(data: DetectionSet, detections: Sequence[Detections], max_detections: int = 100) -> Precision:
    """Of the detections in each image of a set; at most so many of an image and class count, the best first."""
    from pycocotools.cocoeval import COCOeval

    if len(detections) != len(data.images):
        raise ValueError(f"detections of {len(detections)} images for a set of {len(data.images)}")
    with contextlib.redirect_stdout(io.StringIO()):  # it prints as it goes
        evaluation = COCOeval(_truth(data), _found(data, detections), "bbox")
        # It counts the last of these; others are for recall.
        evaluation.params.maxDets = [max_detections]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"]  # (IoUs, recalls, classes, sizes, 1); -1 where there is no object
    ap, small, medium, large = (_mean(precision[:, :, :, size]) for size in range(len(_SIZES)))
    ap50, ap75 = (_mean(precision[_IOUS.index(iou), :, :, 0]) for iou in (0.5, 0.75))
    if ap is None or ap50 is None or ap75 is None:
        raise ValueError(f"{data.name} has no objects to be found")
    return Precision(ap, ap50, ap75, small, medium, large)


def _mean(precision: NDArray[np.float64]) -> float | None:
    known = precision[precision > -1]
    return float(known.mean()) if len(known) else None


def _truth(data: DetectionSet) -> Any:
    rows = [
        {**row, "area": area, "iscrowd": int(crowd)}
        for number, image in enumerate(data.images)
        for row, area, crowd in zip(
            _rows(number, image.boxes, image.labels), image.areas.tolist(), image.crowd.tolist(), strict=True
        )
    ]
    return _coco(data, rows)


def _found(data: DetectionSet, detections: Sequence[Detections]) -> Any:
    """What is not finite, as of a network that diverged, is not found."""
    rows: list[dict[str, Any]] = []
    for number, some in enumerate(detections):
        finite = np.isfinite(some.boxes).all(axis=1) & np.isfinite(some.scores)
        found = _rows(number, some.boxes[finite], some.labels[finite])
        for row, score in zip(found, some.scores[finite].tolist(), strict=True):
            area = row["bbox"][2] * row["bbox"][3]
            rows.append({**row, "area": area, "iscrowd": 0, "score": score})
    return _coco(data, rows)


def _rows(image: int, boxes: NDArray[np.float32], labels: NDArray[np.int64]) -> list[dict[str, Any]]:
    """As in COCO's files: x, y, width, height."""
    return [
        {"image_id": image, "category_id": label, "bbox": [x1, y1, x2 - x1, y2 - y1]}
        for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels.tolist(), strict=True)
    ]


def _coco(data: DetectionSet, boxes: list[dict[str, Any]]) -> Any:
    """pycocotools' own object, in memory."""
    from pycocotools.coco import COCO

    coco = COCO()
    coco.dataset = {
        "images": [{"id": number} for number in range(len(data.images))],
        "categories": [{"id": label, "name": name} for label, name in enumerate(data.classes)],
        # Ids start at 1: it takes 0 for no match.
        "annotations": [{**box, "id": number} for number, box in enumerate(boxes, start=1)],
    }
    coco.createIndex()
    return coco
