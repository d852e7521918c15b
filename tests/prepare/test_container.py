"""Odd streams and names are read; files that hold no video are named for what they are, in one line."""

from __future__ import annotations

import os
from pathlib import Path

import av
import numpy as np
import pytest
from clips import B_FRAMES, CLIPS, sampled
from media import Clip, add_video, flat, numbered, read_number, write_audio
from PIL import Image

from vivi.prepare.decode import UnusableVideo, VideoInfo, sample_frames


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
