"""Patches cut from images, and the strides that small patches need."""

from __future__ import annotations

import math

import numpy as np
import pytest
import timm
import torch
from corpora import images_and_uniforms
from torch import Tensor

from vivi.data.augment.patches import PATCH_UNIFORMS, PATCHES, Layout, cut_patches, layout, patch_corners, standardise
from vivi.model.architecture import use_patch_strides
from vivi.runtime.errors import UserError

JUST_BELOW_1 = np.nextafter(np.float32(1), np.float32(0))


def cut_by_loops(image: Tensor, uniforms: list[float], size: int) -> Tensor:
    """The steps of the published preprocessing, one image at a time: grey, crop, cells, patches, standardised."""
    sides, numbers = layout(size), iter(uniforms)
    if next(numbers) < 0.66:
        image = image.mean(0).expand(3, -1, -1)
    y, x = (int(next(numbers) * (sides.whole - sides.crop + 1)) for _ in range(2))
    crop = image[:, y : y + sides.crop, x : x + sides.crop]
    patches = []
    for row in range(3):
        for column in range(3):
            cell = crop[:, row * sides.cell : (row + 1) * sides.cell, column * sides.cell : (column + 1) * sides.cell]
            y, x = (int(next(numbers) * (sides.cell - size + 1)) for _ in range(2))
            patch = cell[:, y : y + size, x : x + size]
            assert patch.shape == (3, size, size)
            deviation = float(patch.std(correction=0))
            patches.append((patch - patch.mean()) / max(deviation, 1 / math.sqrt(3 * size * size)))
    return torch.stack(patches)


@pytest.mark.parametrize("size", [8, 16, 24, 64])
def test_patches_are_those_of_loops_over_images_and_cells(size: int) -> None:
    images, uniforms = images_and_uniforms(6, size, seed=size)
    uniforms[:2, 0] = 0.65, 0.67  # grey and coloured
    patches = cut_patches(images, uniforms, size)
    assert patches.shape == (6, PATCHES, 3, size, size) and patches.dtype == torch.float32
    for image, own, found in zip(images, uniforms, patches, strict=True):
        expected = cut_by_loops(image.double(), [float(number) for number in own], size)
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)


def test_the_layout_is_the_published_one_and_scales_with_the_patch() -> None:
    assert layout(64) == Layout(whole=292, crop=255, cell=85)
    assert layout(128) == Layout(whole=584, crop=510, cell=170)
    for size in range(1, 200):
        sides = layout(size)
        assert size <= sides.cell and sides.crop == 3 * sides.cell <= sides.whole


@pytest.mark.parametrize("size", [16, 24, 64])
def test_patches_reach_the_edges_of_the_image_and_of_their_cells_and_no_farther(size: int) -> None:
    sides = layout(size)
    ends = np.stack([np.zeros(PATCH_UNIFORMS, np.float32), np.full(PATCH_UNIFORMS, JUST_BELOW_1)])
    first, last = patch_corners(ends, size)
    assert first[0].tolist() == [0, 0] and first[5].tolist() == [sides.cell, 2 * sides.cell]
    assert last[8].tolist() == [sides.whole - size] * 2
    assert last[0].tolist() == [sides.whole - sides.crop + sides.cell - size] * 2


def test_all_places_are_equally_likely() -> None:
    uniforms = np.random.default_rng(0).random((20_000, PATCH_UNIFORMS), np.float32)
    uniforms[:, 1:3] = 0  # the crop at the upper left
    corners = patch_corners(uniforms, 64) - 85 * np.array([[row, column] for row in range(3) for column in range(3)])
    counts = np.bincount(corners.ravel())
    assert len(counts) == 22 and counts.min() > 0.95 * counts.mean() and counts.max() < 1.05 * counts.mean()


def test_flat_patches_become_zeros_and_faint_ones_stay_faint() -> None:
    faint = torch.full((2, 3, 8, 8), 200.0)
    faint[1, 0, 0, 0] += 0.01
    standardised = standardise(faint)
    assert not standardised[0].any()
    assert 0 < standardised[1].abs().max() < 0.2  # the least deviation is 1 / sqrt(192)
    usual = standardise(255 * torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(usual.mean(), torch.tensor(0.0), rtol=0, atol=1e-6)
    torch.testing.assert_close(usual.std(correction=0), torch.tensor(1.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_cuts_what_a_cpu_does_without_waiting() -> None:
    images, uniforms = images_and_uniforms(5, 16)
    on_device = images.cuda()
    cut_patches(on_device, uniforms, 16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        patches = cut_patches(on_device, uniforms, 16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(patches.cpu(), cut_patches(images, uniforms, 16), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnetv2_18", "resnetv2_50", "resnetv2_18d", "resnetv2_50x1_bit"])
def test_a_patch_of_64_pixels_keeps_8_by_8_features(name: str) -> None:
    backbone = timm.create_model(name, num_classes=0).eval()
    shapes = {key: value.shape for key, value in backbone.state_dict().items()}
    use_patch_strides(backbone)
    sides = []
    with torch.no_grad():
        x = torch.rand(1, 3, 64, 64)
        for part in ("stem", "stages.0", "stages.1", "stages.2", "stages.3"):
            x = backbone.get_submodule(part)(x)
            sides.append(x.shape[-1])
    assert sides == [32, 32, 16, 8, 8]
    assert {key: value.shape for key, value in backbone.state_dict().items()} == shapes


@pytest.mark.parametrize("name", ["resnet18", "test_vit"])
def test_other_encoders_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(UserError, match=r"--loss\.frame jigsaw and location need a resnetv2 encoder") as caught:
        use_patch_strides(timm.create_model(name))
    assert "\n" not in str(caught.value)
