"""A contact sheet of detections beside the truth, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageColor
from torchvision.utils import draw_bounding_boxes

from vivi.data.decode import read_image
from vivi.evaluate.contact_sheet import Colour, Picture, contact_sheet, fitted
from vivi.evaluate.detection.score import Detections
from vivi.evaluate.detection.sets import DetectionImage, DetectionSet

COLUMNS, ROWS, SIDE = 4, 2, 300
SCORE = 0.3  # of a detection that is shown, at least


def draw_detections(data: DetectionSet, detections: Sequence[Detections]) -> bytes:
    """A PNG of images with objects, evenly over all of a set: the truth in white, detections in the colours of their
    classes. `detections` are those of all images of the set, in its order."""
    full = [number for number, image in enumerate(data.images) if len(image.labels)]
    count = min(COLUMNS * ROWS, len(full))
    chosen = [full[number * len(full) // count] for number in range(count)]
    pictures = [_picture(data.images[number], detections[number], data.classes) for number in chosen]
    rows = [pictures[start : start + COLUMNS] for start in range(0, count, COLUMNS)]
    return contact_sheet(rows, SIDE, f"white: the truth; in colours: detections with a score of {SCORE:g} or more")


def class_colour(label: int) -> Colour:
    """Of a class: hues a golden angle apart, so that neighbours differ."""
    red, green, blue = ImageColor.getrgb(f"hsv({(29 + 222.5 * label) % 360:.0f}, 85%, {100 - 20 * (label % 2)}%)")[:3]
    return red, green, blue


def _picture(image: DetectionImage, found: Detections, classes: tuple[str, ...]) -> Picture:
    """An image, grey where it cannot be read, with the boxes of its objects and of detections, the best on top."""
    try:
        whole = Image.fromarray(read_image(image.path, reduce=False))
    except (OSError, ValueError):
        whole = Image.new("RGB", (image.width, image.height), (128, 128, 128))
    small = fitted(whole, SIDE)
    scale = np.array([small.width / image.width, small.height / image.height] * 2)
    limits = np.array([small.width, small.height] * 2) - 1
    pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
    shown = np.argsort(found.scores, kind="stable")
    shown = shown[(found.scores[shown] >= SCORE) & np.isfinite(found.boxes[shown]).all(axis=1)]
    labels = found.labels[shown].tolist()
    names = [f"{classes[label]} {score:.2f}" for label, score in zip(labels, found.scores[shown], strict=True)]
    colours = [class_colour(label) for label in labels]
    for boxes, captions, colour in ((image.boxes, None, "white"), (found.boxes[shown], names, colours)):
        if len(boxes):
            corners = np.clip(boxes * scale, 0, limits)
            corners[:, 2:] = np.maximum(corners[:, 2:], corners[:, :2])
            style = {"width": 2, "fill_labels": captions is not None, "label_colors": "black" if captions else None}
            pixels = draw_bounding_boxes(pixels, torch.from_numpy(corners), captions, colour, **style)
    return Picture(Image.fromarray(pixels.permute(1, 2, 0).numpy()), image.path.name)
