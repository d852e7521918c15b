"""Crop, resize and flip images of different sizes in one go.

Cropping, resizing and flipping are two matrix products, out = A_y · pixels · A_xᵀ. A row of A holds the weights of
one output pixel: an antialiased triangle filter over the box, exactly zero outside it. On a CUDA device the same is
done, with the colours, in one pass over the pixels (kernel.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.augment.uniforms import ASPECT, HEIGHT, X, Y
from vivi.data.packed import PackedImages

# Images that go through the arithmetic together: on a CPU so few that they stay in its cache, elsewhere so many that
# the device is busy and the weights do not fill it.
_CHUNK_ON_CPU, _CHUNK = 32, 512


def random_boxes(
    sizes: NDArray[np.int32],
    uniforms: NDArray[np.float32],
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> NDArray[np.int64]:
    """Boxes (n, 4) of y, x, height, width, as TensorFlow's sample_distorted_bounding_box draws them.

    A tenth of the frame must be covered there: that is why the crop area starts at 0.1 in the recipes, and not at
    0.05 as the operation's own argument does. TensorFlow draws again, up to 100 times, when the area of a box comes
    out too small or too large by rounding, or when a frame is so elongated that no box fits; here the box is then
    the nearest one that lies in the frame. All positions are equally likely; TensorFlow leaves out the last ones.
    """
    heights, widths = sizes.astype(np.float64).T  # (n,) each, like all that follows
    uniform = uniforms.astype(np.float64)
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


def crops(
    images: PackedImages,
    boxes: NDArray[np.int64],
    flips: NDArray[np.bool_],
    size: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The box (y, x, height, width) of each image, mirrored where `flips` says so: (n, 3, size, size), 0 to 255,
    rounded for uint8."""
    if kernel := cuda_kernel(images.memory.device):
        return kernel(images, boxes, flips, size, dtype)

    def crop(part: slice) -> Tensor:
        resized = resize(images[part], boxes[part], flips[part], size)
        return (resized.round_() if dtype == torch.uint8 else resized).to(dtype)

    return in_chunks(crop, images)


def in_chunks(make: Callable[[slice], Tensor], images: PackedImages) -> Tensor:
    """What `make` gives for all images, made of as many at a time as suit their device."""
    step = _CHUNK_ON_CPU if images.memory.device.type == "cpu" else _CHUNK
    chunks = [make(slice(start, start + step)) for start in range(0, max(len(images), 1), step)]
    return torch.cat(chunks) if len(chunks) > 1 else chunks[0]


def resize(images: PackedImages, boxes: NDArray[np.int64], flips: NDArray[np.bool_], size: int) -> Tensor:
    """The boxes of few images, mirrored where `flips` says so: (n, 3, size, size), float32 from 0 to 255."""
    count, device = len(images), images.memory.device
    highest, widest = boxes[:, 2:].max(axis=0, initial=1).tolist()
    canvas = torch.zeros((count, highest, widest, 3), dtype=torch.uint8, device=device)
    for number, (y, x, height, width) in enumerate(boxes.tolist()):  # each into the upper left corner
        canvas[number, :height, :width] = images.image(number)[y : y + height, x : x + width]
    # Halves hold 0 ... 255 exactly, and accelerators add their products up in float32.
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    pixels = canvas.permute(0, 3, 1, 2).to(dtype, memory_format=torch.contiguous_format)  # (n, 3, H, W)
    heights, widths = torch.from_numpy(boxes[:, 2:]).to(device, torch.float32).unbind(1)
    mirrored = torch.from_numpy(flips).to(device)
    rows = _weights(heights, torch.zeros_like(mirrored), highest, size).to(dtype)  # (n, size, H)
    columns = _weights(widths, mirrored, widest, size).to(dtype)  # (n, size, W)
    narrow = pixels.view(count, 3 * highest, widest) @ columns.transpose(1, 2)  # (n, 3 H, size)
    return (rows[:, None] @ narrow.view(count, 3, highest, size)).float()  # (n, 3, size, size)


def _weights(length: Tensor, reverse: Tensor, pixels: int, size: int) -> Tensor:
    """(n, size, pixels): what each of the first `length` pixels counts in each of `size` output pixels. A triangle
    filter, as wide as two output pixels when shrinking (antialiasing), or two input pixels when enlarging."""
    scale = (length / size)[:, None]  # (n, 1), input pixels per output pixel
    reach = scale.clamp(min=1)
    centres = (torch.arange(size, device=length.device) + 0.5) * scale  # (n, size)
    centres = torch.where(reverse[:, None], centres.flip(1), centres)
    positions = torch.arange(pixels, device=length.device) + 0.5  # (pixels,)
    positions = torch.where(positions < length[:, None], positions, torch.inf)  # (n, pixels): the others out of reach
    distance = (positions / reach)[:, None, :] - (centres / reach)[:, :, None]
    weights = distance.abs_().neg_().add_(1).relu_()
    return weights.div_(weights.sum(dim=2, keepdim=True))


@cache
def cuda_kernel(device: torch.device) -> Callable[..., Tensor] | None:
    """kernel.crop, where it runs on the device; else plain torch does the work: where Triton is missing, or does not
    know the GPU."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from vivi.data.augment import kernel

    return kernel.crop if kernel.works(device) else None
