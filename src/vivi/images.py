"""Images of any kind as 8-bit RGB."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image


def as_rgb(image: Any) -> Any:
    """A PIL image of any mode as RGB; anything else as it is."""
    if not isinstance(image, Image.Image):
        return image
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow would cut off at 255
        image = Image.fromarray(np.clip(np.array(image) >> 8, 0, 255).astype(np.uint8))
    return image.convert("RGB")
