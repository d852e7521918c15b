"""AutoAugment on a whole batch, on the device: every operation runs once on the images that drew it.

An image draws one of 25 sub-policies, and of its two operations each is applied with its own probability. Two lists
circulate as the ImageNet policy, each with arithmetic of its own, and both are here, pixel for pixel:

    imagenet    Table 9 of the AutoAugment paper, as torchvision computes it on uint8 (AutoAugmentPolicy.IMAGENET)
    v0          tensorflow/tpu's policy_v0 for EfficientNet, as TensorFlow computes it

Who draws what is decided on the CPU, from the draws that arrive with the images, so the device never has to wait. An
image comes out the same whatever is beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.batches.pixels import upload

# What each of an image's uniform numbers decides.
SUB_POLICY, FIRST, SECOND, FIRST_SIGN, SECOND_SIGN = range(5)
AUTOAUGMENT_DRAWS = 5

Policy = Literal["imagenet", "v0"]
Step = tuple[str, float, int]  # operation, probability, level

# Images that go through an operation together: on a CPU so few that they stay in its cache, elsewhere so many that
# the device is busy and the indices of equalize (8 bytes a value) do not fill it.
_AT_ONCE_ON_CPU = 8
_AT_ONCE = 512

# What shows where a moved image has no pixels.
_FILL: dict[Policy, int] = {"imagenet": 0, "v0": 128}

# The operations whose magnitude is negated half of the time.
_SIGNED: dict[Policy, tuple[str, ...]] = {
    "imagenet": ("ShearX", "Rotate", "Color", "Contrast", "Sharpness"),
    "v0": ("ShearX", "ShearY", "TranslateY", "Rotate"),
}

# The level of an operation that has none is 0.
SUB_POLICIES: dict[Policy, tuple[tuple[Step, Step], ...]] = {
    "imagenet": (
        (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
        (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
        (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
        (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
        (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
        (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
        (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
        (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
        (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
        (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
        (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
        (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
        (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
        (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
        (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
        (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
        (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
        (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
        (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    ),
    "v0": (
        (("Equalize", 0.8, 1), ("ShearY", 0.8, 4)),
        (("Color", 0.4, 9), ("Equalize", 0.6, 3)),
        (("Color", 0.4, 1), ("Rotate", 0.6, 8)),
        (("Solarize", 0.8, 3), ("Equalize", 0.4, 7)),
        (("Solarize", 0.4, 2), ("Solarize", 0.6, 2)),
        (("Color", 0.2, 0), ("Equalize", 0.8, 8)),
        (("Equalize", 0.4, 8), ("SolarizeAdd", 0.8, 3)),
        (("ShearX", 0.2, 9), ("Rotate", 0.6, 8)),
        (("Color", 0.6, 1), ("Equalize", 1.0, 2)),
        (("Invert", 0.4, 9), ("Rotate", 0.6, 0)),
        (("Equalize", 1.0, 9), ("ShearY", 0.6, 3)),
        (("Color", 0.4, 7), ("Equalize", 0.6, 0)),
        (("Posterize", 0.4, 6), ("AutoContrast", 0.4, 7)),
        (("Solarize", 0.6, 8), ("Color", 0.6, 9)),
        (("Solarize", 0.2, 4), ("Rotate", 0.8, 9)),
        (("Rotate", 1.0, 7), ("TranslateY", 0.8, 9)),
        (("ShearX", 0.0, 0), ("Solarize", 0.8, 4)),
        (("ShearY", 0.8, 0), ("Color", 0.6, 4)),
        (("Color", 1.0, 0), ("Rotate", 0.6, 2)),
        (("Equalize", 0.8, 4), ("Equalize", 0.0, 8)),
        (("Equalize", 1.0, 4), ("AutoContrast", 0.6, 2)),
        (("ShearY", 0.4, 7), ("SolarizeAdd", 0.6, 7)),
        (("Posterize", 0.8, 2), ("Solarize", 0.6, 10)),
        (("Solarize", 0.6, 8), ("Equalize", 0.6, 1)),
        (("Color", 0.8, 6), ("Rotate", 0.4, 5)),
    ),
}


@dataclass(frozen=True)
class Job:
    """One operation, and the images it runs on."""

    operation: str
    who: NDArray[np.int64]  # (k,): places in the batch
    magnitudes: NDArray[np.float64]  # (k,)


def autoaugment(images: Tensor, draws: NDArray[np.float32], policy: Policy) -> Tensor:
    """uint8 (n, 3, h, w) on any device, draws (n, 5) uniform in [0, 1) on the CPU -> uint8 (n, 3, h, w) there."""
    images = images.clone(memory_format=torch.contiguous_format)
    jobs = plan(draws, policy, _AT_ONCE_ON_CPU if images.device.type == "cpu" else _AT_ONCE)
    if not jobs:
        return images
    everyone = upload(torch.from_numpy(np.concatenate([job.who for job in jobs])), images.device)
    for job, who in zip(jobs, everyone.split([len(job.who) for job in jobs]), strict=True):
        changed = apply(job.operation, images.index_select(0, who), job.magnitudes, policy)
        images.index_copy_(0, who, changed)
    return images


def plan(draws: NDArray[np.float32], policy: Policy, at_once: int = _AT_ONCE) -> list[Job]:
    """What runs on which images, in order: everyone's first operations, then everyone's second ones."""
    sub_policies = SUB_POLICIES[policy]
    chosen = (draws[:, SUB_POLICY].astype(np.float64) * len(sub_policies)).astype(np.int64)  # (n,)
    jobs = []
    for stage, (applies, sign) in enumerate([(FIRST, FIRST_SIGN), (SECOND, SECOND_SIGN)]):
        steps = [sub_policy[stage] for sub_policy in sub_policies]
        operations = np.array([operation for operation, _, _ in steps])[chosen]  # (n,), like all that follows
        probabilities = np.array([probability for _, probability, _ in steps])[chosen]
        magnitudes = np.array([magnitude(operation, level, policy) for operation, _, level in steps])[chosen]
        negated = np.isin(operations, _SIGNED[policy]) & (draws[:, sign] < 0.5)
        magnitudes = np.where(negated, -magnitudes, magnitudes)
        applied = draws[:, applies] < probabilities
        for operation in np.unique(operations[applied]):
            everyone = np.flatnonzero(applied & (operations == operation))
            for start in range(0, len(everyone), at_once):
                who = everyone[start : start + at_once]
                jobs.append(Job(str(operation), who, magnitudes[who]))
    return jobs


@cache
def magnitude(operation: str, level: int, policy: Policy) -> float:
    """What a level means: degrees, pixels, a threshold ... 0 for the operations that have no levels."""
    if policy == "imagenet":
        match operation:
            case "Posterize":
                return 8 - round(level / (9 / 4))
            case "Solarize":
                return 255 * float(torch.linspace(1, 0, 10)[level])
        most = {"ShearX": 0.3, "Rotate": 30, "Color": 0.9, "Contrast": 0.9, "Sharpness": 0.9}.get(operation, 0)
        return float(torch.linspace(0, most, 10)[level])
    share = level / 10
    match operation:
        case "ShearX" | "ShearY":
            return share * 0.3
        case "TranslateY":
            return share * 250  # pixels, whatever the size of the image: level 9 leaves nothing of 224
        case "Rotate":
            return share * 30
        case "Color":
            return share * 1.8 + 0.1
        case "Posterize":
            # Without a bit (level 2) TensorFlow would shift 8 bits by 8; it shifts by 7 at most, and one bit stays.
            return max(int(share * 4), 1)
        case "Solarize":
            # Level 10 is 256: no pixel is inverted. (TensorFlow compares in uint8, where 256 may have become 0.)
            return int(share * 256)
        case "SolarizeAdd":
            return int(share * 110)
    return 0


def apply(operation: str, images: Tensor, magnitudes: NDArray[np.float64], policy: Policy) -> Tensor:
    """One operation on uint8 (n, 3, h, w) images, with a magnitude (n,) for each."""
    match operation:
        case "ShearX":
            return shear_x(images, magnitudes, policy)
        case "ShearY":
            return shear_y(images, magnitudes, policy)
        case "TranslateY":
            return translate_y(images, magnitudes)
        case "Rotate":
            return rotate(images, magnitudes, policy)
        case "Color":
            return colour(images, 1 + magnitudes if policy == "imagenet" else magnitudes, policy)
        case "Contrast":
            return contrast(images, 1 + magnitudes)
        case "Sharpness":
            return sharpness(images, 1 + magnitudes)
        case "Posterize":
            return posterize(images, magnitudes)
        case "Solarize":
            return solarize(images, magnitudes)
        case "SolarizeAdd":
            return solarize_add(images, magnitudes)
        case "AutoContrast":
            return auto_contrast(images, policy)
        case "Equalize":
            return equalize(images)
        case "Invert":
            return invert(images)
    raise ValueError(f"no operation is called {operation}")


# The operations take and return uint8 (n, 3, h, w); a magnitude is one number for each image, (n,), on the CPU.


def shear_x(images: Tensor, shears: NDArray[np.float64], policy: Policy) -> Tensor:
    """A row moves by `shear` times its y: from the image's edge in torchvision, from the first row in TensorFlow."""
    matrices = np.tile(np.eye(2, 3), (len(shears), 1, 1))  # (n, 2, 3)
    matrices[:, 0, 1] = shears
    matrices[:, 0, 2] = shears * images.shape[2] / 2 if policy == "imagenet" else 0
    return affine(images, matrices, policy)


def shear_y(images: Tensor, shears: NDArray[np.float64], policy: Policy) -> Tensor:
    """A column moves by `shear` times its x."""
    matrices = np.tile(np.eye(2, 3), (len(shears), 1, 1))  # (n, 2, 3)
    matrices[:, 1, 0] = shears
    matrices[:, 1, 2] = shears * images.shape[3] / 2 if policy == "imagenet" else 0
    return affine(images, matrices, policy)


def translate_y(images: Tensor, pixels: NDArray[np.float64]) -> Tensor:
    """Moved up; of the two lists only v0 does it."""
    matrices = np.tile(np.eye(2, 3), (len(pixels), 1, 1))  # (n, 2, 3)
    matrices[:, 1, 2] = pixels
    return affine(images, matrices, "v0")


def rotate(images: Tensor, degrees: NDArray[np.float64], policy: Policy) -> Tensor:
    """Turned counter-clockwise about the middle of the image."""
    angles: NDArray[np.floating] = np.radians(degrees)
    if policy == "v0":  # TensorFlow is in float32 from here on
        angles = degrees.astype(np.float32) * np.float32(np.pi / 180)
    sin, cos = np.sin(angles), np.cos(angles)
    matrices = np.tile(np.eye(2, 3), (len(degrees), 1, 1))  # (n, 2, 3)
    matrices[:, 0, 0], matrices[:, 0, 1] = cos, -sin
    matrices[:, 1, 0], matrices[:, 1, 1] = sin, cos
    if policy == "v0":  # its origin is the upper left pixel
        bottom, right = np.float32(images.shape[2] - 1), np.float32(images.shape[3] - 1)
        matrices[:, 0, 2] = (right - (cos * right - sin * bottom)) / 2
        matrices[:, 1, 2] = (bottom - (sin * right + cos * bottom)) / 2
    return affine(images, matrices, policy)


def affine(images: Tensor, matrices: NDArray[np.float64], policy: Policy) -> Tensor:
    """The pixel at (x, y) becomes the one nearest to matrix · (x, y, 1), or the policy's fill if that is outside.

    Nearest is decided by float32 arithmetic, and where two pixels are equally near (a sine of 0.5, a shear of 0.09
    at pixel 50) by its last bit. So the sums are those of the originals, term by term:

    imagenet    the origin is the middle; coordinates in [-1, 1] as for grid_sample; halves are rounded to even
    v0          the origin is the upper left pixel; coordinates in pixels; halves are rounded away from zero
    """
    height, width = images.shape[2:]
    x = torch.arange(width, dtype=torch.float32, device=images.device)
    y = torch.arange(height, dtype=torch.float32, device=images.device)
    rows = matrices.astype(np.float32)
    if policy == "imagenet":
        x, y = x - (width - 1) / 2, y - (height - 1) / 2
        rows /= np.array([width / 2, height / 2], np.float32)[:, None]
    terms = upload(torch.from_numpy(rows), images.device)[..., None, None]  # (n, 2, 3, 1, 1)

    def source(axis: int, size: int) -> Tensor:
        from_x, from_y, shift = terms[:, axis].unbind(1)  # (n, 1, 1) each
        place = (from_x * x + from_y * y[:, None]).add_(shift)  # (n, h, w)
        if policy == "imagenet":
            return place.add_(1).mul_(size / 2).sub_(0.5).round_()
        whole = place.trunc()
        return place.sub_(whole).mul_(2).trunc_().add_(whole)

    source_x, source_y = source(0, width), source(1, height)
    outside = (source_x < 0) | (source_x >= width) | (source_y < 0) | (source_y >= height)
    index = source_y.clamp_(0, height - 1).long().mul_(width).add_(source_x.clamp_(0, width - 1).long())
    pixels = images.flatten(2)  # (n, 3, h w)
    moved = pixels.gather(2, index.flatten(1)[:, None].expand_as(pixels)).view(images.shape)
    return moved.masked_fill_(outside[:, None], _FILL[policy])


def colour(images: Tensor, factors: NDArray[np.float64], policy: Policy) -> Tensor:
    """Between the image in grey (0) and the image itself (1), or beyond it."""
    if policy == "imagenet":
        return _blend(images, _grey(images), factors)
    # tf.image.rgb_to_grayscale works in [0, 1] and multiplies by 255.5 to return, so its greys are a little brighter.
    red, green, blue = (images * (1 / 255)).unbind(1)  # (n, h, w) each
    grey = (red * 0.2989 + green * 0.587 + blue * 0.114).mul_(255.5).floor_()[:, None]  # (n, 1, h, w)
    return (images - grey).mul_(_each(factors, images)).add_(grey).clamp_(0, 255).to(torch.uint8)


def contrast(images: Tensor, factors: NDArray[np.float64]) -> Tensor:
    """Between the mean of the image in grey (0) and the image itself (1), or beyond it."""
    pixels = images.shape[2] * images.shape[3]
    total = _grey(images).sum(dim=(2, 3), keepdim=True, dtype=torch.int64)  # exact, in whatever order
    values = torch.arange(256, dtype=torch.uint8, device=images.device).view(1, 1, 1, 256)
    tables = _blend(values, total.float() / pixels, factors)  # (n, 1, 1, 256)
    return look_up(tables[:, 0], images)


def _grey(images: Tensor) -> Tensor:
    """torchvision's grey, (n, 1, h, w), whole numbers in float32."""
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()[:, None]


def _blend(images: Tensor, others: Tensor, factors: NDArray[np.float64]) -> Tensor:
    """factor · image + (1 - factor) · other, as torchvision: the second product and the sum are rounded as one."""
    own, rest = _each(factors, images), _each(1 - factors, images)
    return torch.addcmul(images * own, others, rest).clamp_(0, 255).to(torch.uint8)


def sharpness(images: Tensor, factors: NDArray[np.float64]) -> Tensor:
    """Between the image blurred (0) and the image itself (1), or beyond it; the outermost pixels stay as they are."""
    wide = images.to(torch.int16)
    three = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]  # (n, 3, h - 2, w)
    centre = wide[:, :, 1:-1, 1:-1]
    # The weights are 1/13, and 5/13 in the middle: a thirteenth is never halfway, so rounding needs no floats.
    total = three[..., :-2] + three[..., 1:-1] + three[..., 2:] + 4 * centre  # (n, 3, h - 2, w - 2)
    blurred = (2 * total + 13) // 26
    inner = torch.addcmul(centre.float(), (blurred - centre).float(), _each(1 - factors, images))
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = inner.clamp_(0, 255).to(torch.uint8)
    return result


def posterize(images: Tensor, bits: NDArray[np.float64]) -> Tensor:
    """Only the highest bits of every value are kept."""
    return images & _each(256 - 2 ** (8 - bits), images, np.uint8)


def solarize(images: Tensor, thresholds: NDArray[np.float64]) -> Tensor:
    """Values of at least the threshold are inverted."""
    # In float32, as torchvision compares: there 255 · 2/3 is 170, and not a little more.
    whole = np.ceil(thresholds.astype(np.float32))
    return torch.where(images >= _each(whole, images, np.int16), ~images, images)


def solarize_add(images: Tensor, additions: NDArray[np.float64]) -> Tensor:
    """Values under 128 become brighter, by 110 at most: nothing has to be clipped."""
    return torch.where(images < 128, images + _each(additions, images, np.uint8), images)


def auto_contrast(images: Tensor, policy: Policy) -> Tensor:
    """Each channel stretched from 0 to 255; one of a single value stays as it is."""
    least = images.amin(dim=(2, 3)).float()[..., None]  # (n, 3, 1)
    spread = images.amax(dim=(2, 3)).float()[..., None] - least
    values = torch.arange(256, dtype=torch.float32, device=images.device)
    # The same numbers but for their last bit, and then they are cut off to whole ones.
    if policy == "imagenet":
        stretched = (values - least) / (spread * (1 / 255))
    else:
        scale = torch.full_like(spread, 255) / spread  # 255 / spread would be 255 · (1 / spread), rounded twice
        stretched = values * scale + (-least * scale)
    tables = torch.where(spread > 0, stretched.clamp_(0, 255), values)  # (n, 3, 256)
    return look_up(tables.to(torch.uint8), images)


def equalize(images: Tensor) -> Tensor:
    """Each channel with all values about equally frequent; PIL's whole numbers, as in torchvision and TensorFlow."""
    pixels = images.shape[2] * images.shape[3]
    values = images.flatten(2).long()  # (n, 3, h w)
    histogram = values.new_zeros((*values.shape[:2], 256), dtype=torch.int32)
    histogram.scatter_add_(2, values, histogram.new_ones(1).expand_as(values))
    up_to = histogram.cumsum(dim=2)  # (n, 3, 256)
    below_the_brightest = torch.where(up_to < pixels, up_to, 0).amax(dim=2, keepdim=True)
    step = below_the_brightest // 255
    tables = (up_to - histogram + step // 2) // step.clamp(min=1)
    tables = torch.where(step > 0, tables.clamp_(max=255), torch.arange(256, device=images.device))
    return tables.to(torch.uint8).gather(2, values).view(images.shape)


def invert(images: Tensor) -> Tensor:
    """Light becomes dark."""
    return ~images


def look_up(tables: Tensor, images: Tensor) -> Tensor:
    """Every value replaced by what the table of its channel, (n, 3, 256), or of its image, (n, 1, 256), says."""
    values = images.flatten(2).long()  # (n, 3, h w)
    return tables.expand(-1, images.shape[1], -1).gather(2, values).view(images.shape)


def _each(values: NDArray[np.floating], images: Tensor, kind: type[np.generic] = np.float32) -> Tensor:
    """One number for each image, (n, 1, 1, 1), beside the images."""
    return upload(torch.from_numpy(values.astype(kind)), images.device).view(-1, 1, 1, 1)
