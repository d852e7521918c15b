"""Crops as in TensorFlow, resizing as torchvision does it, colours as colorsys says."""

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

from vivi.data.augment import augment, augment_patches, unaugmented
from vivi.data.augment.autoaugment import autoaugment
from vivi.data.augment.colour import distort, hsv_noise, saturate, turn_hue
from vivi.data.augment.crop import crops, in_chunks, random_boxes
from vivi.data.augment.patches import PATCH_UNIFORMS, cut_patches, layout
from vivi.data.augment.uniforms import (
    ASPECT,
    AUTOAUGMENT,
    BRIGHTNESS,
    CONTRAST,
    FLIP,
    GREY,
    GREY_FRAME,
    HEIGHT,
    HSV_HUE,
    HSV_SATURATION,
    HSV_VALUE,
    HUE,
    ORDER,
    SATURATION,
    UNIFORMS,
    X,
    Y,
)
from vivi.data.packed import PackedImages, on_device, pack
from vivi.recipes import Augment

AREA, ASPECTS = (0.1, 1.0), (0.75, 4 / 3)


Samples = tuple[PackedImages, NDArray[np.float32]]


def samples_of(count: int, seed: int, sizes: list[tuple[int, int]]) -> Samples:
    """Images of random pixels, with rubbish between them in memory, and their uniforms."""
    rng = np.random.default_rng(seed)
    chosen = np.array([sizes[index % len(sizes)] for index in range(count)], np.int32)
    lengths = 3 * chosen.prod(axis=1, dtype=np.int64) + 50
    memory = torch.from_numpy(rng.integers(0, 256, 50 + lengths.sum(), np.uint8))
    images = PackedImages(memory, 50 + np.cumsum(lengths) - lengths, chosen)
    return images, rng.random((count, UNIFORMS), np.float32)


def channels_first(images: PackedImages) -> list[Tensor]:
    """Each image, (3, height, width)."""
    return [images.image(number).permute(2, 0, 1) for number in range(len(images))]


def packed_alone(images: PackedImages, which: list[int]) -> PackedImages:
    return pack([images.image(number).numpy() for number in which])


def reference_box(height: int, width: int, uniforms: NDArray[np.float32]) -> tuple[int, int, int, int] | None:
    """TensorFlow's GenerateRandomCrop, line by line; None where it would give up."""
    u = [float(number) for number in uniforms]
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
    uniforms = np.random.default_rng(0).random((500, UNIFORMS), np.float32)
    boxes = random_boxes(np.array([size] * 500, np.int32), uniforms, AREA, ASPECTS)
    expected = [reference_box(*size, row) for row in uniforms]
    agreed = [tuple(box) == want for box, want in zip(boxes.tolist(), expected, strict=True) if want is not None]
    assert all(agreed)
    assert len(agreed) > 450  # it hardly ever gives up


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (3, 200), (200, 3), (16, 16), (256, 455)])
def test_boxes_lie_in_the_frame_however_small_or_elongated(size: tuple[int, int]) -> None:
    uniforms = np.random.default_rng(1).random((2000, UNIFORMS), np.float32)
    uniforms[:4] = [
        [0] * UNIFORMS,
        [np.nextafter(np.float32(1), np.float32(0))] * UNIFORMS,
        ([0, 1 - 1e-7] * UNIFORMS)[:UNIFORMS],
        ([1 - 1e-7, 0] * UNIFORMS)[:UNIFORMS],
    ]
    boxes = random_boxes(np.array([size] * 2000, np.int32), uniforms, AREA, ASPECTS)
    y, x, height, width = boxes.T
    assert min(y.min(), x.min()) >= 0 and min(height.min(), width.min()) >= 1
    assert (y + height).max() <= size[0] and (x + width).max() <= size[1]


def test_boxes_cover_all_areas_aspects_and_places() -> None:
    uniforms = np.random.default_rng(2).random((4000, UNIFORMS), np.float32)
    y, x, height, width = random_boxes(np.array([(120, 160)] * 4000, np.int32), uniforms, AREA, ASPECTS).T
    area, aspect = height * width / (120 * 160), width / height
    assert area.min() >= 0.1 and area.min() < 0.11 and area.max() > 0.97
    assert aspect.min() < 0.77 and aspect.max() > 1.3 and aspect.mean() == pytest.approx(25 / 24, abs=0.02)
    middle = (y + height / 2) / 120, (x + width / 2) / 160
    assert np.mean(middle[0]) == pytest.approx(0.5, abs=0.01) and np.mean(middle[1]) == pytest.approx(0.5, abs=0.01)
    assert (y + height == 120).any() and (x + width == 160).any() and (y == 0).any() and (x == 0).any()


def test_the_middle_square_is_in_the_middle() -> None:
    images, _ = samples_of(3, 0, [(48, 85), (84, 48), (5, 5)])
    boxes = [[0, 18, 48, 48], [18, 0, 48, 48], [0, 0, 5, 5]]
    for made, image, box in zip(unaugmented(images, 12), channels_first(images), boxes, strict=True):
        expected = tv.resized_crop(image.float(), *box, [12, 12], antialias=True) / 127.5 - 1
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("size", [8, 33, 64, 112])
def test_resizing_agrees_with_torchvision(size: int) -> None:
    images, uniforms = samples_of(9, size, [(60, 80), (90, 50), (31, 200)])
    boxes = random_boxes(images.sizes, uniforms, AREA, ASPECTS)
    flips = np.arange(9) % 2 == 0
    cropped = crops(images, boxes, flips, size)
    rounded = crops(images, boxes, flips, size, torch.uint8)
    assert rounded.dtype == torch.uint8 and torch.equal(rounded, cropped.round().byte())
    for made, image, box, flip in zip(cropped, channels_first(images), boxes.tolist(), flips, strict=True):
        expected = tv.resized_crop(image.float(), *box, [size, size], antialias=True)
        torch.testing.assert_close(made, expected.flip(2) if flip else expected, rtol=1e-4, atol=5e-3)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 70])
def test_chunks_hold_all_crops_in_order(count: int) -> None:
    images, uniforms = samples_of(count, 0, [(20, 50), (35, 35)])
    boxes, flips = random_boxes(images.sizes, uniforms, AREA, ASPECTS), uniforms[:, FLIP] < 0.5
    chunks: list[Tensor] = []

    def crop(part: slice) -> Tensor:
        chunks.append(crops(images[part], boxes[part], flips[part], 12))
        return chunks[-1]

    assert torch.equal(in_chunks(crop, images), crops(images, boxes, flips, 12))
    assert all(len(chunk) <= 32 for chunk in chunks) and sum(map(len, chunks)) == count
    one_by_one = [crops(images[n : n + 1], boxes[n : n + 1], flips[n : n + 1], 12) for n in range(count)]
    torch.testing.assert_close(torch.cat(one_by_one), torch.cat(chunks), rtol=0, atol=1e-3)


def test_nothing_outside_the_frame_is_seen() -> None:
    images, uniforms = samples_of(12, 0, [(20, 50), (50, 20), (35, 35)])
    for kept in (range(12), range(0, 12, 2), range(5, 6)):
        # The same images in the same places, but what lies beside them, neighbours too, is other rubbish.
        other, _ = samples_of(12, 1, [(20, 50), (50, 20), (35, 35)])
        for number in kept:
            other.image(number).copy_(images.image(number))
        assert np.array_equal(other.starts, images.starts)
        assert not torch.equal(other.memory, images.memory)
        settings, chosen = Augment(size=24), list(kept)
        assert torch.equal(augment(images, uniforms, settings)[chosen], augment(other, uniforms, settings)[chosen])
        assert torch.equal(unaugmented(images, 24)[chosen], unaugmented(other, 24)[chosen])
        assert torch.equal(
            augment_patches(images, uniforms, 16)[chosen], augment_patches(other, uniforms, 16)[chosen]
        )


def test_where_images_lie_in_memory_does_not_matter() -> None:
    scattered, uniforms = samples_of(40, 0, [(20, 50), (50, 20), (35, 35)])
    backwards = packed_alone(scattered, list(range(39, -1, -1)))[np.arange(39, -1, -1)]
    assert not np.array_equal(scattered.starts, backwards.starts)
    for settings in (Augment(size=24, hue=0.1), Augment(size=24, policy="imagenet")):
        assert torch.equal(augment(scattered, uniforms, settings), augment(backwards, uniforms, settings))
    assert torch.equal(unaugmented(scattered, 24), unaugmented(backwards, 24))
    assert torch.equal(augment_patches(scattered, uniforms, 16), augment_patches(backwards, uniforms, 16))


def test_no_images_give_none() -> None:
    nothing, uniforms = pack([]), np.zeros((0, UNIFORMS), np.float32)
    for settings in (Augment(size=24), Augment(size=24, policy="v0")):
        assert augment(nothing, uniforms, settings).shape == (0, 3, 24, 24)
    assert unaugmented(nothing, 24).shape == (0, 3, 24, 24)


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


def test_colours_change_in_a_random_order_and_are_clipped_once() -> None:
    settings = Augment(brightness=0.3, saturation=0.6, hue=0.1, contrast=0.4)
    images = colours(7, count=40).clamp(0, 1)
    uniforms = torch.rand((40, UNIFORMS), generator=torch.Generator().manual_seed(7))
    expected = []
    for image, own in zip(images, uniforms, strict=True):
        u = own.tolist()
        shift, factor = 0.3 * (2 * u[BRIGHTNESS] - 1), torch.tensor(1 + 0.6 * (2 * u[SATURATION] - 1))
        made = image[None]
        made = saturate(made + shift, factor) if u[ORDER] < 0.5 else saturate(made, factor) + shift
        made = turn_hue(made, torch.tensor(0.1 * (2 * u[HUE] - 1)))
        mean = made.mean(dim=(2, 3), keepdim=True)
        expected.append(((made - mean) * (1 + 0.4 * (2 * u[CONTRAST] - 1)) + mean).clamp(0, 1))
    assert {bool(own[ORDER] < 0.5) for own in uniforms} == {True, False}
    torch.testing.assert_close(distort(images.clone(), uniforms, settings), torch.cat(expected), rtol=0, atol=1e-5)


def test_without_crop_and_colour_the_frame_itself_comes_back() -> None:
    images, uniforms = samples_of(3, 3, [(40, 40)])
    settings = Augment(40, (1.0, 1.0), (1.0, 1.0), flip=False, brightness=0, saturation=0)
    expected = torch.stack(channels_first(images)) / 127.5 - 1
    torch.testing.assert_close(augment(images, uniforms, settings), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(unaugmented(images, 40), expected, rtol=0, atol=1e-6)


def test_half_of_the_frames_are_mirrored_and_none_if_not_asked() -> None:
    images, uniforms = samples_of(100, 4, [(16, 16)])
    plain = Augment(16, (1.0, 1.0), (1.0, 1.0), flip=False, brightness=0, saturation=0)
    straight = augment(images, uniforms, plain)
    mirrored = augment(images, uniforms, replace(plain, flip=True))
    which = (mirrored != straight).flatten(1).any(dim=1)
    torch.testing.assert_close(mirrored[which], straight[which].flip(3))
    assert which.tolist() == (uniforms[:, FLIP] < 0.5).tolist()
    assert 30 < which.sum() < 70


def test_a_frame_is_augmented_the_same_way_whatever_is_beside_it() -> None:
    images, uniforms = samples_of(70, 5, [(30, 40), (64, 20)])
    settings = Augment(size=32, hue=0.1, contrast=0.2)
    together = augment(images, uniforms, settings)
    assert together.shape == (70, 3, 32, 32) and together.min() >= -1 and together.max() <= 1
    for index in (0, 33, 69):
        alone = augment(packed_alone(images, [index]), uniforms[index : index + 1], settings)
        torch.testing.assert_close(alone, together[index : index + 1], rtol=0, atol=1e-5)


def test_the_output_has_the_type_asked_for() -> None:
    images, uniforms = samples_of(2, 6, [(30, 40)])
    for policy in ("none", "imagenet"):
        settings = Augment(size=16, policy=policy)
        assert augment(images, uniforms, settings, torch.bfloat16).dtype == torch.bfloat16
    assert unaugmented(images, 16, torch.bfloat16).dtype == torch.bfloat16
    assert augment_patches(images, uniforms, 16, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_computes_what_a_cpu_does() -> None:
    images, uniforms = samples_of(50, 8, [(60, 90), (90, 60)])
    there = on_device([images], torch.device("cuda"))
    settings = Augment(size=48, hue=0.1, contrast=0.2)
    on_gpu = augment(there, uniforms, settings).cpu()
    torch.testing.assert_close(on_gpu, augment(images, uniforms, settings), rtol=0, atol=0.01)
    torch.testing.assert_close(unaugmented(there, 48).cpu(), unaugmented(images, 48), rtol=0, atol=0.005)
    patches = augment_patches(there, uniforms, 16).cpu()  # standardised: what is flat is scaled up
    torch.testing.assert_close(patches, augment_patches(images, uniforms, 16), rtol=0, atol=0.02)


def noise_by_colorsys(pixel: NDArray[np.float32], uniforms: NDArray[np.float32]) -> list[float]:
    """S4L's HSV noise of one pixel, as its authors write it."""
    u = [float(number) for number in uniforms]
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
    uniforms = rng.random((12, UNIFORMS), np.float32)
    noisy = hsv_noise(torch.from_numpy(images.copy()), torch.from_numpy(uniforms))
    expected = [
        [[noise_by_colorsys(image[:, y, x], own) for x in range(4)] for y in range(3)]
        for image, own in zip(images, uniforms, strict=True)
    ]
    torch.testing.assert_close(noisy.permute(0, 2, 3, 1), torch.tensor(expected), rtol=0, atol=2e-5)


def test_grey_images_are_tensorflows_and_as_many_as_asked_for() -> None:
    images, uniforms = samples_of(400, 3, [(20, 30)])
    plain = Augment(12, flip=False, brightness=0, saturation=0)
    coloured = (augment(images, uniforms, plain) + 1) / 2
    made = (augment(images, uniforms, replace(plain, grey=0.66)) + 1) / 2
    by_frame = (augment(images, uniforms, replace(plain, grey_frames=0.66)) + 1) / 2
    weights = torch.tensor([0.2989, 0.587, 0.114])
    for result, number in ((made, GREY), (by_frame, GREY_FRAME)):
        grey = torch.from_numpy(uniforms[:, number] < 0.66)
        assert 0.6 < grey.float().mean() < 0.72
        assert torch.equal(result[~grey], coloured[~grey])
        for before, after in zip(coloured[grey], result[grey], strict=True):
            torch.testing.assert_close(after, torch.einsum("c,chw->hw", weights, before).expand(3, -1, -1))


def test_standardised_images_have_a_mean_of_0_and_a_deviation_of_1() -> None:
    images, uniforms = samples_of(6, 4, [(20, 30), (9, 40)])
    plain, made = (augment(images, uniforms, Augment(12, standardise=on)) for on in (False, True))
    for before, after in zip(plain, made, strict=True):
        torch.testing.assert_close(after, (before - before.mean()) / before.std(correction=0), rtol=1e-4, atol=1e-5)
    flat = pack([np.full((9, 9, 3), 77, np.uint8)])  # rounding does not become noise
    assert augment(flat, uniforms[:1], Augment(12, standardise=True)).abs().max() < 1e-3


def test_hsv_noise_comes_on_top_of_the_other_colours() -> None:
    images, uniforms = samples_of(6, 0, [(20, 24)])
    plain = Augment(size=16)
    expected = hsv_noise((augment(images, uniforms, plain) + 1) / 2, torch.from_numpy(uniforms)) * 2 - 1
    torch.testing.assert_close(augment(images, uniforms, replace(plain, hsv=True)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", ["imagenet", "v0"])
def test_with_a_policy_crops_are_autoaugmented_instead_of_coloured(policy: Literal["imagenet", "v0"]) -> None:
    images, uniforms = samples_of(40, 0, [(20, 24), (31, 17)])
    boxes = random_boxes(images.sizes, uniforms, AREA, ASPECTS)
    cropped = crops(images, boxes, uniforms[:, FLIP] < 0.5, 16).round().byte()
    expected = autoaugment(cropped, uniforms[:, AUTOAUGMENT], policy) / 127.5 - 1
    assert torch.equal(augment(images, uniforms, Augment(size=16, policy=policy)), expected)


@pytest.mark.parametrize("policy", ["imagenet", "v0"])
def test_crops_in_the_order_that_a_gpu_makes_them_are_autoaugmented_alike(policy: Literal["imagenet", "v0"]) -> None:
    rng = np.random.default_rng(0)
    cropped = torch.from_numpy(rng.integers(0, 256, (200, 3, 12, 12), np.uint8))
    uniforms = rng.random((200, UNIFORMS), np.float32)[:, AUTOAUGMENT]
    there = cropped.contiguous(memory_format=torch.channels_last)
    assert torch.equal(autoaugment(there, uniforms, policy), autoaugment(cropped, uniforms, policy))


def test_an_image_is_augmented_as_often_as_it_is_named() -> None:
    once, _ = samples_of(14, 0, [(20, 24), (31, 17)])
    uniforms = np.random.default_rng(0).random((70, UNIFORMS), np.float32)
    which = np.arange(14).repeat(5)
    repeated, copied = once[which], packed_alone(once, which.tolist())
    settings = Augment(size=16)
    assert torch.equal(augment(repeated, uniforms, settings), augment(copied, uniforms, settings))
    assert torch.equal(augment_patches(repeated, uniforms, 16), augment_patches(copied, uniforms, 16))


def test_patches_are_cut_from_the_whole_frame() -> None:
    images, uniforms = samples_of(3, 0, [(50, 80), (61, 17)])
    patches = augment_patches(images, uniforms, 16)
    for image, own, nine in zip(channels_first(images), uniforms, patches, strict=True):
        side = layout(16).whole
        whole = tv.resize(image.float(), [side, side], antialias=True)
        expected = cut_patches(whole[None], own[None, :PATCH_UNIFORMS], 16)[0]
        torch.testing.assert_close(nine, expected, rtol=0, atol=1e-3)
        there = whole[None].contiguous(memory_format=torch.channels_last)  # as a GPU makes it
        torch.testing.assert_close(cut_patches(there, own[None, :PATCH_UNIFORMS], 16)[0], expected)
