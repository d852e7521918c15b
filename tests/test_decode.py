"""Frames by presentation time, upright and in true colours, from every kind of file; bad files in one line.

The videos are made by `media.py`; every frame shows its number, so the tests know which frame they were given.
"""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from media import (
    Clip,
    Picture,
    add_video,
    cut_start_by_edit_list,
    damage,
    flat,
    numbered,
    plain_frames,
    read_number,
    scale_durations,
    write_audio,
    write_packed_avi,
)
from PIL import Image

from vivi.video.decode import UnusableVideo, VideoInfo, sample_frames
from vivi.video.nal import unreferenced_test

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


@pytest.mark.parametrize("threads", [2, 4])
def test_the_number_of_threads_changes_nothing(threads: int, made: dict[str, Path]) -> None:
    for name in ("h264-b", "vfr-hevc", "mpeg2-ts"):
        assert sampled(made[name], 3, threads=threads) == sampled(made[name], 3)


# Pictures


def corners(image: Picture) -> list[str]:
    """The colours of the four quarters: top left, top right, bottom left, bottom right."""
    height, width = image.shape[:2]
    names = []
    for y, x in ((1, 1), (1, 3), (3, 1), (3, 3)):
        red, green, blue = (int(value) for value in image[y * height // 4, x * width // 4])
        names.append(("r" if red > 128 else "") + ("g" if green > 128 else "") + ("b" if blue > 128 else ""))
    return names


def quarters(width: int, height: int) -> Picture:
    image = np.zeros((height, width, 3), dtype=np.uint8)
    image[: height // 2, : width // 2, 0] = 255
    image[: height // 2, width // 2 :, 1] = 255
    image[height // 2 :, : width // 2, 2] = 255
    image[height // 2 :, width // 2 :] = 255
    return image


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotated_and_mirrored_videos_come_upright(
    degrees: int, mirrored: bool, flipped: bool, tmp_path: Path
) -> None:
    # The camera recorded `stored`; its metadata says how to turn it for display.
    clip = Clip(size=(128, 64), rotation=(degrees, mirrored, flipped), options={"crf": "5"})
    stored = quarters(128, 64)
    path = clip.write(tmp_path / "turned.mp4", 3, picture=lambda _: stored)
    upright = np.rot90(stored, degrees // 90)
    upright = upright[:, ::-1] if mirrored else upright
    upright = upright[::-1] if flipped else upright
    info = VideoInfo()
    (frame,) = sample_frames(path, info=info)
    assert corners(frame.image) == corners(upright)
    assert frame.image.shape == upright.shape
    assert frame.image.flags.c_contiguous
    assert (info.width, info.height) == (upright.shape[1], upright.shape[0])


@pytest.mark.parametrize(
    ("clip", "short_side", "expected"),
    [
        (Clip(size=(64, 48), pixel_aspect=Fraction(2)), 256, (128, 48)),
        (Clip(size=(64, 48), pixel_aspect=Fraction(1, 2)), 256, (32, 48)),
        (Clip(size=(320, 240), pixel_aspect=Fraction(2)), 120, (320, 120)),
        (Clip("mpeg2video", ".ts", size=(176, 144), pixel_aspect=Fraction(12, 11)), 256, (192, 144)),
        (Clip(size=(320, 240)), 64, (86, 64)),
        (Clip(size=(96, 160)), 64, (64, 107)),
        (Clip(size=(96, 160)), 256, (96, 160)),
        (Clip(size=(97, 53), pix_fmt="yuv444p"), 256, (97, 53)),
        (Clip("libvpx-vp9", ".webm", size=(97, 53), options={"deadline": "realtime"}), 256, (97, 53)),
        (Clip("ffv1", ".mkv", size=(33, 17)), 256, (33, 17)),
        (Clip("ffv1", ".mkv", size=(301, 223)), 100, (136, 100)),
        (Clip(size=(64, 48), pixel_aspect=Fraction(500)), 256, (64, 48)),
        (Clip(size=(160, 96), pixel_aspect=Fraction(2), rotation=(90, False, False)), 48, (48, 160)),
    ],
)
def test_pixels_are_square_and_the_short_side_is_never_scaled_up(
    clip: Clip, short_side: int, expected: tuple[int, int], tmp_path: Path
) -> None:
    path = clip.write(tmp_path / f"sized{clip.suffix}", 10)
    (frame,) = sample_frames(path, short_side=short_side)
    assert (frame.image.shape[1], frame.image.shape[0]) == expected


LIMITED_601 = {"color_range": 1, "colorspace": 6, "matrix": 5}
FULL_601 = {"color_range": 2, "colorspace": 6, "matrix": 5}
LIMITED_709 = {"color_range": 1, "colorspace": 1, "matrix": 1}
FULL_709 = {"color_range": 2, "colorspace": 1, "matrix": 1}
CRISP = {"crf": "1"}
CRISP_265 = {"x265-params": "log-level=none:pools=1:frame-threads=1:crf=1"}
CRISP_AV1 = {"preset": "8", "crf": "4", "g": "1"}


@pytest.mark.parametrize(
    "clip",
    [
        pytest.param(Clip(options=CRISP, colour=LIMITED_601), id="601"),
        pytest.param(Clip(options=CRISP, colour=FULL_601), id="601-full"),
        pytest.param(Clip(options=CRISP, colour=LIMITED_709), id="709"),
        pytest.param(Clip(options=CRISP, colour=FULL_709), id="709-full"),
        pytest.param(Clip(options=CRISP, colour={"matrix": 5}), id="untagged-sd"),
        pytest.param(Clip(options=CRISP, size=(960, 720), colour={"matrix": 1}), id="untagged-hd"),
        pytest.param(Clip(options=CRISP, colour={**LIMITED_601, "colorspace": 3}), id="tagged-nonsense"),
        pytest.param(Clip(options=CRISP, colour={**LIMITED_601, "colorspace": 8}), id="tagged-unsupported"),
        pytest.param(Clip(options=CRISP, pix_fmt="yuv444p"), id="444"),
        pytest.param(Clip("libx265", pix_fmt="yuv420p10le", options=CRISP_265, colour=LIMITED_709), id="hevc-10"),
        pytest.param(Clip("libx265", pix_fmt="yuv420p10le", options=CRISP_265, colour=FULL_709), id="hevc-10-full"),
        pytest.param(
            Clip("libx265", options=CRISP_265, colour={"color_range": 1, "colorspace": 9, "matrix": 9}), id="2020"
        ),
        pytest.param(Clip("libsvtav1", ".mkv", "yuv420p10le", options=CRISP_AV1, colour=LIMITED_709), id="av1-10"),
        pytest.param(Clip("ffv1", ".mkv", "yuv420p10le"), id="ffv1-10"),
        pytest.param(Clip("ffv1", ".mkv", "bgr0"), id="rgb"),
        pytest.param(Clip("ffv1", ".mkv", "gbrp10le"), id="rgb-10"),
        pytest.param(Clip("png", ".mov", "rgb24"), id="png"),
        pytest.param(Clip("png", ".mov", "rgba"), id="png-alpha"),
        pytest.param(Clip("mjpeg", ".avi", "yuvj420p", options={"q:v": "1"}), id="yuvj"),
        pytest.param(Clip("prores_ks", ".mov", "yuv422p10le"), id="prores"),
        pytest.param(Clip("ffv1", ".mkv", "gray"), id="gray"),
        pytest.param(Clip("ffv1", ".mkv", "gray10le"), id="gray-10"),
    ],
)
def test_colours_are_those_that_were_recorded(clip: Clip, tmp_path: Path) -> None:
    colours = [(200, 40, 60), (30, 160, 70), (40, 60, 190), (250, 250, 250), (5, 5, 5), (128, 128, 128)]
    if clip.pix_fmt.startswith("gray"):
        colours = [(red, red, red) for red, _, _ in colours]
    path = clip.write(tmp_path / f"c{clip.suffix}", len(colours), picture=lambda i: flat(*colours[i], *clip.size))
    frames = list(sample_frames(path, rate=25))
    assert len(frames) == len(colours)
    for frame, colour in zip(frames, colours, strict=True):
        seen = np.median(frame.image.reshape(-1, 3), axis=0)
        assert np.abs(seen - colour).max() <= 6, (seen, colour)


# Clocks


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


# Streams


@pytest.mark.parametrize("suffix", [".ts", ".h264", ".mpg"])
def test_a_resolution_that_changes_midway_is_followed(suffix: str, tmp_path: Path) -> None:
    codec = "mpeg2video" if suffix == ".mpg" else "libx264"
    small = Clip(codec, suffix, size=(96, 64)).write(tmp_path / f"small{suffix}", 50)
    large = Clip(codec, suffix, size=(320, 240)).write(tmp_path / f"large{suffix}", range(50, 100))
    path = tmp_path / f"both{suffix}"
    path.write_bytes(small.read_bytes() + large.read_bytes())
    info = VideoInfo()
    frames = list(sample_frames(path, 5, short_side=120, info=info))
    shapes = [frame.image.shape for frame in frames]
    assert set(shapes) == {(64, 96, 3), (120, 160, 3)}
    assert shapes == sorted(shapes)
    assert (info.width, info.height) == (96, 64)
    assert read_number(frames[-1].image) > 90


def test_of_two_video_streams_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        streams = [add_video(container, Clip(size=size)) for size in ((64, 48), (128, 96))]
        for number in range(50):
            for stream, offset in zip(streams, (0, 1000), strict=True):
                picture = numbered(number + offset, stream.width, stream.height)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        for stream in streams:
            container.mux(stream.encode(None))
    numbers = [number for _, number in sampled(path, 25, exact=True)]
    assert numbers in (list(range(50)), list(range(1000, 1050)))


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_metadata_in_any_encoding_is_no_obstacle(suffix: str, tmp_path: Path) -> None:
    path = Clip(suffix=suffix, metadata={"title": "TITLETITLE"}).write(tmp_path / f"latin{suffix}")
    content = path.read_bytes()
    assert b"TITLETITLE" in content
    path.write_bytes(content.replace(b"TITLETITLE", b"caf\xe9 \xff\xfe\xc3\x28!"))
    assert len(sampled(path)) == 3


@pytest.mark.parametrize(
    "name", ["12:30.mp4", "http:a.mp4", "a%03d.mp4", "-i.mp4", "caf\udce9.mp4", "x y'\".mp4", "?.mkv"]
)
def test_any_file_name_is_just_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Clip(suffix=name[-4:]).write(tmp_path / f"plain{name[-4:]}").rename(name)
    assert len(sampled(Path(name))) == 3


def test_a_video_of_one_frame_gives_one_frame(tmp_path: Path) -> None:
    for name in ("h264-b", "mpeg4-avi", "mpeg4-avi-b", "vp9", "mpeg2-ts", "ffv1", "gif", "h264-avi"):
        clip = CLIPS[name]
        path = clip.write(tmp_path / f"{name}{clip.suffix}", [7])
        assert [number for _, number in sampled(path)] == [7], name


# Bad files


def reason(path: Path) -> str:
    with pytest.raises(UnusableVideo) as caught:
        list(sample_frames(path))
    return str(caught.value)


def test_files_that_hold_no_video_are_named_for_what_they_are(tmp_path: Path) -> None:
    empty = tmp_path / "empty.mp4"
    empty.touch()
    assert reason(empty) == "is empty (0 bytes)"
    assert reason(tmp_path / "missing.mp4") == "does not exist"
    assert reason(tmp_path) == "is a directory"
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    assert reason(pipe) == "is not a regular file"
    words = tmp_path / "words.mp4"
    words.write_text("This is not a video.\n" * 100)
    assert reason(words) == "not a video, or its start is damaged"
    noise = tmp_path / "noise.mp4"
    noise.write_bytes(np.random.default_rng(0).bytes(100_000))
    assert reason(noise) == "not a video, or its start is damaged"
    header = tmp_path / "header.mp4"
    header.write_bytes(Clip().write(tmp_path / "whole.mp4").read_bytes()[:48])
    assert reason(header) == "not a video, or its start is damaged"
    assert reason(write_audio(tmp_path / "sound.m4a")) == "no video stream (audio only)"
    assert reason(
        Clip("rawvideo", ".nut", "rgb24", size=(1, 1)).write(
            tmp_path / "dot.nut", picture=lambda _: flat(9, 9, 9, 1, 1)
        )
    ).startswith("its frames of 1×1 are smaller")


@pytest.mark.parametrize("suffix", [".nfo", ".txt", ".ans", ".bin"])
def test_text_is_not_drawn_as_a_video(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"words{suffix}"
    path.write_text("\x1b[31mThis is text.\x1b[0m\r\n" * 3000)
    assert reason(path) == "is a text file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = Clip().write(tmp_path / "secret.mp4")
    path.chmod(0)
    assert "permission denied" in reason(path)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.bmp", "a.webp", "png.mp4", "jpg.mp4"])
def test_a_still_image_is_no_video(name: str, tmp_path: Path) -> None:
    kind = {"png.mp4": "PNG", "jpg.mp4": "JPEG"}.get(name)
    Image.fromarray(numbered(5)).save(tmp_path / name, format=kind)
    assert reason(tmp_path / name) == "is a still image"


@pytest.mark.parametrize("suffix", [".mp4", ".mp3"])
def test_the_cover_of_a_sound_file_is_no_video(suffix: str, tmp_path: Path) -> None:
    cover = tmp_path / "cover.jpg"
    Image.fromarray(numbered(5)).save(cover)
    path = write_audio(tmp_path / f"song{suffix}", "aac" if suffix == ".mp4" else "libmp3lame", cover.read_bytes())
    assert reason(path) == "no video stream (audio only)"


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4", "list.ffconcat"])
def test_a_list_of_other_files_is_not_followed(name: str, tmp_path: Path) -> None:
    target = Clip(suffix=".ts").write(tmp_path / "target.ts")
    lines = [
        "#EXTM3U",
        "#EXT-X-TARGETDURATION:2",
        "#EXTINF:2,",
        str(target),
        "#EXTINF:2,",
        str(target),
        "#EXT-X-ENDLIST",
    ]
    if name.endswith("ffconcat"):
        lines = ["ffconcat version 1.0", f"file '{target}'"]
    (tmp_path / name).write_text("\n".join(lines))
    assert reason(tmp_path / name).startswith("cannot be opened" if name.endswith("ffconcat") else "is a playlist")


@pytest.mark.parametrize(
    "clip",
    [
        pytest.param(Clip(size=(160, 120), options=B_FRAMES, container_options={"movflags": "faststart"}), id="mp4"),
        pytest.param(Clip(suffix=".mkv", options=B_FRAMES), id="mkv"),
        pytest.param(Clip(suffix=".ts", options=B_FRAMES), id="ts"),
        pytest.param(Clip("mpeg4", ".avi", size=(160, 120)), id="avi"),
    ],
)
def test_a_truncated_file_gives_what_is_there_and_says_so(clip: Clip, tmp_path: Path) -> None:
    path = clip.write(tmp_path / f"cut{clip.suffix}", 200)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 - 100])
    info = VideoInfo()
    frames = [(frame.time, read_number(frame.image)) for frame in sample_frames(path, 2, info=info)]
    assert 3 <= len(frames) <= 14
    for time, number in frames:
        assert number == pytest.approx((time - frames[0][0]) * 25, abs=0.1)
    assert info.problems


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


# Cost


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
    frames.close()  # type: ignore[attr-defined]
    assert not any(os.path.realpath(f"/proc/self/fd/{fd}") == str(path) for fd in os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("suffix", [".mp4", ".ts"], ids=["lengths", "start codes"])
@pytest.mark.parametrize("name", ["h264", "h264-b", "h264-pyramid", "hevc"])
def test_packets_nothing_refers_to_are_known_without_decoding(name: str, suffix: str, tmp_path: Path) -> None:
    clip = replace(CLIPS[name], suffix=suffix)
    path = clip.write(tmp_path / f"clip{suffix}", frames=110)
    needed = {time for time, _ in plain_frames(path, skip="NONREF")}
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        unreferenced = unreferenced_test(stream)
        packets = [packet for packet in container.demux(stream) if packet.size]
        kept = {(packet.pts or 0) * packet.time_base for packet in packets if not unreferenced(packet)}
    assert kept == needed
