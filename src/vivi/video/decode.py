"""One sequential pass over a video file: the frames nearest to the points of a time grid.

The grid has `rate` points a second and starts at the first frame. Every frame belongs to the grid point it is
nearest to, and each point keeps the nearest of its frames: no frame is used twice, none lies more than half a
step from its point, and a point no frame is near to stays empty. By default the decoder skips frames that no
other frame refers to (about half of the work on footage with B-frames); where that would leave a point empty
that the file has a frame for, the file is decoded in full from that point on.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.sidedata.sidedata import Type as SideDataType
from av.stream import Discard, Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

# A decoder holds up to 17 frames: about one GiB at 8K. Larger frames would break the bound on memory.
MAX_PIXELS = 8192 * 4608
# Smaller pictures hold nothing to learn from; they are tracking pixels and test files.
MIN_SIDE = 16
# Times that jump back by more than this come from a restarted clock (joined streams), not from reordering.
CLOCK_RESET_SECONDS = 1.0


class UnusableVideo(Exception):
    """The reason, in a few words, why a file gives no frames."""


@dataclass(frozen=True)
class SampledFrame:
    """One frame of the time grid."""

    time: float
    """True presentation time in seconds."""
    image: NDArray[np.uint8]
    """RGB, upright, with square pixels: (height, width, 3)."""


@dataclass
class VideoInfo:
    """What a pass over the file learned; complete once its frames are read."""

    codec: str = ""
    width: int = 0
    """Of the picture as displayed: upright, with square pixels."""
    height: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    """What went wrong without making the file unusable."""


def sample_frames(
    path: Path | str,
    rate: float = 1.0,
    short_side: int = 256,
    exact: bool = False,
    threads: int = 1,
    info: VideoInfo | None = None,
    heartbeat: Callable[[float, float], None] = lambda share, seconds: None,
) -> Iterator[SampledFrame]:
    """Yields the frames of the time grid in order and fills `info`; raises UnusableVideo if there are none.

    Frames are scaled down to a short side of `short_side`; smaller ones are never blown up. `heartbeat` is called
    for every packet with the share of the file that was read and the seconds of footage in it.
    """
    info = info if info is not None else VideoInfo()
    _check_is_file(Path(path))
    scaler = _Scaler(short_side)
    sampled = -1  # the last grid point that was yielded
    for skip_unreferenced in (False,) if exact else (True, False):
        decoding = _Pass(path, rate, skip_unreferenced, threads, info, heartbeat)
        try:
            for point, time, frame in decoding.nearest_frames():
                if point > sampled:
                    yield SampledFrame(time, scaler.upright_rgb(frame, decoding.pixel_aspect, info))
                    sampled = point
            break
        except _ReferenceFramesTooSparse:
            continue
    if sampled < 0:
        raise UnusableVideo("no frame could be decoded" + "".join(f"; {p}" for p in info.problems))


class _ReferenceFramesTooSparse(Exception):
    """A grid point has frames in the file, but none among those that others refer to."""


def _check_is_file(path: Path) -> None:
    """Names the common cases; FFmpeg would call most of them invalid data."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UnusableVideo("does not exist") from None
    except OSError as error:
        raise UnusableVideo(f"cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(found.st_mode):
        raise UnusableVideo("is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise UnusableVideo("is not a regular file")
    if found.st_size == 0:
        raise UnusableVideo("is empty (0 bytes)")
    if not os.access(path, os.R_OK):
        raise UnusableVideo("permission denied")


class _Pass:
    """One pass of the decoder over the file."""

    def __init__(
        self,
        path: Path | str,
        rate: float,
        skip_unreferenced: bool,
        threads: int,
        info: VideoInfo,
        heartbeat: Callable[[float, float], None],
    ) -> None:
        self.path = path
        self.rate = rate
        self.skip_unreferenced = skip_unreferenced
        self.threads = threads
        self.info = info
        self.heartbeat = heartbeat
        self.pixel_aspect = 1.0
        self.time_base = Fraction(1)
        self.start = math.nan  # time of the first frame
        self.end = -math.inf
        self.clock_offset = 0.0  # added to the file's times once its clock was restarted
        self.packet_times: list[float] = []  # of packets whose grid point is not settled yet
        info.problems = []

    def nearest_frames(self) -> Iterator[tuple[int, float, VideoFrame]]:
        """Yields (grid point, time, frame) for every grid point that has a frame."""
        best: tuple[int, float, VideoFrame] | None = None
        for time, frame in self._frames_in_order():
            if best is None:
                self.start = time
            point = self._point(time)
            if best is not None and point <= best[0]:
                if self._distance(time, best[0]) < self._distance(best[1], best[0]):
                    best = best[0], time, frame
                continue
            if best is not None:
                self._check_nothing_between(best[0], point)
                yield best
            best = point, time, frame
        if best is not None:
            # The very last point may be lost to skipped frames: not worth a second pass over the file.
            self._check_nothing_between(best[0] + 1, math.inf)
            self.info.seconds = max(0.0, self.end - self.start)
            yield best

    def _point(self, time: float) -> int:
        return math.floor((time - self.start) * self.rate + 0.5)

    def _distance(self, time: float, point: int) -> float:
        return abs(time - self.start - point / self.rate)

    def _check_nothing_between(self, point: int, next_point: float) -> None:
        """Raises if the file has a frame for a point that the skipping decoder gave none for."""
        if not self.skip_unreferenced:
            return
        unsettled = [time for time in self.packet_times if self._point(time) > point]
        if any(self._point(time) < next_point for time in unsettled):
            raise _ReferenceFramesTooSparse
        self.packet_times = unsettled

    def _frames_in_order(self) -> Iterator[tuple[float, VideoFrame]]:
        """Yields (time, frame) with times that never decrease."""
        last = -math.inf
        gap = 0.04
        for frame in self._decoded():
            stamp = frame.pts if frame.pts is not None else frame.dts
            time = last + gap if stamp is None else float(stamp * self.time_base) + self.clock_offset
            if time < last - CLOCK_RESET_SECONDS:
                self.clock_offset += last + gap - time
                self.packet_times.clear()
                self.skip_unreferenced = False  # packet times and frame times no longer match
                time = last + gap
            if time <= last:
                continue
            if math.isfinite(last):
                gap = time - last
            last = time
            self.end = max(self.end, time + float((frame.duration or 0) * self.time_base))
            yield time, frame

    def _decoded(self) -> Iterator[VideoFrame]:
        """Yields what the decoder gives, past damaged packets, and notes what was damaged."""
        damaged = 0
        with _open(self.path) as container:
            stream = self._video_stream(container)
            size = max(container.size, 1)
            packets = container.demux(stream)
            while True:
                try:
                    packet = next(packets)
                except (StopIteration, FFmpegError) as error:
                    # Demuxing ends with a packet that flushes the decoder, unless it breaks off.
                    if isinstance(error, FFmpegError):
                        self.info.problems.append(f"reading broke off: {_in_words(error)}")
                        yield from _flush(stream)
                    break
                self.heartbeat((packet.pos or 0) / size, self.end - self.start)
                try:
                    frames = packet.decode()
                except FFmpegError:
                    damaged += 1
                    continue
                if packet.pts is not None and not packet.is_discard:
                    time = float(packet.pts * self.time_base)
                    self.end = max(self.end, time + float((packet.duration or 0) * self.time_base))
                    if self.skip_unreferenced:
                        self.packet_times.append(time)
                for frame in frames:
                    if frame.is_corrupt:
                        damaged += 1
                    else:
                        yield frame
            promised = float(container.duration or 0) / av.time_base
        if damaged:
            self.info.problems.append(f"{damaged} damaged frames left out")
        found = self.end - self.start
        if promised - found > max(2.0, 0.1 * promised):
            self.info.problems.append(f"the header says {promised:.1f} s, the frames end after {found:.1f} s")

    def _video_stream(self, container: InputContainer) -> VideoStream:
        """The one video stream to read, with its decoder set up."""
        stream = container.streams.best("video")
        if not isinstance(stream, VideoStream) or stream.disposition & Disposition.attached_pic:
            raise UnusableVideo("no video stream" + (" (audio only)" if container.streams.audio else ""))
        if _is_still_image(container, stream):
            raise UnusableVideo("is a still image")
        width, height = stream.width, stream.height
        if stream.codec_context is None:
            raise UnusableVideo("no decoder for its codec")
        if width * height > MAX_PIXELS:
            raise UnusableVideo(f"its frames of {width}×{height} are larger than 8192×4608")
        if 0 < min(width, height) < MIN_SIDE:
            raise UnusableVideo(f"its frames of {width}×{height} are smaller than {MIN_SIDE} pixels")
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all
        stream.thread_count = self.threads
        stream.thread_type = "AUTO" if self.threads > 1 else "NONE"
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        if self.skip_unreferenced:
            stream.codec_context.skip_frame = "NONREF"
        self.pixel_aspect = float(stream.sample_aspect_ratio or 1)
        self.time_base = stream.time_base or Fraction(1, av.time_base)
        self.info.codec = stream.codec_context.name
        return stream


def _open(path: Path | str) -> InputContainer:
    """Opens a local file, whatever the encoding of its metadata, and nothing the file may point to."""
    try:
        return av.open(str(path), "r", metadata_errors="replace", container_options={"protocol_whitelist": "file"})
    except FFmpegError as error:
        raise UnusableVideo(f"cannot be opened: {_in_words(error)}") from None


def _in_words(error: FFmpegError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _is_still_image(container: InputContainer, stream: VideoStream) -> bool:
    name = container.format.name
    return name == "image2" or name.endswith("_pipe") or bool(stream.disposition & Disposition.still_image)


def _flush(stream: VideoStream) -> Iterator[VideoFrame]:
    try:
        yield from stream.decode(None)
    except FFmpegError:
        return


class _Scaler:
    """Turns decoded frames into upright RGB pictures of the wanted size."""

    def __init__(self, short_side: int) -> None:
        self.short_side = short_side
        self.reformatter = VideoReformatter()

    def upright_rgb(self, frame: VideoFrame, pixel_aspect: float, info: VideoInfo) -> NDArray[np.uint8]:
        matrix = _display_matrix(frame)
        display_width = max(1, round(frame.width * pixel_aspect))
        scale = min(1.0, self.short_side / min(display_width, frame.height))
        rgb = self.reformatter.reformat(
            frame,
            width=max(1, round(display_width * scale)),
            height=max(1, round(frame.height * scale)),
            format="rgb24",
            src_colorspace=_colorspace(frame),
            interpolation="AREA" if scale < 1 else "BICUBIC",
            threads=1,
        )
        image = _orient(np.asarray(rgb.to_ndarray(), dtype=np.uint8), matrix)
        upright = matrix is None or abs(matrix[0]) >= abs(matrix[1])
        info.width, info.height = (display_width, frame.height) if upright else (frame.height, display_width)
        return image


def _colorspace(frame: VideoFrame) -> int | None:
    """The frame's own, or what players assume where the file does not say: 709 for HD, 601 below."""
    unspecified = 2
    if frame.colorspace != unspecified:
        return None
    return int(Colorspace.ITU709 if frame.height >= 720 else Colorspace.ITU601)


def _display_matrix(frame: VideoFrame) -> tuple[int, int, int, int] | None:
    """(a, b, c, d) with x' = a x + c y and y' = b x + d y, from the container's rotation metadata."""
    side_data: Any = frame.side_data  # PyAV's stub says it is a dictionary; it iterates over entries
    for data in side_data:
        if data.type == SideDataType.DISPLAYMATRIX:
            m = np.frombuffer(bytes(data), dtype=np.int32)
            return int(m[0]), int(m[1]), int(m[3]), int(m[4])
    return None


def _orient(image: NDArray[np.uint8], matrix: tuple[int, int, int, int] | None) -> NDArray[np.uint8]:
    """Turns and mirrors by quarter turns, as the display matrix says."""
    if matrix is None:
        return image
    a, b, c, d = matrix
    if abs(b) > abs(a):
        image, a, d = image.swapaxes(0, 1), c, b
    if a < 0:
        image = image[:, ::-1]
    if d < 0:
        image = image[::-1]
    return np.ascontiguousarray(image)
