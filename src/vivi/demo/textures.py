"""Palettes, object textures and backgrounds of the synthesized world.

A texture or background is first a field of tones (one byte a pixel) that fixes its structure; a palette,
drawn independently, then gives each tone a colour. So colour tells nothing about the kind of texture.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

Random = np.random.Generator
Field = npt.NDArray[np.float32]
Colour = tuple[int, int, int]

# How many palettes there are in the whole world: few, so that videos of different themes share their colours.
PALETTES = 24
COLOURS = 5


@cache
def palette(number: int) -> list[Colour]:
    """The colours of palette `number`: a base hue, relatives and contrasts, in five degrees of brightness."""
    random = np.random.default_rng([1905, number])
    base = number / PALETTES
    colours = []
    for k in range(COLOURS):
        hue = (base + random.choice([0.0, 0.08, -0.08, 0.5, 0.33]) + random.uniform(-0.03, 0.03)) % 1.0
        value = (0.35, 0.55, 0.75, 0.9, 1.0)[k]
        rgb = colorsys.hsv_to_rgb(hue, random.uniform(0.3, 0.85), value)
        colours.append((round(rgb[0] * 255), round(rgb[1] * 255), round(rgb[2] * 255)))
    # Half of the palettes run smoothly from dark to light, half jump.
    order = random.permutation(COLOURS) if number % 2 else range(COLOURS)
    return [colours[k] for k in order]


def colourise(field: Image.Image, colours: list[Colour]) -> Image.Image:
    """Give each tone of a grey image its place on the line through `colours`."""
    stops = np.linspace(0, 255, len(colours))
    table = [np.interp(np.arange(256), stops, [c[k] for c in colours]) for k in range(3)]
    image = field.convert("P")
    image.putpalette(np.stack(table, axis=1).round().astype(np.uint8).tobytes())
    return image.convert("RGB")


def to_image(field: Field) -> Image.Image:
    """Stretch a field of any range to the tones 0 to 255."""
    low, high = float(field.min()), float(field.max())
    return Image.fromarray(((field - low) * (255.0 / max(high - low, 1e-6))).astype(np.uint8))


def noise(width: int, height: int, cell: float, random: Random, octaves: int = 3) -> Field:
    """Smooth fractal noise whose largest blobs are about `cell` pixels wide."""
    total = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        columns = max(2, round(width / cell * 2**octave) + 1)
        rows = max(2, round(height / cell * 2**octave) + 1)
        grid = Image.fromarray(random.random((rows, columns), np.float32))
        total += np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC)) * 0.55**octave
    return total


def mesh(width: int, height: int) -> tuple[Field, Field]:
    """The x of every column and the y of every row, ready to broadcast."""
    return np.arange(width, dtype=np.float32)[None, :], np.arange(height, dtype=np.float32)[:, None]


# --- object textures: square fields that cover a sprite -----------------------------------------------------


def stripes(size: int, random: Random) -> Field:
    x, y = mesh(size, size)
    angle, period = random.uniform(0, math.pi), size / random.uniform(4, 12)
    phase = (x * math.cos(angle) + y * math.sin(angle)) / period
    if random.random() < 0.4:
        phase = phase + 0.25 * np.sin(x * (2 * math.pi / period / 2))
    return np.asarray(np.floor(phase * 2) % 3, np.float32)


def dots(size: int, random: Random) -> Field:
    x, y = mesh(size, size)
    period = size / random.uniform(4, 10)
    shift = (np.floor(y / period) % 2) * period / 2
    dx, dy = (x + shift) % period - period / 2, y % period - period / 2
    return np.asarray((dx**2 + dy**2 < (period * random.uniform(0.22, 0.4)) ** 2) * 2.0 + y / size, np.float32)


def checker(size: int, random: Random) -> Field:
    x, y = mesh(size, size)
    period, slant = size / random.uniform(4, 11), random.uniform(-0.7, 0.7)
    return np.asarray((np.floor((x + slant * y) / period) + np.floor((y - slant * x) / period)) % 2, np.float32)


def marble(size: int, random: Random) -> Field:
    return noise(size, size, size / random.uniform(2, 6), random, octaves=3)


def gradient(size: int, random: Random) -> Field:
    x, y = mesh(size, size)
    angle = random.uniform(0, 2 * math.pi)
    return np.asarray(x * math.cos(angle) + y * math.sin(angle), np.float32)


def rings(size: int, random: Random) -> Field:
    x, y = mesh(size, size)
    cx, cy = random.uniform(0, size, 2)
    return np.asarray(np.sin(np.hypot(x - cx, y - cy) * (random.uniform(25, 70) / size)), np.float32)


TEXTURES: list[Callable[[int, Random], Field]] = [stripes, dots, checker, marble, gradient, rings]


def texture(size: int, colours: list[Colour], random: Random) -> Image.Image:
    """A square of a random texture in some order of the given colours."""
    field = TEXTURES[int(random.integers(len(TEXTURES)))](size, random)
    some = random.permutation(len(colours))[: int(random.integers(2, len(colours) + 1))]
    return colourise(to_image(field), [colours[k] for k in some])


# --- backgrounds: `unit` is the size of a typical feature in pixels -----------------------------------------


def clouds(width: int, height: int, unit: float, random: Random) -> Image.Image:
    return to_image(noise(width, height, unit * 3.0, random, octaves=4))


def bricks(width: int, height: int, unit: float, random: Random) -> Image.Image:
    x, y = mesh(width, height)
    rise, run, gap = unit * random.uniform(0.6, 0.9), unit * random.uniform(1.4, 2.0), unit * 0.1
    row = np.floor(y / rise).astype(np.int32)
    moved = x + (row % 2) * (run / 2)
    column = np.floor(moved / run).astype(np.int32)
    tones = random.random((int(row.max()) + 1, int(column.max()) + 1), np.float32)
    field = 0.35 + 0.65 * tones[np.broadcast_to(row, column.shape), column]
    mortar = ((y % rise) < gap) | ((moved % run) < gap)
    field = np.where(mortar, np.float32(0.0), field) + 0.15 * noise(width, height, unit, random, octaves=2)
    return to_image(np.asarray(field, np.float32))


def waves(width: int, height: int, unit: float, random: Random) -> Image.Image:
    x, y = mesh(width, height)
    swell = np.sin(x * (2 * math.pi / (unit * random.uniform(2, 3.5))) + random.uniform(0, 6))
    drift = noise(width, height, unit * 3, random, octaves=2)
    phase = y / (unit * random.uniform(0.6, 0.9)) + 0.3 * swell + 1.2 * drift
    return to_image(np.asarray(phase % 1.0 + 0.25 * drift, np.float32))


def grass(width: int, height: int, unit: float, random: Random) -> Image.Image:
    image = to_image(noise(width, height, unit * 3, random, octaves=2)).point(lambda tone: tone // 2)
    draw = ImageDraw.Draw(image)
    count = min(900, int(width * height / (unit * unit) * 6))
    feet = random.random((count, 5))
    feet = feet[np.argsort(feet[:, 1])]  # blades further down stand in front
    for u, v, lean, long, tone in feet:
        x, y, tip = u * width, v * (height + unit), unit * (0.7 + long)
        bend = (lean - 0.5) * unit
        blade = [(x - unit * 0.09, y), (x + bend, y - tip), (x + unit * 0.09, y)]
        draw.polygon(blade, fill=int(40 + 215 * tone))
    return image


def mosaic(width: int, height: int, unit: float, random: Random) -> Image.Image:
    image = Image.new("L", (width, height))
    draw = ImageDraw.Draw(image)
    step = unit * random.uniform(0.9, 1.3)
    columns, rows = int(width / step) + 3, int(height / step) + 3
    corner = (
        np.mgrid[0:rows, 0:columns].transpose(1, 2, 0) - 1 + random.uniform(-0.33, 0.33, (rows, columns, 2))
    ) * step
    tones = random.integers(30, 256, (rows, columns, 2))
    line = max(1, round(unit * 0.06))
    for r in range(rows - 1):
        for c in range(columns - 1):
            a, b, d, e = (tuple(corner[i, j, ::-1]) for i, j in ((r, c), (r, c + 1), (r + 1, c + 1), (r + 1, c)))
            draw.polygon([a, b, d], fill=int(tones[r, c, 0]), outline=0, width=line)
            draw.polygon([a, d, e], fill=int(tones[r, c, 1]), outline=0, width=line)
    return image


def bokeh(width: int, height: int, unit: float, random: Random) -> Image.Image:
    image = to_image(noise(width, height, unit * 4, random, octaves=1)).point(lambda tone: tone // 2)
    draw = ImageDraw.Draw(image)
    count = min(260, int(width * height / (unit * unit) * 0.9))
    for u, v, r, tone in random.random((count, 4)):
        x, y, radius = u * width, v * height, unit * (0.3 + 0.6 * r)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=int(60 + 195 * tone))
    return image.filter(ImageFilter.GaussianBlur(unit * 0.12))


def hills(width: int, height: int, unit: float, random: Random) -> Image.Image:
    _, y = mesh(width, height)
    field = np.repeat(y / height * 0.5, width, axis=1)
    layers = max(3, int(height / (unit * random.uniform(0.9, 1.4))))
    tones = random.random(layers)
    for layer in range(layers):
        rough = noise(width, 2, unit * random.uniform(2, 5), random, octaves=3)[:1]
        edge = height * (layer + 0.5) / layers - (rough - 0.9) * unit * 1.6
        field = np.where(y > edge, np.float32(tones[layer]) + (y - edge) / (unit * 12), field)
    return to_image(np.asarray(field, np.float32))


def planks(width: int, height: int, unit: float, random: Random) -> Image.Image:
    x, _ = mesh(width, height)
    board = unit * random.uniform(1.1, 1.7)
    column = np.floor(x / board).astype(np.int32)
    tones = random.random(int(column.max()) + 1, np.float32)
    stretched = noise(width, max(4, height // 6), unit * 1.2, random, octaves=2)
    grain = np.asarray(Image.fromarray(stretched).resize((width, height), Image.Resampling.BILINEAR))
    field = 0.5 * tones[column] + 0.35 * (np.sin(grain * 22 + column * 2.4) * 0.5 + 0.5)
    return to_image(np.asarray(np.where(x % board < unit * 0.1, np.float32(-0.2), field), np.float32))


BACKGROUNDS: dict[str, Callable[[int, int, float, Random], Image.Image]] = {
    "bokeh": bokeh,
    "bricks": bricks,
    "clouds": clouds,
    "grass": grass,
    "hills": hills,
    "mosaic": mosaic,
    "planks": planks,
    "waves": waves,
}


def background(
    family: str, width: int, height: int, unit: float, colours: list[Colour], random: Random
) -> Image.Image:
    """A canvas of one family, in colours calmer than those of the objects: it stays behind them."""
    mean = np.mean(colours, axis=0)
    calm = random.uniform(0.15, 0.6)
    softer = [(1 - calm) * np.array(colour) + calm * mean for colour in colours]
    tones = [(round(c[0]), round(c[1]), round(c[2])) for c in softer]
    return colourise(BACKGROUNDS[family](width, height, unit, random), tones)
