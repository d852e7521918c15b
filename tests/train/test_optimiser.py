"""The learning rate and the optimiser: what the paper's table means."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vivi.model.vivi import build_model
from vivi.recipes import Augment, Batch, Encoder, Exemplar, Loss, Optimiser, Recipe
from vivi.runtime.distributed import World
from vivi.runtime.errors import UserError
from vivi.train.checkpoint import broadcast_state, load_state, state_tensors
from vivi.train.optimiser import build_optimiser, learning_rate


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.0),
        (1, 0.08),
        (5, 0.4),
        (9, 0.72),
        (10, 0.8),
        (89, 0.8),
        (90, 0.08),
        (109, 0.08),
        (110, 0.008),
        (10**6, 0.008),
    ],
)
def test_the_learning_rate_warms_up_from_zero_and_decays_in_steps(step: int, expected: float) -> None:
    settings = Optimiser(lr=0.8, warmup=10, decay_at=(90, 110), decay_factor=0.1)
    assert learning_rate(step, 120, settings) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.0), (5, 0.25), (10, 0.5), (35, 0.426776695), (60, 0.25), (110, 0.0)]
)
def test_a_cosine_falls_from_the_full_rate_to_zero_at_the_last_step(step: int, expected: float) -> None:
    settings = Optimiser(lr=0.5, warmup=10, schedule="cosine", decay_at=(20,))
    assert learning_rate(step, 110, settings) == pytest.approx(expected)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert learning_rate(0, 100, Optimiser(lr=0.8, warmup=0)) == 0.8


def small_model(shot_features: int = 8) -> nn.Module:
    return build_model(
        Recipe(
            "test",
            encoder=Encoder("resnetv2_18", width=0.125),
            batch=Batch(shots=4),
            augment=Augment(size=32),
            loss=Loss(frame=Exemplar(dimension=8), shot_features=shot_features),
        )
    )


def test_weight_decay_is_on_kernels_only() -> None:
    model = small_model()
    optimiser = build_optimiser(model, Optimiser(weight_decay=0.1))
    decay = {p: group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        kernel = "weight" in name and "norm" not in name
        assert decay[parameter] == (0.1 if kernel else 0.0), name


def test_a_step_is_that_of_tensorflows_momentum() -> None:
    """v = 0.9 v + g + decay w; w = w - lr v, written out."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimiser = build_optimiser(layer, Optimiser(weight_decay=0.1, momentum=0.9))
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for step in range(4):
        rate = 0.1 * (step + 1)
        for group in optimiser.param_groups:
            group["lr"] = rate
        gradients = [torch.randn_like(weight), torch.randn_like(bias)]
        layer.weight.grad, layer.bias.grad = (gradient.clone() for gradient in gradients)
        optimiser.step()
        velocity[0] = 0.9 * velocity[0] + gradients[0] + 0.1 * weight
        velocity[1] = 0.9 * velocity[1] + gradients[1]
        weight, bias = weight - rate * velocity[0], bias - rate * velocity[1]
    torch.testing.assert_close(layer.weight.detach(), weight)
    torch.testing.assert_close(layer.bias.detach(), bias)


def test_a_restored_state_is_what_was_saved() -> None:
    model = small_model()
    optimiser = build_optimiser(model, Optimiser())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimiser.step()
    saved = {name: tensor.clone() for name, tensor in state_tensors(model, optimiser).items()}
    other = small_model()
    fresh = build_optimiser(other, Optimiser())
    load_state(other, fresh, saved)
    again = state_tensors(other, fresh)
    assert saved.keys() == again.keys()
    assert all(torch.equal(saved[name], again[name]) for name in saved)
    # In a single process there is nobody to tell.
    broadcast_state(other, fresh, World(torch.device("cpu")))
    assert all(torch.equal(saved[name], tensor) for name, tensor in state_tensors(other, fresh).items())


def test_a_state_of_another_model_is_refused_in_one_line() -> None:
    model, wider = small_model(), small_model(shot_features=9)
    state = state_tensors(model, build_optimiser(model, Optimiser()))
    with pytest.raises(UserError, match=r"the checkpoint does not fit the recipe's model: .*embed_shot") as caught:
        load_state(wider, build_optimiser(wider, Optimiser()), state)
    assert "\n" not in str(caught.value)
