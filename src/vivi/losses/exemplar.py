"""The exemplar loss: frames of a shot lie closer together than to frames of other shots."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from vivi.losses.base import FrameLoss, Measured, mean_over_positives, split_pairs
from vivi.losses.layers import at_least_float32, linear


class Exemplar(FrameLoss):
    """A linear head, L2-normalised, and a triplet loss. It needs at least two frames in a shot and two shots.

    Negatives are frames of all other shots, or, with `negatives` "videos", of other videos only: `shots` consecutive
    ones are of one video.
    """

    metrics: ClassVar = {"triplet_violations": ""}

    def __init__(
        self,
        features: int,
        shots: int = 1,
        dimension: int = 1000,
        triplets: Literal["semi-hard", "batch-hard"] = "semi-hard",
        margin: float = 0.5,
        negatives: Literal["shots", "videos"] = "shots",
    ) -> None:
        super().__init__()
        self.head = linear(features, dimension)
        self.triplets, self.margin = triplets, margin
        self.group = shots if negatives == "videos" else 1

    def measure(self, h: Tensor, uniforms: Tensor | None = None) -> Measured:
        """h is (..., shots, frames, features)."""
        embeddings = functional.normalize(at_least_float32(self.head(h)), dim=-1)  # (..., shots, frames, dimension)
        if self.triplets == "batch-hard":
            loss, violations = batch_hard_triplets_of_shots(embeddings, self.group)
        else:
            loss, violations = semi_hard_triplets_of_shots(embeddings, self.margin, self.group)
        return loss, {"triplet_violations": violations}


def semi_hard_triplets(embeddings: Tensor, labels: Tensor, margin: float = 0.5) -> Tensor:
    """The semi-hard triplet loss of embeddings (n, d), of which those with equal labels (n,) belong together.

    The semantics of triplet_semihard_loss of tf.contrib.losses: distances are squared; every ordered pair of two with
    the same label is an anchor and its positive; their negative is the nearest with another label that is farther
    from the anchor than the positive, or the farthest of all where none is. (Of equally far negatives TensorFlow
    shares the gradient among all; here one gets it.) The mean over all pairs.
    """
    same = labels[:, None] == labels  # (n, n)
    if same.all() or not (same.sum(1) > 1).any():
        raise ValueError("triplets need two different labels, and two embeddings with the same label")
    distances = squared_distances(embeddings)
    negatives = distances.masked_fill(same, torch.inf)
    terms = semi_hard_terms(distances, negatives, (~same).sum(1, keepdim=True), margin)  # (n, n)
    return terms[same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)].mean()


def semi_hard_terms(positives: Tensor, negatives: Tensor, count: Tensor | int, margin: float) -> Tensor:
    """The terms of each anchor and positive: distances (..., positives) and (..., negatives) -> (..., positives).

    Of the negatives, `count` are real; the others have a distance of infinity.
    """
    # In ascending order the negative sought stands where the positive would be put in, behind its equals.
    ascending = negatives.sort(dim=-1).values
    place = torch.searchsorted(ascending.detach(), positives.detach().contiguous(), right=True)
    negative = ascending.gather(-1, place.clamp(max=count - 1))
    return (margin + positives - negative).relu()


def semi_hard_triplets_of_shots(embeddings: Tensor, margin: float, group: int = 1) -> tuple[Tensor, Tensor]:
    """`semi_hard_triplets` of frames whose label is their shot, and the share of the terms above zero.

    (..., shots, frames, d) -> (...), (...). The shots of a group of consecutive ones are no negatives of each other.
    """
    shots, frames = embeddings.shape[-3:-1]
    positives, negatives = split_pairs(distances_of_frames(embeddings), torch.inf, group)
    terms = semi_hard_terms(positives, negatives, (shots - group) * frames, margin)  # (..., shots, frames, frames)
    return mean_over_positives(terms), mean_over_positives((terms > 0).to(terms.dtype)).detach()


def batch_hard_triplets_of_shots(embeddings: Tensor, group: int = 1) -> tuple[Tensor, Tensor]:
    """S4L's batch-hard triplet loss, and the share of its terms whose negative is nearer than the positive.

    (..., shots, frames, d) -> (...), (...). Every frame is an anchor; its positive is the farthest frame of its shot,
    its negative the nearest of another shot (of another group); the margin is soft: softplus(d_p - d_n) of Euclidean
    distances, where squares below 1e-12 count as that.
    """
    distances = distances_of_frames(embeddings).clamp(min=1e-12).sqrt()
    positives, negatives = split_pairs(distances, torch.inf, group)  # (..., shots, frames, frames | shots * frames)
    difference = positives.amax(-1) - negatives.amin(-1)  # (..., shots, frames)
    return functional.softplus(difference).mean((-2, -1)), (difference > 0).to(difference.dtype).mean((-2, -1))


def distances_of_frames(embeddings: Tensor) -> Tensor:
    """Squared distances of all pairs of frames: (..., shots, frames, d) -> (..., shots, frames, shots, frames)."""
    shots, frames = embeddings.shape[-3:-1]
    distances = squared_distances(embeddings.flatten(-3, -2))  # (..., shots * frames, shots * frames)
    pairs: Tensor = distances.unflatten(-1, (shots, frames)).unflatten(-3, (shots, frames))
    return pairs


def squared_distances(points: Tensor) -> Tensor:
    """Squared Euclidean distances, in float32 or wider: (..., n, d) -> (..., n, n)."""
    with torch.autocast(points.device.type, enabled=False):
        points = at_least_float32(points)
        squares = points.square().sum(-1)
        return (squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * points @ points.mT).clamp(min=0)
