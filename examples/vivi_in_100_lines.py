"""VIVI in one plain loop, without vivi's training code.

    python examples/vivi_in_100_lines.py corpus/ [STEPS]      corpus/: 16 training videos of 4 shots, or more

It trains what `vivi train vivi-ex4-tiny --corpus corpus/` trains: the same batches, augmentation and initial weights,
and so the same first losses. (Rounding separates the two after some steps, because triplets are chosen by which
distance is larger.) What vivi adds to this loop is everything around it: micro-batches and many processes that
compute the same step, reading ahead, checkpoints, the other methods, monitoring.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import timm
import torch
from torch import Tensor, nn

from vivi.data.augment import augment
from vivi.data.index import open_index
from vivi.data.sources import CorpusSource
from vivi.losses import Exemplar, InfoNCE
from vivi.losses.layers import linear
from vivi.prepare.corpus import Corpus
from vivi.recipes import RECIPES
from vivi.runtime.errors import UserError

recipe = RECIPES["vivi-ex4-tiny"]
V, K, L = recipe.batch.videos, recipe.batch.shots, recipe.batch.frames  # videos, shots of each, frames of each shot


class Model(nn.Module):
    """The encoder f, the pooling p with its linear layer, and the heads of the two losses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(recipe.seed)
        f = timm.create_model(recipe.encoder.name, num_classes=0, width_factor=recipe.encoder.width)
        for layer in f.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)  # as TensorFlow does
        self.f = f.to(memory_format=torch.channels_last)
        d: int = f.num_features  # type: ignore[assignment]
        self.frame_loss = Exemplar(d)  # L_S: frames of a shot lie close together
        self.embed_shot = linear(d, recipe.loss.shot_features)
        self.video_loss = InfoNCE(recipe.loss.shot_features, K)  # L_V: g predicts the next shot of a video

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """L_S and L_V of frames (V · K · L, 3, size, size)."""
        h = self.f(frames.contiguous(memory_format=torch.channels_last)).view(V * K, L, -1)  # (shots, frames, d)
        e = self.embed_shot(h.mean(1)).view(V, K, -1)  # (videos, shots, 512)
        return self.frame_loss(h), self.video_loss(e)


def batches(corpus: str, steps: int) -> Iterator[Tensor]:
    """The frames of each step: planned, read and decoded, augmented."""
    source = CorpusSource(open_index(Corpus(corpus)), recipe.batch, recipe.seed)
    for step in range(steps):
        decoded = source.read(source.plan(step))
        uniforms = decoded.plan.augment_uniforms.reshape(V * K * L, -1)
        yield augment(decoded.images, uniforms, recipe.augment)


def learning_rate(step: int) -> float:
    """Linear warm-up, then a constant, then a tenth of it."""
    settings = recipe.optimiser
    if step < settings.warmup:
        return settings.lr * step / settings.warmup
    return settings.lr * settings.decay_factor ** sum(step >= at for at in settings.decay_at)


def train(corpus: str, steps: int) -> Iterator[tuple[float, float]]:
    """Yields L_S and L_V of each step."""
    model, settings = Model().train(), recipe.optimiser
    kernels = {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": settings.weight_decay}
    others = {"params": [p for p in model.parameters() if p.ndim <= 1]}
    groups: list[dict[str, Any]] = [kernels, others]
    optimiser = torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)
    for step, frames in enumerate(batches(corpus, steps)):
        L_S, L_V = model(frames)
        optimiser.zero_grad()
        (L_S + recipe.loss.video_weight * L_V).backward()
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step)
        optimiser.step()
        yield L_S.item(), L_V.item()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/vivi_in_100_lines.py corpus/ [STEPS]")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else recipe.steps
    try:
        for number, (frame_loss, video_loss) in enumerate(train(sys.argv[1], count), start=1):
            print(f"step {number}: exemplar {frame_loss:.4f}, infonce {video_loss:.4f}")
    except UserError as error:
        sys.exit(f"error: {error}")
