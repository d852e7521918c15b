"""The order loss: tell whether the shots of a video are in order."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from vivi.losses.base import Measured, VideoLoss, cross_entropy
from vivi.losses.layers import mlp


class Order(VideoLoss):
    """Half of the videos are shuffled, two shots by reversing them, and an MLP on all shots tells which."""

    metrics: ClassVar = {"order_accuracy": "order accuracy"}

    def __init__(self, features: int, shots: int = 2, hidden: int = 512) -> None:
        super().__init__()
        self.classify = mlp(shots * features, hidden, 2)

    def measure(self, e: Tensor, uniforms: Tensor | None = None) -> Measured:
        """e is (..., videos, shots, features), uniforms (..., videos, shots + 1)."""
        if uniforms is None:
            uniforms = torch.rand(*e.shape[:-2], e.shape[-2] + 1, device=e.device)
        order, shuffled = shuffled_order(uniforms)
        shots = e.gather(-2, order.unsqueeze(-1).expand_as(e))
        loss, accuracy = cross_entropy(self.classify(shots.flatten(-2)), shuffled.long(), (-1,))
        return loss, {"order_accuracy": accuracy}


def shuffled_order(uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The order of the shots of each video, (..., shots), and whether it was shuffled, (...).

    It comes from uniforms (..., shots + 1): the first column decides whether, the others how. A shuffled video is
    never in order: where the permutation leaves all shots in place, they are reversed.
    """
    shuffled = uniforms[..., 0] < 0.5
    permutation = uniforms[..., 1:].argsort(dim=-1, stable=True)
    in_order = torch.arange(permutation.shape[-1], device=uniforms.device)
    unchanged = (permutation == in_order).all(-1, keepdim=True)
    permutation = torch.where(unchanged, in_order.flip(0), permutation)
    return torch.where(shuffled.unsqueeze(-1), permutation, in_order), shuffled
