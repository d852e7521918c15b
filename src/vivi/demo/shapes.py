"""The things of the synthetic world: ten classes, told apart by their structure alone.

A thing is a list of parts, back to front, in a square from -1 to 1 (y points down). A part is what fills it and its
outline. Colours and textures are chosen elsewhere (world.py).
"""

from __future__ import annotations

import math

import numpy as np

Random = np.random.Generator
Points = list[tuple[float, float]]
Part = tuple[str, Points]

# What fills a part: one of the two textures of the thing, or one of its three plain colours.
FILLS = MAIN, SECOND, ACCENT, DARK, LIGHT = "main", "second", "accent", "dark", "light"


def oval(x: float, y: float, rx: float, ry: float, tilt: float = 0.0, stop: float = 360.0) -> Points:
    """Points on an ellipse, from its right end clockwise to `stop` degrees, turned by `tilt` degrees."""
    angles = np.radians(np.linspace(0, stop, max(8, int(stop / 15))))
    u, v = rx * np.cos(angles), ry * np.sin(angles)
    cos, sin = math.cos(math.radians(tilt)), math.sin(math.radians(tilt))
    return list(zip(x + u * cos - v * sin, y + u * sin + v * cos, strict=True))


def box(left: float, top: float, right: float, bottom: float) -> Points:
    """The corners of a rectangle."""
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def both(points: Points) -> list[Points]:
    """An outline and its mirror image on the other side of the vertical axis."""
    return [points, [(-x, y) for x, y in points]]


def petals(count: int) -> list[Points]:
    """The petals of a flower, around (0, -0.3)."""
    turns = [(360 * k / count, math.radians(360 * k / count)) for k in range(count)]
    return [oval(0.34 * math.cos(a), 0.34 * math.sin(a) - 0.3, 0.3, 0.17, turn) for turn, a in turns]


# Of each class what fills one or more parts, and their outlines.
PARTS: list[tuple[str, str, *tuple[Points, ...]]] = [
    ("boat", DARK, box(-0.04, -0.95, 0.04, 0.4)),
    ("boat", SECOND, [(0.06, -0.85), (0.65, 0.2), (0.06, 0.2)]),
    ("boat", LIGHT, [(-0.06, -0.6), (-0.5, 0.2), (-0.06, 0.2)]),
    ("boat", MAIN, [(-0.9, 0.3), (0.95, 0.3), (0.6, 0.8), (-0.6, 0.8)]),
    ("butterfly", SECOND, *both(oval(0.42, 0.4, 0.32, 0.3, tilt=40))),
    ("butterfly", MAIN, *both(oval(0.48, -0.3, 0.44, 0.36, tilt=-40))),
    ("butterfly", ACCENT, *both(oval(0.5, -0.33, 0.14, 0.14))),
    ("butterfly", DARK, *both([(0.02, -0.5), (0.24, -0.92), (0.3, -0.88), (0.08, -0.48)])),
    ("butterfly", DARK, oval(0.0, 0.0, 0.1, 0.58)),
    ("car", SECOND, [(-0.6, 0.0), (-0.45, -0.48), (0.25, -0.48), (0.5, 0.0)]),
    ("car", LIGHT, [(-0.45, -0.03), (-0.36, -0.38), (-0.1, -0.38), (-0.1, -0.03)]),
    ("car", MAIN, [(-0.92, 0.0), (0.7, 0.0), (0.93, 0.15), (0.93, 0.45), (-0.92, 0.45)]),
    ("car", DARK, *both(oval(0.5, 0.45, 0.23, 0.23))),
    ("car", LIGHT, *both(oval(0.5, 0.45, 0.09, 0.09))),
    ("cat", MAIN, *both([(-0.68, -0.15), (-0.62, -0.86), (-0.15, -0.5)])),
    ("cat", ACCENT, *both([(-0.56, -0.35), (-0.54, -0.66), (-0.3, -0.5)])),
    ("cat", MAIN, oval(0.0, 0.1, 0.74, 0.66)),
    ("cat", SECOND, oval(0.0, 0.4, 0.34, 0.26)),
    ("cat", LIGHT, *both(oval(0.3, 0.0, 0.14, 0.17))),
    ("cat", DARK, *both(oval(0.3, 0.02, 0.06, 0.12))),
    ("cat", DARK, *both([(0.3, 0.35), (0.95, 0.25), (0.95, 0.32)])),
    ("cat", DARK, [(-0.1, 0.26), (0.1, 0.26), (0.0, 0.38)]),
    ("fish", SECOND, [(-0.4, 0.0), (-0.95, -0.4), (-0.75, 0.0), (-0.95, 0.4)]),
    ("fish", SECOND, [(-0.2, -0.28), (0.05, -0.7), (0.3, -0.28)]),
    ("fish", MAIN, oval(0.15, 0.0, 0.62, 0.4)),
    ("fish", ACCENT, [(0.0, 0.08), (-0.25, 0.3), (0.15, 0.22)]),
    ("fish", LIGHT, oval(0.5, -0.1, 0.11, 0.11)),
    ("fish", DARK, oval(0.53, -0.1, 0.05, 0.05)),
    ("flower", DARK, box(-0.05, 0.0, 0.05, 0.97)),
    ("flower", ACCENT, *both(oval(0.25, 0.76, 0.26, 0.1, tilt=-35))),
    ("flower", MAIN, *petals(7)),
    ("flower", SECOND, oval(0.0, -0.3, 0.19, 0.19)),
    ("house", ACCENT, box(0.25, -0.8, 0.45, 0.0)),
    ("house", MAIN, box(-0.6, -0.1, 0.6, 0.85)),
    ("house", SECOND, [(-0.8, -0.1), (0.0, -0.8), (0.8, -0.1)]),
    ("house", DARK, box(-0.49, 0.35, -0.21, 0.85)),
    ("house", LIGHT, box(0.1, 0.2, 0.4, 0.5)),
    ("mushroom", SECOND, [(-0.22, 0.0), (-0.3, 0.85), (0.3, 0.85), (0.22, 0.0)]),
    ("mushroom", MAIN, oval(0.0, 0.05, 0.8, 0.75, tilt=180, stop=180)),
    ("mushroom", ACCENT, box(-0.8, 0.0, 0.8, 0.12)),
    ("mushroom", LIGHT, *both(oval(0.4, -0.2, 0.12, 0.09))),
    ("mushroom", LIGHT, oval(0.03, -0.44, 0.12, 0.09)),
    ("rocket", ACCENT, [(-0.15, 0.6), (0.0, 0.9), (0.15, 0.6)]),
    ("rocket", SECOND, *both([(-0.28, 0.25), (-0.6, 0.75), (-0.28, 0.6)])),
    ("rocket", SECOND, [(-0.28, -0.35), (-0.17, -0.7), (0, -0.95), (0.17, -0.7), (0.28, -0.35)]),
    ("rocket", MAIN, box(-0.28, -0.35, 0.28, 0.62)),
    ("rocket", LIGHT, oval(0.0, -0.1, 0.13, 0.13)),
    ("rocket", LIGHT, oval(0.0, 0.23, 0.13, 0.13)),
    ("tree", SECOND, box(-0.12, 0.4, 0.12, 0.95)),
    ("tree", MAIN, [(-0.68, 0.55), (0.0, 0.0), (0.68, 0.55)]),
    ("tree", MAIN, [(-0.53, 0.22), (0.0, -0.35), (0.53, 0.22)]),
    ("tree", MAIN, [(-0.38, -0.1), (0.0, -0.7), (0.38, -0.1)]),
]
CLASSES: dict[str, list[Part]] = {}
for _category, _fill, *_outlines in PARTS:
    CLASSES.setdefault(_category, []).extend((_fill, outline) for outline in _outlines)


def individual(parts: list[Part], random: Random) -> list[Part]:
    """The parts of one individual of a class, within the square: those of one fill are scaled about their own
    centres, then all are stretched and slanted together."""
    scales = {fill: random.uniform(0.85, 1.15) for fill in FILLS}
    slant = random.uniform(-0.18, 0.18)
    warp = np.array([[random.uniform(0.72, 1.0), slant], [0.0, random.uniform(0.72, 1.0)]])
    outlines = []
    for fill, points in parts:
        outline = np.array(points)
        centre = outline.mean(0)
        outlines.append((centre + scales[fill] * (outline - centre)) @ warp.T)
    reach = max(1.0, *(float(np.abs(outline).max()) for outline in outlines))
    return [(part[0], [(x, y) for x, y in outline / reach]) for part, outline in zip(parts, outlines, strict=True)]
