"""AutoAugment as others compute it, image by image: torchvision's own code, and TensorFlow's in numpy and PIL."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import v2

from vivi.data.augment.autoaugment import FIRST, FIRST_SIGN, SECOND, SECOND_SIGN, SUB_POLICY, sub_policies

TORCHVISION = v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET)
SIGNED = {"ShearX", "ShearY", "TranslateY", "Rotate"}


# torchvision, image by image.


def torchvision_magnitude(operation: str, level: int) -> float:
    magnitudes = TORCHVISION._AUGMENTATION_SPACE[operation][0](10, 0, 0)
    return 0.0 if magnitudes is None else float(magnitudes[level])


def torchvision_operation(image: Tensor, operation: str, value: float) -> Tensor:
    nearest, fill = v2.InterpolationMode.NEAREST, TORCHVISION._fill
    result: Tensor = TORCHVISION._apply_image_or_video_transform(image, operation, value, nearest, fill)
    return result


def torchvision_policy(image: Tensor, uniforms: list[float]) -> Tensor:
    sub_policy = TORCHVISION._policies[int(uniforms[SUB_POLICY] * 25)]
    for (operation, probability, level), applies, sign in zip(
        sub_policy, (uniforms[FIRST], uniforms[SECOND]), (uniforms[FIRST_SIGN], uniforms[SECOND_SIGN]), strict=True
    ):
        if applies < probability:
            value = torchvision_magnitude(operation, level)
            if TORCHVISION._AUGMENTATION_SPACE[operation][1] and sign < 0.5:
                value = -value
            image = torchvision_operation(image, operation, value)
    return image


# TensorFlow's operations in numpy and PIL, on (h, w, 3).


def tensorflow_affine(image: NDArray[np.uint8], matrix: list[float]) -> NDArray[np.uint8]:
    """tf.contrib.image.transform and unwrap: std::round, grey outside."""
    height, width = image.shape[:2]
    a, b, c, d, e, f = np.array(matrix, np.float32)
    x, y = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]

    def nearest(place: NDArray[np.float32]) -> NDArray[np.int64]:
        assert place.dtype == np.float32
        return np.copysign(np.floor(np.abs(place.astype(np.float64)) + 0.5), place).astype(np.int64)

    from_x, from_y = nearest(a * x + b * y + c), nearest(d * x + e * y + f)  # (h, w)
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    result = np.full_like(image, 128)
    result[inside] = image[from_y[inside], from_x[inside]]
    return result


def tensorflow_rotate(image: NDArray[np.uint8], degrees: float) -> NDArray[np.uint8]:
    angle = np.float32(degrees) * np.float32(np.pi / 180)
    cos, sin = np.cos(angle), np.sin(angle)
    bottom, right = np.float32(image.shape[0] - 1), np.float32(image.shape[1] - 1)
    x_offset = (right - (cos * right - sin * bottom)) / np.float32(2)
    y_offset = (bottom - (sin * right + cos * bottom)) / np.float32(2)
    return tensorflow_affine(image, [cos, -sin, x_offset, sin, cos, y_offset])


def tensorflow_colour(image: NDArray[np.uint8], factor: float) -> NDArray[np.uint8]:
    light = image.astype(np.float32) * np.float32(1 / 255)
    weighted = light * np.array([0.2989, 0.587, 0.114], np.float32)
    grey = (weighted[..., 0] + weighted[..., 1]) + weighted[..., 2]
    grey = (grey * np.float32(255.5)).astype(np.uint8).astype(np.float32)[..., None]
    blended = grey + np.float32(factor) * (image.astype(np.float32) - grey)
    return np.asarray(np.clip(blended, 0, 255), np.uint8)


def tensorflow_auto_contrast(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    result = image.copy()
    for channel in range(3):
        values = image[..., channel].astype(np.float32)
        low, high = values.min(), values.max()
        if high > low:
            scale = np.float32(255) / (high - low)
            result[..., channel] = np.clip(values * scale + -low * scale, 0, 255).astype(np.uint8)
    return result


def tensorflow_operation(image: NDArray[np.uint8], operation: str, value: float) -> NDArray[np.uint8]:
    pil = Image.fromarray(image)
    match operation:
        case "ShearX":
            return tensorflow_affine(image, [1, value, 0, 0, 1, 0])
        case "ShearY":
            return tensorflow_affine(image, [1, 0, 0, value, 1, 0])
        case "TranslateY":
            return tensorflow_affine(image, [1, 0, 0, 0, 1, value])
        case "Rotate":
            return tensorflow_rotate(image, value)
        case "Color":
            return tensorflow_colour(image, value)
        case "AutoContrast":
            return tensorflow_auto_contrast(image)
        case "SolarizeAdd":
            return np.where(image < 128, np.clip(image.astype(int) + int(value), 0, 255), image).astype(np.uint8)
        case "Solarize":
            return np.asarray(ImageOps.solarize(pil, int(value)))
        case "Posterize":
            return np.asarray(ImageOps.posterize(pil, int(value)))
        case "Equalize":
            return np.asarray(ImageOps.equalize(pil))
        case "Invert":
            return np.asarray(ImageOps.invert(pil))
    raise AssertionError(operation)


def tensorflow_magnitude(operation: str, level: int) -> float:
    scales = {"Rotate": 30, "ShearX": 0.3, "ShearY": 0.3, "TranslateY": 250, "Solarize": 256, "SolarizeAdd": 110}
    if operation == "Posterize":
        return max(level * 4 // 10, 1)
    if operation == "Color":
        return level / 10 * 1.8 + 0.1
    value = level / 10 * scales.get(operation, 0)
    return value if operation in SIGNED else int(value)


def tensorflow_policy(image: Tensor, uniforms: list[float]) -> Tensor:
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    for (operation, probability, level), applies, sign in zip(
        sub_policies("v0")[int(uniforms[SUB_POLICY] * 25)],
        (uniforms[FIRST], uniforms[SECOND]),
        (uniforms[FIRST_SIGN], uniforms[SECOND_SIGN]),
        strict=True,
    ):
        if applies < probability:
            value = tensorflow_magnitude(operation, level)
            pixels = tensorflow_operation(pixels, operation, -value if operation in SIGNED and sign < 0.5 else value)
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)
