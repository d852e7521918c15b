"""Corpora of one shard, made of small pictures without any video."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from vivi.prepare.corpus import ShotWriter, VideoRow, shard_path, write_settings, write_videos

SETTINGS = {
    "rate": 1.0,
    "short_side": 256,
    "jpeg_quality": 90,
    "exact": False,
    "shot_threshold": 0.5,
    "min_shot_seconds": 0.5,
    "max_shot_seconds": 0.0,
    "max_shot_frames": 500,
    "test_fraction": 0.1,
}


def jpeg(seed: int, size: tuple[int, int] = (96, 64)) -> bytes:
    """A small picture unlike the others."""
    pixels = np.random.default_rng(seed).integers(0, 256, (2, 3, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def video(name: str, shots: Sequence[int], reason: str = "", split: str = "train") -> tuple[VideoRow, Sequence[int]]:
    """A video with so many frames in each of its shots, one frame a second."""
    frames = sum(shots)
    row = VideoRow(
        name, f"/videos/{name}", "ok", reason, "train", float(frames), 192, 128, "h264", frames, len(shots)
    )
    return replace(row, split="test" if split == "test" else "train"), shots


def skipped(name: str, reason: str) -> VideoRow:
    return VideoRow(name, f"/videos/{name}", "skipped", reason, "train")


def make_corpus(
    folder: Path,
    videos: Sequence[tuple[VideoRow, Sequence[int]]],
    others: Sequence[VideoRow] = (),
    damaged: Sequence[int] = (),
    settings: dict[str, object] | None = None,
) -> Path:
    """A corpus of one shard; the frames with the numbers in `damaged` are no JPEGs."""
    (folder / "shards").mkdir(parents=True)
    rows, first_row, number = [], 0, 0
    with ShotWriter(shard_path(folder, 0)) as writer:
        for row, shots in videos:
            rows.append(replace(row, shard=0, first_row=first_row))
            time = 0
            for index, length in enumerate(shots):
                frames = [jpeg(n) if n not in damaged else jpeg(n)[:200] for n in range(number, number + length)]
                writer.add(row.video, index, [float(t) for t in range(time, time + length)], frames)
                number, time = number + length, time + length
            first_row += len(shots)
        writer.commit()
    write_videos(folder, [*rows, *others])
    write_settings(folder, settings or SETTINGS)
    return folder
