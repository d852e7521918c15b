"""Frames by presentation time, upright and in true colours, from every kind of file; bad files in one line.

The videos are made by `media.py`; every frame shows its number, so the tests know which frame they were given.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from media import (
    Clip,
    plain_frames,
    read_number,
)

from vivi.video.decode import sample_frames

RATES = (0.3, 1, 2.5, 5, 7, 30, 100)
B_FRAMES = {"x264-params": "bframes=3:b-adapt=0:keyint=30:scenecut=0:b-pyramid=none"}
PYRAMID = {"x264-params": "bframes=5:b-adapt=0:keyint=40:scenecut=0:b-pyramid=normal:open-gop=1"}
X265 = {"x265-params": "log-level=none:pools=1:frame-threads=1:bframes=4:b-adapt=0:keyint=40"}
MPEG_B_FRAMES = {"bf": "2", "g": "12"}

CLIPS = {
    "h264": Clip(options={"x264-params": "bframes=0:keyint=30"}),
    "h264-b": Clip(options=B_FRAMES),
    "h264-pyramid": Clip(suffix=".mkv", options=PYRAMID),
    "h264-ts": Clip(suffix=".ts", options=B_FRAMES),
    "h264-flv": Clip(suffix=".flv", options=B_FRAMES),
    "h264-avi": Clip(suffix=".avi", options=B_FRAMES),
    "hevc": Clip("libx265", options=X265),
    "mpeg4-avi": Clip("mpeg4", ".avi"),
    "mpeg4-avi-b": Clip("mpeg4", ".avi", options={"bf": "2"}),
    "vp8": Clip("libvpx", ".webm", options={"deadline": "realtime"}),
    "vp9": Clip("libvpx-vp9", ".webm", options={"deadline": "realtime", "cpu-used": "8"}),
    "av1": Clip("libsvtav1", ".mkv", size=(128, 96), options={"preset": "8", "crf": "10"}),
    "mjpeg": Clip("mjpeg", ".avi", pix_fmt="yuvj420p"),
    "mpeg2-ts": Clip("mpeg2video", ".ts", options=MPEG_B_FRAMES),
    "mpeg2-ps": Clip("mpeg2video", ".mpg", options=MPEG_B_FRAMES),
    "prores": Clip("prores_ks", ".mov", pix_fmt="yuv422p10le"),
    "gif": Clip("gif", ".gif", pix_fmt="rgb8"),
    "ffv1": Clip("ffv1", ".mkv"),
    "flv": Clip("flv", ".flv"),
    "wmv": Clip("wmv2", ".asf"),
}
HAVE_B_FRAMES = (
    "h264-b",
    "h264-pyramid",
    "h264-ts",
    "h264-flv",
    "h264-avi",
    "hevc",
    "mpeg4-avi-b",
    "av1",
    "mpeg2-ts",
)
VARIABLE = ("h264", "h264-b", "h264-pyramid", "h264-ts", "h264-flv", "hevc", "vp9", "av1", "ffv1", "mjpeg-mkv")


def frame_times(seed: int) -> list[int]:
    """Milliseconds with random gaps, bursts, and a hole of ten seconds."""
    gaps = np.random.default_rng(seed).choice([10, 20, 33, 40, 100, 400, 900], 120)
    gaps[60] = 10_000
    return [int(time) for time in np.cumsum(gaps)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every clip with a steady frame rate, and some with a variable one ("vfr-...")."""
    folder = tmp_path_factory.mktemp("clips")
    files = {name: clip.write(folder / f"{name}{clip.suffix}", frames=110) for name, clip in CLIPS.items()}
    for seed, name in enumerate(VARIABLE):
        clip = CLIPS.get(name, Clip("mjpeg", ".mkv", pix_fmt="yuvj420p"))
        files[f"vfr-{name}"] = clip.write(folder / f"vfr-{name}{clip.suffix}", 120, frame_times(seed))
    return files


def sampled(path: Path, rate: float = 1.0, **options: object) -> list[tuple[float, int]]:
    """The sampled frames as (time, number)."""
    return [(frame.time, read_number(frame.image)) for frame in sample_frames(path, rate, **options)]  # type: ignore[arg-type]


def nearest_by_brute_force(frames: list[tuple[Fraction, int]], rate: float) -> list[tuple[float, int]]:
    """The rule, slowly: for each grid point, the nearest of the frames that are no nearer to another point."""
    start, per_second = frames[0][0], Fraction(str(rate))
    chosen = []
    rounded = [int((time - start) * per_second) for time, _ in frames]
    for point in sorted({*rounded, *(point + 1 for point in rounded)}):
        offsets = [(time - start) * per_second - point for time, _ in frames]
        near = [i for i, offset in enumerate(offsets) if Fraction(-1, 2) <= offset < Fraction(1, 2)]
        if near:
            time, number = frames[min(near, key=lambda i: abs(offsets[i]))]
            chosen.append((float(time), number))
    return chosen


def check_rule(chosen: list[tuple[float, int]], frames: list[tuple[Fraction, int]], rate: float) -> None:
    """What holds whichever frames the decoder skips: one frame a point, and no point without one but the last."""
    times = [time for time, _ in chosen]
    assert times == sorted(set(times))
    assert set(chosen) <= {(float(time), number) for time, number in frames}

    def point(time: float) -> int:
        return int(np.floor((time - float(frames[0][0])) * rate + 0.5 + 1e-9))

    points = [point(time) for time in times]
    assert points == sorted(set(points))
    due = {point(float(time)) for time, _ in frames}
    assert due - set(points) <= {max(due)}


@pytest.mark.parametrize("name", [*CLIPS, *(f"vfr-{name}" for name in VARIABLE)])
def test_exact_sampling_gives_the_nearest_frame_of_every_grid_point(name: str, made: dict[str, Path]) -> None:
    frames = plain_frames(made[name])
    assert [number for _, number in frames] == list(range(len(frames)))
    for rate in RATES:
        assert sampled(made[name], rate, exact=True) == nearest_by_brute_force(frames, rate), rate


@pytest.mark.parametrize("name", [*CLIPS, *(f"vfr-{name}" for name in VARIABLE)])
def test_sampling_reference_frames_leaves_no_grid_point_empty(name: str, made: dict[str, Path]) -> None:
    frames = plain_frames(made[name])
    for rate in RATES:
        check_rule(sampled(made[name], rate), frames, rate)


@pytest.mark.parametrize("name", CLIPS)
def test_times_are_those_at_which_the_frame_was_recorded(name: str, made: dict[str, Path]) -> None:
    start, first = next(iter(sampled(made[name])))
    for time, number in sampled(made[name], 5):
        assert time - start == pytest.approx((number - first) / 25, abs=1.1e-3)


@pytest.mark.parametrize("name", HAVE_B_FRAMES)
def test_frames_that_no_other_refers_to_are_skipped_where_others_are_near_enough(
    name: str, made: dict[str, Path]
) -> None:
    reference = {number for _, number in plain_frames(made[name], skip="NONREF")}
    assert len(reference) < 0.7 * len(plain_frames(made[name]))
    assert {number for _, number in sampled(made[name], 1)} <= reference


def test_decoding_in_full_begins_where_reference_frames_become_too_sparse(tmp_path: Path) -> None:
    # 4 s at 25 fps, then 12 s at 1 fps: with three B-frames in a row, reference frames are 4 s apart there.
    times = [*range(0, 4000, 40), *range(5000, 17_000, 1000)]
    path = CLIPS["h264-b"].write(tmp_path / "slow.mp4", len(times), times)
    reference = {number for _, number in plain_frames(path, skip="NONREF")}
    frames = sampled(path, 1)
    assert [round(time) for time, _ in frames] == list(range(17))
    assert {number for time, number in frames if time < 3.4} <= reference
    assert not {number for _, number in frames} <= reference


@pytest.mark.parametrize("threads", [2, 4])
def test_the_number_of_threads_changes_nothing(threads: int, made: dict[str, Path]) -> None:
    for name in ("h264-b", "vfr-hevc", "mpeg2-ts"):
        assert sampled(made[name], 3, threads=threads) == sampled(made[name], 3)
