"""The kernel computes what plain torch does. Without a GPU it is interpreted, in a process of its own."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.batches.augment import augment, augment_patches, random_boxes, resized, unaugmented
from vivi.batches.colour import distort
from vivi.batches.draws import DRAWS, FLIP, ORDER
from vivi.batches.pixels import Pixels, Samples
from vivi.recipes import Augment

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# Larger and smaller than what is made of them, elongated, and of one pixel.
SIZES = [(40, 61), (33, 20), (9, 12), (3, 50), (1, 1)]


def samples_of(count: int, planar: bool, sizes: list[tuple[int, int]] = SIZES) -> Samples:
    """Random pictures, also greys, black, white and pure colours; every third sample is of the picture before it."""
    rng = np.random.default_rng(0)
    chosen = np.array([sizes[number % len(sizes)] for number in range(count)], np.int32)
    pictures = [rng.integers(0, 256, (3, *size), np.uint8) for size in chosen.tolist()]
    for picture in pictures:
        flat = picture.reshape(3, -1)
        flat[:, ::7] = flat[:1, ::7]
        flat[:, 1::11], flat[:, 2::11], flat[:, 3::11] = 0, 255, np.array([[0], [255], [0]])
    ordered = [picture if planar else picture.transpose(1, 2, 0) for picture in pictures]
    memory = torch.from_numpy(np.concatenate([picture.reshape(-1) for picture in ordered]))
    lengths = 3 * chosen.prod(axis=1, dtype=np.int64)
    pixels = Pixels(memory, np.cumsum(lengths) - lengths, chosen, planar)
    which = np.array([number - (number % 3 == 2) for number in range(count)])
    return Samples(pixels[which], rng.random((count, DRAWS), np.float32))


@dataclass(frozen=True)
class Case:
    """What the kernel is to make of random pictures."""

    size: int
    planar: bool = False
    colours: Augment | None = None
    dtype: torch.dtype = torch.float32
    one_pixel: bool = False  # boxes of one pixel

    def samples(self) -> Samples:
        # The fewer pixels are made of a picture, the more of its own each of them takes, and that is slow here.
        return samples_of(6, self.planar, SIZES if self.size > 1 else [(5, 7), (1, 1)])

    def boxes(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Of all samples, and which are mirrored."""
        samples = self.samples()
        boxes = random_boxes(samples.pixels.sizes, samples.draws, (0.1, 1.0), (0.75, 4 / 3))
        if self.one_pixel:
            boxes[:, 2:] = 1
        flips = samples.draws[:, FLIP] < 0.5
        assert flips.any() and not flips.all()
        return boxes, flips

    def by_kernel(self) -> Tensor:
        from vivi.batches.kernel import crop

        samples, (boxes, flips) = self.samples(), self.boxes()
        # Rubbish: all of it must be written.
        out = torch.full((6, 3, self.size, self.size), 77, dtype=self.dtype).contiguous(
            memory_format=torch.channels_last
        )
        crop(samples.pixels, boxes, flips, out, self.colours, samples.draws if self.colours else None)
        return out

    def by_torch(self) -> Tensor:
        samples, (boxes, flips) = self.samples(), self.boxes()
        assert len({bool(draw) for draw in samples.draws[:, ORDER] < 0.5}) == 2
        crops = resized(samples.pixels, boxes, flips, self.size)
        if self.colours is not None:
            crops = distort(crops / 255, torch.from_numpy(samples.draws), self.colours) * 2 - 1
        return crops.round().to(self.dtype) if self.dtype == torch.uint8 else crops.to(self.dtype)


PLAIN = Augment(brightness=0, saturation=0)
CASES = {
    "the pixels, enlarged and reduced": Case(17),
    "planar": Case(17, planar=True),
    "rounded": Case(17, planar=True, dtype=torch.uint8),
    "rounded, and interleaved": Case(24, dtype=torch.uint8),
    "a single pixel": Case(1, planar=True),
    "boxes of one pixel": Case(5, one_pixel=True, dtype=torch.uint8),
    "in [-1, 1]": Case(12, colours=PLAIN),
    "brightness": Case(12, colours=replace(PLAIN, brightness=0.4)),
    "saturation": Case(12, colours=replace(PLAIN, saturation=0.9), planar=True),
    "brightness and saturation": Case(12, colours=Augment(brightness=0.3)),
    "hue": Case(12, colours=Augment(hue=0.5), planar=True),
    "noise in HSV": Case(12, colours=Augment(hsv=True)),
    "all": Case(16, colours=Augment(hue=0.1, hsv=True), planar=True),
    "all, in bfloat16": Case(16, colours=Augment(hue=0.1), dtype=torch.bfloat16),
}
SETTINGS = {
    "the default": Augment(size=12),
    "no flips": Augment(size=12, flip=False, hue=0.1),
    "contrast": Augment(size=12, contrast=0.3),
    "AutoAugment": Augment(size=12, policy="imagenet"),
}


def through_augment(samples: Samples) -> Iterator[tuple[str, Tensor]]:
    """All that is made of pictures, with or without the kernel."""
    for name, settings in SETTINGS.items():
        yield name, augment(samples, settings)
    yield "in bfloat16", augment(samples, SETTINGS["the default"], torch.bfloat16)
    yield "the middle square", unaugmented(samples.pixels, 12)
    yield "patches", augment_patches(samples, 4)


THROUGH = [*SETTINGS, "in bfloat16", "the middle square", "patches"]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What the kernel makes of the cases, on the CPU. Triton asks for this before it is imported."""
    out = tmp_path_factory.mktemp("kernel") / "made.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, __file__, str(out)], check=True, timeout=240, env=environment)
    made: dict[str, Tensor] = torch.load(out, weights_only=True)
    return made


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal but for rounding: to a tolerance in float32, to the last bit else."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if actual.dtype == torch.uint8:
        difference = (actual.int() - expected.int()).abs()
        assert difference.max() <= 1 and (difference > 0).float().mean() < 0.005
        return
    if actual.dtype == torch.bfloat16:
        tolerance = 2**-8  # of values up to 1: a GPU rounds to the nearest, the interpreter cuts off
    torch.testing.assert_close(actual.float(), expected.float(), rtol=0, atol=tolerance)


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_makes_what_torch_does(name: str, interpreted: dict[str, Tensor]) -> None:
    case = CASES[name]
    # Pixels from 0 to 255, or colours in [-1, 1]; where those are dark or grey, HSV noise makes more of rounding.
    tolerance = 2e-3 if case.colours is None else 2e-4 if case.colours.hsv else 2e-5
    assert_close(interpreted[name], case.by_torch(), tolerance)


@needs_triton
@pytest.mark.parametrize("name", THROUGH)
def test_what_the_encoder_sees_is_the_same_with_the_kernel(name: str, interpreted: dict[str, Tensor]) -> None:
    expected = dict(through_augment(samples_of(4, planar=True, sizes=SIZES[:3])))[name]
    actual = interpreted[f"through augment: {name}"]
    if name == "AutoAugment":  # a level of the crop may become many in what is equalised or turned
        assert actual.shape == expected.shape and ((actual - expected).abs() > 0.02).float().mean() < 0.02
    else:
        assert_close(actual, expected, 2e-4 if name == "patches" else 2e-5)


COLOURS = [
    Augment(48, flip=flip, brightness=brightness, saturation=saturation, hue=hue, contrast=contrast, hsv=hsv)
    for flip, brightness, saturation, hue, contrast, hsv in itertools.product(
        [True, False], [0.125, 0.0], [0.5, 0.0], [0.1, 0.0], [0.2, 0.0], [False, True]
    )
]


@needs_gpu
@pytest.mark.parametrize("planar", [False, True])
def test_a_gpu_augments_as_a_cpu_does_for_all_settings(planar: bool) -> None:
    samples = samples_of(60, planar, sizes=[(60, 90), (90, 60), (20, 30), (1, 1), (256, 455)])
    there = Samples(samples.pixels.to(torch.device("cuda")), samples.draws)
    for settings in COLOURS:
        expected, actual = augment(samples, settings), augment(there, settings)
        assert actual.is_cuda and actual.dtype == torch.float32
        difference = (actual.cpu() - expected).abs()
        if settings.hsv:  # the fourth root of a saturation or value near 0: a few pixels differ more
            assert (difference > 0.005).float().mean() < 0.01
        else:
            assert difference.max() < 0.005
        halves = augment(there, settings, torch.bfloat16)
        torch.testing.assert_close(halves.float(), actual, rtol=2**-8, atol=1e-7)  # rounded to the nearest


@needs_gpu
@pytest.mark.parametrize("size", [1, 16, 33, 224])
def test_a_gpu_crops_as_a_cpu_does(size: int) -> None:
    for planar in (False, True):
        samples = samples_of(30, planar, sizes=[(60, 90), (20, 30), (1, 1), (256, 455), (3, 700)])
        boxes = random_boxes(samples.pixels.sizes, samples.draws, (0.1, 1.0), (0.75, 4 / 3))
        flips = samples.draws[:, FLIP] < 0.5
        there = samples.pixels.to(torch.device("cuda"))
        for dtype in (torch.uint8, torch.float32):
            made = resized(there, boxes, flips, size, dtype)
            assert made.is_contiguous(memory_format=torch.channels_last)
            assert_close(made.cpu().contiguous(), resized(samples.pixels, boxes, flips, size, dtype), 0.01)
        assert len(resized(there[:0], boxes[:0], flips[:0], size)) == 0


if __name__ == "__main__":
    from vivi.batches import augment as module
    from vivi.batches.kernel import works

    assert works(torch.device("cpu"))
    made = {name: case.by_kernel() for name, case in CASES.items()}
    module.has_kernel = lambda device: True  # type: ignore[assignment]
    samples = samples_of(4, planar=True, sizes=SIZES[:3])
    made |= {f"through augment: {name}": images for name, images in through_augment(samples)}
    torch.save(made, sys.argv[1])
