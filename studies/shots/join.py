"""Joins single takes of real clips at known places: the data on which the shot detector was developed.

    python studies/shots/join.py CLIPS --out FOLDER [--half develop|held-out] [--videos 65] [--seed 0]

`takes.txt` names the clips without transitions inside (chosen by their histogram distances, then by eye). Runs of ten
neighbours go to one half or the other in turn, as neighbouring clips may come from one original. Videos are written
with 25 frames per second and with a `truth.json` that score.py reads. Their kinds: plain cuts, cross-fades of 0.8 s,
and cuts with flashes that are none; and the same three with one more difficulty, named after it.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH, RATE = 144, 256, 25
CHECKED = 200  # frames of a clip that were looked at for transitions
TRANSITIONS = ("cut", "fade", "flash", "cut", "fade")
DIFFICULTIES = (
    *("plain",) * 4,
    "neighbours",  # takes from one source
    "fade lengths",  # 0.4 to 2 seconds
    "dip to black",
    "drift of light",
    "letterbox",
    "logo",
    "shake",
    "flicker",
    "black and white",
)


def read_take(path: Path, seconds: float, pad: bool, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A random part of a clip at 25 frames per second, stretched or padded to the size of the video."""
    with av.open(str(path)) as container:
        clip = list(islice(container.decode(video=0), CHECKED))
        fps = float(container.streams.video[0].average_rate or 5)
    count = min(len(clip), max(2, round(seconds * fps)))
    first = int(rng.integers(len(clip) - count + 1))
    pictures = []
    for frame in clip[first : first + count]:
        scale = min(HEIGHT / frame.height, WIDTH / frame.width)
        height = round(frame.height * scale) if pad else HEIGHT
        width = round(frame.width * scale) if pad else WIDTH
        picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        top, left = (HEIGHT - height) // 2, (WIDTH - width) // 2
        picture[top : top + height, left : left + width] = frame.to_ndarray(
            format="rgb24", width=width, height=height
        )
        pictures.append(picture)
    index = (np.arange(round(count / fps * RATE)) * fps / RATE).astype(int)
    take: NDArray[np.uint8] = np.stack(pictures)[np.minimum(index, count - 1)]
    return take


def join(
    clips: list[Path], transition: str, difficulty: str, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], list[float | list[float]]]:
    """The frames of one video and its boundaries in seconds."""
    count, pad = int(rng.integers(5, 9)), rng.random() < 0.5
    if difficulty == "neighbours":
        start = int(rng.integers(len(clips)))
        chosen = [clips[(start + i) % len(clips)] for i in range(count)]
    else:
        chosen = [clips[i] for i in rng.choice(len(clips), count, replace=False)]
    takes = [read_take(path, rng.uniform(1.8, 6), pad, rng) for path in chosen]
    seconds = float(rng.choice([0.4, 0.6, 1.2, 1.6, 2.0])) if difficulty == "fade lengths" else 0.8
    frames, boundaries = takes[0], list[float | list[float]]()
    for take in takes[1:]:
        if transition != "fade":
            boundaries.append(len(frames) / RATE)
            frames = np.concatenate([frames, take])
            continue
        length = min(round(seconds * RATE), len(take) // 2, len(frames) // 2)
        share = (np.arange(1, length + 1) / (length + 1)).reshape(-1, 1, 1, 1).astype(np.float32)
        before, after = 1 - share, share
        if difficulty == "dip to black":
            before, after = np.maximum(1 - 2 * share, 0), np.maximum(2 * share - 1, 0)
        mixed = frames[-length:] * before + take[:length] * after
        boundaries.append([(len(frames) - length) / RATE, len(frames) / RATE])
        frames = np.concatenate([frames[:-length], mixed.astype(np.uint8), take[length:]])
    hamper(frames, difficulty, rng)
    if transition == "flash":
        cuts = np.array(boundaries, dtype=float)
        for _ in range(3):
            places = rng.permutation(np.arange(10, len(frames) - 10))
            first = next(i for i in places if abs(cuts - i / RATE).min() > 0.5)
            looks = [(0.0, 255.0), (rng.uniform(0.1, 0.5), 150.0), (rng.uniform(1.8, 3), 30.0)]
            gain, light = looks[int(rng.integers(3))]
            frames[first : first + 2] = np.clip(frames[first : first + 2] * gain + light, 0, 255)
    return frames, boundaries


def hamper(frames: NDArray[np.uint8], difficulty: str, rng: np.random.Generator) -> None:
    """Adds what should make no difference."""
    times = np.arange(len(frames)) / RATE
    gains = np.ones(len(frames))
    if difficulty == "drift of light":
        gains += 0.35 * np.sin(2 * np.pi * times / rng.uniform(4, 12) + rng.uniform(0, 6))
    elif difficulty == "flicker":
        gains += rng.normal(0, 0.08, len(frames))
    elif difficulty == "letterbox":
        bars = int(rng.integers(12, 32))
        frames[:, :bars] = frames[:, -bars:] = 0
    elif difficulty == "logo":
        frames[:, 12:40, 16:80] = rng.uniform(0, 255, 3)
    for frame, gain in zip(frames, gains, strict=True):
        if gain != 1:
            frame[:] = np.clip(frame * gain, 0, 255)
        if difficulty == "shake":
            frame[:] = np.roll(frame, tuple(rng.integers(-12, 13, 2)), (0, 1))
        elif difficulty == "black and white":
            frame[:] = frame.mean(axis=2, keepdims=True)


def write(path: Path, frames: NDArray[np.uint8]) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"preset": "veryfast", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


def main() -> None:
    parser = argparse.ArgumentParser(description="Join single takes of real clips at known places.")
    parser.add_argument("clips", type=Path, help="the folder of the clips named in takes.txt")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--half", choices=["develop", "held-out"], default="held-out")
    parser.add_argument("--videos", type=int, default=65)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    names = (Path(__file__).parent / "takes.txt").read_text().split()
    half = ["develop", "held-out"].index(arguments.half)
    clips = [arguments.clips / f"{name}.mp4" for i, name in enumerate(names) if i // 10 % 2 == half]
    arguments.out.mkdir(parents=True, exist_ok=True)
    truth = {}
    for i in range(arguments.videos):
        difficulty = DIFFICULTIES[i % len(DIFFICULTIES)]
        transition = TRANSITIONS[i // len(DIFFICULTIES) % len(TRANSITIONS)]
        if difficulty in ("fade lengths", "dip to black"):
            transition = "fade"
        frames, boundaries = join(clips, transition, difficulty, np.random.default_rng((arguments.seed, half, i)))
        name = f"{i:03d}.mp4"
        write(arguments.out / name, frames)
        kind = transition if difficulty == "plain" else difficulty
        truth[name] = {"kind": kind, "seconds": len(frames) / RATE, "boundaries": boundaries}
        print(f"{i + 1}/{arguments.videos}", end="\r", flush=True)
    (arguments.out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    print()


if __name__ == "__main__":
    main()
