"""The procedural world behind synthesized videos and tasks: themes, scenes, and what a scene looks like.

Lengths in a scene are in units of the frame's short side, the origin is the middle of the background canvas,
times are seconds from the start of the shot. Every random choice comes from the generator that is passed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from vivi.demo.shapes import ACCENT, CLASSES, INK, MAIN, PAPER, SECOND, Part, debris
from vivi.demo.textures import BACKGROUNDS, PALETTES, Colour, background, palette, texture

Random = np.random.Generator

# The canvas is this much larger than the frame, so that the camera can pan and zoom out.
CANVAS = 1.7
ZOOM_OUT = 0.85
SHADOW = 90  # of 255


@dataclass(frozen=True)
class Specimen:
    """One individual of an object class: its own proportions, textures and colours, fixed by `seed`."""

    category: str
    palette: int
    seed: int


@dataclass(frozen=True)
class Theme:
    """What the shots of a video have in common."""

    specimens: tuple[Specimen, ...]
    family: str
    palette: int
    unit: float


@dataclass(frozen=True)
class Sprite:
    """A drawn specimen: colours and coverage apart, at full, half and quarter size."""

    colours: tuple[Image.Image, ...]
    masks: tuple[Image.Image, ...]


@dataclass(frozen=True)
class Body:
    """A sprite in a scene, its pose and motion. `size` is half its extent; angles are degrees, clockwise."""

    sprite: Sprite
    x: float
    y: float
    size: float
    angle: float = 0.0
    flip: bool = False
    velocity: tuple[float, float] = (0.0, 0.0)
    sway: tuple[float, float] = (0.0, 0.0)
    spin: float = 0.0
    swing: float = 0.0
    growth: float = 0.0
    tempo: float = 1.0
    phase: float = 0.0


@dataclass(frozen=True)
class Camera:
    """Where the camera looks at first, and its speed; zoom above 1 is closer."""

    x: float = 0.0
    y: float = 0.0
    zoom: float = 1.0
    pan: tuple[float, float] = (0.0, 0.0)
    zooming: float = 0.0


@dataclass(frozen=True)
class Light:
    """Colour cast, saturation and gamma of a shot, the drift of the cast, and where it is bright."""

    gains: tuple[float, float, float]
    drift: tuple[float, float, float]
    saturation: float
    curve: list[int]
    shade: Image.Image


@dataclass(frozen=True)
class Scene:
    """All that is needed to draw one shot at any time. Bodies are ordered from back to front."""

    width: int
    height: int
    canvas: Image.Image
    bodies: tuple[Body, ...]
    camera: Camera
    light: Light

    @property
    def short(self) -> int:
        return min(self.width, self.height)


# --- choosing -------------------------------------------------------------------------------------------


def draw_specimen(random: Random, category: str | None = None) -> Specimen:
    """An individual of the class, or of any class."""
    names = list(CLASSES)
    name = names[int(random.integers(len(names)))] if category is None else category
    return Specimen(name, int(random.integers(PALETTES)), int(random.integers(2**31)))


def draw_theme(random: Random) -> Theme:
    """A few specimens of different classes and a kind of background."""
    names = list(CLASSES)
    chosen = random.permutation(len(names))[: int(random.integers(2, 5))]
    families = list(BACKGROUNDS)
    return Theme(
        specimens=tuple(draw_specimen(random, names[k]) for k in chosen),
        family=families[int(random.integers(len(families)))],
        palette=int(random.integers(PALETTES)),
        unit=float(random.uniform(0.1, 0.2)),
    )


def draw_light(width: int, height: int, random: Random) -> Light:
    """The light of a shot: strong enough a cast that global colour does not give the theme away."""
    level, gamma = random.uniform(0.85, 1.3), random.uniform(0.7, 1.2)
    gains = level * random.uniform(0.75, 1.2, 3)
    drift = random.uniform(-0.025, 0.025, 3) + random.uniform(-0.02, 0.02)
    curve = [round(255 * (tone / 255) ** gamma) for tone in range(256)] * 3
    # A soft slope of light over the frame, from one side; never so dark that things vanish.
    corners = np.asarray(random.uniform(170, 255, (2, 2)), np.uint8)
    shade = Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC).convert("RGB")
    return Light(
        (float(gains[0]), float(gains[1]), float(gains[2])),
        (float(drift[0]), float(drift[1]), float(drift[2])),
        float(random.uniform(0.45, 1.25)),
        curve,
        shade,
    )


def draw_canvas(theme: Theme, width: int, height: int, random: Random, extent: float = CANVAS) -> Image.Image:
    """A new place on the theme's background."""
    unit = theme.unit * min(width, height) * random.uniform(0.8, 1.25)
    size = (round(width * extent), round(height * extent))
    return background(theme.family, *size, unit, palette(theme.palette), random)


def draw_debris(count: int, colours: int, reach: tuple[float, float], short: int, random: Random) -> list[Body]:
    """Litter strewn over the view, of one or two kinds."""
    detail = max(16, round(short * 0.15))
    kinds = [draw_parts(debris(random), palette(colours), detail, random) for _ in range(min(2, count))]
    bodies = []
    for k in range(count):
        x, y = random.uniform(-1, 1, 2) * reach
        size, angle = float(random.uniform(0.03, 0.09)), float(random.uniform(0, 360))
        bodies.append(Body(kinds[k % 2], float(x), float(y), size, angle))
    return bodies


# --- drawing --------------------------------------------------------------------------------------------


def draw_parts(parts: list[Part], colours: list[Colour], size: int, random: Random) -> Sprite:
    """Draw parts with fresh textures in the given colours, at twice the size for smooth edges."""
    large = size * 2
    order = random.permutation(len(colours))
    accent = colours[order[0]]
    by_tone = sorted(colours, key=sum)
    ink, paper = ((25, 22, 30), by_tone[-1]) if random.random() < 0.7 else (by_tone[0], (250, 247, 240))
    outline = (ink, ink, paper)[int(random.integers(3))]
    fills = sorted({part.fill for part in parts} & {MAIN, SECOND})
    textures = {fill: texture(large, colours, random) for fill in fills}
    plain = {ACCENT: accent, INK: ink, PAPER: paper}

    image, mask = Image.new("RGB", (large, large), outline), Image.new("L", (large, large))
    draw, cover = ImageDraw.Draw(image), ImageDraw.Draw(mask)
    line = max(2, round(large * 0.022))
    half = large / 2 * 0.96  # keeps the outline inside the sprite
    for part in parts:
        points = [(large / 2 + half * x, large / 2 + half * y) for x, y in part.points]
        ring = [*points, points[0], points[1]]
        if part.fill in plain:
            draw.polygon(points, fill=plain[part.fill])
        else:
            stencil = Image.new("L", (large, large))
            ImageDraw.Draw(stencil).polygon(points, fill=255)
            image.paste(textures[part.fill], mask=stencil)
        draw.line(ring, fill=outline, width=line)
        cover.polygon(points, fill=255)
        cover.line(ring, fill=255, width=line)
    levels = [factor for factor in (2, 4, 8) if large // factor >= 8]
    return Sprite(tuple(image.reduce(f) for f in levels), tuple(mask.reduce(f) for f in levels))


def draw_sprite(specimen: Specimen, size: int) -> Sprite:
    """Draw a specimen `size` pixels wide; always the same for the same specimen."""
    random = np.random.default_rng(specimen.seed)
    parts = warp(CLASSES[specimen.category](random), random)
    return draw_parts(parts, palette(specimen.palette), size, random)


def warp(parts: list[Part], random: Random) -> list[Part]:
    """Stretch and slant a drawing a little: individuals are slim or stout."""
    wide, high = random.uniform(0.72, 1.0, 2)
    slant = random.uniform(-0.18, 0.18) * (1 - wide) / 0.28  # wide ones have no room to lean
    return [Part([(x * wide + y * slant, y * high) for x, y in part.points], part.fill) for part in parts]


def place(frame: Image.Image, body: Body, scene: Scene, camera: Camera, time: float) -> None:
    """Paint a body and its shadow into the frame as the camera sees them at `time`."""
    beat = math.sin(2 * math.pi * body.tempo * time + body.phase) - math.sin(body.phase)
    x = body.x + body.velocity[0] * time + body.sway[0] * beat
    y = body.y + body.velocity[1] * time + body.sway[1] * beat
    scale = camera.zoom * scene.short
    radius = body.size * math.exp(body.growth * time) * scale
    x, y = (x - camera.x) * scale + scene.width / 2, (y - camera.y) * scale + scene.height / 2
    angle = math.radians(body.angle + body.spin * time + body.swing * beat)

    reach = radius * (abs(math.cos(angle)) + abs(math.sin(angle)))
    left, top = max(0, math.floor(x - reach)), max(0, math.floor(y - reach))
    right = min(scene.width, math.ceil(x + reach))
    bottom = min(scene.height, math.ceil(y + reach))
    if right - left < 2 or bottom - top < 2:
        return

    sprite = body.sprite
    level = 0
    while level + 1 < len(sprite.masks) and sprite.masks[level + 1].width >= 1.6 * radius:
        level += 1
    colours, mask = sprite.colours[level], sprite.masks[level]
    # From frame to sprite pixels: turn back, scale, mirror.
    middle = mask.width / 2
    cos, sin = math.cos(angle) * middle / radius, math.sin(angle) * middle / radius
    side = -1.0 if body.flip else 1.0
    a, b, d, e = side * cos, side * sin, -sin, cos
    dx, dy = left - x, top - y
    matrix = (a, b, middle + a * dx + b * dy, d, e, middle + d * dx + e * dy)
    size = (right - left, bottom - top)
    cut = mask.transform(size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    fill = colours.transform(size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    shadow = ImageChops.multiply(cut, Image.new("L", size, SHADOW))
    offset = max(1, round(radius * 0.08))
    frame.paste((15, 12, 20), (left + offset, top + offset), shadow)
    frame.paste(fill, (left, top), cut)


def see(scene: Scene, time: float) -> Camera:
    """The camera at `time`, kept where the canvas fills the frame."""
    start = scene.camera
    zoom = max(ZOOM_OUT, start.zoom * math.exp(start.zooming * time))
    room_x = (scene.canvas.width - scene.width / zoom) / 2 / scene.short - 0.01
    room_y = (scene.canvas.height - scene.height / zoom) / 2 / scene.short - 0.01
    x = start.x + start.pan[0] * time
    y = start.y + start.pan[1] * time
    return Camera(min(room_x, max(-room_x, x)), min(room_y, max(-room_y, y)), zoom)


def illuminate(frame: Image.Image, light: Light, time: float) -> Image.Image:
    """Apply shade, saturation, colour cast and gamma."""
    frame = ImageChops.multiply(frame, light.shade)
    keep, luma = light.saturation, (0.3, 0.59, 0.11)
    matrix: list[float] = []
    for row in range(3):
        gain = min(1.5, max(0.4, light.gains[row] + light.drift[row] * time))
        matrix += [gain * ((1 - keep) * luma[k] + keep * (k == row)) for k in range(3)] + [0.0]
    return frame.convert("RGB", tuple(matrix)).point(light.curve)


def render(scene: Scene, time: float) -> Image.Image:
    """The frame of a scene at `time`."""
    camera = see(scene, time)
    wide, high = scene.width / camera.zoom, scene.height / camera.zoom
    left = (scene.canvas.width - wide) / 2 + camera.x * scene.short
    top = (scene.canvas.height - high) / 2 + camera.y * scene.short
    seen = (left, top, left + wide, top + high)
    frame = scene.canvas.resize((scene.width, scene.height), Image.Resampling.BILINEAR, box=seen)
    for body in scene.bodies:
        place(frame, body, scene, camera, time)
    return illuminate(frame, scene.light, time)
