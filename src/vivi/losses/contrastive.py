"""The contrastive loss (NT-Xent, SimCLR): a frame picks another frame of its shot out of those of other shots."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from vivi.losses.base import FrameLoss, Measured, mean_over_positives, pick, split_pairs
from vivi.losses.layers import at_least_float32, linear


class Contrastive(FrameLoss):
    """A linear head, L2-normalised, and softmax over cosines; added to exemplar or rotation.

    Every ordered pair of frames of a shot is a query and its positive. The positive competes with all frames of the
    other shots; the query's further positives are left out of the denominator, as none of them is wrong. It needs at
    least two shots, and two frames in a shot.
    """

    metrics: ClassVar = {"contrastive_accuracy": ""}

    def __init__(self, features: int, dimension: int = 128, temperature: float = 0.1) -> None:
        super().__init__()
        self.head = linear(features, dimension)
        self.temperature = temperature

    def measure(self, h: Tensor, uniforms: Tensor | None = None) -> Measured:
        """h is (..., shots, frames, features). A query is right when its positive scores above every negative."""
        embeddings = functional.normalize(at_least_float32(self.head(h)), dim=-1)  # (..., shots, frames, dimension)
        with torch.autocast(h.device.type, enabled=False):
            # (..., shots, frames, shots, frames)
            cosines = torch.einsum("...sfd,...tgd->...sftg", embeddings, embeddings)
        positives, negatives = split_pairs(cosines / self.temperature, -torch.inf)
        terms, right = pick(positives, negatives)  # (..., shots, frames, frames)
        return mean_over_positives(terms), {"contrastive_accuracy": mean_over_positives(right)}
