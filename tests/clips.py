"""The clips that decoding is tested on, what is sampled from them, and the rule, slowly."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
from media import Clip, read_number

from vivi.prepare.decode import sample_frames

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


def sampled(path: Path, rate: float = 1.0, exact: bool = False) -> list[tuple[float, int]]:
    """The sampled frames as (time, number)."""
    frames = sample_frames(path, rate, exact=exact)
    return [(frame.time, read_number(frame.image)) for frame in frames]


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
