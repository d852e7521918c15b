"""A made set of images with boxes, in COCO's format: bright rectangles on dark noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (230, 40, 40), "green": (40, 220, 60)}


def write_detection_set(folder: Path, train: int = 12, test: int = 6, narrow: int = 64, height: int = 48) -> Path:
    """instances_train.json, instances_val.json and images/ with one or two rectangles each; every other is wider."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    for part, count in (("train", train), ("val", test)):
        images: list[dict[str, object]] = []
        annotations: list[dict[str, object]] = []
        for number in range(count):
            width = narrow + narrow // 2 * (number % 2)
            pixels = random.integers(0, 60, (height, width, 3)).astype(np.uint8)
            name = f"{part}{number}.png"
            for _ in range(random.integers(1, 3)):
                category = int(random.integers(2))
                w, h = (int(random.integers(side // 3, side // 2)) for side in (width, height))
                x, y = int(random.integers(width - w)), int(random.integers(height - h))
                pixels[y : y + h, x : x + w] = list(COLOURS.values())[category]
                annotation = {"id": len(annotations) + 1, "image_id": number + 1, "category_id": category + 1}
                annotations.append({**annotation, "bbox": [x, y, w, h], "area": w * h, "iscrowd": 0})
            Image.fromarray(pixels).save(folder / "images" / name)
            images.append({"id": number + 1, "file_name": name, "width": width, "height": height})
        categories = [{"id": number, "name": name} for number, name in enumerate(COLOURS, start=1)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / f"instances_{part}.json").write_text(json.dumps(content))
    return folder
