"""Tells H.264 and HEVC packets that no other packet refers to, without decoding them.

FFmpeg's decoders can skip such packets themselves. With threads that is slow: each packet still goes to a thread, in
turn, and those that get the skipped ones stand idle. Left out beforehand, they cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from av.packet import Packet
from av.video.stream import VideoStream


def unreferenced_test(stream: VideoStream) -> Callable[[Packet[VideoStream]], bool]:
    """A function that says of a packet whether no other packet refers to it; False where that is unknown."""
    extradata = stream.codec_context.extradata or b""
    match stream.codec_context.codec.canonical_name:
        case "h264":
            length = _length_bytes(extradata, 4)
            return lambda packet: _all_pictures(bytes(packet), length, _h264_unreferenced)
        case "hevc":
            length = _length_bytes(extradata, 21)
            return lambda packet: _all_pictures(bytes(packet), length, _hevc_unreferenced)
    return lambda packet: False


def _length_bytes(extradata: bytes, position: int) -> int:
    """Bytes that hold the length of a unit, as in MP4 and Matroska; 0: start codes, as in MPEG-TS and AVI."""
    return (extradata[position] & 3) + 1 if len(extradata) > position and extradata[0] == 1 else 0


def _all_pictures(data: bytes, length: int, unreferenced: Callable[[int], bool | None]) -> bool:
    """Whether the packet holds pictures or parts of them, and all of them are unreferenced."""
    verdicts = {unreferenced(data[start]) for start in _units(data, length)} - {None}
    return verdicts == {True}


def _h264_unreferenced(header: int) -> bool | None:
    """None: not (a part of) a picture."""
    return header >> 5 & 3 == 0 if 1 <= header & 31 <= 5 else None


def _hevc_unreferenced(header: int) -> bool | None:
    kind = header >> 1 & 63
    return kind <= 14 and kind % 2 == 0 if kind <= 31 else None


def _units(data: bytes, length: int) -> Iterator[int]:
    """Where the packet's units begin: after a length of so many bytes, or (0) after a start code."""
    position, end = 0, len(data)
    while length and position + length < end:
        yield position + length
        position += length + int.from_bytes(data[position : position + length], "big")
    while not length and (position := data.find(b"\0\0\1", position) + 3) > 2 and position < end:
        yield position
