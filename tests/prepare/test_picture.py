"""Frames are upright, of square pixels, and in true colours."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from av.sidedata.sidedata import Type as SideDataType
from media import Clip, Picture, flat

from vivi.prepare.decode import VideoInfo, sample_frames


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


def test_where_file_and_stream_disagree_on_the_rotation_the_file_is_believed(tmp_path: Path) -> None:
    stored = quarters(128, 64)
    plain = Clip(size=(128, 64), options={"crf": "5"}).write(tmp_path / "plain.mp4", 3, picture=lambda _: stored)
    path = tmp_path / "turned.mp4"
    with av.open(str(plain)) as source, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        stream.set_display_rotation(180)
        turned = BitStreamFilterContext("h264_metadata=display_orientation=insert:rotate=90", source.streams.video[0])
        for packet in source.demux(video=0):
            for filtered in turned.filter(packet) if packet.size else []:
                filtered.stream = stream
                container.mux(filtered)
    with av.open(str(path)) as container:
        entries: Any = next(container.decode(video=0)).side_data
        assert entries[0].type == entries[1].type == SideDataType.DISPLAYMATRIX
    (frame,) = sample_frames(path)
    assert corners(frame.image) == corners(np.rot90(stored, 2))


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
