"""SGD with momentum, and the learning rate, a pure function of the step."""

from __future__ import annotations

import math

import torch
from torch import nn

from vivi.recipes import Optimiser


def build_optimiser(model: nn.Module, settings: Optimiser) -> torch.optim.SGD:
    """SGD with L2 on kernels only: convolutions, linear layers and the LSTM, not biases or norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = all(parameter.is_cuda for parameter in parameters)
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=fused)


def learning_rate(step: int, steps: int, settings: Optimiser) -> float:
    """The learning rate of a step, counted from 0, of `steps`: linear warm-up from 0; then times `decay_factor` from
    each step of `decay_at` on, or half a cosine."""
    if step < settings.warmup:
        return settings.lr * step / settings.warmup
    if settings.schedule == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * (step - settings.warmup) / (steps - settings.warmup)))
    decays = sum(step >= decay for decay in settings.decay_at)
    return float(settings.lr * settings.decay_factor**decays)
