# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
"""Crop, resize, flip and colour in one pass over the pixels, for CUDA devices: what crop.py and colour.py compute.

A program makes some pixels of one sample. The triangle filter of a crop has few taps (two when enlarging, twice the
scale when shrinking), so they are added up directly, from the bytes that were decoded to what the encoder reads:
channels_last, in its precision. Nothing in between is written to memory.

With TRITON_INTERPRET=1 it runs on a CPU, slowly, for the tests.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.augment import uniforms as slot
from vivi.data.packed import PackedImages, upload
from vivi.recipes import Augment
from vivi.runtime.errors import first_line

# Of a sample: y, x, height and width of the box, whether it is mirrored, and its colours.
BOX, FLIP, COLOURS = slice(0, 4), 4, slice(5, 17)
PARAMETERS = 17
_BLOCK = 256  # pixels of a program


def crop(
    images: PackedImages,
    boxes: NDArray[np.int64],
    flips: NDArray[np.bool_],
    size: int,
    dtype: torch.dtype,
    settings: Augment | None = None,
    uniforms: NDArray[np.float32] | None = None,
) -> Tensor:
    """The boxes (y, x, height, width) of n images, mirrored where `flips` says so: (n, 3, size, size), channels_last.

    Without settings the values are those of the pixels, 0 to 255, rounded for uint8. With settings and uniforms
    (n, UNIFORMS) they are coloured and in [-1, 1]; where the settings have contrast, they are coloured up to it, and
    neither clipped nor scaled to [-1, 1].
    """
    device, shape = images.memory.device, (len(images), 3, size, size)
    out = torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last)
    if not len(images):
        return out
    table = np.zeros((len(images), PARAMETERS), np.float32)
    table[:, BOX], table[:, FLIP] = boxes, flips
    if settings is not None and uniforms is not None:
        table[:, COLOURS] = colour_parameters(settings, uniforms)
    arguments = [upload(torch.from_numpy(values), device) for values in (images.starts, images.sizes, table)]
    kernel: Any = _crop
    with torch.cuda.device_of(out):
        kernel[(len(images), triton.cdiv(size * size, _BLOCK))](
            out,
            images.memory,
            *arguments,
            SIZE=size,
            COLOURED=settings is not None,
            GREYED=settings is not None and (settings.grey > 0 or settings.grey_frames > 0),
            SATURATED=settings is not None and settings.saturation > 0,
            TURNED=settings is not None and settings.hue > 0,
            FINISHED=settings is not None and settings.contrast == 0,
            NOISY=settings is not None and settings.hsv,
            ROUNDED=dtype == torch.uint8,
            TABLE=PARAMETERS,
            BLOCK=_BLOCK,
        )
    return out


def works(device: torch.device) -> bool:
    """Tries it: Triton wants a GPU that it knows, and a C compiler."""
    memory = torch.arange(12, dtype=torch.uint8, device=device)
    image = PackedImages(memory, np.zeros(1, np.int64), np.full((1, 2), 2, np.int32))  # 2 × 2
    try:
        out = crop(image, np.array([[0, 0, 2, 2]]), np.zeros(1, bool), 2, torch.float32)
    except Exception as error:  # of Triton, its compiler or its driver
        warnings.warn(f"Triton cannot be used ({first_line(error)}): crops are made more slowly", stacklevel=2)
        return False
    return torch.equal(out.permute(0, 2, 3, 1).flatten(), memory.float())


def colour_parameters(settings: Augment, uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, 12): brightness added before and after saturation, its factor; turn of the hue, in sixths; of HSV noise the
    turn, and exponent, factor and shift of saturation and of value; whether the image is grey."""
    signed = 2 * uniforms - 1
    shift, first = settings.brightness * signed[:, slot.BRIGHTNESS], uniforms[:, slot.ORDER] < 0.5
    saturation, hue = 1 + settings.saturation * signed[:, slot.SATURATION], 6 * settings.hue * signed[:, slot.HUE]
    columns = [np.where(first, shift, 0), np.where(first, 0, shift), saturation, hue, 0.6 * signed[:, slot.HSV_HUE]]
    for part in (slot.HSV_SATURATION, slot.HSV_VALUE):
        u, v, w = signed[:, part].T
        columns += [4**u, 2 ** (0.5 * v), 0.1 * w]
    columns.append((uniforms[:, slot.GREY] < settings.grey) | (uniforms[:, slot.GREY_FRAME] < settings.grey_frames))
    return np.stack(columns, axis=1).astype(np.float32)


@triton.jit
def _crop(
    out,
    memory,
    starts,
    sizes,
    table,
    SIZE: tl.constexpr,
    COLOURED: tl.constexpr,
    GREYED: tl.constexpr,
    SATURATED: tl.constexpr,
    TURNED: tl.constexpr,
    FINISHED: tl.constexpr,
    NOISY: tl.constexpr,
    ROUNDED: tl.constexpr,
    TABLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < SIZE * SIZE
    row = tl.minimum(pixel, SIZE * SIZE - 1) // SIZE
    column = pixel % SIZE
    image = memory + tl.load(starts + sample)
    width = tl.load(sizes + 2 * sample + 1)
    table += sample * TABLE
    top, left = tl.load(table), tl.load(table + 1)
    rows, columns = tl.load(table + 2), tl.load(table + 3)
    column = tl.where(tl.load(table + 4) > 0, SIZE - 1 - column, column)

    # Centres of the output pixels in the box, how far their filters reach, and the first pixels within reach.
    scale_y, scale_x = rows / SIZE, columns / SIZE
    reach_y, reach_x = tl.maximum(scale_y, 1.0), tl.maximum(scale_x, 1.0)
    centre_y, centre_x = (row.to(tl.float32) + 0.5) * scale_y, (column.to(tl.float32) + 0.5) * scale_x
    first_y, first_x = tl.floor(centre_y - reach_y + 0.5), tl.floor(centre_x - reach_x + 0.5)
    taps_y, taps_x = tl.ceil(2 * reach_y).to(tl.int32), tl.ceil(2 * reach_x).to(tl.int32)

    red = tl.zeros([BLOCK], tl.float32)
    green = tl.zeros([BLOCK], tl.float32)
    blue = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for tap_y in range(taps_y):
        y = first_y + tap_y
        weight_y = tl.maximum(1 - tl.abs(y + 0.5 - centre_y) / reach_y, 0.0)
        weight_y = tl.where((y >= 0) & (y < rows), weight_y, 0.0)
        y = (top + tl.minimum(tl.maximum(y, 0.0), rows - 1)).to(tl.int32) * width
        for tap_x in range(taps_x):
            x = first_x + tap_x
            weight = weight_y * tl.maximum(1 - tl.abs(x + 0.5 - centre_x) / reach_x, 0.0)
            weight = tl.where((x >= 0) & (x < columns), weight, 0.0)
            place = y + (left + tl.minimum(tl.maximum(x, 0.0), columns - 1)).to(tl.int32)
            red += weight * tl.load(image + 3 * place).to(tl.float32)
            green += weight * tl.load(image + 3 * place + 1).to(tl.float32)
            blue += weight * tl.load(image + 3 * place + 2).to(tl.float32)
            total += weight
    red, green, blue = red / total, green / total, blue / total

    if COLOURED:
        if GREYED:
            luminance, grey = 0.2989 * red + 0.587 * green + 0.114 * blue, tl.load(table + 16) > 0
            red = tl.where(grey, luminance, red)
            green = tl.where(grey, luminance, green)
            blue = tl.where(grey, luminance, blue)
        shift = tl.load(table + 5)
        red, green, blue = red / 255 + shift, green / 255 + shift, blue / 255 + shift
        if SATURATED:
            value = tl.maximum(tl.maximum(red, green), blue)
            spread = value - tl.minimum(tl.minimum(red, green), blue)
            factor = tl.minimum(tl.maximum(value, 0.0) / tl.maximum(spread, 1e-12), tl.load(table + 7))
            red = value - (value - red) * factor
            green = value - (value - green) * factor
            blue = value - (value - blue) * factor
        shift = tl.load(table + 6)
        red, green, blue = red + shift, green + shift, blue + shift
        if TURNED:
            hue, spread, value = _hue_spread_value(red, green, blue)
            red, green, blue = _coloured(hue + tl.load(table + 8), spread, value)
        if FINISHED:
            red, green, blue = _clamped(red), _clamped(green), _clamped(blue)
            if NOISY:
                hue, spread, value = _hue_spread_value(red, green, blue)
                saturation = spread / tl.maximum(value, 1e-12)
                saturation = _noisy(saturation, tl.load(table + 10), tl.load(table + 11), tl.load(table + 12))
                value = _noisy(value, tl.load(table + 13), tl.load(table + 14), tl.load(table + 15))
                red, green, blue = _coloured(hue + tl.load(table + 9), value * saturation, value)
            red, green, blue = 2 * red - 1, 2 * green - 1, 2 * blue - 1
    if ROUNDED:
        red, green, blue = _rounded(red), _rounded(green), _rounded(blue)

    out += sample * (3 * SIZE * SIZE) + 3 * pixel
    tl.store(out, red.to(out.dtype.element_ty), mask=inside)
    tl.store(out + 1, green.to(out.dtype.element_ty), mask=inside)
    tl.store(out + 2, blue.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _hue_spread_value(red, green, blue):
    value = tl.maximum(tl.maximum(red, green), blue)
    spread = value - tl.minimum(tl.minimum(red, green), blue)
    divisor = tl.maximum(spread, 1e-12)
    of_green, of_blue = 2 + (blue - red) / divisor, 4 + (red - green) / divisor
    hue = tl.where(value == red, (green - blue) / divisor, tl.where(value == green, of_green, of_blue))
    return hue, spread, value


@triton.jit
def _coloured(hue, spread, value):
    return _channel(hue + 5, spread, value), _channel(hue + 3, spread, value), _channel(hue + 1, spread, value)


@triton.jit
def _channel(angle, spread, value):
    angle = angle - 6 * tl.floor(angle / 6)
    return value - spread * _clamped(tl.minimum(angle, 4 - angle))


@triton.jit
def _noisy(x, exponent, factor, shift):
    power = tl.where(x > 0, tl.exp2(exponent * tl.log2(tl.maximum(x, 1e-30))), 0.0)
    return _clamped(power * factor + shift)


@triton.jit
def _clamped(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _rounded(x):
    """To the nearest, halves to even."""
    up = tl.floor(x + 0.5)
    return tl.where((up - x == 0.5) & (up - 2 * tl.floor(up / 2) == 1), up - 1, up)
