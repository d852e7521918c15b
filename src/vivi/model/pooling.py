"""The pooling p: the representations of the frames of a shot become one of the shot."""

from __future__ import annotations

from torch import Tensor, nn

from vivi.model.heads import linear, precise


class MeanPooling(nn.Module):
    """The mean over the frames."""

    def forward(self, h: Tensor) -> Tensor:
        """(..., frames, d) -> (..., d)."""
        return precise(h).mean(-2)


class AttentionPooling(nn.Module):
    """A mean weighted by a learned score of each frame, softmax over the frames."""

    def __init__(self, features: int, hidden: int = 128) -> None:
        super().__init__()
        # The last layer has no bias: softmax does not see it.
        self.score = nn.Sequential(linear(features, hidden), nn.Tanh(), linear(hidden, 1, bias=False))

    def forward(self, h: Tensor) -> Tensor:
        """(..., frames, d) -> (..., d)."""
        weights = precise(self.score(h)).softmax(-2)  # (..., frames, 1)
        return (weights * precise(h)).sum(-2)
