"""What heads are made of: layers initialised as TensorFlow does, and the precision their outputs are compared in."""

from __future__ import annotations

import math

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


def lstm(features: int, hidden: int, layers: int) -> nn.LSTM:
    """An LSTM that starts as TensorFlow's LSTMCell does: one Glorot-uniform kernel for input and state together,
    biases of zero, and a forget gate that is open (a bias of 1)."""
    module = nn.LSTM(features, hidden, layers, batch_first=True)
    for name, parameter in module.named_parameters():
        if name.startswith("weight"):  # (4 hidden, inputs) or (4 hidden, hidden)
            inputs = features if name.endswith("l0") else hidden
            limit = math.sqrt(6 / (inputs + hidden + 4 * hidden))
            nn.init.uniform_(parameter, -limit, limit)
        else:
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):
                nn.init.ones_(parameter[hidden : 2 * hidden])  # gates are in the order input, forget, cell, output
    return module


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32, or as they are if they are wider: distances and softmax need more than bfloat16."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
