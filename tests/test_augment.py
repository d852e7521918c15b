"""Crops as TensorFlow draws them, resizing as torchvision does it, colours as colorsys says."""

from __future__ import annotations

import colorsys
import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from vivi.batches.augment import (
    Canvas,
    augment,
    augment_patches,
    centre_boxes,
    random_boxes,
    random_crops,
    resize,
    unaugmented,
)
from vivi.batches.autoaugment import autoaugment
from vivi.batches.colour import distort, hsv_noise, saturate, turn_hue
from vivi.batches.draws import (
    ASPECT,
    AUTOAUGMENT,
    BRIGHTNESS,
    CONTRAST,
    DRAWS,
    FLIP,
    HEIGHT,
    HSV_HUE,
    HSV_SATURATION,
    HSV_VALUE,
    HUE,
    ORDER,
    SATURATION,
    X,
    Y,
)
from vivi.batches.patches import PATCH_DRAWS, cut_patches, layout
from vivi.recipes import Augment

AREA, ASPECTS = (0.1, 1.0), (0.75, 4 / 3)


def canvas_of(count: int, seed: int, sizes: list[tuple[int, int]]) -> Canvas:
    """Frames of random pixels, with rubbish beyond their edges."""
    rng = np.random.default_rng(seed)
    chosen = np.array([sizes[index % len(sizes)] for index in range(count)], np.int32)
    height, width = chosen.max(axis=0)
    pixels = torch.from_numpy(rng.integers(0, 256, (count, 3, height, width), np.uint8))
    return Canvas(pixels, chosen, rng.random((count, DRAWS), np.float32))


def reference_box(height: int, width: int, draws: NDArray[np.float32]) -> tuple[int, int, int, int] | None:
    """TensorFlow's GenerateRandomCrop, line by line; None where it would give up."""
    u = [float(draw) for draw in draws]
    aspect = ASPECTS[0] + (ASPECTS[1] - ASPECTS[0]) * u[ASPECT]
    min_area, max_area = AREA[0] * width * height, AREA[1] * width * height
    box_height = round(math.sqrt(min_area / aspect))
    max_height = round(math.sqrt(max_area / aspect))
    if round(max_height * aspect) > width:
        max_height = int((width + 0.5 - 1e-7) / aspect)
    max_height = min(max_height, height)
    box_height = min(box_height, max_height)
    box_height += int(u[HEIGHT] * (max_height - box_height + 1))
    box_width = round(box_height * aspect)
    if box_width * box_height < min_area:
        box_height += 1
        box_width = round(box_height * aspect)
    if box_width * box_height > max_area:
        box_height -= 1
        box_width = round(box_height * aspect)
    area = box_width * box_height
    if not min_area <= area <= max_area or box_width > width or box_height > height or area == 0:
        return None
    return int(u[Y] * (height - box_height + 1)), int(u[X] * (width - box_width + 1)), box_height, box_width


@pytest.mark.parametrize("size", [(256, 455), (455, 256), (48, 48), (48, 84), (7, 9), (300, 40)])
def test_boxes_are_those_of_tensorflow(size: tuple[int, int]) -> None:
    draws = np.random.default_rng(0).random((500, DRAWS), np.float32)
    boxes = random_boxes(np.array([size] * 500, np.int32), draws, AREA, ASPECTS)
    expected = [reference_box(*size, row) for row in draws]
    agreed = [tuple(box) == want for box, want in zip(boxes.tolist(), expected, strict=True) if want is not None]
    assert all(agreed)
    assert len(agreed) > 450  # it hardly ever gives up


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (3, 200), (200, 3), (16, 16), (256, 455)])
def test_boxes_lie_in_the_frame_however_small_or_elongated(size: tuple[int, int]) -> None:
    draws = np.random.default_rng(1).random((2000, DRAWS), np.float32)
    draws[:4] = [
        [0] * DRAWS,
        [np.nextafter(np.float32(1), np.float32(0))] * DRAWS,
        [0, 1 - 1e-7] * (DRAWS // 2),
        [1 - 1e-7, 0] * (DRAWS // 2),
    ]
    boxes = random_boxes(np.array([size] * 2000, np.int32), draws, AREA, ASPECTS)
    y, x, height, width = boxes.T
    assert min(y.min(), x.min()) >= 0 and min(height.min(), width.min()) >= 1
    assert (y + height).max() <= size[0] and (x + width).max() <= size[1]


def test_boxes_cover_all_areas_aspects_and_places() -> None:
    draws = np.random.default_rng(2).random((4000, DRAWS), np.float32)
    y, x, height, width = random_boxes(np.array([(120, 160)] * 4000, np.int32), draws, AREA, ASPECTS).T
    area, aspect = height * width / (120 * 160), width / height
    assert area.min() >= 0.1 and area.min() < 0.11 and area.max() > 0.97
    assert aspect.min() < 0.77 and aspect.max() > 1.3 and aspect.mean() == pytest.approx(25 / 24, abs=0.02)
    middle = (y + height / 2) / 120, (x + width / 2) / 160
    assert np.mean(middle[0]) == pytest.approx(0.5, abs=0.01) and np.mean(middle[1]) == pytest.approx(0.5, abs=0.01)
    assert (y + height == 120).any() and (x + width == 160).any() and (y == 0).any() and (x == 0).any()


def test_the_middle_square_is_in_the_middle() -> None:
    boxes = centre_boxes(np.array([(48, 85), (84, 48), (5, 5)], np.int32))
    assert boxes.tolist() == [[0, 18, 48, 48], [18, 0, 48, 48], [0, 0, 5, 5]]


@pytest.mark.parametrize("size", [8, 33, 64, 112])
def test_resizing_agrees_with_torchvision(size: int) -> None:
    canvas = canvas_of(9, size, [(60, 80), (90, 50), (31, 200)])
    boxes = random_boxes(canvas.sizes, canvas.draws, AREA, ASPECTS)
    flips = np.arange(9) % 2 == 0
    images = resize(canvas.pixels, boxes, flips, size)
    for image, pixels, box, flip in zip(images, canvas.pixels, boxes.tolist(), flips, strict=True):
        expected = tv.resized_crop(pixels.float(), *box, [size, size], antialias=True)
        torch.testing.assert_close(image, expected.flip(2) if flip else expected, rtol=1e-4, atol=5e-3)


def test_nothing_outside_the_frame_is_seen() -> None:
    canvas = canvas_of(12, 0, [(20, 50), (50, 20), (35, 35)])
    clean = canvas.pixels.clone()
    for pixels, (height, width) in zip(clean, canvas.sizes, strict=True):
        pixels[:, height:], pixels[:, :, width:] = 0, 0
    assert not torch.equal(clean, canvas.pixels)
    settings = Augment(size=24)
    other = Canvas(clean, canvas.sizes, canvas.draws)
    assert torch.equal(augment([canvas], settings), augment([other], settings))
    assert torch.equal(unaugmented(canvas, 24), unaugmented(other, 24))


def colours(seed: int, count: int = 4, side: int = 9) -> Tensor:
    """Random colours, also greys, black, white, pure ones, and some outside [0, 1] as brightness leaves them."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand((count, 3, side, side), generator=generator) * 1.25 - 0.125
    images[:, :, 0] = images[:, :1, 0].expand(-1, 3, -1)
    images[:, :, 1, :4] = torch.tensor([[0.0, 1.0, 0.0, -0.1]] * 3)
    images[:, :, 1, 4:7] = torch.eye(3)
    return images


def map_pixels(images: Tensor, change: list[float], kind: str) -> Tensor:
    """The slow way: colorsys, pixel by pixel."""
    result = images.clone()
    for image, amount, out in zip(images, change, result, strict=True):
        for y in range(image.shape[1]):
            for x in range(image.shape[2]):
                red, green, blue = image[:, y, x].double().tolist()
                value = max(red, green, blue)
                if kind == "saturation":
                    hue, saturation, _ = colorsys.rgb_to_hsv(red, green, blue) if value > 0 else (0.0, 0.0, 0.0)
                    rgb = colorsys.hsv_to_rgb(hue, min(saturation * amount, 1), value)
                else:  # lifted out of the negative: hue and spread do not depend on it
                    lifted = colorsys.rgb_to_hsv(red + 1, green + 1, blue + 1)
                    turned = colorsys.hsv_to_rgb((lifted[0] + amount) % 1, lifted[1], lifted[2])
                    rgb = (turned[0] - 1, turned[1] - 1, turned[2] - 1)
                out[:, y, x] = torch.tensor(rgb)
    return result


@pytest.mark.parametrize("seed", range(3))
def test_saturation_agrees_with_colorsys(seed: int) -> None:
    images, factors = colours(seed), [0.5, 0.9, 1.2, 1.5]
    expected = map_pixels(images, factors, "saturation")
    torch.testing.assert_close(saturate(images, torch.tensor(factors).view(4, 1, 1, 1)), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_hue_agrees_with_colorsys(seed: int) -> None:
    images, turns = colours(seed), [-0.5, -0.1, 0.0, 0.2]
    expected = map_pixels(images, turns, "hue")
    torch.testing.assert_close(turn_hue(images, torch.tensor(turns).view(4, 1, 1, 1)), expected, rtol=0, atol=5e-6)


def test_colours_change_in_the_drawn_order_and_are_clipped_once() -> None:
    settings = Augment(brightness=0.3, saturation=0.6, hue=0.1, contrast=0.4)
    images = colours(7, count=40).clamp(0, 1)
    draws = torch.rand((40, DRAWS), generator=torch.Generator().manual_seed(7))
    expected = []
    for image, draw in zip(images, draws, strict=True):
        u = draw.tolist()
        shift, factor = 0.3 * (2 * u[BRIGHTNESS] - 1), torch.tensor(1 + 0.6 * (2 * u[SATURATION] - 1))
        one = image[None]
        one = saturate(one + shift, factor) if u[ORDER] < 0.5 else saturate(one, factor) + shift
        one = turn_hue(one, torch.tensor(0.1 * (2 * u[HUE] - 1)))
        mean = one.mean(dim=(2, 3), keepdim=True)
        expected.append(((one - mean) * (1 + 0.4 * (2 * u[CONTRAST] - 1)) + mean).clamp(0, 1))
    assert {bool(draw[ORDER] < 0.5) for draw in draws} == {True, False}
    torch.testing.assert_close(distort(images.clone(), draws, settings), torch.cat(expected), rtol=0, atol=1e-5)


def test_without_crop_and_colour_the_frame_itself_comes_back() -> None:
    canvas = canvas_of(3, 3, [(40, 40)])
    settings = Augment(40, (1.0, 1.0), (1.0, 1.0), flip=False, brightness=0, saturation=0)
    torch.testing.assert_close(augment([canvas], settings), canvas.pixels / 127.5 - 1, rtol=0, atol=1e-6)
    torch.testing.assert_close(unaugmented(canvas, 40), canvas.pixels / 127.5 - 1, rtol=0, atol=1e-6)


def test_half_of_the_frames_are_mirrored_and_none_if_not_asked() -> None:
    canvas = canvas_of(100, 4, [(16, 16)])
    plain = Augment(16, (1.0, 1.0), (1.0, 1.0), flip=False, brightness=0, saturation=0)
    straight = augment([canvas], plain)
    mirrored = augment([canvas], Augment(16, (1.0, 1.0), (1.0, 1.0), brightness=0, saturation=0))
    which = (mirrored != straight).flatten(1).any(dim=1)
    torch.testing.assert_close(mirrored[which], straight[which].flip(3))
    assert which.tolist() == (canvas.draws[:, FLIP] < 0.5).tolist()
    assert 30 < which.sum() < 70


def test_a_frame_is_augmented_the_same_way_whatever_is_beside_it() -> None:
    canvas = canvas_of(70, 5, [(30, 40), (64, 20)])
    settings = Augment(size=32, hue=0.1, contrast=0.2)
    together = augment([canvas], settings)
    assert together.shape == (70, 3, 32, 32) and together.min() >= -1 and together.max() <= 1
    for index in (0, 33, 69):
        height, width = canvas.sizes[index]
        alone = slice(index, index + 1)
        own = Canvas(canvas.pixels[alone, :, :height, :width], canvas.sizes[alone], canvas.draws[alone])
        torch.testing.assert_close(augment([own], settings), together[alone], rtol=0, atol=1e-5)


def test_the_output_has_the_type_asked_for() -> None:
    canvas = canvas_of(2, 6, [(30, 40)])
    assert augment([canvas], Augment(size=16), dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_computes_what_a_cpu_does() -> None:
    canvas = canvas_of(50, 8, [(60, 90), (90, 60)])
    settings = Augment(size=48, hue=0.1, contrast=0.2)
    torch.testing.assert_close(
        augment([canvas], settings, "cuda").cpu(), augment([canvas], settings), rtol=0, atol=0.01
    )
    torch.testing.assert_close(unaugmented(canvas, 48, "cuda").cpu(), unaugmented(canvas, 48), rtol=0, atol=0.005)


def noise_by_colorsys(pixel: NDArray[np.float32], draws: NDArray[np.float32]) -> list[float]:
    """S4L's HSV noise of one pixel, as its authors write it."""
    u = [float(draw) for draw in draws]
    h, s, v = colorsys.rgb_to_hsv(*map(float, pixel))
    h = (h + (-0.1 + 0.2 * u[HSV_HUE])) % 1
    channels = []
    for x, part in ((s, HSV_SATURATION), (v, HSV_VALUE)):
        exponent, factor, shift = u[part]
        x = x ** (2 ** (-2 + 4 * exponent)) * 2 ** (-0.5 + factor) + (-0.1 + 0.2 * shift)
        channels.append(min(max(x, 0), 1))
    return list(colorsys.hsv_to_rgb(h, *channels))


def test_hsv_noise_is_that_of_s4l_pixel_by_pixel() -> None:
    rng = np.random.default_rng(0)
    images = rng.random((12, 3, 3, 4), np.float32)
    images[0], images[1, :, 0], images[2, 0] = 0, 0.5, 1  # black, greys, saturated reds
    draws = rng.random((12, DRAWS), np.float32)
    noisy = hsv_noise(torch.from_numpy(images.copy()), torch.from_numpy(draws))
    expected = [
        [[noise_by_colorsys(image[:, y, x], own) for x in range(4)] for y in range(3)]
        for image, own in zip(images, draws, strict=True)
    ]
    torch.testing.assert_close(noisy.permute(0, 2, 3, 1), torch.tensor(expected), rtol=0, atol=2e-5)


def test_hsv_noise_comes_on_top_of_the_other_colours() -> None:
    canvas = canvas_of(6, 0, [(20, 24)])
    plain = Augment(size=16)
    draws = torch.from_numpy(canvas.draws)
    expected = hsv_noise((augment([canvas], plain) + 1) / 2, draws) * 2 - 1
    torch.testing.assert_close(augment([canvas], replace(plain, hsv=True)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", ["imagenet", "v0"])
def test_with_a_policy_crops_are_autoaugmented_instead_of_coloured(policy: Literal["imagenet", "v0"]) -> None:
    canvases = [canvas_of(5, seed, [(20, 24), (31, 17)]) for seed in range(3)]
    settings = Augment(size=16)
    crops = torch.cat([crop.round().byte() for one in canvases for crop, _ in random_crops(one, settings, "cpu")])
    draws = np.concatenate([canvas.draws[:, AUTOAUGMENT] for canvas in canvases])
    expected = autoaugment(crops, draws, policy) / 127.5 - 1
    assert torch.equal(augment(canvases, replace(settings, policy=policy)), expected)


def test_a_frame_is_augmented_as_often_as_its_canvas_says() -> None:
    canvas = canvas_of(70, 0, [(20, 24), (31, 17)])
    once = Canvas(canvas.pixels[:14], canvas.sizes[:14], canvas.draws, copies=5)
    repeated = Canvas(once.pixels.repeat_interleave(5, dim=0), once.sizes.repeat(5, axis=0), canvas.draws)
    settings = Augment(size=16)
    assert torch.equal(augment([once], settings), augment([repeated], settings))
    assert torch.equal(augment_patches([once], 16), augment_patches([repeated], 16))


def test_patches_are_cut_from_the_whole_frame() -> None:
    canvas = canvas_of(3, 0, [(50, 80), (61, 17)])
    patches = augment_patches([canvas], 16)
    for pixels, (height, width), draws, nine in zip(canvas.pixels, canvas.sizes, canvas.draws, patches, strict=True):
        side = layout(16).whole
        whole = tv.resize(pixels[:, :height, :width].float(), [side, side], antialias=True)
        expected = cut_patches(whole[None], draws[None, :PATCH_DRAWS], 16)[0]
        torch.testing.assert_close(nine, expected, rtol=0, atol=1e-3)
