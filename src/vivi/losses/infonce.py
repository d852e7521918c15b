"""InfoNCE on shots: from some shots of a video, pick another of its shots out of those of the other videos."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from vivi.model.heads import linear, mlp, precise


class InfoNCE2(nn.Module):
    """For two shots: g(e, e') = phi1(e) . phi2(e'), each phi with one hidden layer.

    The first shot predicts the second; with `both_ways`, the second also the first, and the loss is the mean of both.
    It needs at least two videos in a group.
    """

    def __init__(self, features: int = 512, hidden: int = 256, out: int = 128, both_ways: bool = False) -> None:
        super().__init__()
        self.phi1 = mlp(features, hidden, out)
        self.phi2 = mlp(features, hidden, out)
        self.both_ways = both_ways

    def forward(self, e: Tensor, noise: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """e is (groups, videos, 2, features); noise is not used."""
        if e.shape[2] != 2:
            raise ValueError(f"InfoNCE2 is for 2 shots of a video, not {e.shape[2]}: use InfoNCESequence")
        queries = self.phi1(e if self.both_ways else e[:, :, :1])  # (groups, videos, 1 or 2, out)
        targets = torch.arange(1, 1 - queries.shape[2], -1, device=e.device)  # 1, or 1 and 0
        return info_nce(queries, self.phi2(e), targets)


class InfoNCESequence(nn.Module):
    """For three shots and more: an LSTM reads the shots in order and after each predicts those that follow.

    With `ahead` = m it predicts the next m shots (as far as there are any), each by a linear layer of its own; the
    loss is the mean over all predictions, K - 1 for m = 1. A shot's score is its dot product with the prediction. It
    needs at least two videos in a group.
    """

    def __init__(self, features: int = 512, hidden: int = 256, ahead: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, num_layers=2, batch_first=True)
        self.predict = nn.ModuleList(linear(hidden, features) for _ in range(ahead))

    def forward(self, e: Tensor, noise: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """e is (groups, videos, shots, features); noise is not used."""
        groups, videos, shots, _ = e.shape
        if shots <= len(self.predict):
            raise ValueError(f"to predict {len(self.predict)} shots ahead takes more than {shots} shots of a video")
        # In float32: it is small, and LSTMs differ most between devices in what they make of autocast.
        with torch.autocast(e.device.type, enabled=False):
            states, _ = self.lstm(precise(e).flatten(0, 1))  # (groups * videos, shots, hidden)
            steps = list(enumerate(self.predict, start=1))
            queries = torch.cat([predict(states[:, : shots - step]) for step, predict in steps], dim=1)
        targets = torch.cat([torch.arange(step, shots, device=e.device) for step, _ in steps])
        return info_nce(queries.unflatten(0, (groups, videos)), e, targets)


def info_nce(queries: Tensor, candidates: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The InfoNCE loss of each group, and how often the positive scores above every negative: (groups,) each.

    queries (groups, videos, predictions, d) are each video's predictions, and targets (predictions,) the shots they
    are of; candidates (groups, videos, shots, d) are the shots. A prediction has its target as positive and all shots
    of the other videos of the group as negatives; the other shots of its own video are left out. A tie counts as
    wrong in the accuracy, so that collapsed embeddings score nothing.
    """
    videos, predictions = queries.shape[1:3]
    if videos < 2:
        raise ValueError("a group of one video has no negatives")
    with torch.autocast(queries.device.type, enabled=False):
        # (groups, videos, predictions, videos, shots)
        scores = torch.einsum("gvpd,gwkd->gvpwk", precise(queries), precise(candidates))
    own = scores.diagonal(dim1=1, dim2=3)  # (groups, predictions, shots, videos)
    positive = own[:, torch.arange(predictions, device=own.device), targets].mT  # (groups, videos, predictions)
    same = torch.eye(videos, dtype=torch.bool, device=own.device)[:, None, :, None]
    negatives = scores.masked_fill(same, -torch.inf).flatten(3)  # (groups, videos, predictions, videos * shots)
    # -log(exp(p) / (exp(p) + sum(exp(n)))) = softplus(logsumexp(n) - p)
    loss = functional.softplus(negatives.logsumexp(-1) - positive).mean((1, 2))
    accuracy = (positive > negatives.amax(-1)).to(loss.dtype).mean((1, 2))
    return loss, {"infonce_accuracy": accuracy}
