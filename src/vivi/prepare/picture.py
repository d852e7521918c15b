"""Decoded frames as pictures: RGB in true colours, upright, with square pixels, of the wanted size."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from av.sidedata.sidedata import SideDataContainer
from av.sidedata.sidedata import Type as SideDataType
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace, VideoReformatter
from numpy.typing import NDArray

# RGB, BT.709, FCC, BT.601 (two names), SMPTE 240M, BT.2020: H.273's numbers of what FFmpeg's scaler can convert.
KNOWN_COLORSPACES = {0, 1, 4, 5, 6, 7, 9}


class Scaler:
    """Turns decoded frames into upright RGB pictures, scaled down to a short side; smaller ones stay as they are."""

    def __init__(self, short_side: int) -> None:
        self.short_side = short_side
        self.reformatter = VideoReformatter()

    def size(self, frame: VideoFrame, pixel_aspect: float) -> tuple[int, int]:
        """(width, height) of the picture before it is turned upright."""
        width, height = _square(frame, pixel_aspect)
        scale = self.short_side / min(width, height)
        if scale < 1:
            width, height = max(1, round(width * scale)), max(1, round(height * scale))
            # FFmpeg's scaler takes 1.5 times as long for an odd width.
            width += width % 2 if width > height else 0
        return width, height

    def upright_rgb(self, frame: VideoFrame, pixel_aspect: float) -> NDArray[np.uint8]:
        """The picture, (height, width, 3); `pixel_aspect` is the width of a pixel over its height."""
        width, height = self.size(frame, pixel_aspect)
        rgb = self.reformatter.reformat(
            frame,
            width=width,
            height=height,
            format="rgb24",
            src_colorspace=_colorspace(frame),
            interpolation="AREA" if min(_square(frame, pixel_aspect)) > self.short_side else "BICUBIC",
            threads=1,
        )
        return _orient(np.asarray(rgb.to_ndarray(), dtype=np.uint8), _display_matrix(frame))


def displayed_size(frame: VideoFrame, pixel_aspect: float) -> tuple[int, int]:
    """(width, height) of the full picture as displayed: upright, with square pixels."""
    width, height = _square(frame, pixel_aspect)
    matrix = _display_matrix(frame)
    return (width, height) if matrix is None or not _turns(matrix) else (height, width)


def _square(frame: VideoFrame, pixel_aspect: float) -> tuple[int, int]:
    return max(1, round(frame.width * pixel_aspect)), frame.height


def _colorspace(frame: VideoFrame) -> int | None:
    """The frame's own, or what players assume where the file names none that exists: 709 for HD, 601 below."""
    if frame.colorspace in KNOWN_COLORSPACES:
        return None
    return int(Colorspace.ITU709 if frame.height >= 720 else Colorspace.ITU601)


def _display_matrix(frame: VideoFrame) -> tuple[int, int, int, int] | None:
    """(a, b, c, d) with x' = a x + c y and y' = b x + d y, from the container's rotation metadata."""
    try:
        # Not frame.side_data: the frame would keep the entries, and they keep the frame. Such a cycle holds raw
        # pictures in memory until the garbage collector happens to run.
        entries: Any = SideDataContainer(frame)  # type: ignore[call-arg]  # missing in PyAV's stubs
    except ValueError:  # PyAV 18 stumbles over kinds that it does not know, such as EXIF; it still tells the rotation
        angle = math.radians(frame.rotation)  # counter-clockwise
        cosine, sine = round(math.cos(angle)), round(math.sin(angle))
        return cosine, -sine, sine, cosine
    for number in itertools.count():
        try:
            data = entries[number]  # iteration gives entries up to PyAV 18 and only their kinds from 19 on
        except IndexError:
            return None
        if data.type == SideDataType.DISPLAYMATRIX:  # the first: the container's, before any within the stream
            m = np.frombuffer(bytes(data), dtype=np.int32)
            return int(m[0]), int(m[1]), int(m[3]), int(m[4])
    return None


def _turns(matrix: tuple[int, int, int, int]) -> bool:
    """Whether columns become rows."""
    return abs(matrix[1]) > abs(matrix[0])


def _orient(image: NDArray[np.uint8], matrix: tuple[int, int, int, int] | None) -> NDArray[np.uint8]:
    """Turns and mirrors by quarter turns, as the display matrix says."""
    if matrix is None:
        return image
    a, b, c, d = matrix
    if _turns(matrix):
        image, a, d = image.swapaxes(0, 1), c, b
    if a < 0:
        image = image[:, ::-1]
    if d < 0:
        image = image[::-1]
    return np.ascontiguousarray(image)
