"""Nine patches of an image, for jigsaw and relative patch location: one from each cell of a 3 × 3 grid.

Between patches lie gaps of random width, each has its own mean and contrast taken away, and most images are grey:
edges that go on, shading and the colour fringes of lenses would give the places of patches away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.packed import upload

GRID = 3
PATCHES = GRID * GRID
GREY_SHARE = 0.66  # of the images

# What an image's uniform numbers decide: grey or not, y and x of the crop, then y and x of each patch in its cell.
GREY, CROP = 0, slice(1, 3)
PLACES = slice(3, 3 + 2 * PATCHES)
PATCH_UNIFORMS = 3 + 2 * PATCHES


@dataclass(frozen=True)
class Layout:
    """Sides in pixels: of the whole image, of the crop of it that the grid covers, and of a cell of the grid."""

    whole: int
    crop: int
    cell: int


def layout(size: int) -> Layout:
    """What patches of `size` pixels are cut from: for 64, as published, 292, 255 and 85; in proportion for others."""
    cell = round(size * 85 / 64)
    return Layout(round(size * 292 / 64), GRID * cell, cell)


def cut_patches(images: Tensor, uniforms: NDArray[np.float32], size: int = 64) -> Tensor:
    """Standardised patches (n, 9, 3, size, size), row by row, of float images (n, 3, whole, whole) from 0 to 255.

    The uniforms (n, PATCH_UNIFORMS) are on the CPU: places are computed there, so that nothing waits for the device.
    """
    corners = upload(torch.from_numpy(patch_corners(uniforms, size)), images.device)  # (n, 9, 2)
    grey = upload(torch.from_numpy(uniforms[:, GREY] < GREY_SHARE), images.device)  # (n,)
    pixels = torch.arange(size, device=images.device)
    rows = corners[:, :, 0, None] + pixels  # (n, 9, size)
    columns = corners[:, :, 1, None] + pixels
    image = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1, 1)
    channel = torch.arange(3, device=images.device).view(3, 1, 1)
    patches = images[image, channel, rows[:, :, None, :, None], columns[:, :, None, None, :]]  # (n, 9, 3, size, size)
    patches = torch.where(grey.view(-1, 1, 1, 1, 1), patches.mean(2, keepdim=True), patches)
    return standardise(patches)


def patch_corners(uniforms: NDArray[np.float32], size: int) -> NDArray[np.int64]:
    """y and x of the upper left pixel of each patch in the whole image: (n, 9, 2)."""
    sides = layout(size)
    uniform = uniforms.astype(np.float64)
    crop = np.floor(uniform[:, CROP] * (sides.whole - sides.crop + 1))  # (n, 2)
    cells = sides.cell * np.indices((GRID, GRID)).reshape(2, PATCHES).T  # (9, 2)
    within = np.floor(uniform[:, PLACES].reshape(-1, PATCHES, 2) * (sides.cell - size + 1))  # (n, 9, 2)
    return (crop[:, None] + cells + within).astype(np.int64)


def standardise(patches: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the pixels and channels of each patch (..., 3, size, size).

    As TensorFlow's per_image_standardization: of flat patches, rounding is not blown up to noise.
    """
    variance, mean = torch.var_mean(patches, dim=(-3, -2, -1), correction=0, keepdim=True)
    least = patches.shape[-3:].numel() ** -0.5
    return (patches - mean) / variance.sqrt().clamp(min=least)
