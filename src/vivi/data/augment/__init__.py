"""Augmentation of images of different sizes in one go, on the device they are on.

Crop and flip (crop.py), then colour (colour.py) or AutoAugment (autoaugment.py); or patches (patches.py). On a GPU
kernel.py does crop, flip and colour in one pass.

Everything random comes from the uniforms that arrive with the images; boxes are computed on the CPU in float64. So an
image is augmented the same way on every machine, to the rounding of its arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.augment.autoaugment import autoaugment
from vivi.data.augment.colour import distort
from vivi.data.augment.crop import centre_boxes, crop_with_kernel, crops, has_kernel, random_boxes, resized_chunks
from vivi.data.augment.patches import PATCH_UNIFORMS, cut_patches, layout, standardise
from vivi.data.augment.uniforms import AUTOAUGMENT, FLIP
from vivi.data.packed import PackedImages
from vivi.recipes import Augment


def augment(
    images: PackedImages, uniforms: NDArray[np.float32], settings: Augment, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Images as the encoder sees them in training, (n, 3, size, size) in [-1, 1], or standardised; uniforms are
    (n, UNIFORMS)."""
    if settings.standardise:
        plain = augment(images, uniforms, replace(settings, standardise=False))
        return standardise(plain).to(dtype)
    boxes = random_boxes(images.sizes, uniforms, settings.crop_area, settings.crop_aspect)
    flips = uniforms[:, FLIP] < 0.5 if settings.flip else np.zeros(len(boxes), bool)
    if settings.policy != "none":
        cropped = crops(images, boxes, flips, settings.size, torch.uint8)
        return autoaugment(cropped, uniforms[:, AUTOAUGMENT], settings.policy).div(127.5).sub_(1).to(dtype)
    if has_kernel(images.memory.device) and settings.contrast == 0:
        return crop_with_kernel(images, boxes, flips, settings.size, dtype, settings, uniforms)
    on_device = torch.from_numpy(uniforms).to(images.memory.device)
    chunks = resized_chunks(images, boxes, flips, settings.size)
    coloured = [distort(chunk.div_(255), on_device[part], settings) for part, chunk in chunks]
    return torch.cat([chunk.mul_(2).sub_(1).to(dtype) for chunk in coloured])


def augment_patches(
    images: PackedImages, uniforms: NDArray[np.float32], size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Nine patches of each image, for jigsaw and relative location: (n, 9, 3, size, size), standardised."""
    boxes = np.concatenate([np.zeros_like(images.sizes), images.sizes], axis=1).astype(np.int64)  # all of the image
    whole = resized_chunks(images, boxes, np.zeros(len(boxes), bool), layout(size).whole)
    return torch.cat([cut_patches(chunk, uniforms[part, :PATCH_UNIFORMS], size).to(dtype) for part, chunk in whole])


def unaugmented(images: PackedImages, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The middle square of each image, (n, 3, size, size) in [-1, 1]."""
    boxes = centre_boxes(images.sizes)
    squares = crops(images, boxes, np.zeros(len(boxes), bool), size)
    return squares.div_(127.5).sub_(1).to(dtype)
