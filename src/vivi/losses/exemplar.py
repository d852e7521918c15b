"""The exemplar loss: frames of a shot lie closer together than to frames of other shots."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from vivi.losses.pairs import mean_over_positives, split_pairs
from vivi.model.heads import linear, precise


class Exemplar(nn.Module):
    """A linear head, L2-normalised, and a triplet loss within each core.

    It needs at least two frames in a shot and two shots in a core. Negatives come from other groups of consecutive
    shots: with `group` 1 from all other shots, with the number of a video's shots from other videos only.
    """

    copies = 1

    def __init__(
        self,
        features: int,
        dimension: int = 1000,
        margin: float = 0.5,
        group: int = 1,
        triplets: Literal["semi-hard", "batch-hard"] = "semi-hard",
    ) -> None:
        super().__init__()
        self.head = linear(features, dimension)
        self.margin, self.group, self.triplets = margin, group, triplets

    def views(self, frames: Tensor) -> Tensor:
        """One copy, as it is: (cores, shots, frames, 3, H, W) -> (cores, 1, shots, frames, 3, H, W)."""
        return frames.unsqueeze(1)

    def forward(self, h: Tensor, noise: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Of h (cores, copies, shots, frames, d) the first copy is used; noise is not."""
        embeddings = functional.normalize(precise(self.head(h[:, 0])), dim=-1)  # (cores, shots, frames, dimension)
        if self.triplets == "batch-hard":
            loss, violations = batch_hard_triplet(embeddings, self.group)
        else:
            loss, violations = semi_hard_triplet(embeddings, self.margin, self.group)
        return loss, {"triplet_violations": violations}


def semi_hard_triplet(embeddings: Tensor, margin: float, group: int = 1) -> tuple[Tensor, Tensor]:
    """The semi-hard triplet loss of each core, and the share of its terms above zero.

    (cores, shots, frames, d) -> (cores,), (cores,). The semantics of triplet_semihard_loss of tf.contrib.losses:
    distances are squared; every ordered pair of frames of a shot is an anchor and its positive; their negative is the
    nearest frame of another shot that is farther from the anchor than the positive, or the farthest of all where none
    is. (Of equally far negatives TF shares the gradient among all; here one gets it.) The shots of a
    group of consecutive ones are no negatives of each other.
    """
    shots, frames = embeddings.shape[1:3]
    distances = squared_distances(embeddings.flatten(1, 2))  # (cores, shots * frames, shots * frames)
    of_shots = distances.unflatten(2, (shots, frames)).unflatten(1, (shots, frames))
    positive, negatives = split_pairs(of_shots, torch.inf, group)  # (cores, shots, frames, frames | shots * frames)
    # In ascending order the negative sought stands where the positive would be put in, behind its equals.
    ascending = negatives.sort(dim=-1).values
    place = torch.searchsorted(ascending.detach(), positive.detach().contiguous(), right=True)
    farthest = (shots - group) * frames - 1  # behind it are the frames of the anchor's own group
    negative = ascending.gather(-1, place.clamp(max=farthest))  # (cores, shots, frames, frames)
    terms = (margin + positive - negative).relu()
    return mean_over_positives(terms), mean_over_positives((terms > 0).to(terms.dtype)).detach()


def batch_hard_triplet(embeddings: Tensor, group: int = 1) -> tuple[Tensor, Tensor]:
    """S4L's batch-hard triplet loss of each core, and the share of its terms whose negative is nearer.

    (cores, shots, frames, d) -> (cores,), (cores,). Every frame is an anchor; its positive is the farthest frame of
    its shot, its negative the nearest of another shot (of another group); the margin is soft: softplus(d_p - d_n) of
    Euclidean distances, where squares below 1e-12 count as that.
    """
    shots, frames = embeddings.shape[1:3]
    distances = squared_distances(embeddings.flatten(1, 2)).clamp(min=1e-12).sqrt()
    of_shots = distances.unflatten(2, (shots, frames)).unflatten(1, (shots, frames))
    positives, negatives = split_pairs(of_shots, torch.inf, group)  # (cores, shots, frames, frames | shots * frames)
    difference = positives.amax(-1) - negatives.amin(-1)  # (cores, shots, frames)
    return functional.softplus(difference).mean((1, 2)), (difference > 0).to(difference.dtype).mean((1, 2))


def squared_distances(points: Tensor) -> Tensor:
    """Squared Euclidean distances, in float32 or wider: (..., n, d) -> (..., n, n)."""
    with torch.autocast(points.device.type, enabled=False):
        points = precise(points)
        squares = points.square().sum(-1)
        return (squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * points @ points.mT).clamp(min=0)
