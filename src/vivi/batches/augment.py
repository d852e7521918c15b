"""Crop, flip and colour, or AutoAugment, for pictures of different sizes in one go, on the device they are on.

Everything random comes from the draws that arrive with the pictures; boxes are computed on the CPU in float64. So
a picture is augmented the same way on every machine, to the rounding of its arithmetic.

Cropping, resizing and flipping are two matrix products, out = A_y · pixels · A_xᵀ. A row of A holds the weights of
one output pixel: an antialiased triangle filter over the box, exactly zero outside it. On a CUDA device the same is
done, with the colours, in one pass over the pixels (kernel.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.batches.autoaugment import autoaugment
from vivi.batches.colour import distort
from vivi.batches.draws import ASPECT, AUTOAUGMENT, FLIP, HEIGHT, X, Y
from vivi.batches.patches import PATCH_DRAWS, cut_patches, layout
from vivi.batches.pixels import Pixels, Samples
from vivi.recipes import Augment

# Pictures that go through the arithmetic together: on a CPU so few that they stay in its cache, elsewhere so many
# that the device is busy and the weights do not fill it.
_AT_ONCE_ON_CPU = 32
_AT_ONCE = 512


def augment(samples: Samples, settings: Augment, dtype: torch.dtype = torch.float32) -> Tensor:
    """The pictures as the encoder sees them in training: (n, 3, size, size) in [-1, 1]."""
    pixels, draws = samples.pixels, samples.draws
    boxes = random_boxes(pixels.sizes, draws, settings.crop_area, settings.crop_aspect)
    flips = draws[:, FLIP] < 0.5 if settings.flip else np.zeros(len(boxes), bool)
    if settings.policy != "none":
        crops = resized(pixels, boxes, flips, settings.size, torch.uint8)
        return autoaugment(crops, draws[:, AUTOAUGMENT], settings.policy).div(127.5).sub_(1).to(dtype)
    if has_kernel(pixels.memory.device) and settings.contrast == 0:
        from vivi.batches.kernel import crop

        out = _channels_last(len(pixels), settings.size, dtype, pixels.memory.device)
        crop(pixels, boxes, flips, out, settings, draws)
        return out
    on_device = torch.from_numpy(draws).to(pixels.memory.device)
    parts = _resized(pixels, boxes, flips, settings.size)
    coloured = [distort(part.div_(255), on_device[some], settings) for some, part in parts]
    return torch.cat([part.mul_(2).sub_(1).to(dtype) for part in coloured])


def augment_patches(samples: Samples, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Nine patches of each picture, for jigsaw and relative location: (n, 9, 3, size, size), standardised."""
    sizes = samples.pixels.sizes
    boxes = np.concatenate([np.zeros_like(sizes), sizes], axis=1).astype(np.int64)  # all of the picture
    whole = _resized(samples.pixels, boxes, np.zeros(len(boxes), bool), layout(size).whole)
    return torch.cat([cut_patches(part, samples.draws[some, :PATCH_DRAWS], size).to(dtype) for some, part in whole])


def unaugmented(pixels: Pixels, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The middle square of each picture, (n, 3, size, size) in [-1, 1]."""
    boxes = centre_boxes(pixels.sizes)
    squares = resized(pixels, boxes, np.zeros(len(boxes), bool), size)
    return squares.div_(127.5).sub_(1).to(dtype)


@cache
def has_kernel(device: torch.device) -> bool:
    """Whether kernel.py runs there; where Triton is missing, or does not know the GPU, plain torch does the work."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    from vivi.batches.kernel import works

    return works(device)


def _channels_last(count: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty((count, 3, size, size), dtype=dtype, device=device, memory_format=torch.channels_last)


def resized(
    pixels: Pixels, boxes: NDArray[np.int64], flips: NDArray[np.bool_], size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The box (y, x, height, width) of each picture, mirrored where `flips` says so: (n, 3, size, size), 0 to 255,
    rounded for uint8."""
    if has_kernel(pixels.memory.device):
        from vivi.batches.kernel import crop

        out = _channels_last(len(pixels), size, dtype, pixels.memory.device)
        crop(pixels, boxes, flips, out)
        return out
    parts = [part for _, part in _resized(pixels, boxes, flips, size)]
    return torch.cat([part.round_().to(dtype) if dtype == torch.uint8 else part.to(dtype) for part in parts])


def _resized(
    pixels: Pixels, boxes: NDArray[np.int64], flips: NDArray[np.bool_], size: int
) -> Iterator[tuple[slice, Tensor]]:
    """The boxes, (some, 3, size, size) in float32, as many at a time as the device likes."""
    step = _AT_ONCE_ON_CPU if pixels.memory.device.type == "cpu" else _AT_ONCE
    for start in range(0, max(len(pixels), 1), step):
        some = slice(start, min(start + step, len(pixels)))
        if has_kernel(pixels.memory.device):
            yield some, resized(pixels[some], boxes[some], flips[some], size)
        else:
            in_canvas = boxes[some] * np.array([0, 0, 1, 1])
            yield some, resize(canvas(pixels[some], boxes[some]), in_canvas, flips[some], size)


def canvas(pixels: Pixels, boxes: NDArray[np.int64]) -> Tensor:
    """The boxes in one tensor (n, 3, H, W) of the largest height and width, each in the upper left corner."""
    highest, widest = boxes[:, 2:].max(axis=0, initial=1).tolist()
    # Pixel by pixel in memory if they are so there.
    shape = (len(pixels), 3, highest, widest) if pixels.planar else (len(pixels), highest, widest, 3)
    padded = torch.zeros(shape, dtype=torch.uint8, device=pixels.memory.device)
    padded = padded if pixels.planar else padded.permute(0, 3, 1, 2)
    for number, (y, x, height, width) in enumerate(boxes.tolist()):
        padded[number, :, :height, :width] = pixels.picture(number)[:, y : y + height, x : x + width]
    return padded


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
