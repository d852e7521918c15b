"""Small tasks with real image files, which a network can learn: the label is where a bright bar stands."""

from __future__ import annotations

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
            pixels = random.integers(0, 90, (18, 24, 3), np.uint8)
            pixels[:, 24 * label // classes : 24 * (label + 1) // classes] += 150
            name = f"images/{split}/{index:06d}.png"
            Image.fromarray(pixels).save(folder / name)
            lines[split] += f"{name} {label}\n"
        (folder / f"{split}.txt").write_text(lines[split])
    (folder / "train800val200.txt").write_text(lines["train800"] + lines["val200"])
    return folder
