"""One sequential pass over a video file: the frames nearest to the points of a time grid.

The grid has `rate` points a second and starts at the first frame. Every frame belongs to the grid point it is
nearest to, and each point keeps the nearest of its frames: no frame is used twice, none lies more than half a
step from its point, and a point no frame is near to stays empty.

By default only frames that others refer to are considered, and work is saved in two ways: the decoder skips the
other frames (about half of the work on footage with B-frames), and it never gets the packets between a point that
has its frame and the last key frame before the next point (half of the work where key frames are 2 s apart and
points 1 s). Where that would leave a point empty that the file has a frame for, the file is decoded in full from
that point on.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from vivi.prepare.container import MIN_SIDE, UnusableVideo, in_words, open_video
from vivi.prepare.picture import Scaler

_Packet: TypeAlias = "Packet[VideoStream]"
Report = Callable[[float, float], None]  # of the share of a file that is read, and of the seconds of footage in it

TIE = 1e-9  # frames midway between two points go to the later one; of two as near the earlier wins, despite rounding
CLOCK_RESET_SECONDS = 1.0  # decoding times that jump back by more come from a restarted clock (joined streams)
MAX_UNSETTLED_PACKETS = 10_000  # a decoder that gives no frame for so many of them does more than skip a few
MAX_GROUP_PACKETS, MAX_GROUP_BYTES = 600, 32 << 20  # the most to read ahead in search of the next key frame
MAX_PIXEL_ASPECT = 8.0  # pixels more oblong come from a damaged header
TS_PACKET_BYTES = (188, 192, 204)  # of the variants of MPEG-TS, which states no duration


@dataclass(frozen=True)
class SampledFrame:
    """One frame of the time grid."""

    time: float  # true presentation time in seconds
    image: NDArray[np.uint8]  # RGB, upright, with square pixels: (height, width, 3)


@dataclass
class VideoInfo:
    """What a pass over the file learned; complete once its frames are read."""

    codec: str = ""
    width: int = 0  # of the picture as displayed: upright, with square pixels
    height: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)  # what went wrong without making the file unusable

    def note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def sample_frames(
    path: Path | str,
    rate: float = 1.0,
    short_side: int = 256,
    exact: bool = False,
    info: VideoInfo | None = None,
    heartbeat: Report = lambda share, seconds: None,
) -> Generator[SampledFrame, None, None]:
    """Yields the frames of the time grid in order and fills `info`; raises UnusableVideo if there are none.

    Frames are scaled down to a short side of `short_side`; smaller ones are never blown up. `heartbeat` is called
    for every packet with the share of the file that was read and the seconds of footage in it.
    """
    info = info or VideoInfo()
    scaler = Scaler(short_side)
    sampled = -1  # the last grid point that was yielded
    skip_until = -math.inf if exact else math.inf
    while True:
        info.problems = []
        decoding = _Pass(path, rate, skip_until, info, heartbeat)
        try:
            for point, time, frame in decoding.nearest_frames():
                if point <= sampled:
                    continue
                try:
                    image, full_size = scaler.upright_rgb(frame, decoding.pixel_aspect)
                except UnusableVideo as error:
                    info.note(str(error))
                    continue
                if sampled < 0:
                    info.width, info.height = full_size
                sampled = point
                yield SampledFrame(time, image)
            break
        except _ReferenceFramesTooSparse as sparse:
            (skip_until,) = sparse.args
    if sampled < 0:
        raise UnusableVideo("; ".join(["no frame could be decoded", *info.problems]))


class _ReferenceFramesTooSparse(Exception):
    """After the time that it holds, frames that no other frame refers to are needed, too."""


@dataclass
class _Pass:
    """One pass of the decoder over the file."""

    path: Path | str
    rate: float
    skip_until: float  # up to this time, frames that no other refers to are not decoded
    info: VideoInfo
    heartbeat: Report
    pixel_aspect: float = 1.0
    time_base: tuple[int, int] = (1, av.time_base)  # seconds of one tick of the stream's clock, as a fraction
    period: float = 0.04  # seconds between frames, for streams that do not say when to show them
    start: float = math.nan  # time of the first frame
    latest: float = -math.inf  # time of the latest frame
    awaited: float = -math.inf  # time of the key frame for which packets were left out
    end: float = -math.inf  # of the footage: when its last frame is over
    unsettled: list[float] = field(default_factory=list)  # heap: times of packets past the grid point in work

    @property
    def watching(self) -> bool:
        """Whether frames are skipped to the end, which may leave points empty that the file has frames for."""
        return self.skip_until == math.inf

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
        stamped, unstamped = 0.0, 0  # the last time the file gave, and the frames since
        for frame in self._decoded():
            stamp = frame.pts if frame.pts is not None else frame.dts
            if stamp is not None:
                time = self._seconds(stamp)
                stamped, unstamped = time, 1
            elif not self.watching:
                time = stamped + unstamped * self.period
                unstamped += 1
            elif math.isfinite(self.latest):
                continue  # where only decoding times are stored, the frames of the last flush have none
            else:
                raise _ReferenceFramesTooSparse(-math.inf)  # no times at all: only counting every frame gives them
            if time < self.awaited:
                continue  # leads up to a key frame from frames that were left out
            if self.latest < self.awaited < time:  # the key frame is damaged, or only the start of a refresh
                raise _ReferenceFramesTooSparse(self.latest)
            if time > self.latest:
                self.latest = time
                self.end = max(self.end, time + self._seconds(frame.duration or 0))
                yield time, frame

    def _decoded(self) -> Iterator[VideoFrame]:
        """Yields what the decoder gives, past damaged packets, and notes what was damaged."""
        damaged = 0
        with ExitStack() as opened:
            container, stream = open_video(self.path, opened)
            self._set_up(stream)
            size = max(container.size or 0, 1)
            packets = self._packets(container, stream, size)
            needed = self._needed(packets, stream) if self.watching else packets
            for packet in itertools.chain(needed, [None]):  # None: the decoder gives what it still holds
                try:
                    frames = stream.decode(packet)
                except FFmpegError:
                    damaged += 1
                    continue
                if packet is not None:
                    self._note([packet])
                for frame in frames:
                    if frame.is_corrupt or min(frame.width, frame.height) < MIN_SIDE:
                        damaged += 1
                    else:
                        yield frame
            self._compare_with_header(container, stream, size)
        if damaged:
            self.info.note(f"{damaged} damaged frames left out")

    def _set_up(self, stream: VideoStream) -> None:
        """Tells the decoder what to skip, and learns what the stream says of itself."""
        # With several threads FFmpeg gives other frames of a damaged stream, and often without a sign of damage.
        stream.thread_count, stream.thread_type = 1, "NONE"
        # dav1d, for AV1, cannot cease to skip on the way.
        if self.watching or (self.skip_until > -math.inf and stream.codec_context.name != "libdav1d"):
            stream.codec_context.skip_frame = "NONREF"
        aspect = float(stream.sample_aspect_ratio or 1)
        self.pixel_aspect = aspect if 1 / MAX_PIXEL_ASPECT <= aspect <= MAX_PIXEL_ASPECT else 1.0
        if stream.time_base:
            self.time_base = stream.time_base.numerator, stream.time_base.denominator
        self.period = float(1 / (stream.guessed_rate or 25))
        self.info.codec = stream.codec_context.codec.canonical_name

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

    def _packets(self, container: InputContainer, stream: VideoStream, size: int) -> Iterator[_Packet]:
        """Yields packets on one clock, even where the file's restarts."""
        skipping = not self.watching
        last: int | None = None  # decoding time of the packet before
        offset = 0
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
            except (FFmpegError, OSError) as error:
                self.info.note(f"reading broke off: {in_words(error)}")
                return
            if packet is None:
                return
            if packet.size == 0:
                continue  # a gap in AVI; the decoder would take it for the end
            if packet.dts is not None:
                if last is not None and self._seconds(packet.dts + offset - last) < -CLOCK_RESET_SECONDS:
                    offset = last + (packet.duration or round(self.period / self._seconds(1))) - packet.dts
                last = packet.dts + offset
            if offset:
                packet.dts, packet.pts = _shifted(packet.dts, offset), _shifted(packet.pts, offset)
            if skipping and (packet.pts is None or self._seconds(packet.pts) >= self.skip_until):
                skipping = False
                stream.codec_context.skip_frame = "DEFAULT"
            self.heartbeat((packet.pos or 0) / size, max(0.0, self.end - self.start))
            yield packet

    def _needed(self, packets: Iterator[_Packet], stream: VideoStream) -> Iterator[_Packet]:
        """Leaves out packets that lie before a key frame which is nearer to the next grid point than all of them."""
        skipped = False
        for group, next_key_time in self._groups(packets):
            for index, packet in enumerate(group):
                if next_key_time <= self._next_point_time():
                    self._note(group[index:])
                    skipped = True
                    break
                if skipped:
                    stream.codec_context.flush_buffers()  # as after a seek: the frames before are missing
                    self.awaited = self._seconds(packet.pts or 0)
                    skipped = False
                yield packet

    def _next_point_time(self) -> float:
        """The first grid point that the frames so far do not reach."""
        if math.isnan(self.start):
            return -math.inf
        return self.start + (math.floor((self.latest - self.start) * self.rate + TIE) + 1) / self.rate

    def _groups(self, packets: Iterator[_Packet]) -> Iterator[tuple[list[_Packet], float]]:
        """Yields the packets from each key frame to the next, with the time of that next one (inf: not known)."""
        group: list[_Packet] = []
        size = 0
        for packet in packets:
            if packet.is_keyframe or len(group) >= MAX_GROUP_PACKETS or size >= MAX_GROUP_BYTES:
                known = packet.is_keyframe and packet.pts is not None
                yield group, self._seconds(packet.pts or 0) if known else math.inf
                group, size = [], 0
            group.append(packet)
            size += packet.size
        yield group, math.inf

    def _note(self, packets: list[_Packet]) -> None:
        """Notes how far the footage reaches, and that the file has frames at these times, whether or not the decoder
        gives them: of packets that are left out, the one nearest to the key frame will do."""
        for packet in packets:
            if packet.pts is not None and not packet.is_discard:
                self.end = max(self.end, self._seconds(packet.pts + (packet.duration or 0)))
        packet = max(packets, key=lambda packet: packet.pts or 0)
        stamp = packet.pts if packet.pts is not None else packet.dts
        if self.watching and stamp is not None and not packet.is_discard:
            heapq.heappush(self.unsettled, self._seconds(stamp))
            if len(self.unsettled) > MAX_UNSETTLED_PACKETS:
                raise _ReferenceFramesTooSparse(-math.inf)


def _shifted(stamp: int | None, offset: int) -> int | None:
    """None for the absurd times of damaged files, which would overflow FFmpeg's 64 bits."""
    return None if stamp is None or abs(stamp + offset) >= 1 << 62 else stamp + offset
