"""Makes the odd video files that the tests read: every frame shows its own number.

The number is drawn as 4 × 3 black and white blocks (12 bits, most significant first), which survive compression
and scaling, so a test can tell which frame of the source it holds. Needs only PyAV, whose wheel brings the encoders.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from vivi.prepare.container import ANY_METADATA

os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder prints its settings otherwise

Picture = NDArray[np.uint8]
SkipFrame = Literal["DEFAULT", "NONREF"]
COLUMNS, ROWS = 4, 3
MILLISECOND = Fraction(1, 1000)


def numbered(number: int, width: int = 64, height: int = 48) -> Picture:
    """A picture that shows a number below 4096."""
    bits = [(number >> (COLUMNS * ROWS - 1 - i)) & 1 for i in range(COLUMNS * ROWS)]
    blocks = np.array(bits, dtype=np.uint8).reshape(ROWS, COLUMNS) * 200 + 28
    rows = np.arange(height) * ROWS // height
    columns = np.arange(width) * COLUMNS // width
    return np.repeat(blocks[rows][:, columns, None], 3, axis=2)


def read_number(image: Picture) -> int:
    """The number that a picture shows, of whatever size."""
    height, width = image.shape[:2]
    number = 0
    for row in range(ROWS):
        for column in range(COLUMNS):
            y, x = (2 * row + 1) * height // (2 * ROWS), (2 * column + 1) * width // (2 * COLUMNS)
            number = number * 2 + int(image[y - 1 : y + 2, x - 1 : x + 2].mean() > 128)
    return number


def flat(red: int, green: int, blue: int, width: int = 64, height: int = 48) -> Picture:
    """A picture of one colour."""
    return np.full((height, width, 3), (red, green, blue), dtype=np.uint8)


@dataclass(frozen=True)
class Clip:
    """How a video is encoded; `write` makes the file."""

    codec: str = "libx264"
    suffix: str = ".mp4"
    pix_fmt: str = "yuv420p"
    fps: Fraction = Fraction(25)
    size: tuple[int, int] = (64, 48)
    options: dict[str, str] = field(default_factory=dict)
    container_options: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    rotation: tuple[int, bool, bool] | None = None
    """Degrees counter-clockwise, mirrored left-right, mirrored up-down: stored as metadata."""
    pixel_aspect: Fraction | None = None
    colour: dict[str, int] = field(default_factory=dict)
    """Tags of the codec context: color_range, colorspace, ..."""
    audio: bool = False
    """A silent track that starts at 0."""

    def write(
        self,
        path: Path,
        frames: int | Iterable[int] = 50,
        times: Sequence[int] | None = None,
        tick: Fraction = MILLISECOND,
        picture: Callable[[int], Picture] | None = None,
    ) -> Path:
        """Encodes the frames with these numbers, evenly spaced or at `times` in ticks."""
        numbers = list(range(frames) if isinstance(frames, int) else frames)
        with av.open(str(path), "w", options=self.container_options) as container:
            container.metadata.update(self.metadata)
            stream = add_video(container, self)
            if times is not None:
                stream.codec_context.time_base = tick
            audio = container.add_stream("aac", rate=8000) if self.audio else None
            for i, number in enumerate(numbers):
                image = picture(number) if picture else numbered(number, *self.size)
                frame = VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
                frame = self._converted(frame)
                frame.pts = i if times is None else times[i]
                frame.time_base = 1 / self.fps if times is None else tick
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
            if isinstance(audio, AudioStream):
                _silence(container, audio, seconds=2.0)
        if hasattr(os, "sched_setscheduler"):
            # As root, the AV1 encoder makes its caller a real-time thread, beside which nothing else gets to run.
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        return path

    def _converted(self, frame: VideoFrame) -> VideoFrame:
        """In the pixel format and the colours that the tags promise."""
        ranges = {"yuvj420p": 2} if not self.colour.get("color_range") else {}
        return frame.reformat(
            format=self.pix_fmt,
            dst_colorspace=self.colour.get("matrix", 5),
            dst_color_range=ranges.get(self.pix_fmt, self.colour.get("color_range", 1)),
        )


def add_video(container: Any, clip: Clip) -> VideoStream:
    """A stream to encode into, set up as the clip says."""
    stream = container.add_stream(clip.codec, rate=clip.fps, options=clip.options)
    assert isinstance(stream, VideoStream)
    context = stream.codec_context
    context.width, context.height = clip.size
    context.pix_fmt = clip.pix_fmt
    context.thread_count = 1
    if clip.pixel_aspect is not None:
        context.sample_aspect_ratio = clip.pixel_aspect
    for name, value in clip.colour.items():
        if name != "matrix":
            setattr(context, name, value)
    if clip.rotation is not None:
        degrees, mirrored, flipped = clip.rotation
        stream.set_display_rotation(degrees, hflip=mirrored, vflip=flipped)
    return stream


def _silence(container: Any, stream: AudioStream, seconds: float) -> None:
    size = stream.codec_context.frame_size or 1024
    for i in range(int(seconds * 8000 / size)):
        frame = AudioFrame.from_ndarray(np.zeros((1, size), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 8000, i * size, Fraction(1, 8000)
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def write_audio(path: Path, codec: str = "aac", cover: bytes | None = None) -> Path:
    """A sound file, with a cover picture (JPEG) if one is given."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=8000, layout="mono")
        assert isinstance(stream, AudioStream)
        art = None
        if cover is not None:
            art = container.add_stream("mjpeg")
            assert isinstance(art, VideoStream)
            art.width, art.height, art.pix_fmt = 64, 48, "yuvj420p"
            art.disposition = av.stream.Disposition.attached_pic
        if art is not None and cover is not None:
            packet = Packet(cover)
            packet.stream = art
            packet.pts = packet.dts = 0
            packet.time_base = Fraction(1, 90000)
            container.start_encoding()
            container.mux_one(packet)
        _silence(container, stream, seconds=2.0)
    return path


def write_packed_avi(path: Path, frames: int = 101) -> Path:
    """MPEG-4 in AVI as DivX wrote it: a B-frame shares the packet of the frame before, and an empty one follows."""
    start = b"\0\0\1\xb6"
    plain = Clip("mpeg4", ".avi", options={"bf": "1", "b_strategy": "0"}).write(
        path.with_suffix(".plain.avi"), frames
    )
    with av.open(str(plain)) as source, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        pictures = [bytes(packet) for packet in source.demux(video=0) if packet.size]
        chunks: list[bytes] = []
        for picture in pictures:
            is_b_frame = picture[picture.rindex(start) + 4] >> 6 == 2
            if is_b_frame:
                chunks[-1:] = [chunks[-1] + picture, start + b"\x50\x00\x7f"]
            else:
                chunks.append(picture)
        chunks[0] = chunks[0].replace(start, b"\0\0\1\xb2DivX503b1393p" + start, 1)
        for i, chunk in enumerate(chunks):
            packet = Packet(chunk)
            packet.stream, packet.time_base = stream, 1 / Clip.fps
            packet.pts = packet.dts = i
            container.mux(packet)
    return path


def plain_frames(path: Path, skip: SkipFrame = "DEFAULT") -> list[tuple[Fraction, int]]:
    """Every frame that plain PyAV decodes, as (presentation time, number)."""
    found: list[tuple[Fraction, int]] = []
    with av.open(str(path), container_options={"fflags": "-genpts"}, **ANY_METADATA) as container:
        stream = container.streams.video[0]
        stream.codec_context.skip_frame = skip
        assert stream.time_base and stream.guessed_rate
        for frame in container.decode(stream):
            assert isinstance(frame, VideoFrame)
            stamp = frame.pts if frame.pts is not None else frame.dts
            time = stamp * stream.time_base if stamp is not None else found[-1][0] + 1 / stream.guessed_rate
            found.append((time, read_number(np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8))))
    return found


def atom(content: bytes, name: bytes) -> int:
    """Where the payload of an mp4 atom starts."""
    found = content.index(name) + 4
    assert content.count(name) == 1, name
    return found


def scale_durations(path: Path, factor: float) -> None:
    """Makes every duration in an mp4's headers a lie."""
    content = bytearray(path.read_bytes())
    for name, offset in ((b"mvhd", 16), (b"mdhd", 16), (b"tkhd", 20)):
        position = atom(bytes(content), name) + offset
        (duration,) = struct.unpack_from(">I", content, position)
        struct.pack_into(">I", content, position, int(duration * factor))
    path.write_bytes(content)


def cut_start_by_edit_list(path: Path, seconds: float) -> None:
    """Moves the start of an mp4's one edit on by some seconds of its media."""
    content = bytearray(path.read_bytes())
    media = atom(bytes(content), b"mdhd")
    (scale,) = struct.unpack_from(">I", content, media + 12)
    edits = atom(bytes(content), b"elst")
    count, _duration, start = struct.unpack_from(">III", content, edits + 4)
    assert count == 1
    struct.pack_into(">I", content, edits + 12, start + round(seconds * scale))
    path.write_bytes(content)


def write_header_bomb(path: Path, samples: int) -> Path:
    """A small MP4 whose header promises so many samples of one size: FFmpeg lists them all in memory."""
    content = bytearray(Clip().write(path, 10).read_bytes())
    struct.pack_into(">II", content, atom(bytes(content), b"stsz") + 4, 4, samples)
    struct.pack_into(">I", content, atom(bytes(content), b"stts") + 8, samples)
    struct.pack_into(">I", content, atom(bytes(content), b"stsc") + 12, samples)
    path.write_bytes(content)
    return path


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """A damaged copy: flipped bytes, a cut, swapped, doubled or zeroed blocks, or a wrecked header."""
    data = bytearray(content)
    size = len(data)

    def block(limit: int) -> slice:
        length = int(rng.integers(1, max(2, limit)))
        start = int(rng.integers(0, max(1, size - length)))
        return slice(start, start + length)

    for _ in range(int(rng.integers(1, 4))):
        kind = int(rng.integers(0, 6))
        if kind == 0:
            for position in rng.integers(0, len(data), int(rng.integers(1, 200))):
                data[position] = int(rng.integers(0, 256))
        elif kind == 1:
            del data[int(rng.integers(1, len(data) + 1)) :]
        elif kind == 2:
            one, other = block(size // 8), block(size // 8)
            data[one], data[other] = data[other], data[one]
        elif kind == 3:
            place = block(size // 8)
            data[place.start : place.start] = data[place]
        elif kind == 4:
            place = block(size // 4)
            data[place] = bytes(len(data[place]))
        else:
            for position in rng.integers(0, min(512, len(data)), 4):
                data[position] = int(rng.integers(0, 256))
        if not data:
            break
    return bytes(data)
