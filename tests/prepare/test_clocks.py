"""Files whose clocks start late, lie, restart, stop or leave gaps."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest
from clips import B_FRAMES, MPEG_B_FRAMES, X265, check_rule, nearest_by_brute_force, sampled
from media import Clip, add_video, cut_start_by_edit_list, numbered, plain_frames, read_number, scale_durations

from vivi.prepare.decode import VideoInfo, sample_frames


def test_an_edit_list_that_cuts_the_start_is_obeyed(tmp_path: Path) -> None:
    path = Clip(options=B_FRAMES).write(tmp_path / "cut.mp4", 100)
    cut_start_by_edit_list(path, seconds=1.2)
    frames = sampled(path, 25, exact=True)
    assert [number for _, number in frames] == list(range(30, 100))
    assert frames[0][0] == pytest.approx(0, abs=1e-3)
    info = VideoInfo()
    check_rule([(f.time, read_number(f.image)) for f in sample_frames(path, 2, info=info)], plain_frames(path), 2)
    assert info.seconds == pytest.approx(2.8, abs=0.01)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
@pytest.mark.parametrize("audio", [False, True])
def test_a_stream_that_starts_late_is_sampled_from_its_first_frame(suffix: str, audio: bool, tmp_path: Path) -> None:
    clip = Clip(suffix=suffix, options=B_FRAMES, audio=audio)
    path = clip.write(tmp_path / f"late{suffix}", 100, times=[10_000 + 40 * i for i in range(100)])
    info = VideoInfo()
    frames = [(frame.time, read_number(frame.image)) for frame in sample_frames(path, 1, info=info)]
    assert frames[0][1] == 0
    assert len(frames) == 5
    check_rule(frames, plain_frames(path), 1)
    assert info.seconds == pytest.approx(4, abs=0.1)
    if audio:
        assert frames[0][0] >= 9.9


def test_negative_times_are_times_like_others(tmp_path: Path) -> None:
    clip = Clip("wmv2", ".asf", container_options={"avoid_negative_ts": "disabled"})
    path = clip.write(tmp_path / "negative.asf", 100, times=[40 * i - 2000 for i in range(100)])
    frames = plain_frames(path)
    assert frames[0][0] < 0
    assert sampled(path, 3, exact=True) == nearest_by_brute_force(frames, 3)


@pytest.mark.parametrize(
    "clip",
    [
        pytest.param(
            Clip("libvpx-vp9", ".webm", options={"deadline": "realtime"}, container_options={"live": "1"}),
            id="live-webm",
        ),
        pytest.param(Clip(suffix=".mkv", options=B_FRAMES, container_options={"live": "1"}), id="live-mkv"),
        pytest.param(Clip(suffix=".h264", options=B_FRAMES), id="raw-h264"),
        pytest.param(Clip("libx265", ".hevc", options=X265), id="raw-hevc"),
        pytest.param(Clip("mpeg2video", ".m2v", options=MPEG_B_FRAMES), id="raw-mpeg2"),
        pytest.param(Clip("mjpeg", ".mjpeg", "yuvj420p"), id="raw-mjpeg"),
        pytest.param(
            Clip(suffix=".mp4", container_options={"movflags": "frag_keyframe+empty_moov"}), id="fragmented"
        ),
    ],
)
def test_files_that_do_not_state_a_duration_are_read_to_the_end(clip: Clip, tmp_path: Path) -> None:
    path = clip.write(tmp_path / f"endless{clip.suffix}", 100)
    info = VideoInfo()
    frames = [(frame.time, read_number(frame.image)) for frame in sample_frames(path, 2, info=info)]
    assert len(frames) == 9 - (frames[-1][0] - frames[0][0] < 3.75)
    for time, number in frames:
        assert time - frames[0][0] == pytest.approx(number / 25, abs=2e-3)
    assert info.seconds == pytest.approx(4, abs=0.1)
    assert not info.problems


@pytest.mark.parametrize("factor", [0.1, 10])
def test_durations_that_lie_change_no_frame(factor: float, tmp_path: Path) -> None:
    path = Clip(options=B_FRAMES).write(tmp_path / "lie.mp4", 100)
    honest = sampled(path, 3)
    scale_durations(path, factor)
    info = VideoInfo()
    assert [(frame.time, read_number(frame.image)) for frame in sample_frames(path, 3, info=info)] == honest
    assert info.seconds == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("exact", [False, True])
def test_a_clock_that_restarts_goes_on_from_where_it_was(exact: bool, tmp_path: Path) -> None:
    one = Clip(suffix=".ts", options=B_FRAMES).write(tmp_path / "one.ts", 100)
    other = Clip(suffix=".ts", options=B_FRAMES).write(tmp_path / "other.ts", range(100, 200))
    path = tmp_path / "joined.ts"
    path.write_bytes(one.read_bytes() + other.read_bytes() + one.read_bytes())
    info = VideoInfo()
    frames = [(frame.time, read_number(frame.image)) for frame in sample_frames(path, 2, exact=exact, info=info)]
    assert info.seconds == pytest.approx(12, abs=0.3)
    assert len(frames) in (24, 25)
    for time, number in frames:
        elapsed = time - frames[0][0]
        assert number == pytest.approx(elapsed * 25 - 200 * (elapsed > 7.98), abs=3)


def test_frames_with_the_same_time_count_once(tmp_path: Path) -> None:
    times = [i // 2 * 40 for i in range(100)]
    path = tmp_path / "twice.mkv"
    clip = Clip("mjpeg", ".mkv", "yuvj420p")
    with av.open(str(path), "w") as container:
        stream = add_video(container, clip)
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(numbered(number), format="rgb24").reformat(format="yuvj420p")
            frame.pts, frame.time_base = number, Fraction(1, 1000)
            for packet in stream.encode(frame):
                packet.pts = packet.dts = time
                container.mux(packet)
    assert sampled(path, 25, exact=True) == [(40 * i / 1000, 2 * i) for i in range(50)]
    assert [time for time, _ in sampled(path, 25)] == [40 * i / 1000 for i in range(50)]


def test_a_huge_gap_costs_nothing_and_keeps_its_length(tmp_path: Path) -> None:
    times = [40 * i for i in range(50)] + [40 * i + 500_000_000 for i in range(50)]
    path = Clip(suffix=".mkv", options=B_FRAMES).write(tmp_path / "gap.mkv", 100, times)
    frames = sampled(path, 100)
    assert len(frames) == 100
    assert frames[50] == (500_000.0, 50)


@pytest.mark.parametrize("codec", ["mpeg4", "mjpeg"])
def test_dropped_frames_in_avi_are_a_gap(codec: str, tmp_path: Path) -> None:
    # AVI has no times: a pause is stored as empty packets, which must not be taken for the end.
    clip = Clip(codec, ".avi", "yuvj420p" if codec == "mjpeg" else "yuv420p")
    path = clip.write(tmp_path / "pause.avi", 100, [*range(50), *range(300, 350)], tick=Fraction(1, 25))
    assert sampled(path, 25) == [(i / 25, i) for i in range(50)] + [((300 + i) / 25, 50 + i) for i in range(50)]
