"""The rotation loss: tell by which multiple of 90 degrees a frame was turned."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from vivi.losses.base import FrameLoss, Measured
from vivi.losses.layers import at_least_float32, linear


class Rotation(FrameLoss):
    """A linear head with four outputs and cross-entropy, on all four views of every frame."""

    view_count = 4
    metrics: ClassVar = {"rotation_accuracy": "rotation accuracy"}

    def __init__(self, features: int, shots: int = 1) -> None:
        super().__init__()
        self.head = linear(features, 4)

    def views(self, frames: Tensor) -> Tensor:
        """View r is turned by 90 * r degrees: (cores, shots, frames, 3, H, W) -> (cores, 4, shots, ...)."""
        return torch.stack([torch.rot90(frames, turns, (-2, -1)) for turns in range(4)], dim=1)

    def measure(self, h: Tensor, uniforms: Tensor | None = None) -> Measured:
        """h is (..., 4, shots, frames, features), as `views` makes them, in their order."""
        scores = at_least_float32(self.head(h)).log_softmax(-1)  # (..., 4, shots, frames, 4)
        correct = scores.diagonal(dim1=-4, dim2=-1)  # (..., shots, frames, 4): view r's score of turn r
        turns = torch.arange(4, device=h.device)[:, None, None]
        accuracy = (scores.argmax(-1) == turns).to(scores.dtype).mean((-3, -2, -1))
        return -correct.mean((-3, -2, -1)), {"rotation_accuracy": accuracy}
