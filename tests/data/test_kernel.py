"""The kernel computes what plain torch does. Where there is no GPU it is interpreted, in a process of its own."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.augment import augment, augment_patches, unaugmented
from vivi.data.augment.colour import distort
from vivi.data.augment.crop import crops, cuda_kernel, random_boxes
from vivi.data.augment.uniforms import FLIP, ORDER, UNIFORMS
from vivi.data.packed import Image, PackedImages, on_device, pack
from vivi.recipes import Augment

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
ON_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
CPU = torch.device("cpu")
Samples = tuple[PackedImages, NDArray[np.float32]]

# Larger and smaller than what is made of them, elongated, and of one pixel.
SIZES = [(40, 61), (33, 20), (9, 12), (3, 50), (1, 1)]


def samples_of(count: int, sizes: list[tuple[int, int]] = SIZES, device: torch.device = CPU) -> Samples:
    """Random images, also greys, black, white and pure colours; every third sample is of the image before it."""
    rng = np.random.default_rng(0)
    images: list[Image] = []
    for number in range(count):
        image = rng.integers(0, 256, (*sizes[number % len(sizes)], 3), np.uint8)
        flat = image.reshape(-1, 3)
        flat[::7] = flat[::7, :1]
        flat[1::11], flat[2::11], flat[3::11] = 0, 255, (0, 255, 0)
        images.append(image)
    which = np.array([number - (number % 3 == 2) for number in range(count)])
    return on_device([pack(images)[which]], device), rng.random((count, UNIFORMS), np.float32)


@dataclass(frozen=True)
class Case:
    """What the kernel is to make of random images."""

    size: int
    colours: Augment | None = None
    dtype: torch.dtype = torch.float32
    one_pixel: bool = False  # boxes of one pixel

    def samples(self, device: torch.device = CPU) -> Samples:
        # The fewer pixels are made of an image, the more of its own each of them takes, and that is slow here.
        return samples_of(6, SIZES if self.size > 1 else [(5, 7), (1, 1)], device)

    def boxes(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Of all samples, and which are mirrored."""
        images, uniforms = self.samples()
        boxes = random_boxes(images.sizes, uniforms, (0.1, 1.0), (0.75, 4 / 3))
        if self.one_pixel:
            boxes[:, 2:] = 1
        flips = uniforms[:, FLIP] < 0.5
        assert flips.any() and not flips.all()
        return boxes, flips

    def by_kernel(self, device: torch.device) -> Tensor:
        from vivi.data.augment.kernel import crop

        (images, uniforms), (boxes, flips) = self.samples(device), self.boxes()
        return crop(images, boxes, flips, self.size, self.dtype, self.colours, uniforms if self.colours else None)

    def by_torch(self) -> Tensor:
        (images, uniforms), (boxes, flips) = self.samples(), self.boxes()
        assert len({bool(first) for first in uniforms[:, ORDER] < 0.5}) == 2
        made = crops(images, boxes, flips, self.size)
        if self.colours is not None:
            made = distort(made / 255, torch.from_numpy(uniforms), self.colours) * 2 - 1
        return made if self.dtype == torch.uint8 else made.to(self.dtype)  # not rounded


PLAIN = Augment(brightness=0, saturation=0)
CASES = {
    "the pixels, enlarged and reduced": Case(17),
    "rounded": Case(17, dtype=torch.uint8),
    "rounded, and larger": Case(24, dtype=torch.uint8),
    "a single pixel": Case(1),
    "boxes of one pixel": Case(5, one_pixel=True, dtype=torch.uint8),
    "in [-1, 1]": Case(12, colours=PLAIN),
    "brightness": Case(12, colours=replace(PLAIN, brightness=0.4)),
    "saturation": Case(12, colours=replace(PLAIN, saturation=0.9)),
    "brightness and saturation": Case(12, colours=Augment(brightness=0.3)),
    "hue": Case(12, colours=Augment(hue=0.5)),
    "noise in HSV": Case(12, colours=Augment(hsv=True)),
    "all": Case(16, colours=Augment(hue=0.1, hsv=True)),
    "all, in bfloat16": Case(16, colours=Augment(hue=0.1), dtype=torch.bfloat16),
}
SETTINGS = {
    "the default": Augment(size=12),
    "no flips": Augment(size=12, flip=False, hue=0.1),
    "contrast": Augment(size=12, contrast=0.3),
    "grey": Augment(size=12, grey=0.6, hue=0.1, hsv=True),
    "grey frames, contrast and noise": Augment(size=12, grey_frames=0.5, contrast=0.5, hue=0.2, hsv=True),
    "standardised": Augment(size=12, grey=0.6, standardise=True),
    "AutoAugment": Augment(size=12, policy="imagenet"),
}
THROUGH_AUGMENT = [*SETTINGS, "in bfloat16", "the middle square", "patches"]


def through_augment(device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """All that is made of images, with or without the kernel."""
    images, uniforms = samples_of(4, SIZES[:3], device)
    for name, settings in SETTINGS.items():
        yield name, augment(images, uniforms, settings)
    yield "in bfloat16", augment(images, uniforms, SETTINGS["the default"], torch.bfloat16)
    yield "the middle square", unaugmented(images, 12)
    yield "patches", augment_patches(images, uniforms, 4)


def made_with_kernel(device: torch.device) -> dict[str, Tensor]:
    made = {name: case.by_kernel(device).cpu() for name, case in CASES.items()}
    return made | {f"through augment: {name}": images.cpu() for name, images in through_augment(device)}


@pytest.fixture(scope="module")
def by_kernel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What the kernel makes of the cases, on a GPU or interpreted; Triton must know which when it is imported."""
    if ON_GPU:
        gpu = torch.device("cuda", 0)
        assert cuda_kernel(gpu)
        return made_with_kernel(gpu)
    out = tmp_path_factory.mktemp("kernel") / "made.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, __file__, str(out)], check=True, timeout=240, env=environment)
    made: dict[str, Tensor] = torch.load(out, weights_only=True)
    return made


def assert_close(actual: Tensor, expected: Tensor, tolerance: float, hsv: bool = False) -> None:
    """Equal to a tolerance, or to the last bit of bfloat16. For uint8, `expected` is not rounded."""
    assert actual.shape == expected.shape
    difference = (actual.float() - expected.float()).abs()
    if actual.dtype == torch.uint8:
        assert expected.dtype == torch.float32 and difference.max() <= 0.5 + tolerance
        return
    assert actual.dtype == expected.dtype
    if actual.dtype == torch.bfloat16:
        assert difference.max() <= 2**-8  # of values up to 1: a GPU rounds to the nearest, the interpreter cuts off
    elif hsv and ON_GPU:  # the fourth root of a saturation or value near 0: a few pixels differ more
        assert (difference > tolerance).float().mean() < 0.01
    else:
        assert difference.max() <= tolerance


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_makes_what_torch_does(name: str, by_kernel: dict[str, Tensor]) -> None:
    case = CASES[name]
    hsv = case.colours is not None and case.colours.hsv
    # Pixels from 0 to 255, or colours in [-1, 1]; where those are dark or grey, HSV noise makes more of rounding.
    tolerance = 2e-3 if case.colours is None else 2e-4 if hsv else 2e-5
    if ON_GPU:
        tolerance = 0.01 if case.colours is None else 0.005
    assert_close(by_kernel[name], case.by_torch(), tolerance, hsv)


@needs_triton
@pytest.mark.parametrize("name", THROUGH_AUGMENT)
def test_what_the_encoder_sees_is_the_same_with_the_kernel(name: str, by_kernel: dict[str, Tensor]) -> None:
    expected = dict(through_augment(CPU))[name]
    actual = by_kernel[f"through augment: {name}"]
    if name in ("the default", "no flips", "in bfloat16", "the middle square"):  # the kernel did make it
        assert actual.is_contiguous(memory_format=torch.channels_last) and expected.is_contiguous()
    if name == "AutoAugment":  # a level of the crop may become many in what is equalised or turned
        assert actual.shape == expected.shape and ((actual - expected).abs() > 0.02).float().mean() < 0.02
    elif ON_GPU:
        assert_close(actual, expected, {"patches": 0.02, "contrast": 0.01}.get(name, 0.005))
    else:
        assert_close(actual, expected, 2e-4 if name == "patches" else 2e-5)


def test_a_cpu_does_without_the_kernel() -> None:
    assert cuda_kernel(CPU) is None


COLOURS = [
    Augment(48, flip=flip, brightness=brightness, saturation=saturation, hue=hue, contrast=contrast, hsv=hsv)
    for flip, brightness, saturation, hue, contrast, hsv in itertools.product(
        [True, False], [0.125, 0.0], [0.5, 0.0], [0.1, 0.0], [0.2, 0.0], [False, True]
    )
]


@needs_gpu
def test_a_gpu_augments_as_a_cpu_does_for_all_settings() -> None:
    images, uniforms = samples_of(60, sizes=[(60, 90), (90, 60), (20, 30), (1, 1), (256, 455)])
    there = on_device([images], torch.device("cuda"))
    for settings in COLOURS:
        expected, actual = augment(images, uniforms, settings), augment(there, uniforms, settings)
        assert actual.is_cuda and actual.dtype == torch.float32
        difference = (actual.cpu() - expected).abs()
        if settings.hsv:  # the fourth root of a saturation or value near 0: a few pixels differ more
            assert (difference > 0.005).float().mean() < 0.01
        else:
            assert difference.max() < 0.005
        halves = augment(there, uniforms, settings, torch.bfloat16)
        torch.testing.assert_close(halves.float(), actual, rtol=2**-8, atol=1e-7)  # rounded to the nearest


@needs_gpu
@pytest.mark.parametrize("size", [1, 16, 33, 224])
def test_a_gpu_crops_as_a_cpu_does(size: int) -> None:
    images, uniforms = samples_of(30, sizes=[(60, 90), (20, 30), (1, 1), (256, 455), (3, 700)])
    boxes = random_boxes(images.sizes, uniforms, (0.1, 1.0), (0.75, 4 / 3))
    flips = uniforms[:, FLIP] < 0.5
    there = on_device([images], torch.device("cuda"))
    for dtype in (torch.uint8, torch.float32):
        made = crops(there, boxes, flips, size, dtype)
        assert made.is_contiguous(memory_format=torch.channels_last)
        assert made.dtype == dtype
        assert_close(made.cpu().contiguous(), crops(images, boxes, flips, size), 0.01)
    assert len(crops(there[:0], boxes[:0], flips[:0], size)) == 0


def mend_interpreter() -> None:
    """Triton before 3.7, which comes with torch 2.11, takes int() of an array of one element; NumPy 2.4 refuses."""
    import triton
    from triton.runtime import interpreter

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        patch = interpreter._patch_lang_tensor

        def patch_with_index(tensor: Any, scope: Any) -> None:
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

        interpreter._patch_lang_tensor = patch_with_index


if __name__ == "__main__":
    import vivi.data.augment as package
    from vivi.data.augment import crop, kernel

    mend_interpreter()
    assert kernel.works(CPU)
    for module in (package, crop):
        vars(module)["cuda_kernel"] = lambda device: kernel.crop
    torch.save(made_with_kernel(CPU), sys.argv[1])
