"""Frames by presentation time, from every kind of file. Every frame shows its number (media.py)."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from clips import B_FRAMES, CLIPS, HAVE_B_FRAMES, VARIABLE, check_rule, nearest_by_brute_force, sampled
from media import Clip, damage, numbered, plain_frames, write_packed_avi

from vivi.prepare.decode import UnusableVideo, sample_frames

RATES = (0.3, 1, 2.5, 5, 7, 30, 100)


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


SHORT_GROUPS = {
    **{f"h264-{keyint}": Clip(options={"x264-params": f"keyint={keyint}:bframes=2"}) for keyint in (1, 7, 25, 60)},
    "h264-open": Clip(
        suffix=".ts", options={"x264-params": "keyint=20:bframes=3:open-gop=1:b-pyramid=normal:scenecut=0"}
    ),
    "h264-refresh": Clip(suffix=".ts", options={"x264-params": "keyint=20:intra-refresh=1:bframes=0"}),
    "hevc-open": Clip(
        "libx265", options={"x265-params": "log-level=none:pools=1:frame-threads=1:keyint=15:open-gop=1"}
    ),
    "vp9-short": Clip("libvpx-vp9", ".webm", options={"deadline": "realtime", "cpu-used": "8", "g": "15"}),
    "av1-short": Clip("libsvtav1", ".mkv", size=(128, 96), options={"preset": "8", "crf": "10", "g": "20"}),
    "mpeg2-short": Clip("mpeg2video", ".mpg", options={"bf": "2", "g": "9"}),
}


@pytest.mark.parametrize("name", SHORT_GROUPS)
def test_leaving_out_packets_before_key_frames_does_not_change_what_is_chosen(name: str, tmp_path: Path) -> None:
    clip = SHORT_GROUPS[name]
    path = clip.write(tmp_path / f"clip{clip.suffix}", frames=250)
    frames = plain_frames(path, skip="NONREF")
    for rate in (0.2, 0.7, 1, 1.6, 3):
        expected = nearest_by_brute_force(frames, rate)
        # The last point is exempt: its only frames may be some that no other refers to.
        assert sampled(path, rate)[: len(expected) - 1] == expected[:-1], rate


def test_decoding_in_full_begins_where_reference_frames_become_too_sparse(tmp_path: Path) -> None:
    # 4 s at 25 fps, then 12 s at 1 fps: with three B-frames in a row, reference frames are 4 s apart there.
    times = [*range(0, 4000, 40), *range(5000, 17_000, 1000)]
    path = CLIPS["h264-b"].write(tmp_path / "slow.mp4", len(times), times)
    reference = {number for _, number in plain_frames(path, skip="NONREF")}
    frames = sampled(path, 1)
    assert [round(time) for time, _ in frames] == list(range(17))
    assert {number for time, number in frames if time < 3.4} <= reference
    assert not {number for _, number in frames} <= reference


def test_packed_b_frames_are_told_apart(tmp_path: Path) -> None:
    path = write_packed_avi(tmp_path / "packed.avi")
    assert [number for _, number in sampled(path, 25, exact=True)] == list(range(101))
    frames = sampled(path, 3)
    assert len(frames) == 13
    for time, number in frames:
        assert time - frames[0][0] == pytest.approx(number / 25)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_gives_frames_or_a_reason(seed: int, made: dict[str, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    source = list(made.values())[seed % len(CLIPS)]
    for copy in range(5):
        path = tmp_path / f"{copy}{source.suffix}"
        path.write_bytes(damage(source.read_bytes(), rng))
        try:
            frames = list(sample_frames(path, 3))
        except UnusableVideo as error:
            assert str(error)
        else:
            assert frames


def test_memory_does_not_grow_with_the_length_of_the_video(tmp_path: Path) -> None:
    path = Clip(size=(64, 48), options={**B_FRAMES, "preset": "ultrafast"}).write(
        tmp_path / "long.mp4", 3000, picture=lambda number: numbered(number % 4096)
    )
    joined = tmp_path / "joined.ts"
    ts = Clip(suffix=".ts", options=B_FRAMES).write(tmp_path / "part.ts", 1500).read_bytes()
    joined.write_bytes(ts * 10)
    for file in (path, joined):
        list(sample_frames(file))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len([None for _ in sample_frames(file)]) > 100
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_the_heartbeat_tells_how_far_it_is(made: dict[str, Path]) -> None:
    beats: list[tuple[float, float]] = []
    list(sample_frames(made["h264-b"], heartbeat=lambda share, seconds: beats.append((share, seconds))))
    assert len(beats) >= 110
    assert all(0 <= share <= 1 and 0 <= seconds <= 5 for share, seconds in beats)
    assert beats[-1][1] > 3  # it reads ahead, to the next key frame


def test_the_file_is_closed_when_the_reader_stops_early(made: dict[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copy(made["h264-b"], tmp_path / "copy.mp4"))
    frames = sample_frames(path)
    next(frames)
    assert any(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))
    frames.close()
    assert not any(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))
