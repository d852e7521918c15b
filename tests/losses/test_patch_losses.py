"""Jigsaw and relative location: against loops, within cores, and random from their uniforms alone."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch
from losscheck import assert_always_finite, assert_bf16_gives_float32, assert_same, randomise
from numpy.typing import NDArray
from torch import Tensor, nn

from vivi import recipes
from vivi.data.augment.patches import PATCH_UNIFORMS, cut_patches, layout
from vivi.losses import Jigsaw, Location
from vivi.losses.patches import PatchHead, dropout, random_bits, read_permutations
from vivi.model.encoder import build_encoder

Loss = Jigsaw | Location
Make = Callable[[int], Loss]  # of the number of features

Size = tuple[int, int, int, int]  # cores, shots, frames, d
SIZES: list[Size] = [(1, 1, 1, 3), (2, 3, 1, 5), (3, 2, 2, 4), (2, 1, 4, 8)]
LOSSES: list[Make] = [
    lambda d: Jigsaw(d, dimension=5, hidden=12, shown=4),
    lambda d: Location(d, dimension=5, hidden=12),
]


def representations(size: Size, seed: int = 0) -> Tensor:
    cores, shots, frames, d = size
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(cores, 9, shots, frames, d, generator=generator, dtype=torch.float64).requires_grad_()


def uniforms_for(cores: int, seed: int = 0, videos: int = 2, numbers: int = 2) -> Tensor:
    return torch.rand(cores, videos, numbers, generator=torch.Generator().manual_seed(seed))


def bits_by_integers(uniforms: list[float], purpose: int, count: int) -> list[int]:
    """`random_bits` of a core, in unlimited integers."""

    def scramble(x: int) -> int:
        x %= 2**32
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    words = [struct.unpack("<I", struct.pack("<f", number))[0] for number in uniforms]
    key = purpose + sum(scramble(word ^ scramble(place)) for place, word in enumerate(words))
    return [scramble(scramble(position) + scramble(key)) for position in range(count)]


def loss_by_loops(loss: Loss, core: Tensor, uniforms: Tensor) -> tuple[Tensor, float]:
    """Loss and accuracy of a core (9, shots, frames, d), example by example."""
    head, numbers = loss.head, uniforms.flatten().tolist()
    if isinstance(loss, Jigsaw):
        bits = bits_by_integers(numbers, 1, 100)
        classes = sorted(range(100), key=bits.__getitem__)[: loss.shown]
        orders = [read_permutations()[label] for label in classes]
    else:
        classes = list(range(8))
        orders = [[patch, 4] for patch in (0, 1, 2, 3, 5, 6, 7, 8)]
    examples = []
    for shot, frame in itertools.product(range(core.shape[1]), range(core.shape[2])):
        patches = [head.embed(core[patch, shot, frame]) for patch in range(9)]
        for label, order in zip(classes, orders, strict=True):
            examples.append((label, head.hidden(torch.cat([patches[patch] for patch in order]))))
    mean = sum(hidden for _, hidden in examples) / len(examples)
    variance = sum((hidden - mean) ** 2 for _, hidden in examples) / len(examples)
    assert isinstance(mean, Tensor) and isinstance(variance, Tensor)
    bits = bits_by_integers(numbers, 2, len(examples) * len(mean))
    terms, right = [], []
    for number, (label, hidden) in enumerate(examples):
        hidden = ((hidden - mean) / (variance + 1e-5).sqrt() * head.scale + head.shift).clamp(min=0)
        if loss.training:
            kept = [word >= 2**31 for word in bits[number * len(mean) : (number + 1) * len(mean)]]
            hidden = hidden * torch.tensor(kept) * 2
        logits = head.classify(hidden)
        terms.append(-torch.log(logits[label].exp() / logits.exp().sum()))
        right.append(float(logits.argmax() == label))
    return torch.stack(terms).mean(), sum(right) / len(right)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("training", [True, False])
def test_losses_agree_with_loops_over_examples(make: Make, size: Size, training: bool) -> None:
    loss = randomise(make(size[3])).train(training)
    h, uniforms = representations(size), uniforms_for(size[0])
    expected = [loss_by_loops(loss, core, own) for core, own in zip(h, uniforms, strict=True)]
    name = "jigsaw_accuracy" if isinstance(loss, Jigsaw) else "location_accuracy"
    metrics = {name: [accuracy for _, accuracy in expected]}
    assert_same(loss, h, uniforms, [term for term, _ in expected], metrics)


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_cores_together_or_one_by_one_give_the_same(make: Make, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cores, shots, frames, d, videos, numbers = (int(number) for number in rng.integers(1, 5, 6))
    loss = randomise(make(d))
    h, uniforms = representations((cores + 1, shots, frames, d), seed), uniforms_for(cores + 1, seed, videos, numbers)
    together, metrics = loss.measure(h, uniforms)
    parameters = list(loss.parameters())
    whole = torch.autograd.grad(together.sum(), [h, *parameters])
    parts = [torch.zeros_like(value) for value in (h, *parameters)]
    for core in range(cores + 1):
        alone, metrics_alone = loss.measure(h[core : core + 1], uniforms[core : core + 1])
        torch.testing.assert_close(together[core], alone[0])
        assert all(values[core] == metrics_alone[name][0] for name, values in metrics.items())
        for part, gradient in zip(parts, torch.autograd.grad(alone.sum(), [h, *parameters]), strict=True):
            part += gradient
    for part, gradient in zip(parts, whole, strict=True):
        torch.testing.assert_close(part, gradient)
        assert gradient.any()


@pytest.mark.parametrize("make", LOSSES)
def test_with_uniforms_torchs_own_random_numbers_are_neither_used_nor_moved(make: Make) -> None:
    loss, h, uniforms = randomise(make(4)), representations((2, 2, 2, 4)), uniforms_for(2)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = loss(h, uniforms)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(loss(h, uniforms), first)
    assert not torch.equal(loss(h, uniforms_for(2, seed=1)), first)


@pytest.mark.parametrize("make", LOSSES)
def test_without_uniforms_a_loss_draws_its_own_for_each_core(make: Make) -> None:
    loss, h = randomise(make(4)), representations((1, 2, 2, 4)).detach().repeat(3, 1, 1, 1, 1)
    torch.manual_seed(1)
    first, again = loss(h), loss(h)
    assert first.unique().numel() == 3, "equal cores have random numbers of their own"
    assert not torch.equal(first, again)
    torch.manual_seed(1)
    assert torch.equal(loss(h), first)
    assert loss(h[0]).shape == ()


@pytest.mark.parametrize("make", LOSSES)
def test_views_are_the_patches_of_each_frame(make: Make) -> None:
    frames = torch.rand(2, 3, 4, 9, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    loss = make(4)
    views = loss.views(frames)
    assert views.shape == (2, loss.view_count, 3, 4, 3, 5, 5)
    for patch in range(9):
        assert torch.equal(views[:, patch], frames[:, :, :, patch])


@pytest.mark.parametrize("make", LOSSES)
def test_bf16_representations_give_float32_losses_near_the_exact_ones(make: Make) -> None:
    torch.manual_seed(0)
    assert_bf16_gives_float32(make(5), representations((2, 4, 2, 5)), uniforms_for(2))


@pytest.mark.parametrize("make", LOSSES)
def test_large_and_collapsed_representations_give_finite_losses(make: Make) -> None:
    torch.manual_seed(0)
    assert_always_finite(make(5), representations((2, 3, 2, 5)), uniforms_for(2))


def all_seeing(loss: Loss, seen: int, orders: list[list[int]]) -> Loss:
    """A head set by hand: a hidden unit for each (place, patch), and the score of an order counts its units."""
    head = loss.head
    head.embed.weight.data, head.hidden.weight.data = torch.eye(9), torch.eye(9 * seen)
    head.classify.weight.data = torch.zeros(len(orders), 9 * seen)
    for label, order in enumerate(orders):
        for place, patch in enumerate(order):
            head.classify.weight.data[label, 9 * place + patch] = 1
    return loss.eval()


def one_hot_patches(cores: int) -> Tensor:
    """Patch i of every image is the i-th unit vector: (cores, 9, 2, 3, 9)."""
    return torch.eye(9).view(1, 9, 1, 1, 9).repeat(cores, 1, 2, 3, 1)


def test_a_jigsaw_solved_is_all_right_and_one_with_its_classes_moved_all_wrong() -> None:
    orders = read_permutations()
    loss = all_seeing(Jigsaw(9, dimension=9, hidden=81), 9, orders)
    h, uniforms = one_hot_patches(3), uniforms_for(3)
    solved, metrics = loss.measure(h, uniforms)
    assert metrics["jigsaw_accuracy"].tolist() == [1, 1, 1]
    moved, metrics = all_seeing(loss, 9, orders[1:] + orders[:1]).measure(h, uniforms)
    assert metrics["jigsaw_accuracy"].tolist() == [0, 0, 0]
    assert (solved < math.log(100)).all() and (moved > math.log(100)).all()


def test_two_patches_exchanged_are_two_of_eight_wrong_locations() -> None:
    pairs = [[patch, 4] for patch in range(9) if patch != 4]
    loss = all_seeing(Location(9, dimension=9, hidden=18), 2, pairs)
    h = one_hot_patches(2)
    h[1, [0, 7]] = h[1, [7, 0]]
    values, metrics = loss.measure(h, uniforms_for(2))
    assert metrics["location_accuracy"].tolist() == [1, 0.75]
    assert values[0] < math.log(8) and values[0] < values[1]


@pytest.mark.parametrize("make", LOSSES)
def test_representations_without_content_cost_pure_chance(make: Make) -> None:
    loss = make(4)
    values = loss(torch.zeros(2, 9, 2, 2, 4), uniforms_for(2))
    chance = math.log(100 if isinstance(loss, Jigsaw) else 8)
    torch.testing.assert_close(values, torch.full((2,), chance))


def test_heads_have_the_published_sizes() -> None:
    with torch.device("meta"):
        jigsaw, location = Jigsaw(64).head, Location(64).head
    assert jigsaw.hidden.weight.shape == (4096, 9 * 1000) and jigsaw.classify.weight.shape == (100, 4096)
    assert location.hidden.weight.shape == (4096, 2 * 1000) and location.classify.weight.shape == (8, 4096)
    assert jigsaw.embed.weight.shape == location.embed.weight.shape == (1000, 64)


def test_heads_start_as_published_and_decay_meets_kernels_only() -> None:
    torch.manual_seed(0)
    head = PatchHead(64, dimension=100, seen=9, hidden=500, classes=100)
    for weight in (head.hidden.weight.detach(), head.classify.weight.detach()):
        assert 0.0099 < weight.abs().max() <= 0.01  # cut at two deviations of 0.005, which leaves 0.88 of them
        assert float(weight.std()) == pytest.approx(0.0044, rel=0.01)
    assert not head.embed.bias.any() and not head.classify.bias.any()
    assert (head.scale == 1).all() and not head.shift.any()
    kernels = {name for name, parameter in head.named_parameters() if parameter.ndim > 1}
    assert kernels == {"embed.weight", "hidden.weight", "classify.weight"}


# --- random numbers ---


@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 4, 3), (5, 2, 2)])
def test_random_bits_are_those_of_unlimited_integers(shape: tuple[int, int, int]) -> None:
    uniforms = uniforms_for(*shape[:1], 0, *shape[1:])
    uniforms[0, 0, 0] = 0
    for purpose in (1, 2):
        expected = [bits_by_integers(core.flatten().tolist(), purpose, 50) for core in uniforms]
        assert random_bits(uniforms, purpose, 50).tolist() == expected
    assert torch.equal(random_bits(uniforms.double(), 1, 9), random_bits(uniforms, 1, 9))


def test_every_uniform_and_its_place_count() -> None:
    uniforms = uniforms_for(1, videos=3, numbers=2)
    bits = random_bits(uniforms, 1, 20)
    for place in range(6):
        other = uniforms.clone()
        other.view(-1)[place] = 0.123
        assert not (random_bits(other, 1, 20) == bits).any()
    assert not (random_bits(uniforms.flip(1), 1, 20) == bits).any()


def test_a_core_sees_different_permutations_and_over_time_all_alike() -> None:
    cores = 5000
    bits = random_bits(uniforms_for(cores, videos=1), 1, 100)
    assert all(len(set(core)) == 100 for core in bits.tolist())
    counts = bits.argsort(dim=1)[:, :8].flatten().bincount(minlength=100).double()
    expected = cores * 8 / 100
    assert ((counts - expected) ** 2 / expected).sum() < 149  # of chi-square with 99 degrees, one in a thousand


def test_dropout_drops_half_here_and_there_and_keeps_the_mean() -> None:
    values = torch.rand(40, 6, 5, 64, generator=torch.Generator().manual_seed(0)) + 0.5
    dropped = dropout(values, uniforms_for(40))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * values[kept])
    for dims in [(0,), (1, 2), (3,), (0, 1, 2), (1, 2, 3)]:  # no core, example or unit is preferred
        count = math.prod(values.shape[dim] for dim in dims)
        shares = kept.double().mean(dims)
        assert (shares - 0.5).abs().max() < 5.2 * math.sqrt(0.25 / count)
    rows = kept.flatten(0, 2).double() * 2 - 1  # no two examples are dropped alike, or opposite
    alike = (rows @ rows.T / 64).fill_diagonal_(0)
    assert alike.abs().max() < 0.8 and float(alike.std()) == pytest.approx(1 / 8, rel=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("make", LOSSES)
def test_a_gpu_computes_what_a_cpu_does_without_waiting(make: Make) -> None:
    loss, h, uniforms = randomise(make(4)), representations((3, 2, 2, 4)).detach(), uniforms_for(3)
    expected, metrics = loss.measure(h, uniforms)
    loss, h, uniforms = loss.cuda(), h.cuda(), uniforms.cuda()
    loss(h, uniforms)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, found_metrics = loss.measure(h, uniforms)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), expected)
    assert all(torch.equal(found_metrics[name].cpu(), values) for name, values in metrics.items())


# --- permutations ---


def distant_permutations(count: int, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Permutations in which as few patches as possible stand at the same place, each after the others: (count, n).

    Noroozi's algorithm: each is, of all n!, the farthest from those before it, in Hamming distance. Here the nearest
    of those counts first, then the mean: for 100 of nine the mean comes out the same, and no two are close.
    """
    candidates = np.array(list(itertools.permutations(range(len(first)))), np.int8)  # (n!, n)
    nearest = np.full(len(candidates), len(first))
    total = np.zeros(len(candidates), np.int64)
    chosen = [first]
    while len(chosen) < count:
        distance = (candidates != chosen[-1]).sum(1)
        nearest, total = np.minimum(nearest, distance), total + distance
        best = (nearest * count * len(first) + total).argmax()
        chosen.append(candidates[best].astype(np.int64))
    return np.stack(chosen)


def permutations_by_loops(count: int, first: list[int]) -> list[list[int]]:
    def distance(a: list[int], b: list[int]) -> int:
        return sum(x != y for x, y in zip(a, b, strict=True))

    chosen = [first]
    while len(chosen) < count:
        best, best_score = first, (-1, -1)
        for candidate in map(list, itertools.permutations(range(len(first)))):
            distances = [distance(candidate, other) for other in chosen]
            if (min(distances), sum(distances)) > best_score:
                best, best_score = candidate, (min(distances), sum(distances))
        chosen.append(best)
    return chosen


@pytest.mark.parametrize(("count", "first"), [(2, [1, 0]), (6, [2, 0, 1]), (17, [3, 1, 2, 0]), (30, [0, 4, 3, 1, 2])])
def test_permutations_are_the_farthest_from_those_before(count: int, first: list[int]) -> None:
    found = distant_permutations(count, np.array(first))
    assert found.tolist() == permutations_by_loops(count, first)


def test_the_stored_permutations_are_those_the_algorithm_finds() -> None:
    stored = np.array(read_permutations())
    assert stored.shape == (100, 9) and (np.sort(stored) == np.arange(9)).all()
    assert (distant_permutations(100, stored[0]) == stored).all()
    distances = (stored[:, None] != stored).sum(-1)[~np.eye(100, dtype=bool)]
    assert distances.min() == 6 and distances.mean() > 8


@pytest.mark.parametrize("make", LOSSES)
def test_from_images_to_the_gradient_of_the_root_convolution(make: Make) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(recipes.Encoder("resnetv2_18", width=0.125), 16, patch_strides=True)
    loss = make(encoder.features)
    rng, side = np.random.default_rng(0), layout(16).whole
    images = torch.from_numpy(rng.random((6, 3, side, side), np.float32) * 255)
    patches = cut_patches(images, rng.random((6, PATCH_UNIFORMS), np.float32), 16)
    views = loss.views(patches.unflatten(0, (2, 3, 1)))  # (cores, 9, shots, frames, 3, 16, 16)
    h = encoder(views.flatten(1, 3)).unflatten(1, views.shape[1:4])
    values = loss(h, uniforms_for(2))
    values.sum().backward()
    root = encoder.backbone.get_submodule("stem.conv")
    assert isinstance(root, nn.Conv2d) and root.weight.grad is not None
    assert values.shape == (2,) and root.weight.grad.isfinite().all() and root.weight.grad.any()
