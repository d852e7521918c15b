"""A loss of one's own, trained as any other: resumed, logged, shown in the progress line and in curves.png.

    python examples/own_loss.py corpus/ run/ [STEPS]          corpus/: 16 training videos of 4 shots, or more

The loss is VICReg's (Bardes et al., 2022) in the place of the exemplar loss: frames of a shot have the same
embedding, each dimension of it varies over the batch, and no two dimensions are correlated. No negatives are needed.

To make a loss a part of vivi, so that `vivi train vivi-ex4 --loss.frame vicreg` finds it: put the class into a file
of src/vivi/losses and export it there; put its settings, under the same name, into src/vivi/recipes/losses.py and
name them in FRAME_LOSSES (`module` is not needed then).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vivi.losses import FrameLoss
from vivi.losses.base import Measured
from vivi.losses.layers import at_least_float32, mlp
from vivi.recipes import RECIPES, LossSettings, Recipe
from vivi.runtime.errors import UserError
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import train


class VICReg(FrameLoss):
    """h is (..., shots, frames, d); dimensions in front, the cores of a step, have a loss of their own each."""

    metrics: ClassVar = {"embedding_std": "std"}  # logged, and called "std" in the progress line

    def __init__(self, features: int, shots: int, dimension: int, covariance_weight: float) -> None:
        super().__init__()
        self.head = mlp(features, dimension, dimension)
        self.covariance_weight = covariance_weight

    def measure(self, h: Tensor, uniforms: Tensor | None = None) -> Measured:
        z = at_least_float32(self.head(h))  # (..., shots, frames, dimension)
        invariance = (z - z.mean(-2, keepdim=True)).square().mean((-3, -2, -1))
        z = z.flatten(-3, -2)  # (..., n, dimension)
        std = (z.var(-2) + 1e-4).sqrt()  # (..., dimension)
        z = z - z.mean(-2, keepdim=True)
        covariance = z.mT @ z / (z.shape[-2] - 1)  # (..., dimension, dimension)
        off_diagonal = covariance - torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
        redundancy = off_diagonal.square().sum((-2, -1)) / z.shape[-1]
        loss = invariance + F.relu(1 - std).mean(-1) + self.covariance_weight * redundancy
        return loss, {"embedding_std": std.mean(-1).detach()}


@dataclass(frozen=True)
class VICRegSettings(LossSettings):
    """Its fields are the arguments of VICReg; they are a part of the recipe, and saved with it."""

    dimension: int = 128
    covariance_weight: float = 0.04
    module: ClassVar = VICReg


def own_recipe(steps: int) -> Recipe:
    base = RECIPES["vivi-ex4-tiny"]
    return replace(base, name="vicreg-tiny", steps=steps, loss=replace(base.loss, frame=VICRegSettings()))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/own_loss.py corpus/ run/ [STEPS]")
    corpus, out = Path(sys.argv[1]), Path(sys.argv[2])
    recipe = own_recipe(steps=int(sys.argv[3]) if len(sys.argv) > 3 else 800)
    try:
        train(recipe, DataPaths(corpus), out, Execution(log_every=1))
    except UserError as error:
        sys.exit(f"error: {error}")
