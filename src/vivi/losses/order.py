"""The order losses: say whether the shots of a video stand in their order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vivi.model.heads import mlp, precise


class Order(nn.Module):
    """For two shots: they are reversed with probability one half, and an MLP on both says whether they were."""

    def __init__(self, features: int = 512, hidden: int = 512) -> None:
        super().__init__()
        self.classify = mlp(2 * features, hidden, 2)

    def forward(self, e: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """e is (groups, videos, 2, features), noise (groups, videos, 3), of which the first column decides."""
        if e.shape[2] != 2:
            raise ValueError(f"Order is for 2 shots of a video, not {e.shape[2]}: use ShuffledOrder")
        reverse = noise[..., 0] < 0.5  # (groups, videos)
        shots = torch.where(reverse[..., None, None], e.flip(2), e)
        return _classification(self.classify(shots.flatten(2)), reverse)


class ShuffledOrder(nn.Module):
    """For three shots and more: half of the videos are shuffled, and an MLP on all shots says whether it was so."""

    def __init__(self, features: int, shots: int, hidden: int = 512) -> None:
        super().__init__()
        self.classify = mlp(shots * features, hidden, 2)

    def forward(self, e: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """e is (groups, videos, shots, features), noise (groups, videos, shots + 1)."""
        order, shuffled = shuffled_order(noise)
        shots = e.gather(2, order.unsqueeze(-1).expand_as(e))
        return _classification(self.classify(shots.flatten(2)), shuffled)


def shuffled_order(noise: Tensor) -> tuple[Tensor, Tensor]:
    """The order of the shots of each video, (..., shots), and whether it was shuffled, (...).

    It comes from noise (..., shots + 1): the first column decides whether, the others how. A shuffled video is never
    in order: where the draw leaves all shots in place, they are reversed.
    """
    shuffled = noise[..., 0] < 0.5
    drawn = noise[..., 1:].argsort(dim=-1, stable=True)
    in_order = torch.arange(drawn.shape[-1], device=noise.device)
    unchanged = (drawn == in_order).all(-1, keepdim=True)
    drawn = torch.where(unchanged, in_order.flip(0), drawn)
    return torch.where(shuffled.unsqueeze(-1), drawn, in_order), shuffled


def _classification(logits: Tensor, truth: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy and accuracy of each group, from logits (groups, videos, 2); the second class is `truth`."""
    scores = precise(logits).log_softmax(-1)
    classes = truth.long()  # (groups, videos)
    loss = -scores.gather(-1, classes.unsqueeze(-1)).mean((1, 2))
    accuracy = (scores.argmax(-1) == classes).to(scores.dtype).mean(1)
    return loss, {"order_accuracy": accuracy}
