"""The triplet losses, against plain loops over frames: semi-hard and batch-hard, by shots and by labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from losscheck import assert_same, randomise
from torch import Tensor

from vivi.losses import Exemplar, semi_hard_triplets
from vivi.losses.exemplar import batch_hard_triplets_of_shots, semi_hard_triplets_of_shots

Size = tuple[int, int, int, int]  # cores, shots, frames, d


def random_sizes(count: int) -> list[Size]:
    rng = np.random.default_rng(0)

    def upto(least: int, most: int) -> int:
        return int(rng.integers(least, most + 1))

    return [(upto(1, 3), upto(2, 5), upto(2, 5), upto(1, 8)) for _ in range(count)]


SIZES: list[Size] = [(1, 2, 2, 3), (2, 3, 4, 5), (3, 5, 2, 8), (2, 2, 8, 4), *random_sizes(3)]


def representations(cores: int, shots: int, frames: int, d: int, seed: int = 0) -> Tensor:
    """Random ones, in which the frames of a shot are somewhat alike."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(cores, shots, 1, d, generator=generator, dtype=torch.float64)
    own = torch.randn(cores, shots, frames, d, generator=generator, dtype=torch.float64)
    return (shared + own).requires_grad_()


def embed(loss: Exemplar, h: Tensor) -> Tensor:
    embeddings: Tensor = h @ loss.head.weight.T + loss.head.bias
    normalised: Tensor = embeddings / embeddings.norm(dim=-1, keepdim=True)
    return normalised


def semi_hard_term(near: Tensor, negatives: list[Tensor], margin: float) -> Tensor:
    """Of a positive at this distance, and of all negatives of its anchor."""
    farther = [negative for negative in negatives if negative > near]
    far = min(farther) if farther else max(negatives)
    return (margin + near - far).clamp(min=0)


def triplets_by_loops(core: Tensor, margin: float, group: int) -> tuple[Tensor, float]:
    """The semi-hard triplet loss of a core (shots, frames, d), and the share of its terms above zero."""

    def distance(a: tuple[int, int], b: tuple[int, int]) -> Tensor:
        return ((core[a] - core[b]) ** 2).sum()

    frames = [(shot, frame) for shot in range(core.shape[0]) for frame in range(core.shape[1])]
    terms = []
    for anchor in frames:
        negatives = [distance(anchor, other) for other in frames if other[0] // group != anchor[0] // group]
        for positive in frames:
            if positive[0] == anchor[0] and positive != anchor:
                terms.append(semi_hard_term(distance(anchor, positive), negatives, margin))
    return torch.stack(terms).mean(), sum(float(term > 0) for term in terms) / len(terms)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("margin", "videos_of"), [(0.5, 0), (0.1, 0), (0.5, 2), (1.5, 2), (0.5, 3)])
def test_exemplar_agrees_with_loops_over_triplets(size: Size, margin: float, videos_of: int) -> None:
    """With `videos_of` shots to a video, negatives are of other videos; with 0, of all other shots."""
    cores, shots, frames, d = size
    group = max(videos_of, 1)
    h = representations(cores, shots * group, frames, d)
    loss = randomise(
        Exemplar(d, shots=videos_of or 4, dimension=6, margin=margin, negatives="videos" if videos_of else "shots")
    )
    expected = [triplets_by_loops(core, margin, group) for core in embed(loss, h)]
    metrics = {"triplet_violations": [violations for _, violations in expected]}
    assert_same(loss, h, None, [term for term, _ in expected], metrics)


def points(*shots: list[float]) -> Tensor:
    """Shots whose frames lie on a line: (shots, frames, 1)."""
    return torch.tensor(shots, dtype=torch.float64)[:, :, None].requires_grad_()


def test_the_negative_is_the_nearest_behind_the_positive() -> None:
    shots = points([0.0, 0.5], [0.4, 0.6], [0.7, 2.0])
    by_hand = [
        1 + 0.25 - 0.36,  # 0.0 with 0.5: 0.4 is nearer than the positive, then comes 0.6
        0,  # 0.5 with 0.0: 0.4, 0.6 and 0.7 are nearer, then comes 2.0, farther than the margin
        1 + 0.04 - 0.09,  # 0.4 with 0.6: 0.5 is nearer, then comes 0.7
        1 + 0.04 - 0.36,  # 0.6 with 0.4: 0.5 and 0.7 are nearer, then comes 0.0
        1 + 1.69 - 0.49,  # 0.7 with 2.0: all are nearer, the farthest is 0.0
        1 + 1.69 - 1.96,  # 2.0 with 0.7: 0.6 comes next
    ]
    loss, violations = semi_hard_triplets_of_shots(shots, margin=1.0)
    torch.testing.assert_close(loss, torch.tensor(sum(by_hand) / 6, dtype=torch.float64))
    torch.testing.assert_close(violations, torch.tensor(5 / 6, dtype=torch.float64))


def test_without_a_semi_hard_negative_the_farthest_is_taken_and_gets_the_gradient() -> None:
    shots = points([-10.0, 10.0], [0.0, 1.0])
    loss, violations = semi_hard_triplets_of_shots(shots, margin=0.5)
    first = [400 + 0.5 - 121, 400 + 0.5 - 100]  # -10 with 10: farthest is 1; 10 with -10: farthest is 0
    torch.testing.assert_close(loss, torch.tensor(sum(first) / 4, dtype=torch.float64))
    assert violations.item() == 0.5
    (gradient,) = torch.autograd.grad(loss, shots)
    # d/dx of (x1 - x2)^2 twice, less (x1 - 1)^2 and (x2 - 0)^2, over four pairs
    expected = [[(-80 + 22) / 4, (80 - 20) / 4], [20 / 4, -22 / 4]]
    torch.testing.assert_close(gradient[:, :, 0], torch.tensor(expected, dtype=torch.float64))


def test_a_negative_as_far_as_the_positive_is_not_semi_hard() -> None:
    loss, _ = semi_hard_triplets_of_shots(points([0.0, 1.0], [-1.0, 3.0]), margin=1.0)
    # 0 with 1: -1 is as far, so 3 is taken; 1 with 0: 3 and -1 are equally far; -1 with 3, 3 with -1: none is farther
    expected = (0 + 0 + (1 + 16 - 4) + (1 + 16 - 9)) / 4
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))


def test_triplets_of_bf16_embeddings_are_computed_in_float32() -> None:
    embeddings = representations(3, 4, 4, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss, violations = semi_hard_triplets_of_shots(embeddings, margin=0.5)
    exact, exact_violations = semi_hard_triplets_of_shots(embeddings.double(), margin=0.5)
    assert loss.dtype == violations.dtype == torch.float32
    torch.testing.assert_close(loss, exact.float())
    torch.testing.assert_close(violations, exact_violations.float())


# --- batch-hard ---


def hardest_by_loops(core: Tensor, group: int) -> tuple[Tensor, float]:
    """The batch-hard soft-margin loss of a core (shots, frames, d), and how often the negative is nearer."""
    frames = [(shot, frame) for shot in range(core.shape[0]) for frame in range(core.shape[1])]
    terms, nearer = [], []
    for anchor in frames:
        distances = {other: (core[anchor] - core[other]).norm() for other in frames if other != anchor}
        farthest = max(distance for other, distance in distances.items() if other[0] == anchor[0])
        nearest = min(d for other, d in distances.items() if other[0] // group != anchor[0] // group)
        terms.append(torch.log(1 + torch.exp(farthest - nearest)))
        nearer.append(float(nearest < farthest))
    return torch.stack(terms).mean(), sum(nearer) / len(nearer)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("videos_of", [0, 2])
def test_batch_hard_exemplars_agree_with_loops_over_frames(size: Size, videos_of: int) -> None:
    cores, shots, frames, d = size
    group = max(videos_of, 1)
    h = representations(cores, shots * group, frames, d)
    negatives = "videos" if videos_of else "shots"
    loss = randomise(Exemplar(d, videos_of or 4, 6, triplets="batch-hard", negatives=negatives))  # type: ignore[arg-type]
    expected = [hardest_by_loops(core, group) for core in embed(loss, h)]
    metrics = {"triplet_violations": [violations for _, violations in expected]}
    assert_same(loss, h, None, [term for term, _ in expected], metrics)


def test_any_dimensions_in_front_are_batches_of_their_own() -> None:
    embeddings = representations(6, 3, 4, 5).detach().unflatten(0, (2, 3))  # (2, 3, shots, frames, d)
    for compute in (lambda e: semi_hard_triplets_of_shots(e, 0.5), batch_hard_triplets_of_shots):
        loss, violations = compute(embeddings)
        assert loss.shape == violations.shape == (2, 3)
        for row in range(2):
            for column in range(3):
                alone, share = compute(embeddings[row, column])
                torch.testing.assert_close(loss[row, column], alone)
                assert violations[row, column] == share


@pytest.mark.parametrize(
    ("shots", "frames", "videos_of"),
    [(1, 4, 0), (4, 1, 0), (2, 4, 2), (1, 1, 0)],
)
def test_a_batch_without_positives_or_negatives_says_so(shots: int, frames: int, videos_of: int) -> None:
    for triplets in ("semi-hard", "batch-hard"):
        loss = Exemplar(5, videos_of or 1, 6, triplets, negatives="videos" if videos_of else "shots")
        with pytest.raises(ValueError, match="frames are compared within and across shots"):
            loss(torch.rand(shots, frames, 5))


# --- by labels ---


def labelled_triplets_by_loops(embeddings: Tensor, labels: list[int], margin: float) -> Tensor:
    """Anchor by anchor, positive by positive, negative by negative."""
    terms = []
    for anchor in range(len(labels)):
        for positive in range(len(labels)):
            if positive == anchor or labels[positive] != labels[anchor]:
                continue
            negatives = []
            for negative in range(len(labels)):
                if labels[negative] != labels[anchor]:
                    negatives.append(((embeddings[anchor] - embeddings[negative]) ** 2).sum())
            near = ((embeddings[anchor] - embeddings[positive]) ** 2).sum()
            terms.append(semi_hard_term(near, negatives, margin))
    return torch.stack(terms).mean()


def random_labels(seed: int) -> list[int]:
    """Of 3 to 14 embeddings, in any order and of unequal counts; some have a label of their own."""
    rng = np.random.default_rng(seed)
    labels = [0, 0, 1, *rng.integers(0, rng.integers(2, 6), rng.integers(0, 12)).tolist()]
    return [int(label) * 7 - 3 for label in rng.permutation(labels)]


@pytest.mark.parametrize("labels", [[0, 0, 1], [3, 1, 3, 3, 2, 1, 3], *map(random_labels, range(8))], ids=str)
@pytest.mark.parametrize("margin", [0.1, 0.5, 2.0])
def test_semi_hard_triplets_agree_with_loops_over_labels(labels: list[int], margin: float) -> None:
    generator = torch.Generator().manual_seed(len(labels))
    embeddings = (0.5 * torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)).requires_grad_()
    expected = labelled_triplets_by_loops(embeddings, labels, margin)
    loss = semi_hard_triplets(embeddings, torch.tensor(labels), margin)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected)
    (ours,), (theirs,) = (torch.autograd.grad(value, embeddings) for value in (loss, expected))
    torch.testing.assert_close(ours, theirs)
    assert ours.any() or margin < 2


@pytest.mark.parametrize("size", SIZES)
def test_semi_hard_triplets_of_shots_as_labels_are_the_exemplar_loss(size: Size) -> None:
    cores, shots, frames, d = size
    h = representations(cores, shots, frames, d)
    loss = randomise(Exemplar(d, dimension=6, margin=0.3))
    labels = torch.arange(shots).repeat_interleave(frames)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    for core, value in zip(embed(loss, h), loss(h), strict=True):
        torch.testing.assert_close(semi_hard_triplets(core.flatten(0, 1)[order], labels[order], 0.3), value)
        assert torch.equal(
            semi_hard_triplets(core.flatten(0, 1), labels), semi_hard_triplets(core.flatten(0, 1), labels, 0.5)
        )


@pytest.mark.parametrize("labels", [[1, 1, 1], [1, 2, 3], [1]])
def test_labels_without_positives_or_negatives_say_so(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="two different labels, and two embeddings with the same label"):
        semi_hard_triplets(torch.rand(len(labels), 4), torch.tensor(labels))
