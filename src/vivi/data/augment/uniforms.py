"""What each of a frame's uniforms decides in its augmentation."""

from __future__ import annotations

# Inception: crop, flip, colour.
ASPECT, HEIGHT, Y, X, FLIP, BRIGHTNESS, SATURATION, ORDER, HUE, CONTRAST = range(10)
CROP_UNIFORMS = 10  # the others come from a generator of their own, which is part of what a seed means
# HSV noise: of the hue, and exponent, factor and shift of saturation and of value.
HSV_HUE, HSV_SATURATION, HSV_VALUE = 10, slice(11, 14), slice(14, 17)
AUTOAUGMENT = slice(17, 22)
FRAME_UNIFORMS = 22
GREY, GREY_FRAME = 22, 23  # the first is the same for all frames of a shot
UNIFORMS = 24
