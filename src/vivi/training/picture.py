"""Pictures of what the encoder is shown, for people to look at."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vivi.storage import write_atomically

_GAP = 4  # rows of pixels between two videos
_GAP_VALUE = 255


def grid(frames: Tensor, shots_per_video: int = 1) -> NDArray[np.uint8]:
    """The frames of some shots, (shots, frames, 3, size, size) in [-1, 1], as one picture (height, width, 3).

    Each shot is a row; between the shots of one video and those of the next there is a thin white gap.
    """
    shots, columns, _, size, _ = frames.shape
    pixels = ((frames.detach().float().cpu() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    rows = pixels.permute(0, 3, 1, 4, 2).reshape(shots, size, columns * size, 3).numpy()
    gap = np.full((_GAP, columns * size, 3), _GAP_VALUE, np.uint8)
    parts: list[NDArray[np.uint8]] = []
    for shot, row in enumerate(rows):
        if shot > 0 and shot % shots_per_video == 0:
            parts.append(gap)
        parts.append(row)
    return np.concatenate(parts)


def write_png(path: Path, picture: NDArray[np.uint8]) -> None:
    """Writes a picture (height, width, 3) as a whole; raises StorageError where it cannot."""
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "PNG")
    write_atomically(path, content.getvalue())
