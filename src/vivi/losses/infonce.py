"""InfoNCE on shots: from some shots of a video, pick another of its shots out of those of the other videos."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from vivi.losses.base import Measured, VideoLoss, pick
from vivi.losses.layers import at_least_float32, linear, lstm, mlp


class InfoNCE(VideoLoss):
    """The prediction function g, by the number of shots of a video, and InfoNCE on what it predicts.

    It needs at least two videos.
    """

    metrics: ClassVar = {"infonce_accuracy": "next shot"}

    def __init__(
        self,
        features: int,
        shots: int,
        across: Literal["core", "all"] = "all",
        ahead: int = 1,
        both_ways: bool = False,
    ) -> None:
        super().__init__()
        self.g = TwoShots(features, both_ways=both_ways) if shots == 2 else ShotSequence(features, ahead=ahead)
        self.across_cores = across == "all"

    def measure(self, e: Tensor, uniforms: Tensor | None = None) -> Measured:
        """e is (..., videos, shots, features)."""
        predictions, candidates, targets = self.g(e)
        loss, accuracy = info_nce_and_accuracy(predictions, candidates, targets)
        return loss, {"infonce_accuracy": accuracy}


class TwoShots(nn.Module):
    """g for two shots: g(e, e') = phi1(e) . phi2(e'), each phi with one hidden layer.

    The first shot predicts the second; with `both_ways`, the second also the first.
    """

    def __init__(self, features: int, hidden: int = 256, out: int = 128, both_ways: bool = False) -> None:
        super().__init__()
        self.phi1 = mlp(features, hidden, out)
        self.phi2 = mlp(features, hidden, out)
        self.both_ways = both_ways

    def forward(self, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of e (..., videos, 2, features) the predictions (..., videos, 1 or 2, out), the shots to compare them with,
        (..., videos, 2, out), and which shot each of them predicts."""
        if e.shape[-2] != 2:
            raise ValueError(f"TwoShots is for 2 shots of a video, not {e.shape[-2]}: use ShotSequence")
        predictions = self.phi1(e if self.both_ways else e[..., :1, :])
        targets = torch.arange(1, 1 - predictions.shape[-2], -1, device=e.device)  # 1, or 1 and 0
        return predictions, self.phi2(e), targets


class ShotSequence(nn.Module):
    """g for three shots and more: an LSTM reads the shots in order and after each predicts those that follow.

    With `ahead` = m it predicts the next m shots (as far as there are any), each by a linear layer of its own: K - 1
    predictions for m = 1.
    """

    def __init__(self, features: int, hidden: int = 256, ahead: int = 1) -> None:
        super().__init__()
        self.lstm = lstm(features, hidden, layers=2)
        self.predict = nn.ModuleList(linear(hidden, features) for _ in range(ahead))

    def forward(self, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of e (..., videos, shots, features) the predictions (..., videos, predictions, features), the shots, and
        which shot each prediction is of."""
        shots = e.shape[-2]
        if shots <= len(self.predict):
            raise ValueError(f"to predict {len(self.predict)} shots ahead takes more than {shots} shots of a video")
        # In float32: it is small, and LSTMs differ most between devices in what they make of autocast.
        with torch.autocast(e.device.type, enabled=False):
            states, _ = self.lstm(at_least_float32(e).flatten(0, -3))  # (all videos, shots, hidden)
            steps = list(enumerate(self.predict, start=1))
            predictions = torch.cat([predict(states[:, : shots - step]) for step, predict in steps], dim=1)
        targets = torch.cat([torch.arange(step, shots, device=e.device) for step, _ in steps])
        return predictions.unflatten(0, e.shape[:-2]), e, targets


def info_nce(predictions: Tensor, candidates: Tensor, targets: Tensor) -> Tensor:
    """The InfoNCE loss, a mean over all predictions.

    predictions (..., videos, predictions, d) are each video's, targets (predictions,) the shots that they are of, and
    candidates (..., videos, shots, d) the shots. A prediction's positive is its target, its negatives are all shots
    of the other videos; the other shots of its own video are left out. A score is a dot product.
    """
    return info_nce_and_accuracy(predictions, candidates, targets)[0]


def info_nce_and_accuracy(predictions: Tensor, candidates: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`info_nce`, and how often the positive scores above every negative, of the same shape."""
    videos, count = predictions.shape[-3:-1]
    if videos < 2:
        raise ValueError("one video alone has no negatives")
    with torch.autocast(predictions.device.type, enabled=False):
        # (..., videos, predictions, videos, shots)
        scores = torch.einsum("...vpd,...wkd->...vpwk", at_least_float32(predictions), at_least_float32(candidates))
    own = scores.diagonal(dim1=-4, dim2=-2)  # (..., predictions, shots, videos)
    positive = own[..., torch.arange(count, device=own.device), targets, :].mT  # (..., videos, predictions)
    same = torch.eye(videos, dtype=torch.bool, device=own.device)[:, None, :, None]
    negatives = scores.masked_fill(same, -torch.inf).flatten(-2)  # (..., videos, predictions, videos * shots)
    terms, right = pick(positive.unsqueeze(-1), negatives)  # (..., videos, predictions, 1)
    return terms.mean((-3, -2, -1)), right.mean((-3, -2, -1))
