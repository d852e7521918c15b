"""The video losses, against plain loops over videos and shots."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from losscheck import assert_always_finite, assert_bf16_gives_float32, assert_cores_apart, assert_same, randomise
from torch import Tensor, nn

from vivi.losses import InfoNCE, Order, VideoLoss, info_nce
from vivi.losses.infonce import ShotSequence, TwoShots
from vivi.losses.order import shuffled_order

Size = tuple[int, int, int]  # cores, videos, d


def random_sizes(count: int) -> list[Size]:
    rng = np.random.default_rng(2)
    return [(int(rng.integers(1, 4)), int(rng.integers(2, 8)), int(rng.integers(1, 9))) for _ in range(count)]


def infonce(features: int, shots: int, **settings: Any) -> InfoNCE:
    """With small hidden layers."""
    loss = InfoNCE(features, shots, **settings)
    loss.g = (
        TwoShots(features, 7, 5, both_ways=loss.g.both_ways)
        if isinstance(loss.g, TwoShots)
        else ShotSequence(features, 4, ahead=len(loss.g.predict))
    )
    return loss


LOSSES: list[tuple[Callable[[], VideoLoss], int]] = [  # and their shots
    (lambda: infonce(6, 2), 2),
    (lambda: infonce(6, 2, both_ways=True), 2),
    (lambda: infonce(6, 4), 4),
    (lambda: infonce(6, 3, ahead=2), 3),
    (lambda: Order(6, hidden=5), 2),
    (lambda: Order(6, 3, hidden=5), 3),
]


def inputs(cores: int, videos: int, shots: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings, somewhat alike within a video, and uniforms."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(cores, videos, 1, d, generator=generator, dtype=torch.float64)
    own = torch.randn(cores, videos, shots, d, generator=generator, dtype=torch.float64)
    uniforms = torch.rand(cores, videos, shots + 1, generator=generator)
    return (shared + own).requires_grad_(), uniforms


# --- InfoNCE ---


def infonce_by_loops(
    predictions: dict[tuple[int, int, int], Tensor], shots: dict[tuple[int, int], Tensor]
) -> tuple[Tensor, float]:
    """Of a core: predictions by (video, target shot, any number), and shots by (video, shot)."""
    terms, right = [], []
    for (video, target, _), prediction in predictions.items():
        positive = prediction @ shots[video, target]
        negatives = [prediction @ shot for (other, _), shot in shots.items() if other != video]
        terms.append(-torch.log(positive.exp() / (positive.exp() + sum(score.exp() for score in negatives))))
        right.append(float(all(positive > score for score in negatives)))
    return torch.stack(terms).mean(), sum(right) / len(right)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("size", [(1, 2, 3), (3, 5, 4), (2, 8, 6), *random_sizes(3)])
def test_infonce_of_two_shots_agrees_with_loops(size: Size, both_ways: bool) -> None:
    cores, videos, d = size
    e, uniforms = inputs(cores, videos, 2, d)
    loss = randomise(infonce(d, 2, both_ways=both_ways))
    assert isinstance(loss.g, TwoShots)
    losses, accuracies = [], []
    for core in e:
        predictions = {(video, 1, 0): loss.g.phi1(core[video, 0]) for video in range(videos)}
        if both_ways:
            predictions |= {(video, 0, 0): loss.g.phi1(core[video, 1]) for video in range(videos)}
        shots = {(video, shot): loss.g.phi2(core[video, shot]) for video in range(videos) for shot in range(2)}
        term, right = infonce_by_loops(predictions, shots)
        losses.append(term)
        accuracies.append(right)
    assert_same(loss, e, uniforms, losses, {"infonce_accuracy": accuracies})


def test_the_lstm_starts_as_tensorflows_does() -> None:
    torch.manual_seed(0)
    lstm = InfoNCE(512, 4).g.lstm
    assert isinstance(lstm, nn.LSTM)
    for layer, inputs in ((0, 512), (1, 256)):
        # LSTMCell has one kernel (inputs + hidden, 4 hidden), Glorot uniform.
        kernel = torch.cat([getattr(lstm, f"{name}_l{layer}").flatten() for name in ("weight_ih", "weight_hh")])
        limit = (6 / (inputs + 256 + 4 * 256)) ** 0.5
        assert kernel.abs().max() <= limit
        assert kernel.std().item() == pytest.approx(limit / 3**0.5, rel=0.01)
        assert kernel.mean().abs() < limit / 100
        bias = getattr(lstm, f"bias_ih_l{layer}") + getattr(lstm, f"bias_hh_l{layer}")
        assert [gate.unique().tolist() for gate in bias.split(256)] == [[0], [1], [0], [0]]  # the second one forgets


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


@pytest.mark.parametrize(("shots", "ahead"), [(3, 1), (4, 1), (5, 1), (3, 2), (4, 2), (4, 3)])
@pytest.mark.parametrize("size", [(1, 2, 3), (2, 5, 6), *random_sizes(2)])
def test_infonce_of_sequences_agrees_with_loops(size: Size, shots: int, ahead: int) -> None:
    cores, videos, d = size
    e, uniforms = inputs(cores, videos, shots, d)
    loss = randomise(infonce(d, shots, ahead=ahead))
    assert isinstance(loss.g, ShotSequence)
    losses, accuracies = [], []
    for core in e:
        predictions = {}
        for video in range(videos):
            states = lstm_by_loops(loss.g.lstm, core[video])
            for position in range(shots):
                for step in range(1, ahead + 1):
                    if position + step < shots:
                        prediction = loss.g.predict[step - 1](states[position])
                        predictions[video, position + step, step] = prediction
        assert len(predictions) == videos * sum(shots - step for step in range(1, ahead + 1))
        candidates = {(video, shot): core[video, shot] for video in range(videos) for shot in range(shots)}
        term, right = infonce_by_loops(predictions, candidates)
        losses.append(term)
        accuracies.append(right)
    assert_same(loss, e, uniforms, losses, {"infonce_accuracy": accuracies})


@pytest.mark.parametrize("in_front", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("videos", "shots", "targets"), [(2, 1, [0]), (4, 3, [2, 0]), (5, 2, [1, 1, 0, 1])])
def test_info_nce_of_any_predictions_agrees_with_loops(
    in_front: tuple[int, ...], videos: int, shots: int, targets: list[int]
) -> None:
    generator = torch.Generator().manual_seed(videos)
    predictions = torch.randn(*in_front, videos, len(targets), 4, generator=generator, dtype=torch.float64)
    candidates = torch.randn(*in_front, videos, shots, 4, generator=generator, dtype=torch.float64)
    loss = info_nce(predictions, candidates, torch.tensor(targets))
    expected = []
    batches = zip(
        predictions.reshape(-1, *predictions.shape[-3:]), candidates.reshape(-1, videos, shots, 4), strict=True
    )
    for made, of in batches:
        by_place = {
            (video, target, number): made[video, number]
            for video in range(videos)
            for number, target in enumerate(targets)
        }
        places = {(video, shot): of[video, shot] for video in range(videos) for shot in range(shots)}
        expected.append(infonce_by_loops(by_place, places)[0])
    torch.testing.assert_close(loss, torch.stack(expected).view(in_front))


def test_g_is_chosen_by_the_number_of_shots_and_has_the_sizes_of_the_paper() -> None:
    two, four = InfoNCE(512, 2).g, InfoNCE(512, 4).g
    assert isinstance(two, TwoShots) and isinstance(four, ShotSequence)
    assert [tuple(p.shape) for p in two.phi1.parameters()] == [(256, 512), (256,), (128, 256), (128,)]
    assert (four.lstm.num_layers, four.lstm.hidden_size) == (2, 256)
    assert [tuple(p.shape) for p in four.predict.parameters()] == [(512, 256), (512,)]
    assert len(InfoNCE(8, 4, ahead=3).g.predict) == 3  # type: ignore[arg-type]


def test_infonce_is_across_cores_where_it_is_told_and_order_is_not() -> None:
    assert InfoNCE(6, 4, across="all").across_cores and not InfoNCE(6, 4, across="core").across_cores
    assert not Order(6).across_cores


def test_a_prediction_does_not_see_the_shots_it_predicts_or_later_ones() -> None:
    e, _ = inputs(1, 3, 4, 5)
    g = randomise(ShotSequence(5, 4))
    predictions, _, targets = g(e)
    assert targets.tolist() == [1, 2, 3]
    (gradient,) = torch.autograd.grad(predictions[..., 1, :].sum(), e)  # of shot 2
    assert gradient[:, :, :2].any() and not gradient[:, :, 2:].any()


def test_a_wrong_number_of_shots_says_so() -> None:
    e, _ = inputs(1, 3, 3, 5)
    with pytest.raises(ValueError, match="2 shots of a video, not 3"):
        InfoNCE(5, 2).double()(e)
    with pytest.raises(ValueError, match="2 shots of a video, not 3"):
        InfoNCE(5, 2, both_ways=True).double()(e)
    with pytest.raises(ValueError, match="3 shots ahead takes more than 3 shots"):
        InfoNCE(5, 3, ahead=3).double()(e)


@pytest.mark.parametrize("shots", [2, 4])
def test_a_video_alone_has_no_negatives(shots: int) -> None:
    with pytest.raises(ValueError, match="no negatives"):
        InfoNCE(5, shots)(torch.rand(3, 1, shots, 5))


@pytest.mark.parametrize("shots", [2, 4])
def test_collapsed_embeddings_make_infonce_pure_chance(shots: int) -> None:
    torch.manual_seed(0)
    loss, metrics = InfoNCE(6, shots).measure(torch.zeros(3, 5, shots, 6))
    chance = math.log(1 + 4 * shots)  # the positive and (N - 1) * K negatives
    torch.testing.assert_close(loss, torch.full((3,), chance))
    assert metrics["infonce_accuracy"].tolist() == [0, 0, 0]


# --- the order of shots ---


@pytest.mark.parametrize("size", [(1, 1, 3), (3, 5, 4), (2, 9, 6), *random_sizes(3)])
def test_order_of_two_shots_agrees_with_loops_over_videos(size: Size) -> None:
    cores, videos, d = size
    e, uniforms = inputs(cores, videos, 2, d)
    loss = randomise(Order(d, hidden=7))
    losses, accuracies = [], []
    for core, numbers in zip(e, uniforms, strict=True):
        terms, right = [], []
        for video, first_number in zip(core, numbers[:, 0], strict=True):
            reverse = bool(first_number < 0.5)
            first, second = (video[1], video[0]) if reverse else (video[0], video[1])
            logits = loss.classify(torch.cat([first, second]))
            terms.append(-torch.log(logits[int(reverse)].exp() / logits.exp().sum()))
            right.append(float(logits.argmax() == int(reverse)))
        losses.append(torch.stack(terms).mean())
        accuracies.append(sum(right) / videos)
    assert_same(loss, e, uniforms, losses, {"order_accuracy": accuracies})


@pytest.mark.parametrize("shots", [3, 4])
@pytest.mark.parametrize("size", [(1, 1, 3), (3, 5, 4), (2, 9, 6), *random_sizes(3)])
def test_order_of_several_shots_agrees_with_loops_over_videos(size: Size, shots: int) -> None:
    cores, videos, d = size
    e, uniforms = inputs(cores, videos, shots, d)
    loss = randomise(Order(d, shots, hidden=7))
    losses, accuracies = [], []
    for core, rows in zip(e, uniforms.tolist(), strict=True):
        terms, right = [], []
        for video, numbers in zip(core, rows, strict=True):
            label, order = 0, list(range(shots))
            if numbers[0] < 0.5:
                label, order = 1, sorted(order, key=numbers[1:].__getitem__)
                if order == sorted(order):
                    order.reverse()
            logits = loss.classify(torch.cat([video[shot] for shot in order]))
            terms.append(-torch.log(logits[label].exp() / logits.exp().sum()))
            right.append(float(logits.argmax() == label))
        losses.append(torch.stack(terms).mean())
        accuracies.append(sum(right) / videos)
    assert_same(loss, e, uniforms, losses, {"order_accuracy": accuracies})


@pytest.mark.parametrize("shots", [3, 4])
def test_half_of_the_videos_are_shuffled_and_none_of_them_is_in_order(shots: int) -> None:
    uniforms = torch.rand(40_000, shots + 1, generator=torch.Generator().manual_seed(shots))
    orders, shuffled = shuffled_order(uniforms)
    assert abs(shuffled.double().mean() - 0.5) < 0.02
    in_order = tuple(range(shots))
    assert all(tuple(order) == in_order for order in orders[~shuffled].tolist())
    found = Counter(map(tuple, orders[shuffled].tolist()))
    possible = set(itertools.permutations(range(shots))) - {in_order}
    assert found.keys() == possible
    for order, count in found.items():  # the reversal stands in for the order itself
        share = (2 if order == in_order[::-1] else 1) / math.factorial(shots)
        assert abs(count / found.total() - share) < 0.02


@pytest.mark.parametrize("own_uniforms", [False, True])
def test_order_reverses_half_of_the_videos(own_uniforms: bool) -> None:
    """With a head that knows the answer when nothing is reversed, the accuracy is the share left as it was."""
    torch.manual_seed(0)
    uniforms = None if own_uniforms else torch.rand(4, 5000, 3)
    e = torch.tensor([0.0, 1.0])[None, None, :, None].expand(4, 5000, 2, 1)
    loss = Order(1, hidden=1)
    loss.classify = nn.Sequential(nn.Linear(2, 2))
    loss.classify[0].weight.data = torch.tensor([[0.0, 9.0], [0.0, 9.0]])  # blind to the order
    loss.classify[0].bias.data = torch.tensor([1.0, 0.0])  # always "not reversed"
    _, metrics = loss.measure(e, uniforms)
    assert ((metrics["order_accuracy"] - 0.5).abs() < 0.03).all()
    loss.classify[0].weight.data = torch.tensor([[0.0, 9.0], [9.0, 0.0]])  # where the 1 is
    _, metrics = loss.measure(e, uniforms)
    assert metrics["order_accuracy"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("make", "shots"), [(lambda: Order(6, hidden=5), 2), (lambda: Order(6, 3, hidden=5), 3)])
def test_without_uniforms_the_order_losses_draw_their_own(make: Callable[[], VideoLoss], shots: int) -> None:
    """With torch's generator; given ones leave it alone."""
    loss = randomise(make())
    e, uniforms = inputs(2, 40, shots, 6)
    torch.manual_seed(1)
    first, again = loss(e), loss(e)
    assert not torch.equal(first, again)
    torch.manual_seed(1)
    assert torch.equal(loss(e), first)
    torch.manual_seed(1)
    drawn = torch.rand(2, 40, shots + 1)
    assert torch.equal(loss(e, drawn), first)
    before = torch.get_rng_state()
    assert torch.equal(loss(e, uniforms), loss(e, uniforms))
    assert torch.equal(torch.get_rng_state(), before)


# --- what they have in common ---


@pytest.mark.parametrize(("make", "shots"), LOSSES)
def test_the_loss_of_a_core_does_not_depend_on_the_others(make: Callable[[], VideoLoss], shots: int) -> None:
    assert_cores_apart(randomise(make()), *inputs(4, 5, shots, 6))


@pytest.mark.parametrize(("make", "shots"), LOSSES)
def test_bf16_embeddings_give_float32_losses_near_the_exact_ones(make: Callable[[], VideoLoss], shots: int) -> None:
    torch.manual_seed(0)
    assert_bf16_gives_float32(make(), *inputs(2, 6, shots, 6))


@pytest.mark.parametrize(("make", "shots"), LOSSES)
def test_large_and_collapsed_embeddings_give_finite_losses(make: Callable[[], VideoLoss], shots: int) -> None:
    torch.manual_seed(0)
    assert_always_finite(make(), *inputs(2, 4, shots, 6))
