"""The shot detector on made frames, and the study's scoring against an obvious reference."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vivi.prepare.shots import HistogramShotDetector, describe, distances

Frames = list[NDArray[np.uint8]]
RATES = [0.2, 1.0, 5.0, 25.0]


def picture(seed: int, height: int = 64, width: int = 96) -> NDArray[np.float64]:
    """A scene: a ground colour with a few hundred overlapping coloured rectangles."""
    rng = np.random.default_rng(seed)
    ground = rng.uniform(30, 220, 3)
    scene = np.broadcast_to(ground, (height, width, 3)).copy()
    for _ in range(height * width // 64):
        y, x, h, w = rng.integers(height), rng.integers(width), rng.integers(2, 20), rng.integers(2, 20)
        scene[y : y + h, x : x + w] = np.clip(ground + rng.normal(0, 45, 3), 0, 255)
    return scene


def shot(seed: int, length: int, height: int = 64, width: int = 96) -> Frames:
    """A still scene seen by a noisy camera."""
    rng = np.random.default_rng(1000 + seed)
    scene = picture(seed, height, width)
    return [to_frame(scene + rng.normal(0, 2, scene.shape)) for _ in range(length)]


def to_frame(values: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    frame: NDArray[np.uint8] = np.clip(values, 0, 255).astype(np.uint8)
    return frame


def find(
    frames: Frames,
    rate: float = 5.0,
    times: NDArray[np.float64] | None = None,
    threshold: float | None = None,
    min_shot_seconds: float | None = None,
) -> list[int]:
    detector = HistogramShotDetector(rate)
    if threshold is not None:
        detector.threshold = threshold
    if min_shot_seconds is not None:
        detector.min_shot_seconds = min_shot_seconds
    times = np.arange(len(frames)) / rate if times is None else times
    found: list[int] = []
    for time, frame in zip(times, frames, strict=True):
        found += detector.add(float(time), frame)
    found += detector.finish()
    assert found == sorted(set(found))
    return found


@pytest.mark.parametrize("rate", RATES)
def test_cuts_are_found_at_their_index(rate: float) -> None:
    lengths = [20, 17, 40, 15]
    frames = [frame for seed, length in enumerate(lengths) for frame in shot(seed, length)]
    assert find(frames, rate) == [20, 37, 77]


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_at_low_rates_shots_may_have_one_or_two_samples(rate: float) -> None:
    frames = shot(0, 4) + shot(1, 1) + shot(2, 1) + shot(4, 2) + shot(7, 5)
    assert find(frames, rate) == [4, 5, 6, 8]


@pytest.mark.parametrize("brightness", [60.0, 120.0, 255.0])
@pytest.mark.parametrize("rate", [1.0, 5.0])
def test_a_flash_of_one_sample_is_no_boundary(rate: float, brightness: float) -> None:
    frames = shot(0, 30)
    frames[10] = to_frame(frames[10] + brightness)
    assert find(frames, rate) == []


def test_a_flash_at_a_high_rate_lasts_several_frames() -> None:
    frames = shot(0, 100)
    for i in range(50, 54):
        frames[i] = to_frame(frames[i] + 150.0)
    assert find(frames, 25.0) == []


def test_a_flash_next_to_a_cut_leaves_the_cut_in_its_place() -> None:
    for position in (17, 22, 23):
        frames = shot(0, 20) + shot(1, 20)
        frames[position] = to_frame(frames[position] + 200.0)
        assert find(frames) == [20]


def test_below_1_hz_what_returns_is_a_shot() -> None:
    assert find(shot(0, 6) + shot(1, 1) + shot(0, 6), 0.2) == [6, 7]


@pytest.mark.parametrize("rate", [1.0, 5.0, 25.0])
def test_slow_changes_of_light_are_no_boundary(rate: float) -> None:
    scene = picture(0)
    seconds = np.arange(int(30 * rate) + 1) / rate
    frames = [to_frame(scene * (0.8 + 0.4 * np.sin(2 * np.pi * s / 20))) for s in seconds]
    assert find(frames, rate) == []


@pytest.mark.parametrize("rate", [1.0, 5.0, 25.0])
def test_a_pan_is_no_boundary(rate: float) -> None:
    panorama = picture(3, 64, 1000)
    starts = (np.arange(int(20 * rate)) * 40 / rate).astype(int)  # a new view every 2.4 seconds
    assert find([to_frame(panorama[:, s : s + 96]) for s in starts], rate) == []


def test_a_static_shot_then_a_pan_is_no_boundary() -> None:
    panorama = picture(3, 64, 800)
    starts = [0] * 20 + [8 * i for i in range(60)] + [480] * 20
    assert find([to_frame(panorama[:, s : s + 96]) for s in starts]) == []


@pytest.mark.parametrize(("bars", "axis"), [(10, 0), (20, 0), (26, 0), (30, 1), (38, 1)])
def test_letterboxes_hide_no_cut_and_make_none(bars: int, axis: int) -> None:
    frames = shot(0, 20) + shot(1, 20)
    for frame in frames:
        rows = frame if axis == 0 else frame.swapaxes(0, 1)
        rows[:bars] = rows[len(rows) - bars :] = 0
    assert find(frames) == [20]


def test_black_and_white_hides_no_cut() -> None:
    frames = shot(0, 20) + shot(1, 20)
    grey = [np.repeat(frame.mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8) for frame in frames]
    assert find(grey) == [20]


@pytest.mark.parametrize("dip", [False, True])
@pytest.mark.parametrize("seconds", [0.4, 0.8, 1.2])
@pytest.mark.parametrize("rate", [1.0, 5.0, 25.0])
def test_a_fade_is_one_boundary_inside_it(rate: float, seconds: float, dip: bool) -> None:
    first, second = picture(0), picture(1)
    for start in np.linspace(4, 4 + 1 / rate, 4 if rate < 25 else 2):
        times = np.arange(int(9 * rate)) / rate
        frames = []
        for time in times:
            share = np.clip((time - start) / seconds, 0, 1)
            if dip:
                frames.append(to_frame(first * max(0, 1 - 2 * share) + second * max(0, 2 * share - 1)))
            else:
                frames.append(to_frame(first * (1 - share) + second * share))
        found = find(frames, rate)
        # One sample of a dip, half dark, is much like a shot of its own.
        assert len(found) == 1 or (len(found) == 2 and dip and rate == 1)
        assert all(start - 1 / rate <= times[i] <= start + seconds + 1 / rate for i in found)


def test_minimum_shot_length() -> None:
    frames = [frame for seed, length in enumerate([20, 4, 20]) for frame in shot(seed, length)]  # 4 frames: 0.8 s
    assert find(frames, min_shot_seconds=0.8) == [20, 24]
    found = find(frames, min_shot_seconds=1.0)
    assert len(found) == 1
    assert found[0] in (20, 24)
    ends = shot(0, 3) + shot(1, 20) + shot(2, 3)
    assert find(ends, min_shot_seconds=0.6) == [3, 23]
    assert find(ends, min_shot_seconds=0.8) == []


def test_threshold() -> None:
    frames = shot(0, 20) + shot(1, 20)
    assert find(frames, threshold=0.05) == [20]
    assert find(frames, threshold=1.0) == []


@pytest.mark.parametrize("rate", RATES)
def test_boundaries_come_soon_and_memory_is_bounded(rate: float) -> None:
    detector = HistogramShotDetector(rate)
    frames = shot(0, 150) + shot(1, 150)
    said_at: list[tuple[int, int]] = []
    for i, frame in enumerate(frames):
        said_at += [(found, i) for found in detector.add(i / rate, frame)]
        assert len(detector._votes) <= 2 * detector._reach
    assert [found for found, _ in said_at] == [150]
    assert said_at[0][1] - 150 <= max(7, 2.6 * rate)
    assert detector.finish() == []


def test_nothing_depends_on_what_follows_much_later() -> None:
    frames = [f for seed in range(4) for f in shot(seed, 20)]
    whole = find(frames)
    for end in range(45, 80, 5):
        assert [i for i in find(frames[:end]) if i <= end - 12] == [i for i in whole if i <= end - 12]


@pytest.mark.parametrize("rate", RATES)
def test_black_frames_few_frames_none(rate: float) -> None:
    assert find([np.zeros((64, 96, 3), np.uint8)] * 40, rate) == []
    assert find([], rate) == []
    assert find(shot(0, 1), rate) == []
    assert find(shot(0, 2), rate) == []


def test_a_cut_to_black_is_a_boundary() -> None:
    assert find(shot(0, 20) + [np.zeros((64, 96, 3), np.uint8)] * 20) == [20]


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_two_frames_of_two_shots(rate: float) -> None:
    assert find(shot(0, 1) + shot(1, 1), rate) == [1]


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 50), (7, 3), (71, 73), (256, 455)])
def test_any_size(size: tuple[int, int]) -> None:
    dark, bright = np.full((*size, 3), 60, np.uint8), np.full((*size, 3), 190, np.uint8)
    assert find([dark] * 10 + [bright] * 10) == [10]


def test_a_changing_size_is_no_boundary() -> None:
    scene = picture(0, 64, 96)
    large = to_frame(np.repeat(np.repeat(scene, 2, axis=0), 2, axis=1))
    assert find([to_frame(scene)] * 10 + [large] * 10) == []


def test_irregular_times() -> None:
    frames = shot(0, 20) + shot(1, 20)
    times = np.cumsum(np.random.default_rng(0).uniform(0.02, 0.6, 40))
    assert find(frames, times=times) == [20]
    assert find(frames, times=np.zeros(40)) == []  # no shot has a length
    times = np.arange(40) / 5
    times[20:] += 1000  # a hole
    assert find(frames, times=times) == [20]
    assert find(shot(0, 40), times=times) == []


def test_distance_is_none_to_itself_and_full_to_its_opposite() -> None:
    frame = shot(0, 1)[0]
    black, white = np.zeros_like(frame), np.full_like(frame, 255)
    many = np.stack([describe(f) for f in (frame, black, white)])
    assert distances(many, many[0])[0] < 0.01
    assert distances(many, many[1])[1] < 0.01
    assert distances(many, many[1])[2] > 0.99
    matrix = np.stack([distances(many, one) for one in many])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-6)


def load_score() -> ModuleType:
    path = Path(__file__).parents[2] / "studies" / "shots" / "score.py"
    spec = importlib.util.spec_from_file_location("shots_score", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_scoring_matches_as_many_as_any_assignment() -> None:
    score = load_score()
    rng = np.random.default_rng(0)
    for _ in range(300):
        predicted = rng.uniform(0, 4, rng.integers(0, 6)).round(1).tolist()
        true: list[float | tuple[float, float]] = []
        for start in rng.uniform(0, 4, rng.integers(0, 5)).round(1).tolist():
            true.append(start if rng.random() < 0.5 else (start, start + 0.8))
        intervals = [(b[0], b[1]) if isinstance(b, tuple) else (b, b) for b in true]
        padded = [*predicted, *[None] * len(true)]  # a true boundary may have no partner
        most = max(
            sum(
                p is not None and lo - 0.3 - 1e-9 <= p <= hi + 0.3 + 1e-9
                for p, (lo, hi) in zip(chosen, intervals, strict=True)
            )
            for chosen in set(itertools.permutations(padded, len(true)))
        )
        assert score.count_hits(predicted, true, 0.3) == most


def test_scores() -> None:
    counts = load_score().Counts
    assert counts(3, 4, 6).scores() == {"precision": 0.75, "recall": 0.5, "f1": 0.6}
    assert counts(0, 0, 0).scores() == {"precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert counts(0, 0, 2).scores() == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert counts(0, 2, 0).scores() == {"precision": 0.0, "recall": 1.0, "f1": 0.0}
    assert (counts(1, 2, 3) + counts(4, 5, 6)) == counts(5, 7, 9)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("min_shot_seconds", [0.0, 0.5, 3.0])
def test_no_boundary_comes_later_than_the_lookahead(rate: float, min_shot_seconds: float) -> None:
    lengths = np.random.default_rng(0).integers(1, 12, 20) * max(1, round(min_shot_seconds * rate / 4))
    frames = [frame for seed, length in enumerate(lengths) for frame in shot(seed, int(length), 24, 32)]
    detector = HistogramShotDetector(rate, min_shot_seconds=min_shot_seconds)
    lags = [index - boundary for index, frame in enumerate(frames) for boundary in detector.add(index / rate, frame)]
    assert lags
    assert max(lags) <= detector.lookahead
