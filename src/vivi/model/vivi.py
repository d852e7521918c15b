"""The model of the paper: encoder f, frame/shot loss L_S, pooling p, shot embedding, prediction g with L_V, and the
classifier of L_SUP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vivi.losses import (
    Contrastive,
    Exemplar,
    InfoNCE2,
    InfoNCESequence,
    Jigsaw,
    Order,
    RelativeLocation,
    Rotation,
    ShuffledOrder,
    Supervised,
)
from vivi.model.encoder import Encoder, build_encoder
from vivi.model.heads import linear
from vivi.model.pooling import AttentionPooling, MeanPooling
from vivi.recipes import Loss, Recipe, sees_patches


class Vivi(nn.Module):
    """Everything that has weights. `loss.video` "none" leaves p, the shot embedding and g out; no classes, L_SUP."""

    def __init__(self, encoder: Encoder, loss: Loss, shots: int, classes: int = 0) -> None:
        super().__init__()
        self.encoder = encoder
        self.frame_loss = _frame_loss(loss, encoder.features, shots)
        self.contrastive = (
            Contrastive(encoder.features, temperature=loss.temperature) if loss.contrastive_weight else None
        )
        if loss.video != "none":
            self.pooling = MeanPooling() if loss.pooling == "mean" else AttentionPooling(encoder.features)
            self.embed_shot = linear(encoder.features, loss.shot_features)
        self.video_loss = _video_loss(loss, shots)
        self.supervised_loss = Supervised(encoder.features, classes) if classes else None

    def represent(self, frames: Tensor, for_frame_loss: bool = True) -> Tensor:
        """f: frames (cores, shots, frames, 3, size, size) -> representations (cores, copies, shots, frames, d).

        The copies are those of the frame loss; where it does not see the frames, they are one.
        """
        views = self.frame_loss.views(frames) if self.frame_loss and for_frame_loss else frames.unsqueeze(1)
        representations: Tensor = self.encoder(views.flatten(1, 3)).unflatten(1, views.shape[1:4])
        return representations

    def shot_embeddings(self, representations: Tensor, shots: int) -> Tensor:
        """p and its linear layer, on the unrotated copy: -> (cores, videos, shots, shot_features)."""
        embeddings: Tensor = self.embed_shot(self.pooling(representations[:, 0])).unflatten(1, (-1, shots))
        return embeddings


def build_model(recipe: Recipe, classes: int = 0) -> Vivi:
    """The model of a recipe, with a classifier of so many classes; its initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        # A patch of 64 pixels is of an image of 292; the encoder is used on whole ones, of 224.
        patches, size = sees_patches(recipe), recipe.augment.size
        encoder = build_encoder(recipe.encoder, size * 7 // 2 if patches else size, patches)
        return Vivi(encoder, recipe.loss, recipe.batch.shots, classes)


def _frame_loss(loss: Loss, features: int, shots: int) -> Exemplar | Rotation | Jigsaw | RelativeLocation | None:
    match loss.frame:
        case "none":
            return None
        case "exemplar":
            group = shots if loss.negatives == "videos" else 1
            return Exemplar(features, loss.exemplar_features, loss.margin, group, loss.triplets)
        case "rotation":
            return Rotation(features)
        case "jigsaw":
            return Jigsaw(features, loss.exemplar_features, loss.patch_hidden)
        case "location":
            return RelativeLocation(features, loss.exemplar_features, loss.patch_hidden)


def _video_loss(loss: Loss, shots: int) -> InfoNCE2 | InfoNCESequence | Order | ShuffledOrder | None:
    match loss.video:
        case "none":
            return None
        case "infonce" if shots == 2:
            return InfoNCE2(loss.shot_features, both_ways=loss.both_ways)
        case "infonce":
            return InfoNCESequence(loss.shot_features, ahead=loss.ahead)
        case "order":
            return Order(loss.shot_features)
        case "shuffle":
            return ShuffledOrder(loss.shot_features, shots)
