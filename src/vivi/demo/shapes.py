"""The objects of the synthesized world: ten classes, told apart by structure alone.

A class is a function that draws the parts of one specimen, back to front, in a square from -1 to 1 (y points
down). Proportions vary from specimen to specimen; colours and textures are chosen elsewhere and say nothing
about the class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Points = list[tuple[float, float]]
Random = np.random.Generator

# What fills a part: one of the specimen's two textures, or its accent, ink or paper colour.
MAIN, SECOND, ACCENT, INK, PAPER = range(5)


@dataclass(frozen=True)
class Part:
    """One closed outline and what fills it."""

    points: Points
    fill: int


def oval(
    x: float, y: float, rx: float, ry: float, start: float = 0.0, stop: float = 360.0, tilt: float = 0.0
) -> Points:
    """Points on an ellipse, or on an arc of it, turned by `tilt` degrees about its own centre."""
    count = max(6, int(abs(stop - start) / 15))
    cos, sin = math.cos(math.radians(tilt)), math.sin(math.radians(tilt))
    points = []
    for k in range(count):
        angle = math.radians(start + (stop - start) * k / (count - 1))
        u, v = rx * math.cos(angle), ry * math.sin(angle)
        points.append((x + u * cos - v * sin, y + u * sin + v * cos))
    return points


def box(left: float, top: float, right: float, bottom: float) -> Points:
    """The corners of a rectangle."""
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def mirrored(points: Points) -> Points:
    """The same outline on the other side of the vertical axis."""
    return [(-x, y) for x, y in points]


def fish(random: Random) -> list[Part]:
    long, high, tail = random.uniform(0.55, 0.68), random.uniform(0.3, 0.5), random.uniform(0.3, 0.5)
    parts = [
        Part([(-0.4, 0.0), (-0.95, -tail), (-0.75, 0.0), (-0.95, tail)], SECOND),
        Part([(-0.2, -high * 0.7), (0.05, -high - 0.3), (0.3, -high * 0.7)], SECOND),
        Part(oval(0.15, 0.0, long, high), MAIN),
        Part([(0.0, 0.08), (-0.25, 0.3), (0.15, 0.22)], ACCENT),
        Part(oval(0.5, -0.1, 0.11, 0.11), PAPER),
        Part(oval(0.53, -0.1, 0.05, 0.05), INK),
    ]
    return parts


def rocket(random: Random) -> list[Part]:
    wide, fins = random.uniform(0.22, 0.34), random.uniform(0.25, 0.4)
    fin = [(-wide, 0.25), (-wide - fins, 0.75), (-wide, 0.6)]
    parts = [
        Part([(-0.15, 0.6), (0.0, random.uniform(0.8, 1.0)), (0.15, 0.6)], ACCENT),
        Part(fin, SECOND),
        Part(mirrored(fin), SECOND),
        Part([(-wide, -0.35), (-wide * 0.6, -0.7), (0, -0.95), (wide * 0.6, -0.7), (wide, -0.35)], SECOND),
        Part(box(-wide, -0.35, wide, 0.62), MAIN),
    ]
    for window in range(int(random.integers(1, 3))):
        parts.append(Part(oval(0.0, -0.1 + 0.33 * window, 0.13, 0.13), PAPER))
    return parts


def mushroom(random: Random) -> list[Part]:
    wide, high, stem = random.uniform(0.65, 0.9), random.uniform(0.6, 0.9), random.uniform(0.16, 0.3)
    parts = [
        Part([(-stem, 0.0), (-stem * 1.4, 0.85), (stem * 1.4, 0.85), (stem, 0.0)], SECOND),
        Part(oval(0.0, 0.05, wide, high, 180.0, 360.0), MAIN),
        Part(box(-wide, 0.0, wide, 0.12), ACCENT),
    ]
    for x, y in ((-0.4, -0.2), (0.05, -0.42), (0.42, -0.18)):
        parts.append(Part(oval(x, y * high / 0.75, 0.12, 0.09), PAPER))
    return parts


def house(random: Random) -> list[Part]:
    wide, roof = random.uniform(0.5, 0.7), random.uniform(-0.2, 0.05)
    side = random.choice([-1, 1])
    parts = [
        Part(box(0.35 * side - 0.1, -0.8, 0.35 * side + 0.1, roof), ACCENT),
        Part(box(-wide, roof, wide, 0.85), MAIN),
        Part([(-wide - 0.2, roof), (0.0, random.uniform(-0.9, -0.65)), (wide + 0.2, roof)], SECOND),
        Part(box(-0.35 * side - 0.14, 0.35, -0.35 * side + 0.14, 0.85), INK),
        Part(box(0.25 * side - 0.15, 0.2, 0.25 * side + 0.15, 0.5), PAPER),
    ]
    return parts


def tree(random: Random) -> list[Part]:
    parts = [Part(box(-0.12, 0.4, 0.12, 0.95), SECOND)]
    tiers = int(random.integers(2, 5))
    wide = random.uniform(0.55, 0.8)
    for tier in range(tiers):
        bottom = 0.55 - 1.0 * tier / tiers
        reach = wide * (1.0 - 0.65 * tier / tiers)
        parts.append(Part([(-reach, bottom), (0.0, bottom - 1.3 / tiers - 0.1), (reach, bottom)], MAIN))
    return parts


def boat(random: Random) -> list[Part]:
    mast = random.uniform(-0.15, 0.15)
    reach = random.uniform(0.5, 0.75)
    parts = [
        Part(box(mast - 0.04, -0.95, mast + 0.04, 0.4), INK),
        Part([(mast + 0.06, -0.85), (mast + reach, 0.2), (mast + 0.06, 0.2)], SECOND),
        Part([(mast - 0.06, -0.6), (mast - reach * 0.8, 0.2), (mast - 0.06, 0.2)], PAPER),
        Part([(-0.9, 0.3), (0.95, 0.3), (0.6, random.uniform(0.7, 0.9)), (-0.6, 0.8)], MAIN),
    ]
    return parts


def butterfly(random: Random) -> list[Part]:
    upper, lower = random.uniform(0.38, 0.5), random.uniform(0.26, 0.38)
    wings = [
        Part(oval(0.42, 0.4, lower, 0.3, tilt=40.0), SECOND),
        Part(oval(0.48, -0.3, upper, 0.36, tilt=-40.0), MAIN),
        Part(oval(0.5, -0.33, 0.14, 0.14), ACCENT),
    ]
    feeler = [(0.02, -0.5), (0.24, -0.92), (0.3, -0.88), (0.08, -0.48)]
    parts = []
    for part in [*wings, Part(feeler, INK)]:
        parts += [part, Part(mirrored(part.points), part.fill)]
    parts.append(Part(oval(0.0, 0.0, 0.1, random.uniform(0.5, 0.65)), INK))
    return parts


def car(random: Random) -> list[Part]:
    front, top = random.uniform(0.25, 0.55), random.uniform(-0.55, -0.4)
    parts = [
        Part([(-0.6, 0.0), (-0.45, top), (front - 0.15, top), (front + 0.1, 0.0)], SECOND),
        Part([(-0.45, -0.03), (-0.36, top + 0.1), (-0.1, top + 0.1), (-0.1, -0.03)], PAPER),
        Part([(-0.92, 0.0), (0.7, 0.0), (0.93, 0.15), (0.93, 0.45), (-0.92, 0.45)], MAIN),
        Part(oval(0.85, 0.2, 0.09, 0.09), ACCENT),
    ]
    radius = random.uniform(0.19, 0.27)
    for x in (-0.5, 0.5):
        parts += [Part(oval(x, 0.45, radius, radius), INK), Part(oval(x, 0.45, 0.09, 0.09), PAPER)]
    return parts


def cat(random: Random) -> list[Part]:
    wide, ear = random.uniform(0.65, 0.82), random.uniform(0.75, 0.98)
    left_ear = [(-0.68, -0.15), (-0.62, -ear), (-0.15, -0.5)]
    inner_ear = [(-0.56, -0.35), (-0.54, -ear + 0.2), (-0.3, -0.5)]
    parts = [Part(left_ear, MAIN), Part(mirrored(left_ear), MAIN)]
    parts += [Part(inner_ear, ACCENT), Part(mirrored(inner_ear), ACCENT)]
    parts.append(Part(oval(0.0, 0.1, wide, 0.66), MAIN))
    parts.append(Part(oval(0.0, 0.4, 0.34, 0.26), SECOND))
    for side in (-1, 1):
        parts += [
            Part(oval(0.3 * side, 0.0, 0.14, 0.17), PAPER),
            Part(oval(0.3 * side, 0.02, 0.06, 0.12), INK),
        ]
        for rise in (0.25, 0.42):
            parts.append(Part([(0.3 * side, 0.35), (0.95 * side, rise), (0.95 * side, rise + 0.05)], INK))
    parts.append(Part([(-0.1, 0.26), (0.1, 0.26), (0.0, 0.38)], INK))
    return parts


def flower(random: Random) -> list[Part]:
    petals, reach = int(random.integers(5, 9)), random.uniform(0.3, 0.36)
    parts = [
        Part(box(-0.05, 0.0, 0.05, 0.97), INK),
        Part(oval(0.25, 0.72, 0.26, 0.1, tilt=-35.0), ACCENT),
        Part(oval(-0.25, 0.82, 0.26, 0.1, tilt=35.0), ACCENT),
    ]
    for petal in range(petals):
        angle = 2 * math.pi * petal / petals
        x, y = reach * math.cos(angle), reach * math.sin(angle) - 0.3
        parts.append(Part(oval(x, y, 0.3, 1.1 / petals, tilt=math.degrees(angle)), MAIN))
    parts.append(Part(oval(0.0, -0.3, 0.19, 0.19), SECOND))
    return parts


CLASSES: dict[str, Callable[[Random], list[Part]]] = {
    "boat": boat,
    "butterfly": butterfly,
    "car": car,
    "cat": cat,
    "fish": fish,
    "flower": flower,
    "house": house,
    "mushroom": mushroom,
    "rocket": rocket,
    "tree": tree,
}


def debris(random: Random) -> list[Part]:
    """A pebble, a twig or a leaf: litter that hides things and is no object."""
    kind = int(random.integers(3))
    if kind == 0:
        corners = np.sort(random.uniform(0, 2 * math.pi, 7))
        return [Part([(0.6 * math.cos(a), 0.5 * math.sin(a)) for a in corners], MAIN)]
    if kind == 1:
        return [Part(box(-0.95, -0.07, 0.95, 0.07), MAIN), Part([(0.1, 0), (0.5, -0.5), (0.25, 0)], MAIN)]
    return [
        Part(oval(0.0, 0.0, 0.9, random.uniform(0.25, 0.4)), MAIN),
        Part(box(-0.9, -0.03, 0.9, 0.03), INK),
    ]
