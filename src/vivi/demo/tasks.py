"""Small downstream tasks of the synthesized world: labelled stills with all but the label left to chance.

Labels are dealt evenly from (seed, task, split), each image is drawn from (seed, task, split, index).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from vivi.demo.shapes import CLASSES
from vivi.demo.textures import BACKGROUNDS, PALETTES
from vivi.demo.world import (
    Body,
    Camera,
    Random,
    Scene,
    Theme,
    draw_canvas,
    draw_debris,
    draw_light,
    draw_specimen,
    draw_sprite,
    render,
)

COUNTS = 6
GRID = 3
ANGLES = 8
# What the position task asks for, and the classes with a clear front for the orientation task.
TARGET = "mushroom"
POINTING = ("fish", "rocket", "tree")

TASKS: dict[str, tuple[str, ...]] = {
    "background": tuple(BACKGROUNDS),
    "count": tuple(str(count) for count in range(1, COUNTS + 1)),
    "object_class": tuple(CLASSES),
    "orientation": tuple(f"{360 * k // ANGLES} degrees" for k in range(ANGLES)),
    "position": tuple(f"row {k // GRID} column {k % GRID}" for k in range(GRID * GRID)),
}
# The stream of random numbers of the tasks; videos use 0 and 1.
STREAM = 2
SPLITS = ("train800", "val200", "test")


@dataclass(frozen=True)
class Split:
    """A part of a task and its number of images."""

    name: str
    images: int


def generator(seed: int, task: str, split: str, *index: int) -> Random:
    return np.random.default_rng([seed, STREAM, list(TASKS).index(task), SPLITS.index(split), *index])


def task_labels(task: str, split: Split, seed: int) -> list[int]:
    """The labels of a split in order: as even as they can be, shuffled."""
    labels = np.arange(split.images) % len(TASKS[task])
    return [int(label) for label in generator(seed, task, split.name).permutation(labels)]


def draw_task_image(task: str, label: int, size: int, random: Random) -> Image.Image:
    """An image of which `label` is the true answer."""
    family = int(random.integers(len(BACKGROUNDS)))
    bodies: list[Body] = []
    if task == "background":
        family = label
        bodies = spread(int(random.integers(1, 4)), (0.14, 0.26), size, random)
    elif task == "count":
        bodies = spread(label + 1, (0.11, 0.2), size, random)
    elif task == "object_class":
        bodies = [one_object(list(CLASSES)[label], size, random)]
    elif task == "orientation":
        bodies = [one_pointing(label, size, random)]
    elif task == "position":
        bodies = one_target(label, size, random)

    names = list(BACKGROUNDS)
    unit = float(random.uniform(0.08, 0.24))
    theme = Theme((), names[family], int(random.integers(PALETTES)), unit)
    litter = draw_debris(int(random.integers(0, 10)), int(random.integers(PALETTES)), (0.5, 0.5), size, random)
    behind = int(random.integers(0, len(litter) + 1))
    scene = Scene(
        size,
        size,
        draw_canvas(theme, size, size, random, extent=1.05),
        (*litter[:behind], *bodies, *litter[behind:]),
        Camera(),
        draw_light(size, size, random),
    )
    return render(scene, 0.0)


def pose(random: Random) -> float:
    """An angle as objects have them in the videos: mostly near upright."""
    return float(random.normal(0, 15) if random.random() < 0.65 else random.uniform(0, 360))


def body(category: str | None, x: float, y: float, half: float, angle: float, size: int, random: Random) -> Body:
    """A fresh specimen at a place. `half`: half its extent in units; `size`: the image's side in pixels."""
    sprite = draw_sprite(draw_specimen(random, category), max(24, round(2 * half * size)))
    return Body(sprite, x, y, half, angle, bool(random.random() < 0.5))


def spread(
    count: int,
    sizes: tuple[float, float],
    size: int,
    random: Random,
    taken: tuple[Body, ...] = (),
    categories: tuple[str, ...] = tuple(CLASSES),
) -> list[Body]:
    """Objects of the given classes that overlap each other and those in `taken` a little at most."""
    bodies: list[Body] = []
    for _ in range(count):
        half = float(random.uniform(*sizes))
        spots = random.uniform(-0.5 + half * 0.75, 0.5 - half * 0.75, (24, 2))
        # Free space around each spot; take the first that is free enough, or the best there is.
        free = [
            min([np.hypot(x - b.x, y - b.y) - 0.8 * (half + b.size) for b in (*taken, *bodies)] or [1.0])
            for x, y in spots
        ]
        best = next((k for k, room in enumerate(free) if room > 0), int(np.argmax(free)))
        category = categories[int(random.integers(len(categories)))]
        bodies.append(body(category, float(spots[best, 0]), float(spots[best, 1]), half, pose(random), size, random))
    return bodies


def one_object(category: str, size: int, random: Random) -> Body:
    """One large object, anywhere it is still seen whole or nearly so."""
    half = float(random.uniform(0.25, 0.43))
    x, y = random.uniform(-0.5 + half * 0.75, 0.5 - half * 0.75, 2)
    return body(category, float(x), float(y), half, pose(random), size, random)


def one_pointing(label: int, size: int, random: Random) -> Body:
    """One object whose top or head points `label` steps clockwise from up."""
    category = POINTING[int(random.integers(len(POINTING)))]
    heading = 360 / ANGLES * (label + float(random.uniform(-0.4, 0.4)))
    half = float(random.uniform(0.25, 0.43))
    x, y = random.uniform(-0.5 + half * 0.75, 0.5 - half * 0.75, 2)
    drawn = body(category, float(x), float(y), half, heading, size, random)
    if category == "fish":  # drawn with its head to the right, or to the left when flipped
        return replace(drawn, angle=heading + (90 if drawn.flip else -90))
    return drawn


def one_target(label: int, size: int, random: Random) -> list[Body]:
    """The target in cell `label` of the grid, among objects of other classes."""
    row, column = divmod(label, GRID)
    x = (column + float(random.uniform(0.1, 0.9))) / GRID - 0.5
    y = (row + float(random.uniform(0.1, 0.9))) / GRID - 0.5
    target = body(TARGET, x, y, float(random.uniform(0.12, 0.18)), pose(random), size, random)
    others = tuple(name for name in CLASSES if name != TARGET)
    crowd = spread(int(random.integers(1, 5)), (0.1, 0.18), size, random, (target,), others)
    front = int(random.integers(0, len(crowd) + 1))
    return [*crowd[:front], target, *crowd[front:]]


def write_task_images(folder: Path, task: str, split: Split, block: range, seed: int, size: int) -> None:
    """Write the images of a block that are not there yet."""
    labels = task_labels(task, split, seed)
    for index in block:
        path = folder / f"{index:06d}.jpg"
        if path.exists():
            continue
        image = draw_task_image(task, labels[index], size, generator(seed, task, split.name, index))
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            image.save(temporary, "JPEG", quality=90)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
