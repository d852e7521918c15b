"""Small downstream tasks of the synthetic world: labelled images in which all but the label is left to chance.

Labels are dealt evenly from (seed, task, split), each image is drawn from (seed, task, split, index). The sizes of
things are half their extent, in units of the image's side.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from vivi.demo.shapes import CLASSES
from vivi.demo.textures import BACKGROUNDS, MATERIALS, background, draw_palette, texture
from vivi.demo.world import Body, Random, Scene, draw_angle, draw_light, draw_thing, render
from vivi.runtime.storage import write_atomically

# What the tasks ask: how many things there are, what a thing is made of, where it is, what it is.
TASKS: dict[str, tuple[str, ...]] = {
    "count": tuple("123456"),
    "material": MATERIALS,
    "place": tuple(BACKGROUNDS),
    "thing": tuple(CLASSES),
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
    canvas, colours, light = round(1.05 * size), draw_palette(random), draw_light(random)
    place = label if task == "place" else int(random.integers(len(BACKGROUNDS)))
    bodies: list[Body] = []
    if task == "material":  # of a thing so near that nothing else is seen
        behind = texture(label, canvas, colours, random)
    else:
        behind = background(place, (canvas, canvas), size * random.uniform(0.08, 0.24), colours, random)
        things, least, most = {
            "count": (label + 1, 0.11, 0.2),
            "place": (int(random.integers(1, 4)), 0.14, 0.26),
            "thing": (1, 0.38, 0.52),
        }[task]
        for _ in range(things):
            category = label if task == "thing" else int(random.integers(len(CLASSES)))
            bodies.append(place_thing(category, random.uniform(least, most), bodies, size, random))
    return render(Scene((size, size), behind, bodies, (np.array([0.0, 0.0, 1.0]),) * 2, (light, light)))


def place_thing(category: int, half: float, others: list[Body], size: int, random: Random) -> Body:
    """A thing that is seen whole or nearly so, and overlaps the others a little at most."""
    spots = random.uniform(-0.5 + half * 0.75, 0.5 - half * 0.75, (24, 2))
    # Free space around each spot; take the first that is free enough, or the best there is.
    free = np.ones(len(spots))
    for other in others:
        free = np.minimum(free, np.hypot(*(spots - other.start[:2]).T) - 0.8 * (half + other.start[2]))
    pose = np.array([*spots[np.argmax(np.where(free > 0, 1.0, free))], half, draw_angle(random)])
    return Body(draw_thing(category, max(24, round(2 * half * size)), random), pose, pose)


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
