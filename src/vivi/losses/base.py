"""What all losses have in common.

A loss is a module with its own head. `loss(x)` is its value, a mean over its terms; `loss.measure(x)` is the value
and the metrics that are logged with it. Dimensions in front of those that a loss names are separate batches, in
training the cores of a step: each has a loss of its own, and nothing is compared across them. So

    Exemplar(2048)(h)    of h (shots, frames, 2048) is a scalar, of h (cores, shots, frames, 2048) it is (cores,)

A loss that needs random numbers takes uniforms in [0, 1) as its second argument, so that a step that is computed
again gives the same loss; without them it draws its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vivi.losses.layers import at_least_float32

Measured = tuple[Tensor, dict[str, Tensor]]  # a loss, and its metrics without gradients, of the same shape


class Loss(nn.Module):
    """Implement `measure`, or `forward` where there are no metrics.

    A recipe's loss is made as `Loss(features, shots, **settings)`, with the number of shots of a video.
    """

    label: ClassVar[str] = ""
    """Its name in the progress line, where that is not `name`."""
    metrics: ClassVar[Mapping[str, str]] = {}
    """The metrics of `measure`, and their names in the progress line; one with an empty name is not shown there."""

    @property
    def name(self) -> str:
        """Its name in metrics.jsonl."""
        return type(self).__name__.lower()

    def measure(self, x: Tensor, uniforms: Tensor | None = None) -> Measured:
        return self(x, uniforms), {}

    def forward(self, x: Tensor, uniforms: Tensor | None = None) -> Tensor:
        return self.measure(x, uniforms)[0]


class FrameLoss(Loss):
    """A loss L_S on the representations h of frames, (shots, frames, d). Uniforms are (videos, shots + 1).

    One that sees each frame several times, such as rotated, sets `view_count` and `views`; its h is (views,
    shots, frames, d).
    """

    view_count: ClassVar[int] = 1

    def views(self, frames: Tensor) -> Tensor:
        """What f sees: (cores, shots, frames, 3, H, W) -> (cores, views, shots, frames, 3, H, W)."""
        return frames.unsqueeze(1)


class VideoLoss(Loss):
    """A loss L_V on the embeddings e of shots, (videos, shots, d). Uniforms are (videos, shots + 1).

    With `across_cores`, it is computed once on the shots of all cores.
    """

    across_cores: bool = False


def cross_entropy(logits: Tensor, classes: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and accuracy over some dimensions of the classes, from logits (*classes.shape, n)."""
    scores = at_least_float32(logits).log_softmax(-1)
    loss = -scores.gather(-1, classes.unsqueeze(-1)).squeeze(-1).mean(dims)
    return loss, (scores.argmax(-1) == classes).to(scores.dtype).mean(dims)


def pick(positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax loss of picking each positive, (..., p), out of itself and the negatives, (..., n), and whether it
    scores above all of them: a tie counts as wrong, so that collapsed embeddings score nothing. Both are (..., p)."""
    # -log(exp(p) / (exp(p) + sum(exp(n)))) = softplus(logsumexp(n) - p)
    terms = functional.softplus(negatives.logsumexp(-1, keepdim=True) - positive)
    return terms, (positive > negatives.amax(-1, keepdim=True)).to(terms.dtype)


def split_pairs(values: Tensor, fill: float, group: int = 1) -> tuple[Tensor, Tensor]:
    """The values of pairs of frames, (..., shots, frames, shots, frames), split by whether they share a shot.

    Returns what each frame has with those of its own shot, itself among them, (..., shots, frames, frames), and with
    all frames, (..., shots, frames, shots * frames), where those of its own group of consecutive shots, by default
    the shot alone, are set to `fill`.
    """
    shots, frames = values.shape[-2:]
    if shots <= group or frames < 2:
        raise ValueError(
            "frames are compared within and across shots: it takes 2 frames of a shot and more shots than one group, "
            f"not {frames} frames, {shots} shots in groups of {group}"
        )
    within = values.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)  # (..., shots, frames, frames)
    groups = torch.arange(shots, device=values.device) // group
    same = (groups[:, None] == groups)[:, None, :, None]
    return within, values.masked_fill(same, fill).flatten(-2)


def mean_over_positives(values: Tensor) -> Tensor:
    """The mean over ordered pairs of different frames of a shot: (..., shots, frames, frames) -> (...)."""
    shots, frames = values.shape[-3:-1]
    different = ~torch.eye(frames, dtype=torch.bool, device=values.device)
    return (values * different).sum((-3, -2, -1)) / (shots * frames * (frames - 1))
