"""JPEG files decoded by a GPU: by its own decoders, where it has some, while it computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg


def decode_jpegs(jpegs: Sequence[Tensor], device: torch.device) -> list[Tensor | None]:
    """RGB on the device, uint8 (3, height, width), of each file, uint8 (length,); None for what it cannot decode.

    What is decoded may be used on the current stream. The host waits for the decoder, but not for the stream, and
    other threads of Python go on meanwhile.
    """
    if not jpegs:
        return []
    try:
        return list(_decode(list(jpegs), device))
    except torch.AcceleratorError:
        raise  # the GPU is lost
    except RuntimeError:
        # One of them is damaged, and it does not say which; or this torchvision cannot.
        if len(jpegs) == 1:
            return [None]
        half = len(jpegs) // 2
        return decode_jpegs(jpegs[:half], device) + decode_jpegs(jpegs[half:], device)


def _decode(jpegs: list[Tensor], device: torch.device) -> list[Tensor]:
    """Decoded in memory that belongs to a stream of ours.

    torchvision (0.26) takes memory from the current stream and writes to it from a stream of its own, at once: what
    the current stream still does with the memory's former content, it then does with pixels.
    """
    ours, current = _decoding_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(ours):
        decoded: list[Tensor] = decode_jpeg(jpegs, mode=ImageReadMode.RGB, device=device)
    current.wait_stream(ours)
    for pixels in decoded:
        pixels.record_stream(current)
    return decoded


@lru_cache
def _decoding_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
