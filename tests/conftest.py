"""What the tests share: small real videos, and the command line as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


def write_video(
    path: Path,
    shots: int = 3,
    shot_seconds: float = 2.0,
    rate: int = 10,
    seed: int = 0,
    size: tuple[int, int] = (96, 64),
) -> None:
    """An MP4 whose shots are moving textures of clearly different colours."""
    rng = np.random.default_rng(seed)
    width, height = size
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            "libx264", rate=rate, options={"preset": "ultrafast", "bf": "2", "threads": "1"}
        )
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for shot in range(shots):
            hue = np.array([shot % 3 == channel for channel in range(3)]) * 150
            texture = np.clip(hue + rng.integers(0, 100, (height // 8, 2 * width // 8, 3)), 0, 255).astype(np.uint8)
            scene = np.kron(texture, np.ones((8, 8, 1), np.uint8))
            for index in range(round(shot_seconds * rate)):
                frame = np.ascontiguousarray(scene[:, index % width : index % width + width])
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode())


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eight small videos, two of them with the same file name in different folders."""
    folder = tmp_path_factory.mktemp("videos")
    for index, name in enumerate(["a", "b", "c", "d", "e", "f", "left/same", "right/same"]):
        write_video(folder / f"{name}.mp4", shots=1 + index % 4, seed=index)
    return folder


@pytest.fixture(scope="session")
def vivi() -> Run:
    """Runs a vivi command to its end."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vivi", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    return run
