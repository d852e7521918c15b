"""Images that lie in an array, in memory or mapped from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pixels(Sequence[Tensor]):
    """Images out of an array uint8 (images, 3, height, width), or grey without the 3, each copied when asked for."""

    array: NDArray[Any]
    scale: int = 1
    """Values are multiplied by it: 255 for pictures of zeros and ones."""

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        pixels = torch.from_numpy(np.array(self.array[index], dtype=np.uint8) * np.uint8(self.scale))
        return (pixels if pixels.dim() == 3 else pixels.expand(3, -1, -1)).contiguous()
