"""Small tasks with real image files, which a network can learn: the label is where a bright bar stands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

COUNTS = {"train800": 16, "val200": 8, "test": 12}


def write_task(folder: Path, classes: int = 4, seed: int = 0, counts: dict[str, int] | None = None) -> Path:
    """A task in VTAB-1k layout, of images 24 px wide and 18 px high."""
    random = np.random.default_rng(seed)
    lines: dict[str, str] = {}
    for split, count in (counts or COUNTS).items():
        (folder / "images" / split).mkdir(parents=True)
        lines[split] = ""
        for index in range(count):
            label = index % classes
            name = f"images/{split}/{index:06d}.png"
            write_image(folder / name, label, classes, random)
            lines[split] += f"{name} {label}\n"
        (folder / f"{split}.txt").write_text(lines[split])
    (folder / "train800val200.txt").write_text(lines["train800"] + lines["val200"])
    return folder


def write_image(path: Path, label: int, classes: int, random: np.random.Generator) -> None:
    """No two are alike."""
    pixels = random.integers(0, 90, (18, 24, 3), np.uint8)
    pixels[:, 24 * label // classes : 24 * (label + 1) // classes] += 150
    Image.fromarray(pixels).save(path)


def write_class_folders(folder: Path, counts: Mapping[str, int], seed: int = 0) -> Path:
    """So many images in a folder of each class, in turn JPEG and PNG files."""
    random = np.random.default_rng(seed)
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            write_image(folder / name / f"{index}.{('jpg', 'png')[index % 2]}", label, len(counts), random)
    return folder
