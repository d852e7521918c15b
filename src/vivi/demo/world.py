"""The synthetic world: what a scene holds and what it looks like.

Lengths in a scene are in units of the frame's short side, and its origin is the middle of the background. Every
random choice comes from the generator that is passed in. The ranges below say how much scenes differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from vivi.demo.shapes import ACCENT, CLASSES, DARK, LIGHT, LITTER, MAIN, SECOND, Part, Random, individual
from vivi.demo.textures import PALETTES, object_texture, palette

Vector = NDArray[np.float64]

UPRIGHT = 0.65
"""The share of objects that stand upright, but for a tilt of `TILT` degrees (a standard deviation)."""
TILT = 15.0
LITTER_PIECES = (0, 9)
LITTER_SIZE = (0.03, 0.09)
# The light of a scene. Its colour cast is so strong that global colour does not give the theme away.
BRIGHTNESS, CAST, GAMMA, SATURATION = (0.85, 1.3), (0.75, 1.2), (0.7, 1.2), (0.45, 1.25)
SHADE = (170, 255)
"""The light in the corners of the frame, of 255."""
SHADOW = 0.35
"""How dark the shadows of objects are."""


@dataclass(frozen=True)
class Body:
    """An object in a scene. It moves from one pose to another: (x, y, half its extent, degrees clockwise)."""

    sprite: Image.Image
    start: Vector
    end: Vector


@dataclass(frozen=True)
class Light:
    """A colour matrix, a tone curve, and where in the frame it is bright."""

    matrix: tuple[float, ...]
    curve: list[int]
    shade: Image.Image


@dataclass(frozen=True)
class Scene:
    """All that is needed to draw a shot. Bodies are ordered from back to front; the camera moves from one view to
    another: (x, y, zoom)."""

    background: Image.Image
    bodies: list[Body]
    camera: tuple[Vector, Vector]
    light: Light


def choose_palette(random: Random) -> int:
    return int(random.integers(PALETTES))


def draw_sprite(parts: list[Part], size: int, random: Random) -> Image.Image:
    """An individual of the object with these parts in textures and colours of its own: RGBA, `size` pixels wide."""
    colours = palette(choose_palette(random))
    large = 2 * size  # drawn at twice the size for smooth edges
    by_tone = colours[np.argsort(colours.sum(1))]
    plain = {ACCENT: random.choice(colours), DARK: by_tone[0] / 3, LIGHT: by_tone[-1]}
    fills = {fill: tuple(colour.astype(int).tolist()) for fill, colour in plain.items()}
    textures = {fill: object_texture(large, colours, random) for fill in (MAIN, SECOND)}
    outline = fills[LIGHT if random.random() < 1 / 3 else DARK]
    sprite = Image.new("RGBA", (large, large), (*outline, 0))
    for fill, points in individual(parts, random):
        ring = [(large / 2 * (1 + 0.95 * x), large / 2 * (1 + 0.95 * y)) for x, y in points]
        stencil = Image.new("L", (large, large))
        ImageDraw.Draw(stencil).polygon(ring, fill=255)
        sprite.paste(textures.get(fill) or fills[fill], mask=stencil)
        ImageDraw.Draw(sprite).line([*ring, *ring[:2]], fill=outline, width=max(2, round(large * 0.022)))
    sprite = sprite.reduce(2)
    return sprite.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else sprite


def draw_object(category: str | None, size: int, random: Random) -> Image.Image:
    """The sprite of an individual of a class, or of any class."""
    return draw_sprite(CLASSES[category or str(random.choice(list(CLASSES)))], size, random)


def choose_angle(random: Random) -> float:
    """How objects stand: mostly upright."""
    return float(random.normal(0, TILT) if random.random() < UPRIGHT else random.uniform(0, 360))


def among_litter(bodies: list[Body], reach: Vector, short: int, random: Random) -> list[Body]:
    """The bodies with litter strewn behind and before them, up to `reach` from the middle."""
    kinds = [draw_sprite(LITTER[random.integers(len(LITTER))], max(16, short // 6), random) for _ in range(2)]
    litter = []
    for k in range(random.integers(*LITTER_PIECES, endpoint=True)):
        pose = np.array([*random.uniform(-reach, reach), random.uniform(*LITTER_SIZE), random.uniform(0, 360)])
        litter.append(Body(kinds[k % 2], pose, pose))
    behind = random.integers(len(litter) + 1)
    return [*litter[:behind], *bodies, *litter[behind:]]


def draw_light(size: tuple[int, int], random: Random) -> Light:
    """The light of a scene, for frames of this (width, height)."""
    gains = random.uniform(*BRIGHTNESS) * random.uniform(*CAST, 3)
    gamma, saturation = random.uniform(*GAMMA), random.uniform(*SATURATION)
    grey = np.tile([0.3, 0.59, 0.11], (3, 1))
    matrix = gains[:, None] * (saturation * np.eye(3) + (1 - saturation) * grey)
    curve = [round(255 * (tone / 255) ** gamma) for tone in range(256)] * 3
    corners = Image.fromarray(random.uniform(*SHADE, (2, 2)).astype(np.uint8))
    shade = corners.resize(size, Image.Resampling.BICUBIC).convert("RGB")
    return Light(tuple(np.column_stack([matrix, np.zeros(3)]).ravel().tolist()), curve, shade)


def render(scene: Scene, share: float = 0.0) -> Image.Image:
    """The frame of a scene when this share of the shot is over."""
    size = np.array(scene.light.shade.size)
    short = int(size.min())
    *place, zoom = _between(*scene.camera, share)
    seen = size / zoom
    corner = (np.array(scene.background.size) - seen) / 2 + short * np.array(place)
    frame = scene.background.resize(tuple(size), Image.Resampling.BILINEAR, box=(*corner, *(corner + seen)))
    for body in scene.bodies:
        x, y, half, angle = _between(body.start, body.end, share)
        side = max(2, round(2 * half * zoom * short))
        sprite = body.sprite.resize((side, side), Image.Resampling.BILINEAR)
        sprite = sprite.rotate(-angle, Image.Resampling.BILINEAR, expand=True)
        middle = (np.array([x, y]) - place) * zoom * short + size / 2
        left, top = (round(m - s / 2) for m, s in zip(middle, sprite.size, strict=True))
        offset = max(1, side // 25)
        frame.paste((15, 12, 20), (left + offset, top + offset), sprite.getchannel("A").point(lambda a: a * SHADOW))
        frame.paste(sprite, (left, top), sprite)
    return ImageChops.multiply(frame, scene.light.shade).convert("RGB", scene.light.matrix).point(scene.light.curve)


def _between(start: Vector, end: Vector, share: float) -> list[float]:
    values: list[float] = (start + share * (end - start)).tolist()
    return values
