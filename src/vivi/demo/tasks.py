"""Small downstream tasks of the synthetic world: labelled images in which all but the label is left to chance.

Labels are dealt evenly from (seed, task, split), each image is drawn from (seed, task, split, index). The sizes of
objects are half their extent, in units of the image's side.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from vivi.demo.shapes import CLASSES
from vivi.demo.textures import BACKGROUNDS, background, draw_palette
from vivi.demo.world import Body, Random, Scene, Vector, among_litter, draw_angle, draw_light, draw_sprite, render
from vivi.runtime.storage import write_atomically

# What the tasks ask: how many objects, in which cell of a grid the target is, where an object points.
COUNTS, GRID, ANGLES = 6, 3, 8
TARGET = "mushroom"
POINTING = ("flower", "rocket", "tree")
TASKS: dict[str, tuple[str, ...]] = {
    "background": tuple(BACKGROUNDS),
    "count": tuple(str(count) for count in range(1, COUNTS + 1)),
    "object_class": tuple(CLASSES),
    "orientation": tuple(f"{360 * k // ANGLES} degrees" for k in range(ANGLES)),
    "position": tuple(f"row {k // GRID} column {k % GRID}" for k in range(GRID * GRID)),
}
SPLITS = ("train800", "val200", "test")


def generator(seed: int, task: str, split: str, *index: int) -> Random:
    """A stream of random numbers of its own: those of videos have 0 and 1 in place of the 2."""
    return np.random.default_rng([seed, 2, list(TASKS).index(task), SPLITS.index(split), *index])


def task_labels(task: str, split: str, images: int, seed: int) -> list[int]:
    """The labels of a split in order: as even as they can be, shuffled."""
    labels: list[int] = generator(seed, task, split).permutation(np.arange(images) % len(TASKS[task])).tolist()
    return labels


def draw_task_image(task: str, label: int, size: int, random: Random) -> Image.Image:
    """An image of which `label` is the true answer."""
    bodies: list[Body] = []
    family = str(random.choice(list(BACKGROUNDS)))
    if task == "background":
        family = list(BACKGROUNDS)[label]
        for _ in range(random.integers(1, 4)):
            bodies.append(place_object(bodies, (0.14, 0.26), size, random))
    elif task == "count":
        for _ in range(label + 1):
            bodies.append(place_object(bodies, (0.11, 0.2), size, random))
    elif task == "object_class":
        bodies.append(place_object([], (0.38, 0.52), size, random, list(CLASSES)[label]))
    elif task == "orientation":
        angle = 360 / ANGLES * (label + random.uniform(-0.4, 0.4))
        bodies.append(place_object([], (0.25, 0.43), size, random, str(random.choice(POINTING)), angle))
    else:
        row, column = divmod(label, GRID)
        spot = (np.array([column, row]) + random.uniform(0.1, 0.9, 2)) / GRID - 0.5
        half = random.uniform(0.12, 0.18)
        bodies.append(body_at(spot, half, draw_angle(random), TARGET, size, random))
        for _ in range(random.integers(1, 5)):
            other = str(random.choice([name for name in CLASSES if name != TARGET]))
            bodies.append(place_object(bodies, (0.1, 0.18), size, random, other))
        bodies = [bodies[k] for k in random.permutation(len(bodies))]
    canvas, unit = (round(1.05 * size),) * 2, size * random.uniform(0.08, 0.24)
    scene = Scene(
        (size, size),
        background(family, canvas, unit, draw_palette(random, 100 + list(BACKGROUNDS).index(family)), random),
        among_litter(bodies, np.array([0.5, 0.5]), size, random),
        (np.array([0.0, 0.0, 1.0]),) * 2,
        draw_light((size, size), random),
    )
    return render(scene)


def body_at(spot: Vector, half: float, angle: float, category: str | None, size: int, random: Random) -> Body:
    """A new individual of the class, or of any class, in an image of `size` pixels."""
    pose, kind = np.array([*spot, half, angle]), list(CLASSES).index(category or str(random.choice(list(CLASSES))))
    return Body(draw_sprite(list(CLASSES.values())[kind], max(24, round(2 * half * size)), random, kind), pose, pose)


def place_object(
    others: list[Body],
    sizes: tuple[float, float],
    size: int,
    random: Random,
    category: str | None = None,
    angle: float | None = None,
) -> Body:
    """An object that is seen whole or nearly so, and overlaps the others a little at most."""
    half = random.uniform(*sizes)
    spots = random.uniform(-0.5 + half * 0.75, 0.5 - half * 0.75, (24, 2))
    # Free space around each spot; take the first that is free enough, or the best there is.
    free = np.ones(len(spots))
    for other in others:
        free = np.minimum(free, np.hypot(*(spots - other.start[:2]).T) - 0.8 * (half + other.start[2]))
    best = np.argmax(np.where(free > 0, 1.0, free))
    return body_at(spots[best], half, draw_angle(random) if angle is None else angle, category, size, random)


def write_task_images(folder: Path, task: str, split: str, images: int, block: range, seed: int, size: int) -> None:
    """Write the images of a block that are not there yet, of all the images of a split."""
    labels = task_labels(task, split, images, seed)
    for index in block:
        path = folder / f"{index:06d}.jpg"
        if not path.exists():
            file = io.BytesIO()
            image = draw_task_image(task, labels[index], size, generator(seed, task, split, index))
            image.save(file, "JPEG", quality=90)
            write_atomically(path, file.getvalue(), sync=False)
