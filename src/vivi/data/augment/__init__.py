"""Augmentation of images of different sizes in one go, on the device they are on.

Crop and flip (crop.py), then colour (colour.py) or AutoAugment (autoaugment.py); or patches (patches.py). On a GPU
kernel.py does crop, flip and colour in one pass. Everything random comes from the uniforms that arrive with the
images, so an image is augmented the same way on every machine, to the rounding of its arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.augment.autoaugment import autoaugment
from vivi.data.augment.colour import contrast_and_noise, distort
from vivi.data.augment.crop import crops, cuda_kernel, in_chunks, random_boxes
from vivi.data.augment.patches import PATCH_UNIFORMS, cut_patches, layout, standardise
from vivi.data.augment.uniforms import AUTOAUGMENT, FLIP
from vivi.data.packed import PackedImages, upload
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
    kernel = cuda_kernel(images.memory.device)
    if kernel and settings.contrast == 0:
        return kernel(images, boxes, flips, settings.size, dtype, settings, uniforms)
    on_device = upload(torch.from_numpy(uniforms), images.memory.device)
    if kernel:
        coloured = kernel(images, boxes, flips, settings.size, torch.float32, settings, uniforms)
        return contrast_and_noise(coloured, on_device, settings).mul_(2).sub_(1).to(dtype)

    def crop_and_colour(part: slice) -> Tensor:
        cropped = crops(images[part], boxes[part], flips[part], settings.size)
        return distort(cropped.div_(255), on_device[part], settings).mul_(2).sub_(1).to(dtype)

    return in_chunks(crop_and_colour, images)


def augment_patches(
    images: PackedImages, uniforms: NDArray[np.float32], size: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Nine patches of each image, for jigsaw and relative location: (n, 9, 3, size, size), standardised."""
    boxes = np.concatenate([np.zeros_like(images.sizes), images.sizes], axis=1).astype(np.int64)  # all of the image
    flips = np.zeros(len(boxes), bool)

    def cut(part: slice) -> Tensor:
        whole = crops(images[part], boxes[part], flips[part], layout(size).whole)
        return cut_patches(whole, uniforms[part, :PATCH_UNIFORMS], size).to(dtype)

    return in_chunks(cut, images)


def unaugmented(images: PackedImages, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The middle square of each image, (n, 3, size, size) in [-1, 1]."""
    heights, widths = images.sizes.astype(np.int64).T
    side = np.minimum(heights, widths)
    boxes = np.stack([(heights - side) // 2, (widths - side) // 2, side, side], axis=1)
    squares = crops(images, boxes, np.zeros(len(images), bool), size)
    return squares.div_(127.5).sub_(1).to(dtype)
