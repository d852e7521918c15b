"""Decoded frames as pictures: RGB in true colours, upright, with square pixels, of the wanted size."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from av.error import FFmpegError
from av.sidedata.sidedata import SideDataContainer
from av.sidedata.sidedata import Type as SideDataType
from av.video.frame import VideoFrame
from av.video.reformatter import Colorspace, VideoReformatter
from numpy.typing import NDArray

from vivi.prepare.container import UnusableVideo, in_words
from vivi.prepare.jpeg import MAX_SIDE

# RGB, BT.709, FCC, BT.601 (two names), SMPTE 240M, BT.2020: H.273's numbers of what FFmpeg's scaler can convert.
KNOWN_COLORSPACES = {0, 1, 4, 5, 6, 7, 9}


class Scaler:
    """Turns decoded frames into upright RGB pictures, scaled down to a short side; smaller ones stay as they are."""

    def __init__(self, short_side: int) -> None:
        self.short_side = short_side
        self.reformatter = VideoReformatter()

    def upright_rgb(self, frame: VideoFrame, pixel_aspect: float) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        """The picture, (height, width, 3), and the (width, height) that it has in full; raises UnusableVideo.

        `pixel_aspect` is the width of a pixel over its height.
        """
        full = width, height = max(1, round(frame.width * pixel_aspect)), frame.height
        scale = self.short_side / min(full)
        if scale < 1:
            width, height = max(1, round(width * scale)), max(1, round(height * scale))
            # FFmpeg's scaler takes 1.5 times as long for an odd width.
            width += width % 2 if width > height else 0
        if max(width, height) > MAX_SIDE:
            raise UnusableVideo(f"frames of {width}×{height} are longer than JPEG allows, {MAX_SIDE}")
        # The frame's own colours, or what players assume where it names none that exist: 709 for HD, 601 below.
        assumed = int(Colorspace.ITU709 if frame.height >= 720 else Colorspace.ITU601)
        try:
            rgb = self.reformatter.reformat(
                frame,
                width=width,
                height=height,
                format="rgb24",
                src_colorspace=None if frame.colorspace in KNOWN_COLORSPACES else assumed,
                interpolation="AREA" if scale < 1 else "BICUBIC",
                threads=1,
            )
        except FFmpegError as error:
            raise UnusableVideo(f"{frame.format.name} pictures cannot be converted: {in_words(error)}") from None
        image = np.asarray(rgb.to_ndarray(), dtype=np.uint8)
        a, b, c, d = _display_matrix(frame)
        if abs(b) > abs(a):  # columns become rows
            image, a, d, full = image.swapaxes(0, 1), c, b, full[::-1]
        return np.ascontiguousarray(image[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]), full


def _display_matrix(frame: VideoFrame) -> tuple[int, int, int, int]:
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
            break
        if data.type == SideDataType.DISPLAYMATRIX:  # the first: the container's, before any within the stream
            m = np.frombuffer(bytes(data), dtype=np.int32)
            return int(m[0]), int(m[1]), int(m[3]), int(m[4])
    return 1, 0, 0, 1
