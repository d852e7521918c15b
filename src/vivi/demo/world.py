"""The synthetic world: what a scene holds and what it looks like.

Lengths in a scene are in units of the frame's short side, and its origin is the middle of the background. Every
random choice comes from the generator that is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from vivi.demo.shapes import ACCENT, CLASSES, DARK, LIGHT, MAIN, SECOND, Random, individual
from vivi.demo.textures import MATERIALS, draw_palette, texture

Vector = NDArray[np.float64]

TYPICAL = 0.85  # how often a thing has the textures that are typical of its class


@dataclass(frozen=True)
class Body:
    """A thing in a scene. It moves from one pose to another: (x, y, half its extent, degrees clockwise)."""

    sprite: Image.Image
    start: Vector
    end: Vector


@dataclass(frozen=True)
class Scene:
    """All that is needed to draw a shot. Bodies are ordered from back to front; the camera moves from one view to
    another, (x, y, zoom), while the light changes from one to another (draw_light)."""

    size: tuple[int, int]  # width and height of a frame
    background: Image.Image
    bodies: list[Body]
    camera: tuple[Vector, Vector]
    light: tuple[Vector, Vector]


def draw_thing(category: int, size: int, random: Random) -> Image.Image:
    """An individual of a class: RGBA, `size` pixels wide. It mostly has the two textures that are typical of its
    class; its colours may be any."""
    colours, parts = draw_palette(random), list(CLASSES.values())[category]
    large = 2 * size  # drawn at twice the size for smooth edges
    by_tone = colours[np.argsort(colours.sum(1))]
    plain = {ACCENT: random.choice(colours), DARK: by_tone[0] / 3, LIGHT: by_tone[-1]}
    fills = {fill: tuple(colour.astype(int).tolist()) for fill, colour in plain.items()}
    textures = {}
    for fill, typical in ((MAIN, category // 2), (SECOND, category // 2 + 1)):
        material = typical if random.random() < TYPICAL else int(random.integers(len(MATERIALS)))
        textures[fill] = texture(material % len(MATERIALS), large, colours, random)
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


def draw_angle(random: Random) -> float:
    """How a thing stands: mostly upright, but for a little tilt."""
    return float(random.normal(0, 15) if random.random() < 0.65 else random.uniform(0, 360))


def draw_light(random: Random) -> Vector:
    """A light: gains of red, green and blue, gamma, saturation, and the brightness of the four corners."""
    gains = random.uniform(0.85, 1.2) * random.uniform(0.85, 1.15, 3)
    return np.array([*gains, random.uniform(0.8, 1.2), random.uniform(0.6, 1.2), *random.uniform(180, 255, 4)])


def shine(light: Vector, frame: Image.Image) -> Image.Image:
    """The frame in this light."""
    gains, (gamma, saturation), corners = np.split(light, [3, 5])
    grey = np.tile([0.3, 0.59, 0.11], (3, 1))
    colours = gains[:, None] * (saturation * np.eye(3) + (1 - saturation) * grey)
    matrix = tuple(np.column_stack([colours, np.zeros(3)]).ravel().tolist())
    curve = [round(255 * (tone / 255) ** gamma) for tone in range(256)] * 3
    shade = Image.fromarray(corners.reshape(2, 2).astype(np.uint8)).resize(frame.size, Image.Resampling.BICUBIC)
    return ImageChops.multiply(frame, shade.convert("RGB")).convert("RGB", matrix).point(curve)


def between(start: Vector, end: Vector, share: float) -> Vector:
    return start + share * (end - start)


def render(scene: Scene, share: float = 0.0) -> Image.Image:
    """The frame of a scene when this share of the shot is over."""
    size, short = np.array(scene.size), min(scene.size)
    *place, zoom = between(*scene.camera, share)
    seen = size / zoom
    corner = (np.array(scene.background.size) - seen) / 2 + short * np.array(place)
    frame = scene.background.resize(scene.size, Image.Resampling.BILINEAR, box=(*corner, *(corner + seen)))
    for body in scene.bodies:
        x, y, half, angle = between(body.start, body.end, share)
        side = max(2, round(2 * half * zoom * short))
        sprite = body.sprite.resize((side, side), Image.Resampling.BILINEAR)
        sprite = sprite.rotate(-angle, Image.Resampling.BILINEAR, expand=True)
        middle = (np.array([x, y]) - place) * zoom * short + size / 2
        left, top = (round(m - s / 2) for m, s in zip(middle, sprite.size, strict=True))
        offset = max(1, side // 25)
        shadow = sprite.getchannel("A").point(lambda alpha: alpha * 0.35)
        frame.paste((15, 12, 20), (left + offset, top + offset), shadow)
        frame.paste(sprite, (left, top), sprite)
    return shine(between(*scene.light, share), frame)
