"""The video losses, against plain loops over videos and shots."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from losscheck import assert_always_finite, assert_bf16_gives_float32, assert_same, randomise
from torch import Tensor, nn

from vivi.losses import InfoNCE2, InfoNCESequence, Order, ShuffledOrder
from vivi.losses.order import shuffled_order

LOSSES: list[tuple[Callable[[], nn.Module], int]] = [  # and their shots
    (lambda: InfoNCE2(6, 5, 4), 2),
    (lambda: InfoNCE2(6, 5, 4, both_ways=True), 2),
    (lambda: InfoNCESequence(6, 5), 4),
    (lambda: InfoNCESequence(6, 5, ahead=2), 3),
    (lambda: Order(6, 5), 2),
    (lambda: ShuffledOrder(6, 3, 5), 3),
]


def inputs(groups: int, videos: int, shots: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings, somewhat alike within a video, and noise."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(groups, videos, 1, d, generator=generator, dtype=torch.float64)
    own = torch.randn(groups, videos, shots, d, generator=generator, dtype=torch.float64)
    noise = torch.rand(groups, videos, shots + 1, generator=generator)
    return (shared + own).requires_grad_(), noise


def infonce_by_loops(
    predictions: dict[tuple[int, int, int], Tensor], shots: dict[tuple[int, int], Tensor]
) -> tuple[Tensor, float]:
    """Of one group: predictions by (video, target shot, any number), and shots by (video, shot)."""
    terms, right = [], []
    for (video, target, _), prediction in predictions.items():
        positive = prediction @ shots[video, target]
        negatives = [prediction @ shot for (other, _), shot in shots.items() if other != video]
        terms.append(-torch.log(positive.exp() / (positive.exp() + sum(score.exp() for score in negatives))))
        right.append(float(all(positive > score for score in negatives)))
    return torch.stack(terms).mean(), sum(right) / len(right)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("size", [(1, 2, 3), (3, 5, 4), (2, 8, 6)])  # groups, videos, d
def test_infonce_of_two_shots_agrees_with_loops(size: tuple[int, int, int], both_ways: bool) -> None:
    groups, videos, d = size
    e, noise = inputs(groups, videos, 2, d)
    loss = randomise(InfoNCE2(d, 7, 5, both_ways))
    losses, accuracies = [], []
    for group in e:
        predictions = {(video, 1, 0): loss.phi1(group[video, 0]) for video in range(videos)}
        if both_ways:
            predictions |= {(video, 0, 0): loss.phi1(group[video, 1]) for video in range(videos)}
        shots = {(video, shot): loss.phi2(group[video, shot]) for video in range(videos) for shot in range(2)}
        term, right = infonce_by_loops(predictions, shots)
        losses.append(term)
        accuracies.append(right)
    assert_same(loss(e, noise), losses, {"infonce_accuracy": accuracies}, [e, *loss.parameters()])


def lstm_by_loops(lstm: nn.LSTM, sequence: Tensor) -> list[Tensor]:
    """What a two-layer LSTM puts out at each position of a sequence (length, d)."""
    outputs = list(sequence)
    for layer in range(2):
        weights = [getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        state = cell = torch.zeros(lstm.hidden_size, dtype=torch.float64)
        for position, value in enumerate(outputs):
            gates = weights[0] @ value + weights[2] + weights[1] @ state + weights[3]
            into, forget, new, out = gates.chunk(4)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = out.sigmoid() * cell.tanh()
            outputs[position] = state
    return outputs


@pytest.mark.parametrize(("shots", "ahead"), [(2, 1), (3, 1), (4, 1), (3, 2), (4, 2), (4, 3)])
@pytest.mark.parametrize("size", [(1, 2, 3), (2, 5, 6)])  # groups, videos, d
def test_infonce_of_sequences_agrees_with_loops(size: tuple[int, int, int], shots: int, ahead: int) -> None:
    groups, videos, d = size
    e, noise = inputs(groups, videos, shots, d)
    loss = randomise(InfoNCESequence(d, 4, ahead))
    losses, accuracies = [], []
    for group in e:
        predictions = {}
        for video in range(videos):
            states = lstm_by_loops(loss.lstm, group[video])
            for position in range(shots):
                for step in range(1, ahead + 1):
                    if position + step < shots:
                        prediction = loss.predict[step - 1](states[position])
                        predictions[video, position + step, step] = prediction
        assert len(predictions) == videos * sum(shots - step for step in range(1, ahead + 1))
        candidates = {(video, shot): group[video, shot] for video in range(videos) for shot in range(shots)}
        term, right = infonce_by_loops(predictions, candidates)
        losses.append(term)
        accuracies.append(right)
    assert_same(loss(e, noise), losses, {"infonce_accuracy": accuracies}, [e, *loss.parameters()])


def test_a_prediction_does_not_see_the_shots_it_predicts_or_later_ones() -> None:
    e, _ = inputs(1, 3, 4, 5)
    loss = randomise(InfoNCESequence(5, 4))
    states, _ = loss.lstm(e[0])
    (gradient,) = torch.autograd.grad(states[:, 1].sum(), e)
    assert gradient[:, :, :2].any() and not gradient[:, :, 2:].any()


def test_infonce_of_a_wrong_number_of_shots_says_so() -> None:
    e, _ = inputs(1, 3, 3, 5)
    with pytest.raises(ValueError, match="InfoNCESequence"):
        InfoNCE2(5).double()(e)
    with pytest.raises(ValueError, match="3 shots ahead takes more than 3 shots"):
        InfoNCESequence(5, ahead=3).double()(e)


@pytest.mark.parametrize("size", [(1, 1, 3), (3, 5, 4), (2, 9, 6)])  # groups, videos, d
def test_order_agrees_with_loops_over_videos(size: tuple[int, int, int]) -> None:
    groups, videos, d = size
    e, noise = inputs(groups, videos, 2, d)
    loss = randomise(Order(d, 7))
    losses, accuracies = [], []
    for group, draws in zip(e, noise, strict=True):
        terms, right = [], []
        for video, draw in zip(group, draws, strict=True):
            reverse = bool(draw[0] < 0.5)
            first, second = (video[1], video[0]) if reverse else (video[0], video[1])
            logits = loss.classify(torch.cat([first, second]))
            terms.append(-torch.log(logits[int(reverse)].exp() / logits.exp().sum()))
            right.append(float(logits.argmax() == int(reverse)))
        losses.append(torch.stack(terms).mean())
        accuracies.append(sum(right) / videos)
    assert_same(loss(e, noise), losses, {"order_accuracy": accuracies}, [e, *loss.parameters()])


@pytest.mark.parametrize("shots", [3, 4])
@pytest.mark.parametrize("size", [(1, 1, 3), (3, 5, 4), (2, 9, 6)])  # groups, videos, d
def test_shuffled_order_agrees_with_loops_over_videos(size: tuple[int, int, int], shots: int) -> None:
    groups, videos, d = size
    e, noise = inputs(groups, videos, shots, d)
    loss = randomise(ShuffledOrder(d, shots, 7))
    losses, accuracies = [], []
    for group, draws in zip(e, noise, strict=True):
        terms, right = [], []
        for video, draw in zip(group, draws.tolist(), strict=True):
            label, order = 0, list(range(shots))
            if draw[0] < 0.5:
                label, order = 1, sorted(order, key=lambda shot: draw[1 + shot])
                if order == sorted(order):
                    order.reverse()
            logits = loss.classify(torch.cat([video[shot] for shot in order]))
            terms.append(-torch.log(logits[label].exp() / logits.exp().sum()))
            right.append(float(logits.argmax() == label))
        losses.append(torch.stack(terms).mean())
        accuracies.append(sum(right) / videos)
    assert_same(loss(e, noise), losses, {"order_accuracy": accuracies}, [e, *loss.parameters()])


@pytest.mark.parametrize("shots", [3, 4])
def test_half_of_the_videos_are_shuffled_and_none_of_them_is_in_order(shots: int) -> None:
    draws = 40_000
    noise = torch.rand(draws, shots + 1, generator=torch.Generator().manual_seed(shots))
    orders, shuffled = shuffled_order(noise)
    assert abs(shuffled.double().mean() - 0.5) < 0.02
    in_order = tuple(range(shots))
    assert all(tuple(order) == in_order for order in orders[~shuffled].tolist())
    found = Counter(map(tuple, orders[shuffled].tolist()))
    possible = set(itertools.permutations(range(shots))) - {in_order}
    assert found.keys() == possible
    for order, count in found.items():  # the reversal stands in for the order itself
        share = (2 if order == in_order[::-1] else 1) / math.factorial(shots)
        assert abs(count / found.total() - share) < 0.02


def test_order_reverses_half_of_the_videos() -> None:
    """With a head that knows the answer when nothing is reversed, the accuracy is the share left as it was."""
    noise = torch.rand(4, 5000, 3, generator=torch.Generator().manual_seed(0))
    e = torch.tensor([0.0, 1.0])[None, None, :, None].expand(4, 5000, 2, 1)
    loss = Order(1, 1)
    loss.classify = nn.Sequential(nn.Linear(2, 2))
    loss.classify[0].weight.data = torch.tensor([[0.0, 9.0], [0.0, 9.0]])  # blind to the order
    loss.classify[0].bias.data = torch.tensor([1.0, 0.0])  # always "not reversed"
    _, metrics = loss(e, noise)
    assert ((metrics["order_accuracy"] - 0.5).abs() < 0.03).all()
    loss.classify[0].weight.data = torch.tensor([[0.0, 9.0], [9.0, 0.0]])  # where the 1 is
    _, metrics = loss(e, noise)
    assert metrics["order_accuracy"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("make", "shots"), LOSSES)
def test_the_loss_of_a_group_does_not_depend_on_the_others(make: Callable[[], nn.Module], shots: int) -> None:
    loss = randomise(make())
    e, noise = inputs(4, 5, shots, 6)
    together, metrics = loss(e, noise)
    for group in range(4):
        alone, metrics_alone = loss(e[group : group + 1], noise[group : group + 1])
        torch.testing.assert_close(together[group], alone[0])
        for name, values in metrics.items():
            assert values[group] == metrics_alone[name][0]
    (gradient,) = torch.autograd.grad(together[1], e)
    assert gradient[1].any() and not gradient[[0, 2, 3]].any()


@pytest.mark.parametrize(("make", "shots"), LOSSES)
def test_bf16_embeddings_give_float32_losses_near_the_exact_ones(make: Callable[[], nn.Module], shots: int) -> None:
    torch.manual_seed(0)
    assert_bf16_gives_float32(make(), *inputs(2, 6, shots, 6))


@pytest.mark.parametrize(("make", "shots"), LOSSES)
def test_large_and_collapsed_embeddings_give_finite_losses(make: Callable[[], nn.Module], shots: int) -> None:
    torch.manual_seed(0)
    assert_always_finite(make(), *inputs(2, 4, shots, 6))


@pytest.mark.parametrize("make", [lambda: InfoNCE2(6), lambda: InfoNCESequence(6)])
def test_collapsed_embeddings_make_infonce_pure_chance(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    loss, metrics = make()(torch.zeros(3, 5, 2, 6))
    torch.testing.assert_close(loss, torch.full((3,), math.log(1 + 4 * 2)))  # the positive and (N - 1) * K negatives
    assert metrics["infonce_accuracy"].tolist() == [0, 0, 0]
