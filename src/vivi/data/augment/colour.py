"""Colours of images in [0, 1]: Inception's brightness, saturation, hue and contrast, and S4L's noise in HSV."""

from __future__ import annotations

import torch
from torch import Tensor

from vivi.data.augment import uniforms as slot
from vivi.recipes import Augment


def distort(images: Tensor, uniforms: Tensor, settings: Augment) -> Tensor:
    """Changes the colours of (n, 3, size, size) images in [0, 1]; uniforms are (n, UNIFORMS). May work in place.

    Brightness and saturation are slim's Inception preprocessing, but in an order that is random for each image, where
    slim's fast mode always has brightness first; then hue and contrast (slim's slow mode has four orders of all).
    """
    if settings.grey > 0 or settings.grey_frames > 0:
        grey = (uniforms[:, slot.GREY] < settings.grey) | (uniforms[:, slot.GREY_FRAME] < settings.grey_frames)
        weights = torch.tensor([0.2989, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)  # TensorFlow's
        images = torch.where(grey[:, None, None, None], (weights * images).sum(1, keepdim=True), images)
    shift = _about(0, settings.brightness, uniforms[:, slot.BRIGHTNESS])
    shift_first = uniforms[:, slot.ORDER, None, None, None] < 0.5
    if settings.brightness > 0:
        images = images.add_(torch.where(shift_first, shift, 0))
    if settings.saturation > 0:
        images = saturate(images, _about(1, settings.saturation, uniforms[:, slot.SATURATION]))
    if settings.brightness > 0:
        images = images.add_(torch.where(shift_first, 0, shift))
    if settings.hue > 0:
        images = turn_hue(images, _about(0, settings.hue, uniforms[:, slot.HUE]))
    return contrast_and_noise(images, uniforms, settings)


def contrast_and_noise(images: Tensor, uniforms: Tensor, settings: Augment) -> Tensor:
    """The last part of `distort`: contrast, which needs all pixels of an image, clipping and HSV noise."""
    if settings.contrast > 0:
        mean = images.mean(dim=(2, 3), keepdim=True)  # (n, 3, 1, 1)
        factor = _about(1, settings.contrast, uniforms[:, slot.CONTRAST])
        images = mean + (images - mean) * factor
    images = images.clamp_(0, 1)
    return hsv_noise(images, uniforms) if settings.hsv else images


def _about(centre: float, reach: float, uniforms: Tensor) -> Tensor:
    """A number for each image, at most so far from the centre: uniforms (n,) -> (n, 1, 1, 1)."""
    least, most = centre - reach, centre + reach
    return least + (most - least) * uniforms[:, None, None, None]


def hsv_noise(images: Tensor, uniforms: Tensor) -> Tensor:
    """S4L's noise in hue, saturation and value, on (n, 3, h, w) images in [0, 1]; uniforms are (n, UNIFORMS).

    Hue moves by up to a tenth of a turn. With u, v, w random for each image, saturation and value x become
    x ^ (2 ^ u) * 2 ^ v + w, u up to ±2, v up to ±0.5, w up to ±0.1, clipped to [0, 1].
    """
    hue, spread, value = hue_spread_value(images)

    def noisy(x: Tensor, part: slice) -> Tensor:
        u, v, w = (2 * uniforms[:, part] - 1).view(-1, 3, 1, 1, 1).unbind(1)  # (n, 1, 1, 1) in [-1, 1)
        return (x ** (4**u) * 2 ** (0.5 * v) + 0.1 * w).clamp(0, 1)

    turn = (0.2 * uniforms[:, slot.HSV_HUE] - 0.1).view(-1, 1, 1, 1)
    saturation = noisy(spread / value.clamp(min=1e-12), slot.HSV_SATURATION)
    value = noisy(value, slot.HSV_VALUE)
    return coloured(hue + 6 * turn, value * saturation, value)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Multiplies the saturation (of HSV, at most 1) of (n, 3, h, w) images by a factor (n, 1, 1, 1).

    With V the largest channel, S = (V - least channel) / V, and a channel is V less its share of S V. So scaling S
    scales V - channel, by no more than 1 / S.
    """
    value = images.amax(dim=1, keepdim=True)  # (n, 1, h, w)
    spread = value - images.amin(dim=1, keepdim=True)
    # Brightness may have made colours negative; without light (V ≤ 0) there is no saturation.
    limit = value.relu().div_(spread.clamp_(min=1e-12))
    return value - (value - images).mul_(torch.minimum(limit, factor))


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Adds `turn` (n, 1, 1, 1), in turns of the colour circle, to the hue of (n, 3, h, w) images."""
    hue, spread, value = hue_spread_value(images)
    return coloured(hue + 6 * turn, spread, value)


def hue_spread_value(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of (n, 3, h, w) images the hue in sixths of a turn, the largest less the smallest channel (which is saturation
    times value), and the largest channel, HSV's value: (n, 1, h, w) each."""
    red, green, blue = images.split(1, dim=1)
    value = images.amax(dim=1, keepdim=True)
    spread = value - images.amin(dim=1, keepdim=True)
    divisor = spread.clamp(min=1e-12)
    hue = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    return hue, spread, value


def coloured(hue: Tensor, spread: Tensor, value: Tensor) -> Tensor:
    """The images (n, 3, h, w) of this hue, spread and value."""
    # A channel falls from value to value - spread over one sixth, and rises again, at its own place on the circle.
    places = torch.tensor([5.0, 3.0, 1.0], device=hue.device).view(1, 3, 1, 1)
    angle = (places + hue).remainder(6)  # (n, 3, h, w)
    return value - spread * torch.minimum(angle, 4 - angle).clamp(0, 1)
