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
from vivi.demo.textures import BACKGROUNDS, background, draw_palette
from vivi.demo.world import Body, Random, Scene, draw_angle, draw_light, draw_thing, render

# How often videos have cuts only, fades as well, or flashes, which are no boundaries.
KINDS = {"cut": 0.7, "fade": 0.2, "flash": 0.1}
# Aspect ratios as uploads have them, and how often.
ASPECTS = {16 / 9: 0.6, 4 / 3: 0.16, 1.0: 0.12, 9 / 16: 0.12}
SHORTEST, LONGEST = 2.0, 6.0  # seconds of a shot
CANVAS = 1.7  # how much larger than the frame the background is: the camera needs room


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
    random = np.random.default_rng([seed, 0, index])
    frames = max(1, round(seconds * rate))
    kind = str(random.choice(list(KINDS), p=list(KINDS.values())))
    starts = [0]
    while (start := starts[-1] + round(random.uniform(SHORTEST, LONGEST) * rate)) <= frames - SHORTEST * rate:
        starts.append(start)
    fades = [0] * len(starts)
    for k in range(1, len(starts)):
        if kind == "fade" and (k == 1 or random.random() < 0.6):
            fades[k] = max(2, round(random.uniform(0.5, 1.2) * rate))
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


def draw_scenes(shots: int, near: bool, size: tuple[int, int], random: Random) -> Iterator[Scene]:
    """The scenes of a video's shots. What they share is one to three things of different classes, the kind of
    place, and its colours. Each is another view of these: other poses, another part of the place, another light. Far
    and near views take turns, so that a cut is a change of view whatever else is drawn."""
    short, frame = min(size), np.array(size) / min(size)
    categories = random.permutation(len(CLASSES))[: random.integers(1, 4)].tolist()
    sprites = [draw_thing(category, short, random) for category in categories]
    place, colours, unit = int(random.integers(len(BACKGROUNDS))), draw_palette(random), random.uniform(0.1, 0.2)
    for k in range(shots):
        zoom = random.uniform(1.25, 1.6) if near == (k % 2 == 0) else random.uniform(0.85, 1.1)
        zooms = np.array([zoom, max(0.85, zoom + random.uniform(-0.1, 0.1))])
        view = frame / 2 / zooms.min()
        room = frame / 2 * CANVAS - view - 0.01
        start, end = random.uniform(-room, room, (2, 2))
        end = start + np.clip(end - start, -0.66 * view, 0.66 * view)
        bodies = []
        for _ in range(random.integers(1, 6)):
            # In view at the middle of the shot.
            spot, travel = (start + end) / 2 + random.uniform(-0.8, 0.8, 2) * view, random.uniform(-0.45, 0.45, 2)
            half, angle = random.uniform(0.18, 0.42), draw_angle(random)
            growth, spin = random.uniform(0.7, 1.4), random.uniform(-60.0, 60.0)
            poses = [*(spot - travel / 2), half, angle], [*(spot + travel / 2), half * growth, angle + spin]
            bodies.append(Body(sprites[random.integers(len(sprites))], *np.array(poses)))
        canvas = round(CANVAS * size[1]), round(CANVAS * size[0])
        yield Scene(
            size,
            background(place, canvas, short * unit * random.uniform(0.8, 1.25), colours, random),
            bodies,
            (np.array([*start, zooms[0]]), np.array([*end, zooms[1]])),
            (draw_light(random), draw_light(random)),
        )


def video_frames(seed: int, index: int, seconds: float, rate: int, short: int) -> Iterator[Image.Image]:
    """The frames of a video, in order, with a short side of `short` pixels."""
    plan = plan_video(seed, index, seconds, rate)
    random = np.random.default_rng([seed, 1, index])
    ratio = random.choice(list(ASPECTS), p=list(ASPECTS.values()))
    # Even numbers: half-size colour planes need them.
    size = 2 * round(short * max(1.0, ratio) / 2), 2 * round(short * max(1.0, 1 / ratio) / 2)
    scenes = list(draw_scenes(len(plan.shots), index % 2 == 1, size, random))

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
