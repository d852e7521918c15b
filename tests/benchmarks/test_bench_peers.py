"""The peers: they train on the corpus's frames, shot by shot, and say how fast, or why they cannot."""

from __future__ import annotations

import importlib.util
import io
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from peers import Frames, PeerSettings, Shots, lightly_loop, plain_loop
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from vivi.data.index import Index, open_index
from vivi.prepare.corpus import Corpus

SETTINGS = PeerSettings(
    size=32,
    frames=4,
    batch=16,
    create=partial(timm.create_model, "resnetv2_18", num_classes=0, width_factor=0.125),
    device=torch.device("cpu"),
    compile=False,
    workers=2,
    seconds=0.5,
)
HAS_LIGHTLY = importlib.util.find_spec("lightly") is not None


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


def pixels(jpeg: bytes) -> Tensor:
    frame: Tensor = pil_to_tensor(Image.open(io.BytesIO(jpeg)))
    return frame


@pytest.fixture(scope="module")
def shots(corpus: Path) -> list[list[Tensor]]:
    """The frames of each training shot, videos by name, read without the index."""
    opened = Corpus(corpus)
    rows = sorted(opened.videos.to_pylist(), key=lambda row: str(row["video"]))
    train = [row for row in rows if row["split"] == "train" and row["status"] == "ok"]
    return [[pixels(jpeg) for jpeg in shot.frames] for row in train for shot in opened.shots(row)]


def test_an_item_is_consecutive_frames_of_a_training_shot(index: Index, shots: list[list[Tensor]]) -> None:
    dataset = Shots(index, 6, pil_to_tensor)
    assert len(dataset) == len(shots)
    assert {len(shot) < 6 for shot in shots} == {True, False}, "some are too short and begin again"
    for item, shot in enumerate(shots):
        starts = {_start(dataset[item], shot) for _ in range(10)}
        assert starts <= set(range(max(len(shot) - 6, 0) + 1))
        assert len(starts) > 1 or len(shot) <= 6


def _start(found: Tensor, shot: list[Tensor]) -> int:
    """The frame of the shot that an item begins with, if it goes on from there in order."""
    for start in range(len(shot)):
        if all(torch.equal(frame, shot[(start + i) % len(shot)]) for i, frame in enumerate(found)):
            return start
    raise AssertionError("these are not consecutive frames of the shot")


def test_single_frames_are_all_those_of_the_training_shots(index: Index, shots: list[list[Tensor]]) -> None:
    dataset = Frames(index, lambda image: [pil_to_tensor(image)])
    frames = [frame for shot in shots for frame in shot]
    assert len(dataset) == len(frames)
    for item, frame in enumerate(frames):
        views, _ = dataset[item]
        assert torch.equal(views[0], frame)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_plain_loop_counts_whole_rounds_of_its_workers(index: Index, workers: int) -> None:
    began = time.perf_counter()
    found = plain_loop(index, replace(SETTINGS, workers=workers))
    took = time.perf_counter() - began
    assert found.note == ""
    assert found.steps > 0 and found.steps % workers == 0
    # The clock ran for at least the half second asked for, and not longer than the whole call.
    assert found.steps * 16 / took < found.frames_per_second <= found.steps * 16 / 0.5


def test_a_batch_may_hold_more_shots_than_the_corpus(index: Index, shots: list[list[Tensor]]) -> None:
    found = plain_loop(index, replace(SETTINGS, batch=4 * (len(shots) + 3), workers=1, seconds=0.1))
    assert found.note == "" and found.frames_per_second > 0


def test_a_peer_that_cannot_run_says_why(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    index = open_index(Corpus(tmp_path / "corpus"))
    shutil.rmtree(tmp_path / "corpus" / "shards")
    found = plain_loop(index, replace(SETTINGS, workers=1))
    assert found.frames_per_second == 0 and found.steps == 0
    assert "is missing; run the same vivi prepare again" in found.note and "\n" not in found.note


@pytest.mark.skipif(HAS_LIGHTLY, reason="lightly is installed")
def test_a_missing_lightly_is_a_note(index: Index) -> None:
    found = lightly_loop(index, SETTINGS)
    assert found.frames_per_second == 0 and found.steps == 0
    assert found.note == "missing, lightly cannot be imported: No module named 'lightly'"


@pytest.mark.skipif(not HAS_LIGHTLY, reason="lightly is not installed")
def test_lightly_trains_on_two_views_of_a_frame(index: Index) -> None:
    found = lightly_loop(index, SETTINGS)
    assert found.note == ""
    assert found.steps > 0 and found.frames_per_second <= found.steps * 16 / 0.5
