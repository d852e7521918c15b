"""Every operation is torchvision's or TensorFlow's on each image alone, and so are the two policies as wholes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from autoaugment_references import (
    SIGNED,
    TORCHVISION,
    tensorflow_magnitude,
    tensorflow_operation,
    tensorflow_policy,
    torchvision_magnitude,
    torchvision_operation,
    torchvision_policy,
)
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import v2

from vivi.data.augment.autoaugment import (
    FIRST,
    OPERATIONS,
    Policy,
    autoaugment,
    magnitude,
    plan,
    posterize,
    solarize,
    sub_policies,
)

POLICIES: list[Policy] = ["imagenet", "v0"]
SIZES = [(224, 224), (37, 53), (64, 48), (5, 7), (2, 9), (1, 1)]

# tensorflow/tpu, models/official/efficientnet/autoaugment.py, as written down in the project's notes.
V0 = """
Equalize(.8,1) ShearY(.8,4) | Color(.4,9) Equalize(.6,3) | Color(.4,1) Rotate(.6,8)
Solarize(.8,3) Equalize(.4,7) | Solarize(.4,2) Solarize(.6,2) | Color(.2,0) Equalize(.8,8)
Equalize(.4,8) SolarizeAdd(.8,3) | ShearX(.2,9) Rotate(.6,8) | Color(.6,1) Equalize(1,2)
Invert(.4,9) Rotate(.6,0) | Equalize(1,9) ShearY(.6,3) | Color(.4,7) Equalize(.6,0)
Posterize(.4,6) AutoContrast(.4,7) | Solarize(.6,8) Color(.6,9) | Solarize(.2,4) Rotate(.8,9)
Rotate(1,7) TranslateY(.8,9) | ShearX(0,0) Solarize(.8,4) | ShearY(.8,0) Color(.6,4)
Color(1,0) Rotate(.6,2) | Equalize(.8,4) Equalize(0,8) | Equalize(1,4) AutoContrast(.6,2)
ShearY(.4,7) SolarizeAdd(.6,7) | Posterize(.8,2) Solarize(.6,10) | Solarize(.6,8) Equalize(.6,1)
Color(.8,6) Rotate(.4,5)
"""


def random_images(count: int, size: tuple[int, int], seed: int = 0) -> Tensor:
    """uint8 (count, 3, h, w): noise, faint noise, ramps, one colour, and black with one white pixel, in turn."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 3, *size), np.uint8)
    images[1::5] = images[1::5] // 9 + rng.integers(0, 200, (1, 3, 1, 1), np.uint8)
    ramp = np.add.outer(np.arange(size[0]), 2 * np.arange(size[1])) * 255 // (size[0] + 2 * size[1])
    images[2::5] = np.clip(ramp + rng.integers(-9, 10, images[2::5].shape), 0, 255)
    images[3::5] = rng.integers(0, 256, (*images[3::5].shape[:2], 1, 1), np.uint8)
    images[4::5] = 0
    images[4::5, :, size[0] // 2, size[1] // 2] = 255
    return torch.from_numpy(images)


def uniforms_of(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random((count, 5), np.float32)


def operations_of(policy: Policy) -> list[str]:
    return sorted({operation for sub_policy in sub_policies(policy) for operation, _, _ in sub_policy})


def levels_of(operation: str, policy: Policy) -> list[int]:
    if operation in ("Equalize", "AutoContrast", "Invert"):
        return [0]
    return list(range(10 if policy == "imagenet" else 11))


def apply(operation: str, images: Tensor, magnitudes: NDArray[np.float64], policy: Policy) -> Tensor:
    return OPERATIONS[policy][operation].run(images, magnitudes)


# The lists.


def test_the_imagenet_list_is_torchvisions() -> None:
    theirs = TORCHVISION._get_policies(v2.AutoAugmentPolicy.IMAGENET)
    assert len(theirs) == 25
    assert sub_policies("imagenet") == [
        tuple((operation, probability, level or 0) for operation, probability, level in pair) for pair in theirs
    ]


def test_the_v0_list_is_that_of_the_notes() -> None:
    found = re.findall(r"(\w+)\(([\d.]+),(\d+)\)", V0)
    steps = [(operation, float(probability), int(level)) for operation, probability, level in found]
    assert sub_policies("v0") == list(zip(steps[::2], steps[1::2], strict=True))
    assert len(sub_policies("v0")) == 25


@pytest.mark.parametrize("operation", operations_of("imagenet"))
def test_levels_of_imagenet_mean_what_they_mean_in_torchvision(operation: str) -> None:
    for level in levels_of(operation, "imagenet"):
        theirs = torchvision_magnitude(operation, level)
        assert magnitude(operation, level, "imagenet") == (255 * theirs if operation == "Solarize" else theirs)


def test_levels_of_v0_mean_what_they_mean_in_tensorflow() -> None:
    for operation in operations_of("v0"):
        for level in levels_of(operation, "v0"):
            assert magnitude(operation, level, "v0") == tensorflow_magnitude(operation, level)
    assert [magnitude("Solarize", level, "v0") for level in (2, 3, 8, 10)] == [51, 76, 204, 256]
    assert [magnitude("SolarizeAdd", level, "v0") for level in (3, 7)] == [33, 77]


# The operations.


def every_image_with(values: list[float], size: tuple[int, int]) -> tuple[Tensor, list[float]]:
    """Every kind of image with every value; of large ones the last values, to save time."""
    some = values[-4:] if size == (224, 224) else values
    return random_images(5, size).repeat_interleave(len(some), dim=0), some * 5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operation", operations_of("imagenet"))
def test_operations_of_imagenet_are_torchvisions(operation: str, size: tuple[int, int]) -> None:
    levels = levels_of(operation, "imagenet")
    signs = [1, -1] if TORCHVISION._AUGMENTATION_SPACE[operation][1] else [1]
    each = [sign * torchvision_magnitude(operation, level) for level in levels for sign in signs]
    images, values = every_image_with(each, size)
    expected = torch.stack(
        [torchvision_operation(image, operation, value) for image, value in zip(images, values, strict=True)]
    )
    ours = apply(operation, images, np.array(values) * (255 if operation == "Solarize" else 1), "imagenet")
    assert ours.dtype == torch.uint8
    if operation in ("Rotate", "ShearX"):
        assert_moved_alike(ours, expected)
    else:
        assert torch.equal(ours, expected)


def assert_moved_alike(ours: Tensor, expected: Tensor) -> None:
    """Equal where this was written. torchvision computes coordinates by a matrix product, which other machines may
    round otherwise; then about three pixels of a million change places."""
    assert (ours != expected).any(dim=1).float().mean() <= 1e-5


@pytest.mark.parametrize("size", SIZES)
def test_a_move_that_only_v0_has_is_torchvisions_too(size: tuple[int, int]) -> None:
    images = random_images(20, size)
    pixels = np.arange(-50, 50, 5)
    expected = [
        v2.functional.affine(image, 0.0, [0, -int(up)], 1.0, [0.0, 0.0], fill=[128.0])
        for image, up in zip(images, pixels, strict=True)
    ]
    assert torch.equal(OPERATIONS["v0"]["TranslateY"].run(images, pixels.astype(np.float64)), torch.stack(expected))


def test_every_number_of_bits_and_every_threshold_is_torchvisions() -> None:
    images = random_images(9, (19, 23))
    expected = [v2.functional.posterize(image, bits) for bits, image in enumerate(images)]
    assert torch.equal(posterize(images, np.arange(9.0)), torch.stack(expected))
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(256, 3, 16, 16)
    thresholds = np.arange(0.0, 256.0)
    expected = [v2.functional.solarize(image, value) for image, value in zip(ramp, thresholds.tolist(), strict=True)]
    assert torch.equal(solarize(ramp, thresholds), torch.stack(expected))


@pytest.mark.parametrize("policy", POLICIES)
def test_turning_by_nothing_changes_nothing(policy: Policy) -> None:
    for size in SIZES:
        images = random_images(5, size)
        assert torch.equal(apply("Rotate", images, np.zeros(5), policy), images)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operation", operations_of("v0"))
def test_operations_of_v0_are_tensorflows(operation: str, size: tuple[int, int]) -> None:
    levels = levels_of(operation, "v0")
    signs = [1, -1] if operation in SIGNED else [1]
    each = [sign * tensorflow_magnitude(operation, level) for level in levels for sign in signs]
    images, values = every_image_with(each, size)
    expected = [
        tensorflow_operation(image.permute(1, 2, 0).contiguous().numpy(), operation, value)
        for image, value in zip(images, values, strict=True)
    ]
    ours = apply(operation, images, np.array(values, np.float64), "v0")
    assert ours.dtype == torch.uint8
    np.testing.assert_array_equal(ours.permute(0, 2, 3, 1).numpy(), np.stack(expected))


def test_stretched_contrast_of_v0_is_pils_but_for_the_last_step() -> None:
    images = random_images(10, (40, 30))
    ours = apply("AutoContrast", images, np.zeros(10), "v0").permute(0, 2, 3, 1).numpy()
    pil = [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in images]
    theirs = np.stack([np.asarray(ImageOps.autocontrast(image)) for image in pil])
    assert np.abs(ours.astype(int) - theirs).max() <= 1


# The policies.


@pytest.mark.parametrize("size", [(37, 53), (64, 64)])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_is_the_one_of_the_originals_image_by_image(policy: Policy, size: tuple[int, int]) -> None:
    images, uniforms = random_images(250, size), uniforms_of(250, seed=size[0])
    reference = torchvision_policy if policy == "imagenet" else tensorflow_policy
    expected = [reference(image, own) for image, own in zip(images, uniforms.tolist(), strict=True)]
    assert torch.equal(autoaugment(images, uniforms, policy), torch.stack(expected))


@pytest.mark.parametrize("policy", POLICIES)
def test_an_image_comes_out_the_same_whatever_is_beside_it(policy: Policy) -> None:
    images, uniforms = random_images(60, (29, 31)), uniforms_of(60)
    before = images.clone()
    together = autoaugment(images, uniforms, policy)
    assert torch.equal(images, before)
    assert torch.equal(autoaugment(images.to(memory_format=torch.channels_last), uniforms, policy), together)
    order = np.random.default_rng(1).permutation(60)
    assert torch.equal(autoaugment(images[order], uniforms[order], policy), together[order])
    for index in range(60):
        alone = slice(index, index + 1)
        assert torch.equal(autoaugment(images[alone], uniforms[alone], policy), together[alone])
    assert (together != images).flatten(1).any(dim=1).sum() > 30


@pytest.mark.parametrize("policy", POLICIES)
def test_operations_run_as_often_as_the_list_says(policy: Policy) -> None:
    count = 100_000
    operations = plan(uniforms_of(count), policy, chunk=count)
    expected: dict[tuple[str, float], float] = {}  # operation and magnitude: how often
    for sub_policy in sub_policies(policy):
        for name, probability, level in sub_policy:
            value = magnitude(name, level, policy)
            signed = name in SIGNED or (policy == "imagenet" and name in ("Color", "Contrast", "Sharpness"))
            for half in (value, -value) if signed else (value, value):
                expected[name, half] = expected.get((name, half), 0) + probability / 25 / 2
    found: dict[tuple[str, float], float] = {}
    for name, images, magnitudes in operations:
        assert len(images) == len(np.unique(images)) == len(magnitudes)
        for value, times in zip(*np.unique(magnitudes, return_counts=True), strict=True):
            found[name, value] = found.get((name, value), 0) + times / count
    for key in expected.keys() | found.keys():
        assert found.get(key, 0) == pytest.approx(expected.get(key, 0), abs=0.003), key


@pytest.mark.parametrize("policy", POLICIES)
def test_an_operation_runs_once_for_all_that_have_it_first_and_once_for_those_that_have_it_second(
    policy: Policy,
) -> None:
    stages = [{step[stage][0] for step in sub_policies(policy) if step[stage][1] > 0} for stage in (0, 1)]
    operations = plan(uniforms_of(2000), policy, chunk=2000)
    assert [name for name, _, _ in operations] == sorted(stages[0]) + sorted(stages[1])
    parts = plan(uniforms_of(2000), policy, chunk=100)
    assert max(len(images) for _, images, _ in parts) == 100
    together, in_parts = (np.concatenate([images for _, images, _ in those]) for those in (operations, parts))
    assert np.array_equal(in_parts, together)


@pytest.mark.parametrize("policy", POLICIES)
def test_certain_operations_always_happen_and_impossible_ones_never(policy: Policy) -> None:
    least, most = np.float32(0), np.nextafter(np.float32(1), np.float32(0))
    for index, sub_policy in enumerate(sub_policies(policy)):
        uniforms = np.full((2, 5), (index + 0.5) / 25, np.float32)
        uniforms[0, FIRST:], uniforms[1, FIRST:] = least, most
        ran = [(name, image) for name, images, _ in plan(uniforms, policy) for image in images]
        assert [op for op, image in ran if image == 0] == [op for op, likely, _ in sub_policy if likely > 0]
        assert [op for op, image in ran if image == 1] == [op for op, likely, _ in sub_policy if likely == 1]
    last = plan(np.array([[most, 0, 0, 0, 0]], np.float32), policy)
    assert [name for name, _, _ in last] == [name for name, _, _ in sub_policies(policy)[-1]]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_images_are_no_trouble(policy: Policy) -> None:
    assert autoaugment(random_images(0, (8, 8)), uniforms_of(0), policy).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_waits_for_what_a_device_computed(policy: Policy) -> None:
    images = torch.empty((300, 3, 16, 16), dtype=torch.uint8, device="meta")  # has no values: reading one is an error
    result = autoaugment(images, uniforms_of(300), policy)
    assert result.shape == images.shape and result.dtype == torch.uint8 and result.device == images.device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_gpu_computes_what_a_cpu_does_without_waiting(policy: Policy) -> None:
    images, uniforms = random_images(600, (64, 64)), uniforms_of(600)
    there = images.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = autoaugment(there, uniforms, policy)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # A GPU may round the sum of a blend otherwise, by one step; what comes after it may magnify that.
    blends = ("Color", "Contrast", "Sharpness")
    blended = [which for name, which, _ in plan(uniforms, policy) if name in blends]
    others = np.setdiff1d(np.arange(600), np.concatenate(blended))
    assert torch.equal(result.cpu()[others], autoaugment(images, uniforms, policy)[others])
    for name in set(operations_of(policy)) & set(blends):
        magnitudes = np.linspace(-0.9 if policy == "imagenet" else 0.1, 0.9, 600)
        on_gpu, on_cpu = (apply(name, each, magnitudes, policy).cpu().int() for each in (there, images))
        assert (on_gpu - on_cpu).abs().max() <= 1
