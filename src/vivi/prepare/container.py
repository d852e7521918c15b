"""Opens a video file and says, in a few words, why it cannot be used."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

import av
from av.container import InputContainer
from av.error import FFmpegError, InvalidDataError
from av.stream import Discard, Disposition
from av.video.stream import VideoStream

from vivi.runtime.storage import Unfit, check_regular

# A decoder holds up to 17 frames: about one GiB at 8K. Larger frames would break the bound on memory.
MAX_PIXELS = 8192 * 4608
MIN_SIDE = 16  # smaller pictures hold nothing to learn from; they are tracking pixels and test files
IO_BYTES = 1 << 18  # read at once; more than FFmpeg's own 32 KiB, because every read passes through Python
TEXT_FORMATS = {"tty", "bin", "xbin", "adf", "idf"}  # in which FFmpeg draws text files as pictures
# Metadata in any encoding must not matter; from version 19 on, PyAV has no such argument and sees to it itself.
ANY_METADATA: dict[str, Any] = {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "replace"}


class UnusableVideo(Exception):
    """The reason, in a few words, why a file, or a frame of it, gives no picture."""


def open_video(path: Path | str, opened: ExitStack) -> tuple[InputContainer, VideoStream]:
    """Opens a local file for as long as `opened`; only its best video stream will be read."""
    container = _open(path, opened)
    stream, kind = container.streams.best("video"), container.format.name
    if not isinstance(stream, VideoStream) or stream.disposition & Disposition.attached_pic:
        raise UnusableVideo("no video stream" + (" (audio only)" if container.streams.audio else ""))
    if kind == "image2" or kind.endswith("_pipe") or stream.disposition & Disposition.still_image:
        raise UnusableVideo("is a still image")
    if kind in TEXT_FORMATS:
        raise UnusableVideo("is a text file")
    if stream.codec_context is None:
        raise UnusableVideo("no decoder for its codec")
    width, height = stream.width, stream.height
    if width * height > MAX_PIXELS:
        raise UnusableVideo(f"its frames of {width}×{height} are larger than 8192×4608")
    if 0 < min(width, height) < MIN_SIDE:
        raise UnusableVideo(f"its frames of {width}×{height} are smaller than {MIN_SIDE} pixels")
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
    for other in container.streams:
        if other is not stream:
            other.discard = Discard.all
    return container, stream


def _open(path: Path | str, opened: ExitStack) -> InputContainer:
    """Opens a local file, whatever its name and the encoding of its metadata, and nothing the file may point to."""
    try:
        check_regular(Path(path), sys.maxsize)
    except FileNotFoundError:
        raise UnusableVideo("does not exist") from None
    except (OSError, ValueError) as error:
        known = "" if isinstance(error, Unfit) else "cannot be read: "
        raise UnusableVideo(known + in_words(error)) from None
    # genpts, PyAV's default, guesses missing presentation times, and guesses wrong for H.264 in AVI.
    options = {"protocol_whitelist": "none", "fflags": "-genpts"}
    try:
        # FFmpeg would take some names for URLs or patterns; a Python file has no such surprises.
        file = opened.enter_context(FileIO(str(path)))
        start = file.read(7)
        if start in (b"", b"#EXTM3U"):
            raise UnusableVideo("is a playlist" if start else "is empty (0 bytes)")
        file.seek(0)
        container: InputContainer = av.open(
            file, "r", buffer_size=IO_BYTES, container_options=options, **ANY_METADATA
        )
        return opened.enter_context(container)
    except InvalidDataError:
        raise UnusableVideo("not a video, or its start is damaged") from None
    except (FFmpegError, OSError) as error:
        raise UnusableVideo(f"cannot be opened: {in_words(error)}") from None


def in_words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()
