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


def assert_bf16_gives_float32(loss: nn.Module, seen: Tensor, *noise: Tensor) -> None:
    """From bf16 input come float32 losses near the exact ones, and gradients for everything."""
    seen = seen.float().detach().requires_grad_()
    exact, _ = loss(seen, *noise)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, metrics = loss(seen.bfloat16(), *noise)
    assert rounded.dtype == torch.float32
    assert all(values.dtype == torch.float32 and not values.requires_grad for values in metrics.values())
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
    gradients = torch.autograd.grad(rounded.sum(), [seen, *loss.parameters()])
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)


def assert_always_finite(loss: nn.Module, seen: Tensor, *noise: Tensor) -> None:
    """Losses and gradients are finite for large and for collapsed input."""
    for extreme in [1e4 * seen.float(), torch.ones(seen.shape), torch.zeros(seen.shape)]:
        extreme = extreme.detach().requires_grad_()
        values, _ = loss(extreme, *noise)
        gradients = torch.autograd.grad(values.sum(), [extreme, *loss.parameters()])
        assert values.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)
