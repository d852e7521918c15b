"""What the tests of losses share: modules away from their start, and comparison with a reference, gradients too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from vivi.losses import Loss

Module = TypeVar("Module", bound=nn.Module)


def randomise(module: Module, seed: int = 1) -> Module:
    """The module in double precision, every parameter random, the biases too."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        scale = parameter.shape[-1] ** -0.5
        parameter.data = scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def assert_same(
    loss: Loss,
    seen: Tensor,
    extra: Tensor | None,
    expected: Sequence[Tensor],
    metrics: dict[str, list[float]],
) -> None:
    """The loss of `seen` (cores, ...) is what the reference has for each core, also without the dimension of cores;
    so are its metrics, and its gradients for the input and for every parameter."""
    inputs = [seen, *loss.parameters()]
    references = torch.stack(list(expected))
    _assert_same(loss.measure(seen, extra), references, metrics, inputs)
    assert torch.equal(loss(seen, extra), loss.measure(seen, extra)[0])
    assert loss.metrics.keys() == metrics.keys()
    for core, reference in enumerate(references):
        own = loss.measure(seen[core], None if extra is None else extra[core])
        assert own[0].shape == () and all(values.shape == () for values in own[1].values())
        as_a_core = own[0][None], {name: values[None] for name, values in own[1].items()}
        _assert_same(as_a_core, reference[None], {name: [values[core]] for name, values in metrics.items()}, inputs)


def _assert_same(
    measured: tuple[Tensor, dict[str, Tensor]],
    expected: Tensor,
    metrics: dict[str, list[float]],
    inputs: Sequence[Tensor],
) -> None:
    loss, found = measured
    torch.testing.assert_close(loss, expected)
    assert found.keys() == metrics.keys()
    for name, values in metrics.items():
        torch.testing.assert_close(found[name], torch.tensor(values, dtype=torch.float64))
        assert not found[name].requires_grad
    weights = torch.arange(1, len(expected) + 1, dtype=torch.float64)  # so that cores cannot be mistaken for others
    ours = torch.autograd.grad((loss * weights).sum(), inputs, retain_graph=True)
    theirs = torch.autograd.grad((expected * weights).sum(), inputs, retain_graph=True)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their)
    assert any(gradient.any() for gradient in ours)


def assert_cores_apart(loss: Loss, seen: Tensor, extra: Tensor | None = None) -> None:
    """The loss of a core, its metrics and its gradient do not depend on the other cores."""
    together, metrics = loss.measure(seen, extra)
    assert together.shape == (len(seen),)
    for core in range(len(seen)):
        part = slice(core, core + 1)
        alone, metrics_alone = loss.measure(seen[part], None if extra is None else extra[part])
        torch.testing.assert_close(together[core], alone[0])
        for name, values in metrics.items():
            assert values[core] == metrics_alone[name][0]
    (gradient,) = torch.autograd.grad(together[1], seen)
    others = [core for core in range(len(seen)) if core != 1]
    assert gradient[1].any() and not gradient[others].any()


def assert_bf16_gives_float32(loss: Loss, seen: Tensor, *uniforms: Tensor) -> None:
    """From bf16 input come float32 losses near the exact ones, and gradients for everything."""
    seen = seen.float().detach().requires_grad_()
    exact = loss(seen, *uniforms)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, metrics = loss.measure(seen.bfloat16(), *uniforms)
    assert rounded.dtype == torch.float32
    assert all(values.dtype == torch.float32 and not values.requires_grad for values in metrics.values())
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
    gradients = torch.autograd.grad(rounded.sum(), [seen, *loss.parameters()])
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)


def assert_always_finite(loss: Loss, seen: Tensor, *uniforms: Tensor) -> None:
    """Losses and gradients are finite for large and for collapsed input."""
    for extreme in [1e4 * seen.float(), torch.ones(seen.shape), torch.zeros(seen.shape)]:
        extreme = extreme.detach().requires_grad_()
        values = loss(extreme, *uniforms)
        gradients = torch.autograd.grad(values.sum(), [extreme, *loss.parameters()])
        assert values.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)
