"""The frame losses and the poolings, against plain loops over frames."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from losscheck import assert_always_finite, assert_bf16_gives_float32, assert_same, randomise
from torch import Tensor, nn

from vivi.losses import Contrastive, Exemplar, Rotation, Supervised
from vivi.losses.exemplar import semi_hard_triplet
from vivi.model import AttentionPooling, MeanPooling

SIZES = [(1, 2, 2, 3), (2, 3, 4, 5), (3, 5, 2, 8), (2, 2, 8, 4)]  # cores, shots, frames, d
LOSSES: list[tuple[Callable[[], nn.Module], int]] = [  # and their copies
    (lambda: Exemplar(5, 7), 1),
    (lambda: Exemplar(5, 7, triplets="batch-hard"), 1),
    (lambda: Rotation(5), 4),
    (lambda: Contrastive(5, 7), 4),
]


def representations(cores: int, copies: int, shots: int, frames: int, d: int, seed: int = 0) -> Tensor:
    """Random ones, in which the frames of a shot are somewhat group."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(cores, copies, shots, 1, d, generator=generator, dtype=torch.float64)
    own = torch.randn(cores, copies, shots, frames, d, generator=generator, dtype=torch.float64)
    return (shared + own).requires_grad_()


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()


def triplets_by_loops(core: Tensor, margin: float, group: int) -> tuple[Tensor, float]:
    """The semi-hard triplet loss of one core (shots, frames, d), and the share of its terms above zero."""

    def distance(a: tuple[int, int], b: tuple[int, int]) -> Tensor:
        return ((core[a] - core[b]) ** 2).sum()

    frames = [(shot, frame) for shot in range(core.shape[0]) for frame in range(core.shape[1])]
    terms = []
    for anchor in frames:
        negatives = [distance(anchor, other) for other in frames if other[0] // group != anchor[0] // group]
        for positive in frames:
            if positive[0] == anchor[0] and positive != anchor:
                near = distance(anchor, positive)
                farther = [negative for negative in negatives if negative > near]
                far = min(farther) if farther else max(negatives)
                terms.append((margin + near - far).clamp(min=0))
    return mean(terms), sum(float(term > 0) for term in terms) / len(terms)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("margin", "group"), [(0.5, 1), (0.1, 1), (0.5, 2), (1.5, 2), (0.5, 3)])
def test_exemplar_agrees_with_loops_over_triplets(size: tuple[int, int, int, int], margin: float, group: int) -> None:
    cores, shots, frames, d = size
    h = representations(cores, 1, shots * group, frames, d)
    loss = randomise(Exemplar(d, 6, margin, group))
    embeddings = h[:, 0] @ loss.head.weight.T + loss.head.bias
    embeddings = embeddings / embeddings.norm(dim=-1, keepdim=True)
    expected = [triplets_by_loops(core, margin, group) for core in embeddings]
    metrics = {"triplet_violations": [violations for _, violations in expected]}
    assert_same(loss(h), [term for term, _ in expected], metrics, [h, *loss.parameters()])


def points(*shots: list[float]) -> Tensor:
    """One core of shots whose frames lie on a line."""
    return torch.tensor(shots, dtype=torch.float64)[None, :, :, None].requires_grad_()


def test_the_negative_is_the_nearest_one_behind_the_positive() -> None:
    core = points([0.0, 0.5], [0.4, 0.6], [0.7, 2.0])
    by_hand = [
        1 + 0.25 - 0.36,  # 0.0 with 0.5: 0.4 is nearer than the positive, then comes 0.6
        0,  # 0.5 with 0.0: 0.4, 0.6 and 0.7 are nearer, then comes 2.0, farther than the margin
        1 + 0.04 - 0.09,  # 0.4 with 0.6: 0.5 is nearer, then comes 0.7
        1 + 0.04 - 0.36,  # 0.6 with 0.4: 0.5 and 0.7 are nearer, then comes 0.0
        1 + 1.69 - 0.49,  # 0.7 with 2.0: all are nearer, the farthest is 0.0
        1 + 1.69 - 1.96,  # 2.0 with 0.7: 0.6 comes next
    ]
    loss, violations = semi_hard_triplet(core, margin=1.0)
    torch.testing.assert_close(loss, torch.tensor([sum(by_hand) / 6], dtype=torch.float64))
    torch.testing.assert_close(violations, torch.tensor([5 / 6], dtype=torch.float64))


def test_without_a_semi_hard_negative_the_farthest_one_is_taken_and_gets_the_gradient() -> None:
    core = points([-10.0, 10.0], [0.0, 1.0])
    loss, violations = semi_hard_triplet(core, margin=0.5)
    first = [400 + 0.5 - 121, 400 + 0.5 - 100]  # -10 with 10: farthest is 1; 10 with -10: farthest is 0
    torch.testing.assert_close(loss, torch.tensor([sum(first) / 4], dtype=torch.float64))
    assert violations.item() == 0.5
    (gradient,) = torch.autograd.grad(loss.sum(), core)
    # d/dx of (x1 - x2)^2 twice, less (x1 - 1)^2 and (x2 - 0)^2, over four pairs
    expected = [[(-80 + 22) / 4, (80 - 20) / 4], [20 / 4, -22 / 4]]
    torch.testing.assert_close(gradient[0, :, :, 0], torch.tensor(expected, dtype=torch.float64))


def test_a_negative_as_far_as_the_positive_is_not_semi_hard() -> None:
    loss, _ = semi_hard_triplet(points([0.0, 1.0], [-1.0, 3.0]), margin=1.0)
    # 0 with 1: -1 is as far, so 3 is taken; 1 with 0: 3 and -1 are equally far; -1 with 3, 3 with -1: none is farther
    expected = (0 + 0 + (1 + 16 - 4) + (1 + 16 - 9)) / 4
    torch.testing.assert_close(loss, torch.tensor([expected], dtype=torch.float64))


def test_triplets_of_bf16_embeddings_are_computed_in_float32() -> None:
    embeddings = representations(3, 1, 4, 4, 8)[:, 0].bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss, violations = semi_hard_triplet(embeddings, margin=0.5)
    exact, exact_violations = semi_hard_triplet(embeddings.double(), margin=0.5)
    assert loss.dtype == violations.dtype == torch.float32
    torch.testing.assert_close(loss, exact.float())
    torch.testing.assert_close(violations, exact_violations.float())


def hardest_by_loops(core: Tensor, group: int) -> tuple[Tensor, float]:
    """The batch-hard soft-margin loss of one core (shots, frames, d), and how often the negative is nearer."""
    frames = [(shot, frame) for shot in range(core.shape[0]) for frame in range(core.shape[1])]
    terms, nearer = [], []
    for anchor in frames:
        distances = {other: (core[anchor] - core[other]).norm() for other in frames if other != anchor}
        farthest = max(distance for other, distance in distances.items() if other[0] == anchor[0])
        nearest = min(d for other, d in distances.items() if other[0] // group != anchor[0] // group)
        terms.append(torch.log(1 + torch.exp(farthest - nearest)))
        nearer.append(float(nearest < farthest))
    return mean(terms), sum(nearer) / len(nearer)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("group", [1, 2])
def test_batch_hard_exemplars_agree_with_loops_over_frames(size: tuple[int, int, int, int], group: int) -> None:
    cores, shots, frames, d = size
    h = representations(cores, 1, shots * group, frames, d)
    loss = randomise(Exemplar(d, 6, group=group, triplets="batch-hard"))
    embeddings = h[:, 0] @ loss.head.weight.T + loss.head.bias
    embeddings = embeddings / embeddings.norm(dim=-1, keepdim=True)
    expected = [hardest_by_loops(core, group) for core in embeddings]
    metrics = {"triplet_violations": [violations for _, violations in expected]}
    assert_same(loss(h), [term for term, _ in expected], metrics, [h, *loss.parameters()])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("copies", [1, 4])
def test_supervised_agrees_with_loops_over_views(size: tuple[int, int, int, int], copies: int) -> None:
    cores, images, augmented, d = size
    h = representations(cores, copies, images, augmented, d)
    loss = randomise(Supervised(d, 6))
    labels = torch.randint(6, (cores, images), generator=torch.Generator().manual_seed(0))
    losses, accuracies = [], []
    for core in range(cores):
        terms, right = [], []
        for copy in range(copies):
            for image in range(images):
                for view in range(augmented):
                    logits = loss.head.weight @ h[core, copy, image, view] + loss.head.bias
                    shares = logits.exp() / logits.exp().sum()
                    terms.append(-shares[labels[core, image]].log())
                    right.append(float(logits.argmax() == labels[core, image]))
        losses.append(mean(terms))
        accuracies.append(sum(right) / len(right))
    assert_same(loss(h, labels), losses, {"supervised_accuracy": accuracies}, [h, *loss.parameters()])


@pytest.mark.parametrize("size", SIZES)
def test_rotation_agrees_with_loops_over_frames(size: tuple[int, int, int, int]) -> None:
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
    assert_same(loss(h), losses, {"rotation_accuracy": accuracies}, [h, *loss.parameters()])


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


def test_exemplar_views_are_the_frames_themselves() -> None:
    frames = torch.rand(2, 3, 2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    views = Exemplar(4, 4).views(frames)
    assert views.shape == (2, 1, 3, 2, 3, 5, 5)
    assert torch.equal(views[:, 0], frames)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_contrastive_agrees_with_loops_over_pairs(size: tuple[int, int, int, int], temperature: float) -> None:
    cores, shots, frames, d = size
    h = representations(cores, 4, shots, frames, d)
    loss = randomise(Contrastive(d, 6, temperature))
    losses, accuracies = [], []
    for core in h[:, 0]:
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
    assert_same(loss(h), losses, {"contrastive_accuracy": accuracies}, [h, *loss.parameters()])


@pytest.mark.parametrize(("make", "copies"), LOSSES)
def test_the_loss_of_a_core_does_not_depend_on_the_others(make: Callable[[], nn.Module], copies: int) -> None:
    torch.manual_seed(0)
    loss = randomise(make())
    h = representations(4, copies, 3, 2, 5)
    together, metrics = loss(h)
    for core in range(4):
        alone, metrics_alone = loss(h[core : core + 1])
        torch.testing.assert_close(together[core], alone[0])
        for name, values in metrics.items():
            assert values[core] == metrics_alone[name][0]
    (gradient,) = torch.autograd.grad(together[1], h)
    assert gradient[1].any() and not gradient[[0, 2, 3]].any()


@pytest.mark.parametrize(("make", "copies"), LOSSES)
def test_bf16_representations_give_float32_losses_near_the_exact_ones(
    make: Callable[[], nn.Module], copies: int
) -> None:
    torch.manual_seed(0)
    assert_bf16_gives_float32(make(), representations(2, copies, 4, 4, 5))


@pytest.mark.parametrize(("make", "copies"), LOSSES)
def test_large_and_collapsed_representations_give_finite_losses(make: Callable[[], nn.Module], copies: int) -> None:
    torch.manual_seed(0)
    assert_always_finite(make(), representations(2, copies, 3, 2, 5))


def test_collapsed_frames_cost_the_margin_or_pure_chance() -> None:
    torch.manual_seed(0)
    h = torch.zeros(2, 4, 3, 2, 5)  # zeros, as any other value may be rounded differently from frame to frame
    exemplar, violated = Exemplar(5, 7)(h)
    torch.testing.assert_close(exemplar, torch.full((2,), 0.5))
    assert violated["triplet_violations"].tolist() == [1, 1]
    contrastive, right = Contrastive(5, 7)(h)
    torch.testing.assert_close(contrastive, torch.full((2,), math.log(5)))  # the positive and four negatives
    assert right["contrastive_accuracy"].tolist() == [0, 0]


@pytest.mark.parametrize(("make", "copies"), LOSSES)
def test_heads_start_glorot_uniform_with_zero_biases(make: Callable[[], nn.Module], copies: int) -> None:
    torch.manual_seed(0)
    head = make().head
    assert isinstance(head, nn.Linear)
    bound = math.sqrt(6 / (head.in_features + head.out_features))
    assert not head.bias.any()
    assert 0.8 * bound < head.weight.abs().max() <= bound


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5, 4), (2, 1, 3, 1, 4)])
def test_mean_pooling_is_the_mean_over_frames(shape: tuple[int, ...]) -> None:
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = sum(h[..., frame, :] for frame in range(shape[-2])) / shape[-2]
    torch.testing.assert_close(MeanPooling()(h), expected)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5, 4), (2, 1, 3, 1, 4)])
def test_attention_pooling_agrees_with_loops_over_frames(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    pooling = randomise(AttentionPooling(4, hidden=6))
    h = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    pooled = []
    for shot in h.reshape(-1, *shape[-2:]):
        weights = [pooling.score(frame).exp() for frame in shot]
        pooled.append(sum(weight * frame for weight, frame in zip(weights, shot, strict=True)) / sum(weights))
    expected = torch.stack(pooled).reshape(*shape[:-2], shape[-1])
    torch.testing.assert_close(pooling(h), expected)
    if shape[-2] > 1:
        assert (pooling(h) - h.mean(-2)).abs().max() > 1e-3  # it does weigh
    towards = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad((pooling(h) * towards).sum(), [h, *pooling.parameters()]),
        torch.autograd.grad((expected * towards).sum(), [h, *pooling.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("pooling", [MeanPooling(), AttentionPooling(4)])
def test_pooling_of_bf16_frames_is_float32(pooling: nn.Module) -> None:
    h = torch.randn(2, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        pooled = pooling(h.bfloat16())
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, pooling(h), rtol=0.02, atol=0.02)
