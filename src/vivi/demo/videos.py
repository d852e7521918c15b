"""One synthesized video: its plan (shots, fades, flashes), the scenes of its shots, and the MP4 file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from vivi.demo.world import (
    CANVAS,
    ZOOM_OUT,
    Body,
    Camera,
    Random,
    Scene,
    Sprite,
    Theme,
    draw_canvas,
    draw_debris,
    draw_light,
    draw_sprite,
    draw_theme,
    render,
)

Vector = npt.NDArray[np.float64]  # x and y

# Streams of random numbers of a video: its plan, and what is seen in it.
PLAN, PICTURE = 0, 1
SHOT_SECONDS = (2.0, 6.0)
FADE_SECONDS = (0.5, 1.2)
# Aspect ratios as uploads have them, and how often.
ASPECTS = ((16 / 9, 0.6), (4 / 3, 0.16), (1.0, 0.12), (9 / 16, 0.12))


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
    kind = str(random.choice(["cut", "fade", "flash"], p=[0.7, 0.2, 0.1]))
    shortest, longest = SHOT_SECONDS
    starts = [0]
    while True:
        start = starts[-1] + round(random.uniform(shortest, longest) * rate)
        if start > frames - shortest * rate:
            break
        starts.append(start)

    fades = [0] * len(starts)
    if kind == "fade":
        for k in range(1, len(starts)):
            if k == 1 or random.random() < 0.6:
                fades[k] = max(2, round(random.uniform(*FADE_SECONDS) * rate))
    stops = [start + fade for start, fade in zip(starts[1:], fades[1:], strict=True)] + [frames]
    shots = tuple(Shot(*shot) for shot in zip(starts, stops, fades, strict=True))

    flashes: list[int] = []
    if kind == "flash":
        for k in random.permutation(len(shots))[: int(random.integers(1, 4))]:
            middle = (shots[k].start + shots[k].stop) // 2
            flashes += range(middle, middle + int(random.integers(1, 3)))
    # A video too short for what its kind promises is a plain one.
    if (kind == "fade" and not any(fades)) or (kind == "flash" and not flashes):
        kind = "cut"
    return Plan(kind, frames, shots, tuple(sorted(flashes)))


# --- scenes ---------------------------------------------------------------------------------------------


def draw_scene(
    theme: Theme, sprites: list[Sprite], shot: int, width: int, height: int, seconds: float, random: Random
) -> Scene:
    """A new view of the theme: other objects in other poses, another place, another light."""
    # Near and far views take turns, so that a cut is a change of view whatever else is drawn.
    near = (shot + theme.palette) % 2 == 0
    zoom = random.uniform(1.25, 1.6) if near else random.uniform(ZOOM_OUT, 1.1)
    short = min(width, height)
    view = np.array([width, height]) / short / 2 / zoom
    room = np.array([width, height]) / short / 2 * (CANVAS - 1 / zoom)
    start, end = random.uniform(-room, room), random.uniform(-room, room)
    # Cross at most a third of the view in a shot.
    pan = np.clip(end - start, -view * 0.66, view * 0.66) / seconds
    camera = Camera(
        float(start[0]),
        float(start[1]),
        float(zoom),
        (float(pan[0]), float(pan[1])),
        float(random.uniform(-0.25, 0.25) / seconds),
    )
    middle = start + pan * seconds / 2

    count = int(random.integers(1, 6))
    chosen = random.permutation(len(sprites))[: max(1, int(random.integers(1, len(sprites) + 1)))]
    bodies = [
        draw_body(sprites[int(random.choice(chosen))], middle, view, seconds, count, random) for _ in range(count)
    ]
    reach = (float(room[0] + view[0]), float(room[1] + view[1]))
    litter = draw_debris(int(random.integers(0, 9)), theme.palette, reach, short, random)
    behind = int(random.integers(0, len(litter) + 1))
    return Scene(
        width,
        height,
        draw_canvas(theme, width, height, random),
        (*litter[:behind], *bodies, *litter[behind:]),
        camera,
        draw_light(width, height, random),
    )


def draw_body(
    sprite: Sprite,
    middle: Vector,
    view: Vector,
    seconds: float,
    count: int,
    random: Random,
) -> Body:
    """An object of a shot: in view at the middle of it, upright more often than not, and moving."""
    size = random.uniform(0.13, 0.3) * (1.25 if count <= 2 else 1.0)
    where = middle + random.uniform(-0.8, 0.8, 2) * view
    travel = random.uniform(-0.45, 0.45, 2)
    upright = random.random() < 0.65
    return Body(
        sprite,
        float(where[0] - travel[0] / 2),
        float(where[1] - travel[1] / 2),
        float(size),
        angle=float(random.normal(0, 12) if upright else random.uniform(0, 360)),
        flip=bool(random.random() < 0.5),
        velocity=(float(travel[0] / seconds), float(travel[1] / seconds)),
        sway=(float(random.uniform(-0.05, 0.05)), float(random.uniform(-0.05, 0.05))),
        spin=0.0 if upright else float(random.uniform(-50, 50)),
        swing=float(random.uniform(-12, 12)),
        growth=float(random.uniform(-0.4, 0.4) / seconds),
        tempo=float(random.uniform(0.15, 0.5)),
        phase=float(random.uniform(0, 2 * math.pi)),
    )


# --- frames ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dressing:
    """What an upload adds to every frame: black bars around the picture, and a logo (with its place)."""

    width: int
    height: int
    bars: tuple[int, int]
    logo: Image.Image | None
    corner: tuple[int, int]


def draw_dressing(size: int, random: Random) -> Dressing:
    """Choose the shape of a video, its bars and its logo."""
    ratios, shares = zip(*ASPECTS, strict=True)
    ratio = float(random.choice(ratios, p=shares))
    width, height = even(size * max(1.0, ratio)), even(size * max(1.0, 1 / ratio))
    bars = (0, 0)
    if random.random() < 0.15:
        share = random.uniform(0.08, 0.14)
        bars = (0, round(height * share)) if random.random() < 0.7 else (round(width * share), 0)
    logo, corner = None, (0, 0)
    if random.random() < 0.2:
        logo = draw_logo(max(12, size // 9), random)
        gap = max(3, size // 24)
        corner = (
            gap if random.random() < 0.5 else width - gap - logo.width,
            gap if random.random() < 0.5 else height - gap - logo.height,
        )
    return Dressing(width, height, bars, logo, corner)


def even(length: float) -> int:
    """The nearest even number: half-size colour planes need one."""
    return 2 * round(length / 2)


def draw_logo(size: int, random: Random) -> Image.Image:
    """A half-transparent badge with a few strokes, as channels stamp on their videos."""
    logo = Image.new("RGBA", (size * 2, size))
    draw = ImageDraw.Draw(logo)
    red, green, blue = (int(tone) for tone in random.integers(120, 256, 3))
    draw.ellipse((0, 0, size - 1, size - 1), fill=(red, green, blue, 190))
    for stroke in range(3):
        x = size * (1.1 + 0.28 * stroke)
        y = size * random.uniform(0.1, 0.5)
        draw.rectangle((x, y, x + size * 0.16, size * 0.85), fill=(255, 255, 255, 190))
    return logo


def dress(picture: Image.Image, dressing: Dressing) -> Image.Image:
    """Put the picture between its bars and the logo on top."""
    if dressing.bars != (0, 0):
        frame = Image.new("RGB", (dressing.width, dressing.height))
        frame.paste(picture, dressing.bars)
        picture = frame
    if dressing.logo is not None:
        picture.paste(dressing.logo, dressing.corner, dressing.logo)
    return picture


def video_frames(seed: int, index: int, seconds: float, rate: int, size: int) -> Iterator[Image.Image]:
    """The frames of a video, in order."""
    plan = plan_video(seed, index, seconds, rate)
    random = np.random.default_rng([seed, PICTURE, index])
    theme = draw_theme(random)
    dressing = draw_dressing(size, random)
    width, height = dressing.width - 2 * dressing.bars[0], dressing.height - 2 * dressing.bars[1]
    sprites = [draw_sprite(specimen, size) for specimen in theme.specimens]

    fading: Scene | None = None  # the scene that is on its way out
    for number, shot in enumerate(plan.shots):
        length = (shot.stop - shot.start) / rate
        scene = draw_scene(theme, sprites, number, width, height, length, random)
        # The last frames of this shot belong to the next one when that fades in.
        following = plan.shots[number + 1].start if number + 1 < len(plan.shots) else plan.frames
        for k in range(shot.start, following):
            picture = render(scene, (k - shot.start) / rate)
            if fading is not None and k < shot.start + shot.fade:
                before = render(fading, (k - plan.shots[number - 1].start) / rate)
                picture = Image.blend(before, picture, (k - shot.start + 1) / (shot.fade + 1))
            if k in plan.flashes:
                picture = Image.blend(picture, Image.new("RGB", picture.size, (255, 255, 255)), 0.75)
            yield dress(picture, dressing)
        fading = scene


def write_video(path: Path, seed: int, index: int, seconds: float, rate: int, size: int) -> None:
    """Render and encode one video; the file appears only when it is complete."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with av.open(str(temporary), "w", format="mp4") as container:
            stream = None
            for picture in video_frames(seed, index, seconds, rate, size):
                if stream is None:
                    # One thread: with more, x264's bytes depend on their number. No macroblock tree: with AVX-512,
                    # x264 reads memory there that it never wrote, and pictures of some widths differ each time.
                    options = {"preset": "veryfast", "crf": "23", "threads": "1", "x264-params": "mbtree=0"}
                    stream = container.add_stream("libx264", rate=Fraction(rate), options=options)
                    stream.width, stream.height = picture.size
                    stream.pix_fmt = "yuv420p"
                container.mux(stream.encode(av.VideoFrame.from_image(picture)))
            if stream is not None:
                container.mux(stream.encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
