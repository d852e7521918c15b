"""How much memory does a worker of `vivi prepare` take? Makes large, long and hostile files, and prepares each.

    python studies/prepare_memory/memory.py [--small]

Prints a Markdown table: the most memory that the worker's process took, and what became of the file.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from vivi.runtime.storage import read_checked_json

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from media import write_header_bomb

X265 = {"preset": "ultrafast", "x265-params": "log-level=none:bframes=4:ref=4"}
# What a worker does with one video.
WORKER = """
import sys
from vivi.prepare.engines import run_task
from vivi.prepare.piece import PrepareSettings, VideoTask
from vivi.prepare.sources import Source
task = VideoTask(Source("video", sys.argv[1]), sys.argv[2], PrepareSettings(rate=float(sys.argv[3])))
run_task(task)
"""


def write_clip(
    width: int, height: int, frames: int, codec: str, options: dict[str, str], format: str, path: Path
) -> None:
    """Moving blocks of random colours, 30 frames a second."""
    blocks = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(30), options=options)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, format
        for number in range(frames):
            small = VideoFrame.from_ndarray(np.roll(blocks, number, 1))
            frame = small.reformat(width, height, format, interpolation="POINT")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_gif_bomb(path: Path, side: int = 6100, frames: int = 1000) -> None:
    """One large picture, then one pixel a frame: every frame is decoded at full size."""
    first, pixel = io.BytesIO(), io.BytesIO()
    Image.new("P", (side, side)).save(first, "GIF")
    Image.new("P", (1, 1)).save(pixel, "GIF")
    content = pixel.getvalue()
    control = b"\x21\xf9\x04\x04\x0a\0\0\0"  # a tenth of a second
    image = content[content.index(b",\0\0\0\0\1\0\1\0") : -1]
    path.write_bytes(first.getvalue()[:-1] + (control + image) * (frames - 1) + b";")


def files(small: bool) -> dict[str, tuple[str, Callable[[Path], object]]]:
    """What to prepare: the file's name and what writes it."""
    scale = 10 if small else 1
    clips = {
        "1080p, H.264, 3,600 frames": ("a.mp4", 1920, 1080, 3600, "libx264", {"preset": "ultrafast"}, "yuv420p"),
        "4K, H.264, 300 frames": ("b.mp4", 3840, 2160, 300, "libx264", {"preset": "superfast", "bf": "3"}, "yuv420p"),
        "8K, H.264, 60 frames": ("c.mp4", 7680, 4320, 60, "libx264", {"preset": "superfast", "bf": "3"}, "yuv420p"),
        "8K, HEVC, 10 bits, 24 frames": ("d.mp4", 7680, 4320, 24, "libx265", X265, "yuv420p10le"),
        "8K, AV1, 10 bits, 16 frames": ("e.mkv", 7680, 4320, 16, "libsvtav1", {"preset": "12"}, "yuv420p10le"),
    }
    made: dict[str, tuple[str, Callable[[Path], object]]] = {}
    for what, (name, width, height, frames, codec, options, format) in clips.items():
        arguments = (width, height, max(8, frames // scale), codec, options, format)
        made[what] = name, partial(write_clip, *arguments)
    made["GIF, 6100 × 6100, 1,000 frames"] = "f.gif", lambda path: write_gif_bomb(path, frames=1000 // scale)
    made["MP4 that promises 60 million samples"] = "g.mp4", lambda path: write_header_bomb(path, 60_000_000)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tenth of the frames")
    parser.add_argument("--rate", type=float, default=5.0)
    arguments = parser.parse_args()
    print(f"--rate {arguments.rate:g}\n")
    print("| file | bytes | worker's peak | seconds | frames | |\n|---|---:|---:|---:|---:|---|")
    for what, (name, write) in files(arguments.small).items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            # In a process of its own: what this one took would count as the worker's.
            writing = multiprocessing.get_context("fork").Process(target=write, args=(path,))
            writing.start()
            writing.join()
            size, began = path.stat().st_size, time.monotonic()
            worker = subprocess.Popen([sys.executable, "-c", WORKER, str(path), folder, str(arguments.rate)])
            _, _, usage = os.wait4(worker.pid, 0)
            seconds = time.monotonic() - began
            (outcome,) = Path(folder).glob("*.json")
            row = read_checked_json(outcome)["row"]
        peak = usage.ru_maxrss * 1024 / 1e6
        print(
            f"| {what} | {size:,} | {peak:,.0f} MB | {seconds:.1f} | {row['frames']:,} | {row['reason']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
