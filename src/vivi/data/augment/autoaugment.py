"""AutoAugment on a whole batch, on the device: every operation runs once on all images that it applies to.

An image gets one of 25 sub-policies, and of its two operations each is applied with its own probability. Two lists
circulate as the ImageNet policy, each with arithmetic of its own, and both are here, pixel for pixel:

    imagenet    Table 9 of the AutoAugment paper, AutoAugmentPolicy.IMAGENET of torchvision, by its functions
    v0          tensorflow/tpu's policy_v0 for EfficientNet, as TensorFlow computes it

Which image gets what is decided on the CPU, from the uniforms that arrive with the images, so the device never has to
wait. An image comes out the same whatever is beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import AutoAugment, AutoAugmentPolicy
from torchvision.transforms.v2 import functional as vision

from vivi.data.packed import upload

# What each of an image's uniform numbers decides.
SUB_POLICY, FIRST, SECOND, FIRST_SIGN, SECOND_SIGN = range(5)

Policy = Literal["imagenet", "v0"]
Step = tuple[str, float, int]  # operation, probability, level

# Images that go through an operation together: on a CPU so few that they stay in its cache, elsewhere so many that
# the device is busy and the indices of equalize (8 bytes a value) do not fill it.
_CHUNK_ON_CPU, _CHUNK = 8, 512

# policy_v0 of tensorflow/tpu: operations as name, probability, level, of which each two are a sub-policy.
_V0 = """
Equalize 0.8 1  ShearY 0.8 4           Color 0.4 9  Equalize 0.6 3            Color 0.4 1  Rotate 0.6 8
Solarize 0.8 3  Equalize 0.4 7         Solarize 0.4 2  Solarize 0.6 2         Color 0.2 0  Equalize 0.8 8
Equalize 0.4 8  SolarizeAdd 0.8 3      ShearX 0.2 9  Rotate 0.6 8             Color 0.6 1  Equalize 1.0 2
Invert 0.4 9  Rotate 0.6 0             Equalize 1.0 9  ShearY 0.6 3           Color 0.4 7  Equalize 0.6 0
Posterize 0.4 6  AutoContrast 0.4 7    Solarize 0.6 8  Color 0.6 9            Solarize 0.2 4  Rotate 0.8 9
Rotate 1.0 7  TranslateY 0.8 9         ShearX 0.0 0  Solarize 0.8 4           ShearY 0.8 0  Color 0.6 4
Color 1.0 0  Rotate 0.6 2              Equalize 0.8 4  Equalize 0.0 8         Equalize 1.0 4  AutoContrast 0.6 2
ShearY 0.4 7  SolarizeAdd 0.6 7        Posterize 0.8 2  Solarize 0.6 10       Solarize 0.6 8  Equalize 0.6 1
Color 0.8 6  Rotate 0.4 5
"""


@cache
def sub_policies(policy: Policy) -> list[tuple[Step, Step]]:
    """The 25 pairs of operations; the level of an operation that has none is 0."""
    if policy == "imagenet":
        pairs = AutoAugment(AutoAugmentPolicy.IMAGENET).policies
        return [((a, p, i or 0), (b, q, j or 0)) for (a, p, i), (b, q, j) in pairs]
    words = _V0.split()
    steps = [(a, float(p), int(i)) for a, p, i in zip(words[::3], words[1::3], words[2::3], strict=True)]
    return list(zip(steps[::2], steps[1::2], strict=True))


def autoaugment(images: Tensor, uniforms: NDArray[np.float32], policy: Policy) -> Tensor:
    """uint8 (n, 3, h, w) on any device, uniforms (n, 5) in [0, 1) on the CPU -> uint8 (n, 3, h, w) there."""
    images = images.clone(memory_format=torch.contiguous_format)
    planned = plan(uniforms, policy, _CHUNK_ON_CPU if images.device.type == "cpu" else _CHUNK)
    if not planned:
        return images
    places = upload(torch.from_numpy(np.concatenate([which for _, which, _ in planned])), images.device)
    parts = places.split([len(which) for _, which, _ in planned])
    for (name, _, magnitudes), which in zip(planned, parts, strict=True):
        changed = OPERATIONS[policy][name].run(images.index_select(0, which), magnitudes)
        images.index_copy_(0, which, changed)
    return images


def plan(
    uniforms: NDArray[np.float32], policy: Policy, chunk: int = _CHUNK
) -> list[tuple[str, NDArray[np.int64], NDArray[np.float64]]]:
    """What runs, on which images (k,), with what magnitudes (k,), in order: the first operations of all images, then
    the second ones."""
    pairs = sub_policies(policy)
    chosen = (uniforms[:, SUB_POLICY].astype(np.float64) * len(pairs)).astype(np.int64)  # (n,)
    planned = []
    for steps, applies, sign in zip(
        zip(*pairs, strict=True), (FIRST, SECOND), (FIRST_SIGN, SECOND_SIGN), strict=True
    ):
        names, probabilities, levels = (np.array(column)[chosen] for column in zip(*steps, strict=True))  # (n,) each
        applied = uniforms[:, applies] < probabilities
        for name in np.unique(names[applied]).tolist():
            which = np.flatnonzero(applied & (names == name))
            values = np.array([magnitude(name, level, policy) for level in levels[which].tolist()], np.float64)
            if OPERATIONS[policy][name].signed:
                values = np.where(uniforms[which, sign] < 0.5, -values, values)
            parts = (slice(start, start + chunk) for start in range(0, len(which), chunk))
            planned += [(name, which[part], values[part]) for part in parts]
    return planned


@cache
def magnitude(operation: str, level: int, policy: Policy) -> float:
    return OPERATIONS[policy][operation].magnitude(level)


# Operations take and return uint8 (n, 3, h, w); a magnitude is one number for each image, (n,), on the CPU.
Run = Callable[[Tensor, NDArray[np.float64]], Tensor]


class Operation(NamedTuple):
    """What it does, and what a level means: degrees, pixels, a threshold ... 0 where there are no levels."""

    run: Run
    magnitude: Callable[[int], float] = lambda level: 0.0
    signed: bool = False  # whether the magnitude is negated half of the time


# Torchvision's, which have one magnitude for all images.


def _for_each(operate: Callable[[Tensor, float], Tensor], most: float) -> Operation:
    """The operation on the images of each magnitude; its ten levels go up to `most`."""

    def run(images: Tensor, magnitudes: NDArray[np.float64]) -> Tensor:
        changed = images.clone()
        for value in np.unique(magnitudes):
            which = upload(torch.from_numpy(np.flatnonzero(magnitudes == value)), images.device)
            changed.index_copy_(0, which, operate(images.index_select(0, which), float(value)))
        return changed

    return Operation(run, lambda level: float(torch.linspace(0, most, 10)[level]), signed=True)


def shear_x(images: Tensor, slope: float) -> Tensor:
    sheared: Tensor = vision.affine(images, 0.0, [0, 0], 1.0, [math.degrees(math.atan(slope)), 0.0], center=[0, 0])
    return sheared


@cache
def source_pixels(move: Callable[[Tensor, float], Tensor], amount: float, height: int, width: int) -> Tensor:
    """From which pixel each pixel comes, counted from 1, or 0 if from outside: (height · width,). torchvision moves
    an image of these numbers on the CPU; given images on a GPU, it makes the host wait for them."""
    numbers = torch.arange(1, height * width + 1, dtype=torch.float32).view(1, height, width)
    return move(numbers, amount).long().flatten()


def moved(move: Callable[[Tensor, float], Tensor], images: Tensor, amount: float) -> Tensor:
    """Images whose pixels a function of torchvision moves, without its wait for the GPU."""
    source = upload(source_pixels(move, amount, images.shape[2], images.shape[3]), images.device)
    padded = F.pad(images.flatten(2), (1, 0))  # from outside comes black
    return padded.index_select(2, source).view(images.shape)


def sharpen(images: Tensor, change: float) -> Tensor:
    """torchvision's, but for a filter that is made on the device: the host does not wait."""
    if min(images.shape[2:]) <= 2:
        return images
    smooth = torch.full((3, 1, 3, 3), 1 / 13, device=images.device)
    smooth[:, :, 1, 1] = 5 / 13
    values = images.float()
    inner = values[..., 1:-1, 1:-1]
    blurred = F.conv2d(values, smooth, groups=3).round_()
    inner.add_(blurred.sub_(inner), alpha=1.0 - (1 + change))
    return values.clamp_(0, 255).to(torch.uint8)


# TensorFlow's.


def affine_at(row: int, column: int, images: Tensor, magnitudes: NDArray[np.float64]) -> Tensor:
    """Affine, by the identity but for the magnitude at one place of the matrix."""
    matrices = np.tile(np.eye(2, 3), (len(magnitudes), 1, 1))
    matrices[:, row, column] = magnitudes
    return affine(images, matrices)


def rotate(images: Tensor, degrees: NDArray[np.float64]) -> Tensor:
    """Turned counter-clockwise about the middle of the image."""
    angles = degrees.astype(np.float32) * np.float32(np.pi / 180)  # TensorFlow is in float32 from here on
    sin, cos = np.sin(angles), np.cos(angles)
    bottom, right = np.float32(images.shape[2] - 1), np.float32(images.shape[3] - 1)
    matrices = np.empty((len(degrees), 2, 3))
    matrices[:, 0, 0], matrices[:, 0, 1] = cos, -sin
    matrices[:, 1, 0], matrices[:, 1, 1] = sin, cos
    matrices[:, 0, 2] = (right - (cos * right - sin * bottom)) / 2
    matrices[:, 1, 2] = (bottom - (sin * right + cos * bottom)) / 2
    return affine(images, matrices)


def affine(images: Tensor, matrices: NDArray[np.float64]) -> Tensor:
    """The pixel at (x, y), counted from the upper left one, becomes the one nearest to matrix · (x, y, 1), or grey if
    that is outside.

    Nearest is decided by float32 arithmetic, and where two pixels are equally near (a sine of 0.5, a shear of 0.09
    at pixel 50) by its last bit. So the sums are TensorFlow's, term by term, and halves are rounded away from zero.
    """
    height, width = images.shape[2:]
    x = torch.arange(width, dtype=torch.float32, device=images.device)
    y = torch.arange(height, dtype=torch.float32, device=images.device)
    terms = upload(torch.from_numpy(matrices.astype(np.float32)), images.device)[..., None, None]  # (n, 2, 3, 1, 1)

    def nearest(axis: int) -> Tensor:
        from_x, from_y, shift = terms[:, axis].unbind(1)  # (n, 1, 1) each
        place = (from_x * x + from_y * y[:, None]).add_(shift)  # (n, h, w)
        whole = place.trunc()
        return place.sub_(whole).mul_(2).trunc_().add_(whole)

    source_x, source_y = nearest(0), nearest(1)
    outside = (source_x < 0) | (source_x >= width) | (source_y < 0) | (source_y >= height)
    index = source_y.clamp_(0, height - 1).long().mul_(width).add_(source_x.clamp_(0, width - 1).long())
    pixels = images.flatten(2)  # (n, 3, h w)
    moved = pixels.gather(2, index.flatten(1)[:, None].expand_as(pixels)).view(images.shape)
    return moved.masked_fill_(outside[:, None], 128)


def colour(images: Tensor, factors: NDArray[np.float64]) -> Tensor:
    """Between the image in grey (0) and the image itself (1), or beyond it."""
    # tf.image.rgb_to_grayscale works in [0, 1] and multiplies by 255.5 to return, so its greys are a little brighter.
    red, green, blue = (images * (1 / 255)).unbind(1)  # (n, h, w) each
    grey = (red * 0.2989 + green * 0.587 + blue * 0.114).mul_(255.5).floor_()[:, None]  # (n, 1, h, w)
    return (images - grey).mul_(_each(factors, images)).add_(grey).clamp_(0, 255).to(torch.uint8)


def posterize(images: Tensor, bits: NDArray[np.float64]) -> Tensor:
    """Only the highest bits of every value are kept."""
    return images & _each(256 - 2 ** (8 - bits), images, np.uint8)


def solarize(images: Tensor, thresholds: NDArray[np.float64]) -> Tensor:
    """Values of at least the threshold are inverted."""
    return torch.where(images >= _each(thresholds, images), ~images, images)


def solarize_add(images: Tensor, additions: NDArray[np.float64]) -> Tensor:
    """Values under 128 become brighter, by 110 at most: nothing has to be clipped."""
    return torch.where(images < 128, images + _each(additions, images, np.uint8), images)


def auto_contrast(images: Tensor, _: NDArray[np.float64]) -> Tensor:
    """Each channel stretched from 0 to 255; one of a single value stays as it is."""
    least = images.amin(dim=(2, 3)).float()[..., None]  # (n, 3, 1)
    spread = images.amax(dim=(2, 3)).float()[..., None] - least
    values = torch.arange(256, dtype=torch.float32, device=images.device)
    scale = torch.full_like(spread, 255) / spread  # 255 / spread would be 255 · (1 / spread), rounded twice
    stretched = values * scale + (-least * scale)
    tables = torch.where(spread > 0, stretched.clamp_(0, 255), values).to(torch.uint8)  # (n, 3, 256)
    return tables.gather(2, images.flatten(2).long()).view(images.shape)


def _each(values: NDArray[np.floating], images: Tensor, kind: type[np.generic] = np.float32) -> Tensor:
    """One number for each image, (n, 1, 1, 1), beside the images."""
    return upload(torch.from_numpy(values.astype(kind)), images.device).view(-1, 1, 1, 1)


EQUALIZE, INVERT = Operation(lambda images, _: vision.equalize(images)), Operation(lambda images, _: ~images)
OPERATIONS: dict[Policy, dict[str, Operation]] = {
    "imagenet": {
        "ShearX": _for_each(partial(moved, shear_x), 0.3),
        "Rotate": _for_each(partial(moved, vision.rotate), 30),
        "Color": _for_each(lambda images, change: vision.adjust_saturation(images, 1 + change), 0.9),
        "Contrast": _for_each(lambda images, change: vision.adjust_contrast(images, 1 + change), 0.9),
        "Sharpness": _for_each(sharpen, 0.9),
        "Posterize": Operation(posterize, lambda level: 8 - round(level / (9 / 4))),
        "Solarize": Operation(solarize, lambda level: 255 * float(torch.linspace(1, 0, 10)[level])),
        "AutoContrast": Operation(lambda images, _: vision.autocontrast(images)),
        "Equalize": EQUALIZE,
        "Invert": INVERT,
    },
    "v0": {
        # A row moves by the magnitude times its y, a column by the magnitude times its x.
        "ShearX": Operation(partial(affine_at, 0, 1), lambda level: level / 10 * 0.3, signed=True),
        "ShearY": Operation(partial(affine_at, 1, 0), lambda level: level / 10 * 0.3, signed=True),
        # Up, in pixels, whatever the size of the image: level 9 leaves nothing of 224.
        "TranslateY": Operation(partial(affine_at, 1, 2), lambda level: level / 10 * 250, signed=True),
        "Rotate": Operation(rotate, lambda level: level / 10 * 30, signed=True),
        "Color": Operation(colour, lambda level: level / 10 * 1.8 + 0.1),
        # Without a bit (level 2) TensorFlow would shift 8 bits by 8; it shifts by 7 at most, and one bit stays.
        "Posterize": Operation(posterize, lambda level: max(int(level / 10 * 4), 1)),
        # Level 10 is 256: no pixel is inverted. (TensorFlow compares in uint8: 256 may be 0 there.)
        "Solarize": Operation(solarize, lambda level: int(level / 10 * 256)),
        "SolarizeAdd": Operation(solarize_add, lambda level: int(level / 10 * 110)),
        "AutoContrast": Operation(auto_contrast),
        "Equalize": EQUALIZE,
        "Invert": INVERT,
    },
}
