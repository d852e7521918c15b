"""Inception crop, flip and colour, for frames of different sizes in one go, on the device.

Everything random comes from the draws that arrive with the frames, and the boxes are computed on the CPU in float64:
a frame is augmented the same way on every machine, to the rounding of its arithmetic.

Cropping, resizing and flipping are two matrix products, out = A_y · pixels · A_xᵀ. A row of A holds the weights of
one output pixel: an antialiased triangle filter over the box, exactly zero outside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.recipes import Augment

# What each of a frame's uniform numbers decides.
ASPECT, HEIGHT, Y, X, FLIP, BRIGHTNESS, SATURATION, ORDER, HUE, CONTRAST = range(10)
DRAWS = 10

# Frames that go through the arithmetic together: on a CPU so few that they stay in its cache, elsewhere so many that
# the device is busy and the weights do not fill it.
_AT_ONCE_ON_CPU = 32
_AT_ONCE = 512


@dataclass(frozen=True)
class Canvas:
    """Frames of different sizes in one tensor, each in the upper left corner, zero elsewhere."""

    pixels: Tensor  # uint8 (n, 3, H, W), of the largest height and the largest width
    sizes: NDArray[np.int32]  # (n, 2): height and width of each frame
    draws: NDArray[np.float32]  # (n, DRAWS), in [0, 1)


def augment(
    canvas: Canvas, settings: Augment, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """The frames as the encoder sees them in training: (n, 3, size, size) in [-1, 1]."""
    boxes = random_boxes(canvas.sizes, canvas.draws, settings.crop_area, settings.crop_aspect)
    flips = canvas.draws[:, FLIP] < 0.5 if settings.flip else np.zeros(len(boxes), bool)
    draws = torch.from_numpy(canvas.draws).to(device)
    parts = []
    for some in _portions(canvas, device):
        images = resize(canvas.pixels[some].to(device, non_blocking=True), boxes[some], flips[some], settings.size)
        distorted = distort(images.div_(255), draws[some], settings)
        parts.append(distorted.mul_(2).sub_(1).to(dtype))
    return torch.cat(parts)


def unaugmented(
    canvas: Canvas, size: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """The middle square of each frame, (n, 3, size, size) in [-1, 1]."""
    boxes = centre_boxes(canvas.sizes)
    flips = np.zeros(len(boxes), bool)
    parts = []
    for some in _portions(canvas, device):
        images = resize(canvas.pixels[some].to(device, non_blocking=True), boxes[some], flips[some], size)
        parts.append(images.div_(127.5).sub_(1).to(dtype))
    return torch.cat(parts)


def _portions(canvas: Canvas, device: torch.device | str) -> list[slice]:
    count = len(canvas.pixels)
    step = _AT_ONCE_ON_CPU if torch.device(device).type == "cpu" else _AT_ONCE
    return [slice(start, start + step) for start in range(0, max(count, 1), step)]


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


def distort(images: Tensor, draws: Tensor, settings: Augment) -> Tensor:
    """Changes the colours of (n, 3, size, size) images in [0, 1], in place, as slim's Inception preprocessing does.

    Brightness and saturation come in either order, each image's drawn by lot (slim's fast mode); then hue, then
    contrast, where they are asked for (slim's slow mode has four orders of all). Clipped to [0, 1] at the end only.
    """
    per_image = draws[:, :, None, None, None]  # (n, DRAWS, 1, 1, 1): a draw is (n, 1, 1, 1)

    def between(least: float, most: float, draw: int) -> Tensor:
        return least + (most - least) * per_image[:, draw]

    shift = between(-settings.brightness, settings.brightness, BRIGHTNESS)
    shift_first = per_image[:, ORDER] < 0.5
    if settings.brightness > 0:
        images = images.add_(torch.where(shift_first, shift, 0))
    if settings.saturation > 0:
        images = saturate(images, between(1 - settings.saturation, 1 + settings.saturation, SATURATION))
    if settings.brightness > 0:
        images = images.add_(torch.where(shift_first, 0, shift))
    if settings.hue > 0:
        images = turn_hue(images, between(-settings.hue, settings.hue, HUE))
    if settings.contrast > 0:
        mean = images.mean(dim=(2, 3), keepdim=True)  # (n, 3, 1, 1)
        factor = between(1 - settings.contrast, 1 + settings.contrast, CONTRAST)
        images = mean + (images - mean) * factor
    return images.clamp_(0, 1)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Multiplies the saturation (of HSV, at most 1) of (n, 3, h, w) images by a factor (n, 1, 1, 1).

    With V the largest channel, S = (V - least channel) / V, and a channel is V less its share of S V. So scaling S
    scales V - channel, by no more than 1 / S.
    """
    value = images.amax(dim=1, keepdim=True)  # (n, 1, h, w)
    spread = value - images.amin(dim=1, keepdim=True)
    # Brightness may have made colours negative; without light (V ≤ 0) there is no saturation.
    limit = value.relu().div_(spread.clamp_(min=1e-12))
    return value - (value - images).mul_(torch.minimum(limit, factor))


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Adds `turn` (n, 1, 1, 1), in turns of the colour circle, to the hue of (n, 3, h, w) images."""
    red, green, blue = images.split(1, dim=1)  # (n, 1, h, w) each
    value = images.amax(dim=1, keepdim=True)
    spread = value - images.amin(dim=1, keepdim=True)
    divisor = spread.clamp(min=1e-12)
    hue = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    hue = hue + 6 * turn  # in sixths of a turn
    # A channel falls from V to V - spread over one sixth, and rises again, at its own place on the circle.
    places = torch.tensor([5.0, 3.0, 1.0], device=images.device).view(1, 3, 1, 1)
    angle = (places + hue).remainder(6)  # (n, 3, h, w)
    return value - spread * torch.minimum(angle, 4 - angle).clamp(0, 1)
