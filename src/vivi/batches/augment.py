"""Crop, flip and colour, or AutoAugment, for frames of different sizes in one go, on the device.

Everything random comes from the draws that arrive with the frames, and the boxes are computed on the CPU in float64:
a frame is augmented the same way on every machine, to the rounding of its arithmetic.

Cropping, resizing and flipping are two matrix products, out = A_y · pixels · A_xᵀ. A row of A holds the weights of
one output pixel: an antialiased triangle filter over the box, exactly zero outside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.batches.autoaugment import autoaugment
from vivi.batches.colour import distort
from vivi.batches.draws import ASPECT, AUTOAUGMENT, FLIP, HEIGHT, X, Y
from vivi.batches.patches import PATCH_DRAWS, cut_patches, layout
from vivi.recipes import Augment

# Frames that go through the arithmetic together: on a CPU so few that they stay in its cache, elsewhere so many that
# the device is busy and the weights do not fill it.
_AT_ONCE_ON_CPU = 32
_AT_ONCE = 512


@dataclass(frozen=True)
class Canvas:
    """Frames of different sizes in one tensor, each in the upper left corner, zero elsewhere."""

    pixels: Tensor  # uint8 (n, 3, H, W), of the largest height and the largest width
    sizes: NDArray[np.int32]  # (n, 2): height and width of each frame
    draws: NDArray[np.float32]  # (n × copies, DRAWS), in [0, 1)
    copies: int = 1  # how often each frame is augmented; its copies follow one another


def augment(
    canvases: Sequence[Canvas],
    settings: Augment,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The frames as the encoder sees them in training: (n × copies of each canvas, 3, size, size) in [-1, 1]."""
    crops = (crop for canvas in canvases for crop in random_crops(canvas, settings, device))
    if settings.policy == "none":
        coloured = (distort(crop.div_(255), draws, settings) for crop, draws in crops)
        return torch.cat([images.mul_(2).sub_(1).to(dtype) for images in coloured])
    # Every operation is launched once for all of them.
    whole = torch.cat([crop.round_().to(torch.uint8) for crop, _ in crops])
    draws = np.concatenate([canvas.draws[:, AUTOAUGMENT] for canvas in canvases])
    return autoaugment(whole, draws, settings.policy).div(127.5).sub_(1).to(dtype)


def augment_patches(
    canvases: Sequence[Canvas], size: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Nine patches of each frame, for jigsaw and relative location: (n × copies, 9, 3, size, size), standardised."""
    parts = []
    for canvas in canvases:
        sizes = canvas.sizes.repeat(canvas.copies, axis=0)
        boxes = np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.int64)  # all of the frame
        flips = np.zeros(len(boxes), bool)
        for some, whole in _resized(canvas, boxes, flips, layout(size).whole, device):
            parts.append(cut_patches(whole, canvas.draws[some, :PATCH_DRAWS], size).to(dtype))
    return torch.cat(parts)


def unaugmented(
    canvas: Canvas, size: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """The middle square of each frame, (n, 3, size, size) in [-1, 1]."""
    boxes = centre_boxes(canvas.sizes)
    squares = _resized(canvas, boxes, np.zeros(len(boxes), bool), size, device)
    return torch.cat([some.div_(127.5).sub_(1).to(dtype) for _, some in squares])


def random_crops(canvas: Canvas, settings: Augment, device: torch.device | str) -> Iterator[tuple[Tensor, Tensor]]:
    """Crops, some at a time, (some, 3, size, size) from 0 to 255, with their draws (some, DRAWS), on the device."""
    sizes = canvas.sizes.repeat(canvas.copies, axis=0)
    boxes = random_boxes(sizes, canvas.draws, settings.crop_area, settings.crop_aspect)
    flips = canvas.draws[:, FLIP] < 0.5 if settings.flip else np.zeros(len(boxes), bool)
    draws = torch.from_numpy(canvas.draws).to(device)
    for some, crop in _resized(canvas, boxes, flips, settings.size, device):
        yield crop, draws[some]


def _resized(
    canvas: Canvas, boxes: NDArray[np.int64], flips: NDArray[np.bool_], size: int, device: torch.device | str
) -> Iterator[tuple[slice, Tensor]]:
    """The box of every copy, resized; as many at a time as the device likes."""
    copies = canvas.copies
    at_once = _AT_ONCE_ON_CPU if torch.device(device).type == "cpu" else _AT_ONCE
    step = max(1, at_once // copies)  # frames
    for start in range(0, max(len(canvas.pixels), 1), step):
        pixels = canvas.pixels[start : start + step].to(device, non_blocking=True)
        if copies > 1:
            pixels = pixels.repeat_interleave(copies, dim=0)
        some = slice(start * copies, start * copies + len(pixels))
        yield some, resize(pixels, boxes[some], flips[some], size)


def random_boxes(
    sizes: NDArray[np.int32],
    draws: NDArray[np.float32],
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> NDArray[np.int64]:
    """Boxes (n, 4) of y, x, height, width, as TensorFlow's sample_distorted_bounding_box draws them.

    The object to cover is the whole frame there, and a tenth of it must be covered: that is why the crop area starts
    at 0.1 in the recipes, and not at 0.05 as the operation's own argument does.

    TensorFlow draws again, up to 100 times, when the area of a box comes out too small or too large by rounding, or
    when a frame is so elongated that no box fits; here the box is then the nearest one that lies in the frame. All
    positions are equally likely; TensorFlow leaves out the last row and the last column.
    """
    heights, widths = sizes.astype(np.float64).T  # (n,) each, like all that follows
    uniform = draws.astype(np.float64)
    ratio = aspect[0] + (aspect[1] - aspect[0]) * uniform[:, ASPECT]
    least, most = area[0] * heights * widths, area[1] * heights * widths
    lowest = np.rint(np.sqrt(least / ratio))
    highest = np.rint(np.sqrt(most / ratio))
    # The highest box whose rounded width still fits.
    highest = np.where(np.rint(highest * ratio) > widths, np.floor((widths + 0.5 - 1e-7) / ratio), highest)
    highest = np.minimum(highest, heights)
    lowest = np.minimum(lowest, highest)
    height = lowest + np.floor(uniform[:, HEIGHT] * (highest - lowest + 1))
    # Rounding may have taken the area out of its bounds: one step back into them.
    height += height * np.rint(height * ratio) < least
    height -= height * np.rint(height * ratio) > most
    height = np.clip(height, 1, heights)
    width = np.clip(np.rint(height * ratio), 1, widths)
    y = np.floor(uniform[:, Y] * (heights - height + 1))
    x = np.floor(uniform[:, X] * (widths - width + 1))
    return np.stack([y, x, height, width], axis=1).astype(np.int64)


def centre_boxes(sizes: NDArray[np.int32]) -> NDArray[np.int64]:
    """The largest square in the middle of each frame: (n, 4) of y, x, height, width."""
    heights, widths = sizes.astype(np.int64).T
    side = np.minimum(heights, widths)
    return np.stack([(heights - side) // 2, (widths - side) // 2, side, side], axis=1)


def resize(pixels: Tensor, boxes: NDArray[np.int64], flips: NDArray[np.bool_], size: int) -> Tensor:
    """Each frame's box resized to (n, 3, size, size), float32 from 0 to 255, mirrored where `flips` says so."""
    count, channels, height, width = pixels.shape
    # Halves hold 0 ... 255 exactly, and accelerators add their products up in float32.
    dtype = torch.float32 if pixels.device.type == "cpu" else torch.float16
    box = torch.from_numpy(boxes).to(pixels.device, torch.float32)
    mirrored = torch.from_numpy(flips).to(pixels.device)
    rows = _weights(box[:, 0], box[:, 2], torch.zeros_like(mirrored), height, size).to(dtype)  # (n, size, H)
    columns = _weights(box[:, 1], box[:, 3], mirrored, width, size).to(dtype)  # (n, size, W)
    narrow = pixels.to(dtype, memory_format=torch.contiguous_format).view(
        count, channels * height, width
    ) @ columns.transpose(1, 2)  # (n, 3 H, size)
    return (rows[:, None] @ narrow.view(count, channels, height, size)).float()  # (n, 3, size, size)


def _weights(start: Tensor, length: Tensor, reverse: Tensor, pixels: int, size: int) -> Tensor:
    """(n, size, pixels): what each pixel from start to start + length counts in each of `size` output pixels.

    A triangle filter, as wide as two output pixels when shrinking (antialiasing), or two input pixels when enlarging.
    """
    scale = (length / size)[:, None]  # (n, 1), input pixels per output pixel
    reach = scale.clamp(min=1)
    centres = start[:, None] + (torch.arange(size, device=start.device) + 0.5) * scale  # (n, size)
    centres = torch.where(reverse[:, None], centres.flip(1), centres)
    positions = torch.arange(pixels, device=start.device) + 0.5  # (pixels,)
    inside = (positions > start[:, None]) & (positions < (start + length)[:, None])
    positions = torch.where(inside, positions, torch.inf)  # (n, pixels): what is outside is out of reach
    distance = (positions / reach)[:, None, :] - (centres / reach)[:, :, None]
    weights = distance.abs_().neg_().add_(1).relu_()
    return weights.div_(weights.sum(dim=2, keepdim=True))
