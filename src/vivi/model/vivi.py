"""The model of the paper: the encoder f, the pooling p, the prediction function g, and the losses on them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from vivi import losses, recipes
from vivi.losses.layers import at_least_float32, linear
from vivi.model.encoder import Encoder, build_encoder


class Vivi(nn.Module):
    """Everything that has weights. Without a video loss there are no p and no g; without classes, no L_SUP."""

    def __init__(self, encoder: Encoder, loss: recipes.Loss, shots: int, classes: int = 0) -> None:
        super().__init__()
        d = encoder.features
        self.shots = shots  # K, of a video
        self.encoder = encoder
        self.frame_loss = cast("losses.FrameLoss | None", build_loss(loss.frame, d, shots))
        self.contrastive = losses.Contrastive(d, temperature=loss.temperature) if loss.contrastive_weight else None
        if loss.video is not None:
            self.pooling = MeanPooling() if loss.pooling == "mean" else AttentionPooling(d)
            self.embed_shot = linear(d, loss.shot_features)
        self.video_loss = cast("losses.VideoLoss | None", build_loss(loss.video, loss.shot_features, shots))
        self.supervised_loss = losses.Supervised(d, classes) if classes else None

    def weighted_losses(self, loss: recipes.Loss) -> list[tuple[losses.Loss, float]]:
        """The losses that the model has, and their weights: L_S and what is added to it, λ L_V, γ L_SUP."""
        candidates = (
            (self.frame_loss, 1.0),
            (self.contrastive, loss.contrastive_weight),
            (self.video_loss, loss.video_weight),
            (self.supervised_loss, loss.supervised_weight),
        )
        return [(part, weight) for part, weight in candidates if part is not None]

    def represent(self, frames: Tensor, for_frame_loss: bool = True) -> Tensor:
        """f: frames (cores, shots, frames, 3, size, size) -> representations h (cores, views, shots, frames, d).

        The views are those of the frame loss; where it does not see the frames, there is one.
        """
        views = self.frame_loss.views(frames) if self.frame_loss and for_frame_loss else frames.unsqueeze(1)
        h: Tensor = self.encoder(views.flatten(1, 3)).unflatten(1, views.shape[1:4])
        return h

    def frame_loss_input(self, h: Tensor) -> Tensor:
        """What the frame loss sees of h: all views, or, where there is one, h without that dimension."""
        return h if self.frame_loss is not None and self.frame_loss.view_count > 1 else h[:, 0]

    def embed_shots(self, h: Tensor) -> Tensor:
        """p and its linear layer, on the first view, which is not rotated: -> e (cores, videos, K, shot_features)."""
        e: Tensor = self.embed_shot(self.pooling(h[:, 0])).unflatten(1, (-1, self.shots))
        return e


class MeanPooling(nn.Module):
    """p: the mean over the frames of a shot."""

    def forward(self, h: Tensor) -> Tensor:
        """(..., frames, d) -> (..., d)."""
        return at_least_float32(h).mean(-2)


class AttentionPooling(nn.Module):
    """p: a mean weighted by a learned score of each frame, softmax over the frames of a shot."""

    def __init__(self, features: int, hidden: int = 128) -> None:
        super().__init__()
        # The last layer has no bias: softmax does not see it.
        self.score = nn.Sequential(linear(features, hidden), nn.Tanh(), linear(hidden, 1, bias=False))

    def forward(self, h: Tensor) -> Tensor:
        """(..., frames, d) -> (..., d)."""
        weights = at_least_float32(self.score(h)).softmax(-2)  # (..., frames, 1)
        return (weights * at_least_float32(h)).sum(-2)


def build_loss(settings: recipes.LossSettings | None, features: int, shots: int) -> losses.Loss | None:
    """The loss that a recipe names: `Exemplar(margin=0.4)` is `vivi.losses.Exemplar(features, shots, margin=0.4)`."""
    if settings is None:
        return None
    loss: type[losses.Loss] = settings.module or getattr(losses, type(settings).__name__)
    return loss(features, shots, **vars(settings))


def build_model(recipe: recipes.Recipe, classes: int = 0) -> Vivi:
    """The model of a recipe, with a classifier of so many classes; its initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        encoder = build_encoder(recipe.encoder, recipe.encoder_size, recipe.sees_patches)
        return Vivi(encoder, recipe.loss, recipe.batch.shots, classes)
