"""What the tests share: small real videos, and the command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from runs import OFTEN, train

from vivi.answers.embed import embed
from vivi.answers.embeddings import Embeddings
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare

Run = Callable[..., subprocess.CompletedProcess[str]]
Disk = Callable[[int], Path]
ENCODER = "untrained:vivi-ex4-tiny"


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
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of twelve small videos of three sizes, with 1 to 6 shots of 3 to 11 frames, some of them held out.

    Its index may be added to it; a test that changes anything else works on a copy.
    """
    folder = tmp_path_factory.mktemp("corpus")
    for index in range(12):
        size, seconds = [((96, 64), 2.0), ((64, 112), 0.8), ((80, 80), 1.4)][index % 3]
        path = folder / "videos" / f"v{index:02d}.mp4"
        write_video(path, shots=1 + index % 6, shot_seconds=seconds, seed=index, size=size)
    settings = PrepareSettings(rate=5, short_side=48, min_shot_seconds=0.3, test_fraction=0.45)
    execution = PrepareExecution(workers=2, shard_megabytes=0.05)
    prepare([folder / "videos"], folder / "corpus", settings, execution, Console(quiet=True))
    return folder / "corpus"


@pytest.fixture(scope="session")
def embeddings(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Embeddings:
    """Those of every frame of the corpus, at 32 px, by an untrained encoder."""
    return embed(corpus, ENCODER, tmp_path_factory.mktemp("embeddings"), size=32, device="cpu")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mounts a disk of so many bytes."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("mounting a small disk needs root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def vivi() -> Run:
    """Runs a vivi command to its end."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vivi", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    return run


# For scripts: the most memory that their process took, in bytes. Not getrusage, which counts its parent's as well.
PEAK = "int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) * 1024"


def contents(corpus: Path) -> dict[str, object]:
    """Everything in a corpus, for comparing two of them: the table's rows and the shards' bytes."""
    shards = {path.name: path.read_bytes() for path in sorted((corpus / "shards").iterdir())}
    return {"videos": pq.read_table(corpus / "videos.parquet").to_pylist(), **shards}


def reasons(corpus: Path) -> dict[str, str]:
    """The skipped videos of a corpus with their reasons."""
    rows = pq.read_table(corpus / "videos.parquet").to_pylist()
    return {row["video"]: row["reason"] for row in rows if row["status"] == "skipped"}


@pytest.fixture(scope="session")
def undisturbed(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of all test videos, in several shards."""
    out = tmp_path_factory.mktemp("undisturbed") / "corpus"
    prepare([videos], out, PrepareSettings(rate=5.0), PrepareExecution(shard_megabytes=0.05))
    return out


@pytest.fixture(scope="session")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run of 30 steps."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    done = train(corpus, out, "--steps", 30, *OFTEN)
    assert done.returncode == 0, done.stderr
    return out
