"""What the tests of losses share: modules away from their start, and comparison with a reference, gradients too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def randomise(module: Module, seed: int = 1) -> Module:
    """The module in double precision, every parameter drawn anew, the biases too."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        scale = parameter.shape[-1] ** -0.5
        parameter.data = scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def assert_same(
    result: tuple[Tensor, dict[str, Tensor]],
    losses: Sequence[Tensor],
    metrics: dict[str, list[float]],
    inputs: Sequence[Tensor],
) -> None:
    """A loss returned what the reference did for each core, and its gradients for the inputs are the reference's."""
    loss, found = result
    expected = torch.stack(list(losses))
    torch.testing.assert_close(loss, expected)
    assert found.keys() == metrics.keys()
    for name, values in metrics.items():
        torch.testing.assert_close(found[name], torch.tensor(values, dtype=torch.float64))
        assert not found[name].requires_grad
    weights = torch.arange(1, len(losses) + 1, dtype=torch.float64)  # so that cores cannot be mistaken for each other
    ours = torch.autograd.grad((loss * weights).sum(), inputs, retain_graph=True)
    theirs = torch.autograd.grad((expected * weights).sum(), inputs)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their)
    assert any(gradient.any() for gradient in ours)
