"""One sequential pass over a video file: the frames nearest to the points of a time grid.

The grid has `rate` points a second and starts at the first frame. Every frame belongs to the grid point it is
nearest to, and each point keeps the nearest of its frames: no frame is used twice, none lies more than half a
step from its point, and a point no frame is near to stays empty. By default the decoder skips frames that no
other frame refers to (about half of the work on footage with B-frames); where that would leave a point empty
that the file has a frame for, the file is decoded in full from that point on.
"""

from __future__ import annotations

import heapq
import math
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError, InvalidDataError
from av.packet import Packet
from av.stream import Discard, Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from vivi.video.picture import Scaler, displayed_size

# A decoder holds up to 17 frames: about one GiB at 8K. Larger frames would break the bound on memory.
MAX_PIXELS = 8192 * 4608
# Smaller pictures hold nothing to learn from; they are tracking pixels and test files.
MIN_SIDE = 16
# Frames midway between two points go to the later one, and of two as near the earlier wins, despite rounding.
TIE = 1e-9
# Decoding times that jump back by more than this come from a restarted clock (joined streams).
CLOCK_RESET_SECONDS = 1.0
# A decoder that reads this many packets without giving a frame for any of them does more than skip a few.
MAX_UNSETTLED_PACKETS = 10_000
# Pixels more oblong than this come from a damaged header.
MAX_PIXEL_ASPECT = 8.0
# Read at once; larger than FFmpeg's own 32 KiB, because every read passes through Python.
IO_BYTES = 1 << 18
# Of the three variants of MPEG-TS; it states no duration that would tell a truncated file.
TS_PACKET_BYTES = (188, 192, 204)
# Formats of FFmpeg that draw text files as pictures.
TEXT_FORMATS = {"tty", "bin", "xbin", "adf", "idf"}


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

    def note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


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
    scaler = Scaler(short_side)
    sampled = -1  # the last grid point that was yielded
    skip_until = -math.inf if exact else math.inf
    while True:
        decoding = _Pass(path, rate, skip_until, threads, info, heartbeat)
        try:
            for point, time, frame in decoding.nearest_frames():
                if point <= sampled:
                    continue
                try:
                    image = scaler.upright_rgb(frame, decoding.pixel_aspect)
                except FFmpegError as error:
                    info.note(f"{frame.format.name} pictures cannot be converted: {_in_words(error)}")
                    continue
                if sampled < 0:
                    info.width, info.height = displayed_size(frame, decoding.pixel_aspect)
                sampled = point
                yield SampledFrame(time, image)
            break
        except _ReferenceFramesTooSparse as sparse:
            skip_until = sparse.after
    if sampled < 0:
        raise UnusableVideo("; ".join(["no frame could be decoded", *info.problems]))


class _ReferenceFramesTooSparse(Exception):
    """After this time, frames that no other frame refers to are needed, too."""

    def __init__(self, after: float) -> None:
        self.after = after


class _Pass:
    """One pass of the decoder over the file."""

    def __init__(
        self,
        path: Path | str,
        rate: float,
        skip_until: float,
        threads: int,
        info: VideoInfo,
        heartbeat: Callable[[float, float], None],
    ) -> None:
        self.path = path
        self.rate = rate
        self.skip_until = skip_until  # up to this time, frames that no other refers to are not decoded
        self.watching = skip_until == math.inf  # for grid points that this leaves empty
        self.threads = threads
        self.info = info
        self.heartbeat = heartbeat
        self.pixel_aspect = 1.0
        self.time_base = (1, av.time_base)  # seconds of one tick of the stream's clock, as a fraction
        self.period = 0.04  # seconds between frames, for streams that do not say when to show them
        self.start = math.nan  # time of the first frame
        self.end = -math.inf
        self.unsettled: list[float] = []  # heap: times of packets past the grid point that is being filled
        info.problems = []

    def nearest_frames(self) -> Iterator[tuple[int, float, VideoFrame]]:
        """Yields (grid point, time, frame) for every grid point that has a frame."""
        best: tuple[int, float, VideoFrame] | None = None
        for time, frame in self._frames_in_order():
            if best is None:
                self.start = time
                best = 0, time, frame
            point = self._point(time)
            if point > best[0]:
                self._check_none_missed(best[0], point, since=best[1])
                yield best
                best = point, time, frame
            elif self._distance(time, point) < self._distance(best[1], point) - TIE:
                best = point, time, frame
            self._settle(best[0])
        if best is not None:
            # The very last point may be lost to skipped frames: not worth decoding the file once more.
            self._check_none_missed(best[0] + 1, math.inf, since=best[1])
            self.info.seconds = max(0.0, self.end - self.start)
            yield best

    def _seconds(self, ticks: int) -> float:
        return ticks * self.time_base[0] / self.time_base[1]

    def _point(self, time: float) -> int:
        return math.floor((time - self.start) * self.rate + 0.5 + TIE)

    def _distance(self, time: float, point: int) -> float:
        return abs(time - self.start - point / self.rate)

    def _settle(self, point: int) -> None:
        """Forgets the packets up to a grid point that has its frame."""
        while self.unsettled and self._point(self.unsettled[0]) <= point:
            heapq.heappop(self.unsettled)

    def _check_none_missed(self, point: int, next_point: float, since: float) -> None:
        """Raises if the file has frames for a point between these, but the skipping decoder gave none."""
        self._settle(point)
        if self.unsettled and self._point(self.unsettled[0]) < next_point:
            raise _ReferenceFramesTooSparse(since)

    def _frames_in_order(self) -> Iterator[tuple[float, VideoFrame]]:
        """Yields (time, frame) with times that increase."""
        last = -math.inf
        stamped, unstamped = 0.0, 0  # the last time the file gave, and the frames since
        for frame in self._decoded():
            stamp = frame.pts if frame.pts is not None else frame.dts
            if stamp is not None:
                time = self._seconds(stamp)
                stamped, unstamped = time, 1
            elif not self.watching:
                time = stamped + unstamped * self.period
                unstamped += 1
            elif math.isfinite(last):
                continue  # where only decoding times are stored, the frames of the last flush have none
            else:
                raise _ReferenceFramesTooSparse(-math.inf)  # no times at all: only counting every frame gives them
            if time > last:
                last = time
                self.end = max(self.end, time + self._seconds(frame.duration or 0))
                yield time, frame

    def _decoded(self) -> Iterator[VideoFrame]:
        """Yields what the decoder gives, past damaged packets, and notes what was damaged."""
        damaged = 0
        with ExitStack() as opened:
            container = _open(self.path, opened)
            stream = self._video_stream(container)
            size = max(container.size, 1)
            for packet in self._packets(container, stream):
                if packet is not None:
                    self.heartbeat((packet.pos or 0) / size, max(0.0, self.end - self.start))
                try:
                    frames = stream.decode(packet)
                except FFmpegError:
                    damaged += 1
                    continue
                if packet is not None:
                    self._watch(packet)
                for frame in frames:
                    if frame.is_corrupt or min(frame.width, frame.height) < MIN_SIDE:
                        damaged += 1
                    else:
                        yield frame
            self._compare_with_header(container, stream, size)
        if damaged:
            self.info.note(f"{damaged} damaged frames left out")

    def _compare_with_header(self, container: InputContainer, stream: VideoStream, size: int) -> None:
        """Notes what the file promises and does not hold: the sign of a truncated one."""
        # FFmpeg shortens the duration of a truncated AVI; its number of frames still tells.
        promised = max(
            (container.duration or 0) / av.time_base, float(stream.frames / (stream.average_rate or math.inf))
        )
        found = self.end - self.start
        if promised - found > max(2.0, 0.1 * promised):
            self.info.note(f"the header says {promised:.1f} s, the frames end after {found:.1f} s")
        elif container.format.name == "mpegts" and all(size % length for length in TS_PACKET_BYTES):
            self.info.note("the file ends within a packet")

    def _packets(self, container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream] | None]:
        """Yields packets on one clock, even where the file's restarts, then None, to flush the decoder."""
        skipping = not self.watching
        last: int | None = None  # decoding time of the packet before
        offset = 0
        try:
            for packet in container.demux(stream):
                if packet.size == 0:
                    continue  # a gap in AVI; the decoder would take it for the end
                if packet.dts is not None:
                    if last is not None and self._seconds(packet.dts + offset - last) < -CLOCK_RESET_SECONDS:
                        offset = last + (packet.duration or round(self.period / self._seconds(1))) - packet.dts
                    last = packet.dts + offset
                if offset:
                    packet.dts = _shifted(packet.dts, offset)
                    packet.pts = _shifted(packet.pts, offset)
                if skipping and (packet.pts is None or self._seconds(packet.pts) >= self.skip_until):
                    skipping = False
                    stream.codec_context.skip_frame = "DEFAULT"
                yield packet
        except (FFmpegError, OSError) as error:
            self.info.note(f"reading broke off: {_in_words(error)}")
        yield None

    def _watch(self, packet: Packet[VideoStream]) -> None:
        """Notes that the file has a frame at this time, whether or not the decoder skips it."""
        if packet.is_discard:
            return
        if packet.pts is not None:
            self.end = max(self.end, self._seconds(packet.pts + (packet.duration or 0)))
        stamp = packet.pts if packet.pts is not None else packet.dts
        if self.watching and stamp is not None:
            heapq.heappush(self.unsettled, self._seconds(stamp))
            if len(self.unsettled) > MAX_UNSETTLED_PACKETS:
                raise _ReferenceFramesTooSparse(-math.inf)

    def _video_stream(self, container: InputContainer) -> VideoStream:
        """The one video stream to read, with its decoder set up."""
        stream = container.streams.best("video")
        if not isinstance(stream, VideoStream) or stream.disposition & Disposition.attached_pic:
            raise UnusableVideo("no video stream" + (" (audio only)" if container.streams.audio else ""))
        if _is_still_image(container, stream):
            raise UnusableVideo("is a still image")
        if container.format.name in TEXT_FORMATS:
            raise UnusableVideo("is a text file")
        if stream.codec_context is None:
            raise UnusableVideo("no decoder for its codec")
        width, height = stream.width, stream.height
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
        # dav1d, for AV1, cannot cease to skip on the way.
        if self.watching or (self.skip_until > -math.inf and stream.codec_context.name != "libdav1d"):
            stream.codec_context.skip_frame = "NONREF"
        aspect = float(stream.sample_aspect_ratio or 1)
        self.pixel_aspect = aspect if 1 / MAX_PIXEL_ASPECT <= aspect <= MAX_PIXEL_ASPECT else 1.0
        if stream.time_base:
            self.time_base = stream.time_base.as_integer_ratio()
        self.period = float(1 / (stream.guessed_rate or 25))
        self.info.codec = stream.codec_context.name
        return stream


def _open(path: Path | str, opened: ExitStack) -> InputContainer:
    """Opens a local file, whatever its name and the encoding of its metadata, and nothing the file may point to."""
    _check_is_file(Path(path))
    # genpts, PyAV's default, guesses missing presentation times, and guesses wrong for H.264 in AVI.
    options = {"protocol_whitelist": "none", "fflags": "-genpts"}
    try:
        # FFmpeg would take some names for URLs or patterns; a Python file has no such surprises.
        file = opened.enter_context(FileIO(str(path)))
        if file.read(7) == b"#EXTM3U":
            raise UnusableVideo("is a playlist")
        file.seek(0)
        container = av.open(file, "r", metadata_errors="replace", buffer_size=IO_BYTES, container_options=options)
        return opened.enter_context(container)
    except InvalidDataError:
        raise UnusableVideo("not a video, or its start is damaged") from None
    except (FFmpegError, OSError) as error:
        raise UnusableVideo(f"cannot be opened: {_in_words(error)}") from None


def _shifted(stamp: int | None, offset: int) -> int | None:
    """None for the absurd times of damaged files, which would overflow FFmpeg's 64 bits."""
    return None if stamp is None or abs(stamp + offset) >= 1 << 62 else stamp + offset


def _check_is_file(path: Path) -> None:
    """Names the common cases; FFmpeg would call most of them invalid data."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UnusableVideo("does not exist") from None
    except (OSError, ValueError) as error:
        raise UnusableVideo(f"cannot be read: {_in_words(error)}") from None
    if stat.S_ISDIR(found.st_mode):
        raise UnusableVideo("is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise UnusableVideo("is not a regular file")
    if found.st_size == 0:
        raise UnusableVideo("is empty (0 bytes)")


def _in_words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()


def _is_still_image(container: InputContainer, stream: VideoStream) -> bool:
    name = container.format.name
    return name == "image2" or name.endswith("_pipe") or bool(stream.disposition & Disposition.still_image)
