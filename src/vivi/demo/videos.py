"""One synthesized video: its plan (shots, fades, flashes), the scenes of its shots, and the MP4 file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from vivi.demo.shapes import CLASSES
from vivi.demo.textures import BACKGROUNDS, background, palette
from vivi.demo.world import (
    Body,
    Random,
    Scene,
    among_litter,
    choose_angle,
    choose_palette,
    draw_light,
    draw_object,
    render,
)

# The random numbers of a video: of its plan, and of what is seen in it.
PLAN, PICTURE = 0, 1
KINDS = {"cut": 0.7, "fade": 0.2, "flash": 0.1}
"""How often videos have cuts only, fades as well, or flashes, which are no boundaries."""
SHOT_SECONDS = (2.0, 6.0)
FADE_SECONDS = (0.5, 1.2)
FADES = 0.6
"""The share of fades among the boundaries of a video that has some."""
ASPECTS = {16 / 9: 0.6, 4 / 3: 0.16, 1.0: 0.12, 9 / 16: 0.12}
"""Aspect ratios as uploads have them, and how often."""

# What the shots of a video have in common: the objects and the kind of background. Everything else differs.
OBJECTS_OF_VIDEO = (2, 4)
OBJECTS_IN_SHOT = (1, 5)
OBJECT_SIZE = (0.13, 0.32)
"""Half their extent, in units of the frame's short side."""
UNIT = (0.1, 0.2)
"""The size of a typical feature of the background, in the same units."""
CANVAS = 1.7
"""How much larger than the frame the background is: the camera needs room."""
ZOOM = ((0.85, 1.1), (1.25, 1.6))
"""Of far and near views. They take turns, so that a cut is a change of view whatever else is drawn."""
# What moves during a shot.
ZOOMING = (-0.1, 0.1)
PAN = 0.66
"""At most this share of half the view."""
TRAVEL, GROWTH, SPIN = (-0.45, 0.45), (0.7, 1.4), (-60.0, 60.0)


@dataclass(frozen=True)
class Shot:
    """Frames `start` up to `stop`; it fades in over its first `fade` frames (0: a cut)."""

    start: int
    stop: int
    fade: int = 0


@dataclass(frozen=True)
class Plan:
    """How a video is cut. Shots overlap where one fades into the next; flashes are frames of a shot."""

    kind: str
    frames: int
    shots: tuple[Shot, ...]
    flashes: tuple[int, ...] = ()

    def boundaries(self, rate: int) -> list[float | list[float]]:
        """Each cut as the time of the new shot's first frame, each fade as [start, end], in seconds."""
        times: list[float | list[float]] = []
        for shot in self.shots[1:]:
            start, end = round(shot.start / rate, 6), round((shot.start + shot.fade) / rate, 6)
            times.append([start, end] if shot.fade else start)
        return times


def plan_video(seed: int, index: int, seconds: float, rate: int) -> Plan:
    """Choose kind, shots, fades and flashes of a video."""
    random = np.random.default_rng([seed, PLAN, index])
    frames = max(1, round(seconds * rate))
    kind = str(random.choice(list(KINDS), p=list(KINDS.values())))
    starts = [0]
    while (start := starts[-1] + round(random.uniform(*SHOT_SECONDS) * rate)) <= frames - SHOT_SECONDS[0] * rate:
        starts.append(start)
    fades = [0] * len(starts)
    for k in range(1, len(starts)):
        if kind == "fade" and (k == 1 or random.random() < FADES):
            fades[k] = max(2, round(random.uniform(*FADE_SECONDS) * rate))
    stops = [start + fade for start, fade in zip(starts[1:], fades[1:], strict=True)] + [frames]
    shots = tuple(Shot(*shot) for shot in zip(starts, stops, fades, strict=True))
    flashes: list[int] = []
    if kind == "flash":
        for k in random.permutation(len(shots))[: random.integers(1, 4)]:
            middle = (shots[k].start + shots[k].stop) // 2
            flashes += range(middle, middle + int(random.integers(1, 3)))
    if kind == "fade" and not any(fades):
        kind = "cut"  # too short for a fade
    return Plan(kind, frames, shots, tuple(sorted(flashes)))


@dataclass(frozen=True)
class Theme:
    """What the shots of a video have in common."""

    sprites: list[Image.Image]
    family: str
    palette: int
    unit: float


def draw_theme(short: int, random: Random) -> Theme:
    """A few objects of different classes and a kind of background."""
    classes = random.permutation(list(CLASSES))[: random.integers(*OBJECTS_OF_VIDEO, endpoint=True)]
    sprites = [draw_object(str(category), short, random) for category in classes]
    return Theme(sprites, str(random.choice(list(BACKGROUNDS))), choose_palette(random), random.uniform(*UNIT))


def draw_scene(theme: Theme, near: bool, size: tuple[int, int], random: Random) -> Scene:
    """A new view of the theme: other objects in other poses, another place, another light."""
    short, frame = min(size), np.array(size) / min(size)
    zoom = random.uniform(*ZOOM[near])
    zooms = np.array([zoom, max(ZOOM[0][0], zoom + random.uniform(*ZOOMING))])
    view = frame / 2 / zooms.min()
    room = frame / 2 * CANVAS - view - 0.01
    start, end = random.uniform(-room, room, (2, 2))
    end = start + np.clip(end - start, -PAN * view, PAN * view)
    bodies = []
    for _ in range(random.integers(*OBJECTS_IN_SHOT, endpoint=True)):
        # In view at the middle of the shot.
        place, travel = (start + end) / 2 + random.uniform(-0.8, 0.8, 2) * view, random.uniform(*TRAVEL, 2)
        half, angle = random.uniform(*OBJECT_SIZE), choose_angle(random)
        poses = (
            np.array([*(place - travel / 2), half, angle]),
            np.array([*(place + travel / 2), half * random.uniform(*GROWTH), angle + random.uniform(*SPIN)]),
        )
        bodies.append(Body(theme.sprites[random.integers(len(theme.sprites))], *poses))
    canvas, unit = (round(CANVAS * size[1]), round(CANVAS * size[0])), short * theme.unit * random.uniform(0.8, 1.25)
    return Scene(
        background(theme.family, canvas, unit, palette(theme.palette), random),
        among_litter(bodies, room + view, short, random),
        (np.array([*start, zooms[0]]), np.array([*end, zooms[1]])),
        draw_light(size, random),
    )


def video_frames(seed: int, index: int, seconds: float, rate: int, short: int) -> Iterator[Image.Image]:
    """The frames of a video, in order, with a short side of `short` pixels."""
    plan = plan_video(seed, index, seconds, rate)
    random = np.random.default_rng([seed, PICTURE, index])
    ratio = random.choice(list(ASPECTS), p=list(ASPECTS.values()))
    # Even numbers: half-size colour planes need them.
    size = 2 * round(short * max(1.0, ratio) / 2), 2 * round(short * max(1.0, 1 / ratio) / 2)
    theme = draw_theme(short, random)
    scenes = [draw_scene(theme, (k + index) % 2 == 1, size, random) for k in range(len(plan.shots))]

    def frame_of(number: int, k: int) -> Image.Image:
        shot = plan.shots[number]
        return render(scenes[number], (k - shot.start) / (shot.stop - shot.start))

    white = Image.new("RGB", size, (255, 255, 255))
    starts = np.array([shot.start for shot in plan.shots])
    for k in range(plan.frames):
        number = int(np.searchsorted(starts, k, side="right")) - 1
        shot, picture = plan.shots[number], frame_of(number, k)
        if k < shot.start + shot.fade:
            picture = Image.blend(frame_of(number - 1, k), picture, (k - shot.start + 1) / (shot.fade + 1))
        yield Image.blend(picture, white, 0.75) if k in plan.flashes else picture


def write_video(path: Path, seed: int, index: int, seconds: float, rate: int, short: int) -> None:
    """Render and encode one video; the file appears only when it is complete."""
    temporary = path.with_name(f".{path.name}.tmp")
    # One thread: with more, x264's bytes depend on their number. No macroblock tree: with AVX-512, x264 reads memory
    # there that it never wrote, and pictures of some widths differ each time.
    options = {"preset": "veryfast", "crf": "23", "threads": "1", "x264-params": "mbtree=0"}
    try:
        with av.open(str(temporary), "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=Fraction(rate), options=options)
            stream.pix_fmt = "yuv420p"
            for k, picture in enumerate(video_frames(seed, index, seconds, rate, short)):
                if k == 0:
                    stream.width, stream.height = picture.size
                container.mux(stream.encode(av.VideoFrame.from_image(picture)))
            container.mux(stream.encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
