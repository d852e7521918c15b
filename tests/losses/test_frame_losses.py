"""Rotation, contrastive and supervised loss, against plain loops; and what all frame losses have in common."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from losscheck import assert_always_finite, assert_bf16_gives_float32, assert_cores_apart, assert_same, randomise
from torch import Tensor, nn

from vivi.losses import Contrastive, Exemplar, FrameLoss, Rotation, Supervised
from vivi.losses.layers import at_least_float32

Size = tuple[int, int, int, int]  # cores, shots, frames, d


def random_sizes(count: int) -> list[Size]:
    rng = np.random.default_rng(1)

    def upto(least: int, most: int) -> int:
        return int(rng.integers(least, most + 1))

    return [(upto(1, 3), upto(2, 5), upto(2, 5), upto(1, 8)) for _ in range(count)]


SIZES: list[Size] = [(1, 2, 2, 3), (2, 3, 4, 5), (3, 5, 2, 8), (2, 2, 8, 4), *random_sizes(3)]
LOSSES: list[Callable[[], FrameLoss]] = [
    lambda: Exemplar(5, dimension=7),
    lambda: Exemplar(5, dimension=7, triplets="batch-hard"),
    lambda: Rotation(5),
    lambda: Contrastive(5, 7),
]


def representations(*shape: int, seed: int = 0) -> Tensor:
    """(..., shots, frames, d): random ones, in which the frames of a shot are somewhat alike."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(*shape[:-2], 1, shape[-1], generator=generator, dtype=torch.float64)
    own = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return (shared + own).requires_grad_()


def seen_by(loss: FrameLoss, cores: int, shots: int, frames: int, d: int) -> Tensor:
    """With the copies of the loss, if it makes any."""
    copies = (loss.view_count,) if loss.view_count > 1 else ()
    return representations(cores, *copies, shots, frames, d)


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("views", [1, 4])
def test_supervised_agrees_with_loops_over_copies(size: Size, views: int) -> None:
    cores, images, copies, d = size
    h = representations(cores, views, images, copies, d)
    loss = randomise(Supervised(d, 6))
    labels = torch.randint(6, (cores, images), generator=torch.Generator().manual_seed(0))
    losses, accuracies = [], []
    for core in range(cores):
        terms, right = [], []
        for view in range(views):
            for image in range(images):
                for copy in range(copies):
                    logits = loss.head.weight @ h[core, view, image, copy] + loss.head.bias
                    shares = logits.exp() / logits.exp().sum()
                    terms.append(-shares[labels[core, image]].log())
                    right.append(float(logits.argmax() == labels[core, image]))
        losses.append(mean(terms))
        accuracies.append(sum(right) / len(right))
    assert_same(loss, h, labels, losses, {"supervised_accuracy": accuracies})


@pytest.mark.parametrize("size", SIZES)
def test_rotation_agrees_with_loops_over_frames(size: Size) -> None:
    cores, shots, frames, d = size
    h = representations(cores, 4, shots, frames, d)
    loss = randomise(Rotation(d))
    losses, accuracies = [], []
    for core in h:
        terms, right = [], []
        for turn in range(4):
            for shot in range(shots):
                for frame in range(frames):
                    logits = loss.head(core[turn, shot, frame])
                    terms.append(-torch.log(logits[turn].exp() / logits.exp().sum()))
                    right.append(float(logits.argmax() == turn))
        losses.append(mean(terms))
        accuracies.append(sum(right) / len(right))
    assert_same(loss, h, None, losses, {"rotation_accuracy": accuracies})


def test_rotation_views_turn_copy_r_by_r_quarter_turns() -> None:
    frames = torch.randint(0, 256, (2, 3, 2, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = Rotation(4).views(frames)
    assert views.shape == (2, 4, 3, 2, 3, 5, 5) and views.dtype == torch.uint8
    for turn in range(4):
        for row in range(5):
            for column in range(5):
                y, x = row, column
                for _ in range(turn):  # a quarter turn against the clock
                    y, x = 4 - x, y
                assert torch.equal(views[:, turn, ..., y, x], frames[..., row, column])


@pytest.mark.parametrize("loss", [Exemplar(4, dimension=4), Contrastive(4, 4)])
def test_views_of_losses_without_copies_are_the_frames_themselves(loss: FrameLoss) -> None:
    frames = torch.rand(2, 3, 2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    views = loss.views(frames)
    assert loss.view_count == 1 and views.shape == (2, 1, 3, 2, 3, 5, 5)
    assert torch.equal(views[:, 0], frames)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_contrastive_agrees_with_loops_over_pairs(size: Size, temperature: float) -> None:
    cores, shots, frames, d = size
    h = representations(cores, shots, frames, d)
    loss = randomise(Contrastive(d, 6, temperature))
    losses, accuracies = [], []
    for core in h:
        terms, right = [], []
        embedded = loss.head(core)
        places = [(shot, frame) for shot in range(shots) for frame in range(frames)]
        for query in places:
            scores = {
                place: torch.cosine_similarity(embedded[query], embedded[place], dim=0) / temperature
                for place in places
            }
            negatives = [score for place, score in scores.items() if place[0] != query[0]]
            for place, score in scores.items():
                if place[0] == query[0] and place != query:
                    total = score.exp() + torch.stack(negatives).exp().sum()
                    terms.append(-torch.log(score.exp() / total))
                    right.append(float(score > max(negatives)))
        losses.append(mean(terms))
        accuracies.append(sum(right) / len(right))
    assert_same(loss, h, None, losses, {"contrastive_accuracy": accuracies})


# --- what they have in common ---


@pytest.mark.parametrize("make", LOSSES)
def test_the_loss_of_a_core_does_not_depend_on_the_others(make: Callable[[], FrameLoss]) -> None:
    loss = randomise(make())
    assert_cores_apart(loss, seen_by(loss, 4, 3, 2, 5))


@pytest.mark.parametrize("make", LOSSES)
def test_bf16_representations_give_float32_losses_near_the_exact_ones(make: Callable[[], FrameLoss]) -> None:
    torch.manual_seed(0)
    loss = make()
    assert_bf16_gives_float32(loss, seen_by(loss, 2, 4, 4, 5))


@pytest.mark.parametrize("make", LOSSES)
def test_large_and_collapsed_representations_give_finite_losses(make: Callable[[], FrameLoss]) -> None:
    torch.manual_seed(0)
    loss = make()
    assert_always_finite(loss, seen_by(loss, 2, 3, 2, 5))


@pytest.mark.parametrize("make", LOSSES)
def test_losses_without_random_numbers_take_uniforms_and_do_not_use_them(make: Callable[[], FrameLoss]) -> None:
    loss = randomise(make())
    h = seen_by(loss, 2, 3, 2, 5)
    uniforms = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    assert torch.equal(loss(h, uniforms), loss(h))
    assert torch.equal(torch.get_rng_state(), before)


def test_collapsed_frames_cost_the_margin_or_pure_chance() -> None:
    torch.manual_seed(0)
    h = torch.zeros(2, 3, 2, 5)  # zeros, as any other value may be rounded differently from frame to frame
    exemplar, violated = Exemplar(5, dimension=7).measure(h)
    torch.testing.assert_close(exemplar, torch.full((2,), 0.5))
    assert violated["triplet_violations"].tolist() == [1, 1]
    contrastive, right = Contrastive(5, 7).measure(h)
    torch.testing.assert_close(contrastive, torch.full((2,), math.log(5)))  # the positive and four negatives
    assert right["contrastive_accuracy"].tolist() == [0, 0]


@pytest.mark.parametrize("make", LOSSES)
def test_heads_start_glorot_uniform_with_zero_biases(make: Callable[[], FrameLoss]) -> None:
    torch.manual_seed(0)
    head = make().head
    assert isinstance(head, nn.Linear)
    bound = math.sqrt(6 / (head.in_features + head.out_features))
    assert not head.bias.any()
    assert 0.8 * bound < head.weight.abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float32_widens_and_never_narrows(dtype: torch.dtype) -> None:
    values = torch.tensor([0.5, -3.0], dtype=dtype)
    wide = at_least_float32(values)
    assert wide.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert wide.tolist() == [0.5, -3.0]


def test_losses_have_names_and_say_how_their_metrics_are_shown() -> None:
    """In metrics.jsonl, and in the progress line."""
    names = [(loss.name, loss.label, dict(loss.metrics)) for loss in (Rotation(5), Exemplar(5), Supervised(5, 3))]
    assert names == [
        ("rotation", "", {"rotation_accuracy": "rotation accuracy"}),
        ("exemplar", "", {"triplet_violations": ""}),
        ("supervised", "labels", {"supervised_accuracy": "label accuracy"}),
    ]
