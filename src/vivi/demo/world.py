"""The synthetic world: what a scene holds and what it looks like.

Lengths in a scene are in units of the frame's short side, and its origin is the middle of the background. Every
random choice comes from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from vivi.demo.shapes import ACCENT, DARK, LIGHT, LITTER, MAIN, SECOND, Part, Random, individual
from vivi.demo.textures import draw_palette, object_texture

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Body:
    """An object in a scene. It moves from one pose to another: (x, y, half its extent, degrees clockwise)."""

    sprite: Image.Image
    start: Vector
    end: Vector


@dataclass(frozen=True)
class Scene:
    """All that is needed to draw a shot. Bodies are ordered from back to front; the camera moves from one view to
    another: (x, y, zoom)."""

    size: tuple[int, int]  # width and height of a frame
    background: Image.Image
    bodies: list[Body]
    camera: tuple[Vector, Vector]
    light: Callable[[Image.Image, float], Image.Image]


def draw_sprite(parts: list[Part], size: int, random: Random, kind: int | None = None) -> Image.Image:
    """An individual of the object with these parts in textures and colours of its own: RGBA, `size` pixels wide."""
    colours = draw_palette(random, kind)
    large = 2 * size  # drawn at twice the size for smooth edges
    by_tone = colours[np.argsort(colours.sum(1))]
    plain = {ACCENT: random.choice(colours), DARK: by_tone[0] / 3, LIGHT: by_tone[-1]}
    fills = {fill: tuple(colour.astype(int).tolist()) for fill, colour in plain.items()}
    textures = {fill: object_texture(large, colours, random, None if kind is None else kind + (fill == SECOND)) for fill in (MAIN, SECOND)}
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
    """How an object stands: mostly upright, but for a little tilt."""
    return float(random.normal(0, 15) if random.random() < 0.65 else random.uniform(0, 360))


def among_litter(bodies: list[Body], reach: Vector, short: int, random: Random) -> list[Body]:
    """The bodies with litter strewn behind and before them, up to `reach` from the middle."""
    kinds = [draw_sprite(LITTER[random.integers(len(LITTER))], max(16, short // 6), random) for _ in range(2)]
    litter = []
    for k in range(random.integers(10)):
        pose = np.array([*random.uniform(-reach, reach), random.uniform(0.03, 0.09), random.uniform(0, 360)])
        litter.append(Body(kinds[k % 2], pose, pose))
    behind = random.integers(len(litter) + 1)
    return [*litter[:behind], *bodies, *litter[behind:]]


def draw_light(size: tuple[int, int], random: Random) -> Callable[[Image.Image, float], Image.Image]:
    """What light does to the frames of a scene, which changes while they pass. Its cast is so strong that colour does
    not give the theme away."""
    ends = np.stack([_draw_light(random) for _ in range(2)])

    def shine(frame: Image.Image, share: float) -> Image.Image:
        gains, (gamma, saturation), corners = np.split(ends[0] + share * (ends[1] - ends[0]), [3, 5])
        grey = np.tile([0.3, 0.59, 0.11], (3, 1))
        colours = gains[:, None] * (saturation * np.eye(3) + (1 - saturation) * grey)
        matrix = tuple(np.column_stack([colours, np.zeros(3)]).ravel().tolist())
        curve = [round(255 * (tone / 255) ** gamma) for tone in range(256)] * 3
        shade = Image.fromarray(corners.reshape(2, 2).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
        return ImageChops.multiply(frame, shade.convert("RGB")).convert("RGB", matrix).point(curve)

    return shine


def _draw_light(random: Random) -> Vector:
    gains = random.uniform(0.85, 1.2) * random.uniform(0.85, 1.15, 3)
    return np.array([*gains, random.uniform(0.8, 1.2), random.uniform(0.6, 1.2), *random.uniform(180, 255, 4)])


def render(scene: Scene, share: float = 0.0) -> Image.Image:
    """The frame of a scene when this share of the shot is over."""
    size, short = np.array(scene.size), min(scene.size)
    start, end = scene.camera
    *place, zoom = start + share * (end - start)
    seen = size / zoom
    corner = (np.array(scene.background.size) - seen) / 2 + short * np.array(place)
    frame = scene.background.resize(scene.size, Image.Resampling.BILINEAR, box=(*corner, *(corner + seen)))
    for body in scene.bodies:
        x, y, half, angle = body.start + share * (body.end - body.start)
        side = max(2, round(2 * half * zoom * short))
        sprite = body.sprite.resize((side, side), Image.Resampling.BILINEAR)
        sprite = sprite.rotate(-angle, Image.Resampling.BILINEAR, expand=True)
        middle = (np.array([x, y]) - place) * zoom * short + size / 2
        left, top = (round(m - s / 2) for m, s in zip(middle, sprite.size, strict=True))
        offset = max(1, side // 25)
        shadow = sprite.getchannel("A").point(lambda alpha: alpha * 0.35)
        frame.paste((15, 12, 20), (left + offset, top + offset), shadow)
        frame.paste(sprite, (left, top), sprite)
    return scene.light(frame, share)
