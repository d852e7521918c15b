"""What each of a frame's uniform numbers decides in its augmentation."""

from __future__ import annotations

# Inception: crop, flip, colour.
ASPECT, HEIGHT, Y, X, FLIP, BRIGHTNESS, SATURATION, ORDER, HUE, CONTRAST = range(10)
FIRST_DRAWS = 10  # the rest comes from a stream of its own, which is part of what a seed means
# HSV noise: of the hue, and exponent, factor and shift of saturation and of value.
HSV_HUE, HSV_SATURATION, HSV_VALUE = 10, slice(11, 14), slice(14, 17)
AUTOAUGMENT = slice(17, 22)
DRAWS = 22
