"""Palettes, textures and backgrounds of the synthetic world.

A texture is first a field of tones that fixes its structure; a palette, drawn independently, then gives each tone a
colour. So colour tells nothing about the kind of texture.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Random = np.random.Generator
Field = NDArray[np.float64]
Colours = NDArray[np.float64]  # (colours, 3), 0 to 255

PALETTES = 24  # in the whole world: few, so that different videos share their colours


def draw_palette(random: Random) -> Colours:
    """The colours of one of the palettes: a base hue, its relatives and contrasts."""
    number = int(random.integers(PALETTES))
    own = np.random.default_rng([1905, number])
    colours = []
    for brightness in (0.35, 0.55, 0.75, 0.9, 1.0):
        hue = number / PALETTES + own.choice([0.0, 0.08, -0.08, 0.33, 0.5]) + own.uniform(-0.03, 0.03)
        colours.append(colorsys.hsv_to_rgb(hue % 1.0, own.uniform(0.3, 0.85), brightness))
    # Half of the palettes run from dark to light, half jump.
    return 255 * (own.permutation(colours) if number % 2 else np.array(colours))


def colourise(field: Field, colours: Colours) -> Image.Image:
    """Give each value of a field, from its least to its greatest, its place on the line through the colours."""
    tones = (field - field.min()) / max(np.ptp(field), 1e-9) * (len(colours) - 1)
    channels = [np.interp(tones, np.arange(len(colours)), channel) for channel in colours.T]
    return Image.fromarray(np.stack(channels, axis=-1).round().astype(np.uint8))


def noise(shape: tuple[int, int], cell: tuple[float, float], random: Random, octaves: int = 3) -> Field:
    """Smooth fractal noise whose largest blobs are about `cell` pixels high and wide, between 0 and about 2."""
    total = np.zeros(shape)
    for octave in range(octaves):
        grid = [max(2, round(side / size * 2**octave) + 1) for side, size in zip(shape, cell, strict=True)]
        image = Image.fromarray(random.random(grid, np.float32)).resize(shape[::-1], Image.Resampling.BICUBIC)
        total += np.asarray(image) * 0.55**octave
    return total


MATERIALS = ("stripes", "checks", "dots", "rings", "marble")


def texture(material: int, size: int, colours: Colours, random: Random) -> Image.Image:
    """A square of one of the MATERIALS in a few of the colours."""
    angle, period = random.uniform(0, math.pi), size / random.uniform(4, 11)
    y, x = np.mgrid[:size, :size] / period
    u, v = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    fields: list[Callable[[], Field]] = [
        lambda: np.floor(2 * u) % 3,
        lambda: (np.floor(u) + np.floor(v)) % 2,
        lambda: (np.hypot(u % 1 - 0.5, v % 1 - 0.5) < 0.33) + v / 20,
        lambda: np.sin(4 * np.hypot(u - 2, v - 2)),
        lambda: noise((size, size), (2 * period, 2 * period), random),
    ]
    return colourise(fields[material](), random.permutation(colours)[: random.integers(2, len(colours) + 1)])


# --- backgrounds: fields of (height, width) pixels; `unit` is the size of a typical feature in pixels ---


def clouds(shape: tuple[int, int], unit: float, random: Random) -> Field:
    return noise(shape, (3 * unit, 3 * unit), random, octaves=4)


def bricks(shape: tuple[int, int], unit: float, random: Random) -> Field:
    y, x = np.mgrid[: shape[0], : shape[1]] / unit
    rise, run = random.uniform(0.6, 0.9), random.uniform(1.4, 2.0)
    row = np.floor(y / rise).astype(int)
    along = x / run + row % 2 / 2
    column = np.floor(along).astype(int)
    tones = random.uniform(0.35, 1.0, (row.max() + 1, column.max() + 1))[row, column]
    mortar = (y % rise < 0.1) | (along % 1 < 0.1 / run)
    return np.where(mortar, 0.0, tones) + 0.15 * noise(shape, (unit, unit), random, octaves=2)


def waves(shape: tuple[int, int], unit: float, random: Random) -> Field:
    y, x = np.mgrid[: shape[0], : shape[1]] / unit
    drift = noise(shape, (3 * unit, 3 * unit), random, octaves=2)
    phase: Field = y / random.uniform(0.6, 0.9) + 0.3 * np.sin(x * random.uniform(1.8, 3.1)) + 1.2 * drift
    return phase % 1.0 + 0.25 * drift


def grass(shape: tuple[int, int], unit: float, random: Random) -> Field:
    blades = noise(shape, (2 * unit, 0.22 * unit), random, octaves=1)
    return np.floor(5 * blades) + noise(shape, (unit, unit), random, octaves=2)


def nearest_points(shape: tuple[int, int], unit: float, random: Random) -> tuple[Field, Field, NDArray[np.int64]]:
    """For every pixel of a field of scattered points: how far the nearest and the second are, in units, and which."""
    from scipy.spatial import cKDTree  # it takes a third of the time in which `vivi --help` answers

    rows, columns = (int(side / unit) + 3 for side in shape)
    spots = np.mgrid[:rows, :columns].reshape(2, -1).T - 1 + random.uniform(-0.35, 0.35, (rows * columns, 2))
    pixels = np.moveaxis(np.mgrid[: shape[0], : shape[1]] / unit, 0, -1)
    distances, which = cKDTree(spots).query(pixels, k=2)
    return distances[..., 0], distances[..., 1], which[..., 0]


def mosaic(shape: tuple[int, int], unit: float, random: Random) -> Field:
    first, second, which = nearest_points(shape, unit * random.uniform(0.9, 1.3), random)
    tones: Field = random.uniform(0.15, 1.0, which.max() + 1)[which]
    return np.where(second - first < 0.1, 0.0, tones)


def bokeh(shape: tuple[int, int], unit: float, random: Random) -> Field:
    first, _, which = nearest_points(shape, unit, random)
    radius, tone = random.uniform(0.15, 0.5, which.max() + 1), random.uniform(0.3, 1.0, which.max() + 1)
    inside = np.clip((radius[which] - first) * 8, 0, 1)  # with a soft edge
    field: Field = 0.15 * noise(shape, (4 * unit, 4 * unit), random, octaves=1) * (1 - inside) + tone[which] * inside
    return field


def hills(shape: tuple[int, int], unit: float, random: Random) -> Field:
    y, _ = np.mgrid[: shape[0], : shape[1]] / unit
    field: Field = y / y.max() / 2
    for top in np.arange(0.5, y.max(), random.uniform(0.9, 1.4)):
        edge = top - 1.6 * noise((2, shape[1]), (unit, random.uniform(2, 5) * unit), random)[0]
        field = np.where(y > edge, random.random() + (y - edge) / 12, field)
    return field


def planks(shape: tuple[int, int], unit: float, random: Random) -> Field:
    _, x = np.mgrid[: shape[0], : shape[1]] / unit
    board = x / random.uniform(1.1, 1.7)
    tones = random.random(int(board.max()) + 1)[board.astype(int)]
    grain = np.sin(20 * noise(shape, (7 * unit, 1.2 * unit), random, octaves=2) + 2.4 * np.floor(board))
    return np.where(board % 1 < 0.08, -0.2, 0.5 * tones + 0.18 * grain)


BACKGROUNDS = {draw.__name__: draw for draw in (bokeh, bricks, clouds, grass, hills, mosaic, planks, waves)}


def background(place: int, shape: tuple[int, int], unit: float, colours: Colours, random: Random) -> Image.Image:
    """A picture of one of the BACKGROUNDS, its colours drawn to their mean: it stays behind the things."""
    calm, field = random.uniform(0.15, 0.6), list(BACKGROUNDS.values())[place](shape, unit, random)
    return colourise(field, (1 - calm) * colours + calm * colours.mean(0))
