"""The contrastive loss (NT-Xent, SimCLR): a frame picks another frame of its shot out of those of other shots."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from vivi.losses.pairs import mean_over_positives, split_pairs
from vivi.model.heads import linear, precise


class Contrastive(nn.Module):
    """A linear head, L2-normalised, and softmax over cosines within each core; added to exemplar or rotation.

    Every ordered pair of frames of a shot is a query and its positive. The positive competes with all frames of the
    other shots of the core; the query's further positives are left out of the denominator, as none of them is wrong.
    It needs at least two shots in a core and two frames in a shot.
    """

    def __init__(self, features: int, dimension: int = 128, temperature: float = 0.1) -> None:
        super().__init__()
        self.head = linear(features, dimension)
        self.temperature = temperature

    def forward(self, h: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Of h (cores, copies, shots, frames, d) the first copy, the unrotated one, is used.

        A query is right when its positive scores above every negative; a tie is not.
        """
        embeddings = functional.normalize(precise(self.head(h[:, 0])), dim=-1)  # (cores, shots, frames, dimension)
        with torch.autocast(h.device.type, enabled=False):
            # (cores, shots, frames, shots, frames)
            cosines = torch.einsum("csfd,ctgd->csftg", embeddings, embeddings)
        positive, negatives = split_pairs(cosines / self.temperature, -torch.inf)
        # -log(exp(p) / (exp(p) + sum(exp(n)))) = softplus(logsumexp(n) - p)
        # (cores, shots, frames, frames)
        terms = functional.softplus(negatives.logsumexp(-1, keepdim=True) - positive)
        right = (positive > negatives.amax(-1, keepdim=True)).to(terms.dtype)
        return mean_over_positives(terms), {"contrastive_accuracy": mean_over_positives(right)}
