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

MOST = 100  # detections of an image and class that count, the best ones


@dataclass(frozen=True, eq=False)
class Detections:
    """What a detector found in an image, in the pixels of its file."""

    boxes: NDArray[np.float32]  # (n, 4): x1 y1 x2 y2
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) from 0


def average_precision(data: DetectionSet, detections: Sequence[Detections]) -> Precision:
    """Of the detections in each image of a set. What is not finite, as of a network that diverged, is not found."""
    from pycocotools.cocoeval import COCOeval

    truth: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for number, (image, some) in enumerate(zip(data.images, detections, strict=True)):
        truth += _rows(number, image.boxes, image.labels, area=image.areas, iscrowd=image.crowd)
        finite = np.isfinite(some.boxes).all(axis=1) & np.isfinite(some.scores)
        found += _rows(number, some.boxes[finite], some.labels[finite], score=some.scores[finite])
    with contextlib.redirect_stdout(io.StringIO()):  # it prints as it goes
        evaluation = COCOeval(_coco(data, truth), _coco(data, found), "bbox")
        evaluation.params.maxDets = [MOST]  # the last of these counts; others are for recall
        evaluation.evaluate()
        evaluation.accumulate()
    table = evaluation.eval["precision"][..., 0]  # (IoUs, recalls, classes, sizes); -1 where there is no object
    # IoUs are 0.50, 0.55, ...; sizes all, small, medium and large.
    parts = [table[..., 0], table[0, ..., 0], table[5, ..., 0], table[..., 1], table[..., 2], table[..., 3]]
    means: list[Any] = [float(known.mean()) if len(known := part[part > -1]) else None for part in parts]
    return Precision(*means)


def in_words(of: Precision) -> str:
    return f"AP {100 * of.ap:.1f}, AP50 {100 * of.ap50:.1f}, AP75 {100 * of.ap75:.1f}"


def _rows(
    image: int, boxes: NDArray[np.float32], labels: NDArray[np.int64], **more: NDArray[Any]
) -> list[dict[str, Any]]:
    """As in COCO's files, where boxes are x, y, width, height; `more` columns may replace those here."""
    rows: list[dict[str, Any]] = []
    columns = (part.tolist() for part in more.values())
    for (x1, y1, x2, y2), label, *others in zip(boxes.tolist(), labels.tolist(), *columns, strict=True):
        row = {"image_id": image, "category_id": label, "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0}
        rows.append({**row, "area": (x2 - x1) * (y2 - y1), **dict(zip(more, others, strict=True))})
    return rows


def _coco(data: DetectionSet, boxes: Sequence[dict[str, Any]]) -> Any:
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
