"""One video into shots: every frame, every boundary, bounded length and memory."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import PEAK, write_video

from vivi.prepare.corpus import Corpus
from vivi.prepare.decode import SampledFrame
from vivi.prepare.piece import PrepareSettings, split_into_shots
from vivi.prepare.prepare import prepare


class FixedBoundaries:
    """A detector that finds given boundaries, `lookahead` frames late."""

    def __init__(self, boundaries: list[int], lookahead: int) -> None:
        self.boundaries = boundaries
        self.lookahead = lookahead
        self.count = 0

    def add(self, time: float, frame: object) -> list[int]:
        self.count += 1
        return [b for b in self.boundaries if b + self.lookahead == self.count - 1]

    def finish(self) -> list[int]:
        return [b for b in self.boundaries if b + self.lookahead >= self.count]


@pytest.mark.parametrize("seed", range(30))
def test_splitting_keeps_every_frame_every_boundary_and_the_cap(seed: int) -> None:
    rng = random.Random(seed)
    count, cap, lookahead = rng.randint(1, 120), rng.randint(1, 20), rng.randint(0, 15)
    boundaries = sorted(rng.sample(range(1, count), min(count - 1, rng.randint(0, 6))))
    blank = np.zeros((2, 2, 3), np.uint8)
    frames = (SampledFrame(float(index), blank) for index in range(count))
    shots = list(split_into_shots(frames, FixedBoundaries(boundaries, lookahead), cap, 90))
    assert [time for shot in shots for time, _ in shot] == list(range(count))
    starts = {int(shot[0][0]) for shot in shots}
    assert starts >= set(boundaries)
    assert max(map(len, shots)) <= cap
    # A take that must be split has no slivers: every part is at least half as long as the cap.
    for start, end in zip([0, *boundaries], [*boundaries, count], strict=True):
        parts = [len(shot) for shot in shots if start <= shot[0][0] < end]
        assert len(parts) == 1 or min(parts) >= cap // 2


def test_long_takes_are_split_on_request(tmp_path: Path) -> None:
    write_video(tmp_path / "take.mp4", shots=1, shot_seconds=19)
    (row,) = prepare([tmp_path / "take.mp4"], tmp_path / "whole", PrepareSettings(rate=2))
    assert row.shots == 1
    (row,) = prepare([tmp_path / "take.mp4"], tmp_path / "split", PrepareSettings(rate=2, max_shot_seconds=5))
    assert row.shots == 4
    corpus = Corpus(tmp_path / "split")
    assert [len(shot.times) for shot in corpus.shots(corpus.videos.to_pylist()[0])] == [10, 10, 9, 10]


def peak_memory(path: Path, out: Path) -> int:
    """Peak resident bytes of one worker that prepares the file."""
    script = (
        "from vivi.prepare.piece import *; from vivi.prepare.sources import Source\n"
        f"task = VideoTask(Source('v', {str(path)!r}), {str(out)!r}, PrepareSettings(rate=10, max_shot_frames=50))\n"
        "row = prepare_video(task).row; assert row.status == 'ok', row\n"
        f"print({PEAK})"
    )
    out.mkdir()
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)


def test_memory_does_not_grow_with_the_length_of_the_video(tmp_path: Path) -> None:
    for name, seconds in (("short.mp4", 20), ("long.mp4", 400)):
        write_video(tmp_path / name, shots=1, shot_seconds=seconds, size=(320, 240))
    short = peak_memory(tmp_path / "short.mp4", tmp_path / "short")
    long = peak_memory(tmp_path / "long.mp4", tmp_path / "long")
    written = sum(path.stat().st_size for path in (tmp_path / "long").glob("*.arrow"))
    assert written > 30e6
    assert long - short < 0.5 * written
