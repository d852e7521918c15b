"""What heads are made of: layers initialised as TensorFlow does, and the precision their outputs are compared in."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def linear(features: int, out: int, bias: bool = True) -> nn.Linear:
    """A linear layer with a Glorot-uniform kernel and a bias of zero."""
    layer = nn.Linear(features, out, bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(features: int, hidden: int, out: int) -> nn.Sequential:
    """One hidden layer with ReLU."""
    return nn.Sequential(linear(features, hidden), nn.ReLU(), linear(hidden, out))


def float32(values: Tensor) -> Tensor:
    """The values in float32, or as they are if they are wider: distances and softmax need more than bfloat16."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
