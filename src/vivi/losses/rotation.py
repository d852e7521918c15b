"""The rotation loss: say by which multiple of 90 degrees a frame was turned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vivi.model.heads import linear, precise


class Rotation(nn.Module):
    """A linear head with four outputs and cross-entropy, on all four copies of every frame."""

    copies = 4

    def __init__(self, features: int) -> None:
        super().__init__()
        self.head = linear(features, 4)

    def views(self, frames: Tensor) -> Tensor:
        """Copy r is turned by 90 * r degrees: (cores, shots, frames, 3, H, W) -> (cores, 4, shots, ...)."""
        return torch.stack([torch.rot90(frames, turns, (-2, -1)) for turns in range(4)], dim=1)

    def forward(self, h: Tensor, noise: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """h (cores, 4, shots, frames, d) belongs to the copies `views` makes, in their order; noise is not used."""
        scores = precise(self.head(h)).log_softmax(-1)  # (cores, 4, shots, frames, 4)
        right = scores.diagonal(dim1=1, dim2=4)  # (cores, shots, frames, 4): copy r's score of turn r
        turns = torch.arange(4, device=h.device)[:, None, None]
        accuracy = (scores.argmax(-1) == turns).to(scores.dtype).mean((1, 2, 3))
        return -right.mean((1, 2, 3)), {"rotation_accuracy": accuracy}
