"""Features of images, and the probes on them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import vivi_here
from small_tasks import write_task
from torch import Tensor, nn

from vivi.evaluate.features import embed, read_image
from vivi.evaluate.probes import accuracy, knn_accuracy, linear_probe
from vivi.evaluate.results import read_results
from vivi.runtime.errors import UserError

HALF = (0.5, 0.5, 0.5)


def slow_knn(train: Tensor, labels: list[int], test: Tensor, k: int, temperature: float) -> list[int]:
    predicted = []
    for query in test.double():
        cosines = [float(torch.cosine_similarity(query, row, dim=0)) for row in train.double()]
        nearest = sorted(range(len(cosines)), key=lambda j: -cosines[j])[:k]
        votes: dict[int, float] = {}
        for j in nearest:
            votes[labels[j]] = votes.get(labels[j], 0.0) + math.exp(cosines[j] / temperature)
        predicted.append(min(votes, key=lambda label: (-votes[label], label)))
    return predicted


@pytest.mark.parametrize(
    ("train", "test", "classes", "k", "temperature"),
    [(1, 3, 2, 20, 0.07), (40, 30, 3, 20, 0.07), (40, 30, 3, 1, 0.07), (60, 50, 10, 200, 0.5), (90, 40, 5, 7, 1.0)],
)
def test_knn_is_that_of_a_search_one_by_one(
    train: int, test: int, classes: int, k: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = torch.Generator().manual_seed(train + k)
    centres = torch.randn(classes, 8, generator=random)
    labels = torch.randint(classes, (train + test,), generator=random)
    features = centres[labels] + 1.5 * torch.randn(train + test, 8, generator=random)
    predicted = slow_knn(features[:train], labels[:train].tolist(), features[train:], k, temperature)
    expected = sum(p == label for p, label in zip(predicted, labels[train:].tolist(), strict=True)) / test
    for chunk in (1024, 7):
        monkeypatch.setattr("vivi.evaluate.probes._CHUNK", chunk)
        found = knn_accuracy(features[:train], labels[:train], features[train:], labels[train:], k, temperature)
        assert found == pytest.approx(expected)


def test_near_neighbours_count_more_than_many_far_ones() -> None:
    train = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, 0.8], [0.6, 0.8]])
    labels, query = torch.tensor([0, 1, 1, 1]), torch.tensor([[1.0, 0.0]])
    assert knn_accuracy(train, labels, query, torch.tensor([0])) == 1
    assert knn_accuracy(train, labels, query, torch.tensor([1]), temperature=10) == 1
    assert knn_accuracy(train, labels, query, torch.tensor([0]), temperature=1e-4) == 1


def test_a_label_never_trained_on_is_wrong() -> None:
    assert knn_accuracy(torch.eye(2), torch.tensor([0, 1]), torch.eye(2), torch.tensor([0, 7])) == 0.5


def test_features_without_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="one label for each"):
        knn_accuracy(torch.eye(2), torch.tensor([0]), torch.eye(2), torch.tensor([0, 1]))


class Corner(nn.Module):
    """Gives the colour of the first and of the last pixel, and checks its mode."""

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training and not torch.is_grad_enabled()
        return torch.cat([images[:, :, 0, 0], images[:, :, -1, -1]], dim=1)


def blocks(colours: list[int], height: int, width: int) -> Tensor:
    """An image whose left and right halves have grey values of their own."""
    left, right = colours
    image = torch.full((3, height, width), left, dtype=torch.uint8)
    image[:, :, width // 2 :] = right
    return image


def test_embedding_resizes_whole_images_and_normalises_them(tmp_path: Path) -> None:
    colours = torch.randint(0, 256, (10, 2), generator=torch.Generator().manual_seed(0)).tolist()
    images = [blocks(pair, 20 + 7 * k, 60 - 3 * k) for k, pair in enumerate(colours)]
    paths = []
    for k, image in enumerate(images):
        paths.append(tmp_path / f"{k}.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(paths[-1])
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    expected = [[(c / 255 - m) / s for c in pair for m, s in zip(mean, std, strict=True)] for pair in colours]
    encoder = Corner().train()
    for batch in (3, 256):
        for source in (images, iter(images), paths):
            features = embed(encoder, source, 8, mean, std, "cpu", batch)
            assert features.dtype == torch.float32
            assert torch.allclose(features, torch.tensor(expected), atol=1e-5)
    assert encoder.training


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "16 bits"])
def test_images_of_every_kind_become_rgb(tmp_path: Path, mode: str) -> None:
    grey = 102
    if mode == "16 bits":
        made = Image.fromarray(np.full((5, 7), grey * 257, np.uint16))
    else:
        made = Image.fromarray(np.full((5, 7, 3), grey, np.uint8)).convert(mode)
    path = tmp_path / ("image.tiff" if mode == "CMYK" else "image.png")
    made.save(path)
    assert torch.equal(read_image(path), torch.full((3, 5, 7), grey, dtype=torch.uint8))


def slow_ridge(train: Tensor, labels: Tensor, test: Tensor, classes: int, strength: float) -> Tensor:
    """The normal equations, solved with a column of ones for the means."""
    x, y = train.double(), torch.eye(classes, dtype=torch.float64)[labels]
    ones = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    spread = (x - x.mean(dim=0)).square().mean() * len(x)
    penalty = strength * spread * torch.eye(x.shape[1] + 1, dtype=torch.float64)
    penalty[-1, -1] = 0  # the constant costs nothing
    weights = torch.linalg.solve(ones.T @ ones + penalty, ones.T @ y)
    logits: Tensor = test.double() @ weights[:-1] + weights[-1]
    return logits


@pytest.mark.parametrize(("images", "features", "classes"), [(30, 5, 3), (12, 40, 4), (25, 25, 2)])
def test_the_linear_probe_solves_the_normal_equations(images: int, features: int, classes: int) -> None:
    random = torch.Generator().manual_seed(images)
    train, test = (torch.randn(count, features, generator=random) * 3 + 1 for count in (images, 9))
    labels = torch.randint(classes, (images,), generator=random)
    strengths = (1e-4, 0.01, 1.0)
    found = linear_probe(train, labels, [test, train], classes, strengths)
    for strength, logits in zip(strengths, found, strict=True):
        for part, which in zip(logits, (test, train), strict=True):
            assert torch.allclose(part, slow_ridge(train, labels, which, classes, strength), atol=1e-6)


def test_features_that_are_all_the_same_give_the_commonest_class() -> None:
    labels = torch.tensor([2, 1, 2, 0, 2])
    (logits,) = linear_probe(torch.ones(5, 3), labels, [torch.ones(4, 3)], 4, [0.1])
    assert logits[0].argmax(dim=1).tolist() == [2] * 4
    assert accuracy(logits[0], torch.tensor([2, 2, 1, 3])) == 0.5


@pytest.mark.parametrize("probe", ["knn", "linear"])
def test_probes_write_results_and_name_what_fails(tmp_path: Path, probe: str) -> None:
    write_task(tmp_path / "data" / "bars", 4)
    write_task(tmp_path / "data" / "svhn", 4)
    (tmp_path / "data" / "svhn" / "images" / "test" / "000002.png").write_bytes(b"")
    words = ["evaluate", probe, "--encoder", "untrained:test_resnet", "--size", "32", "--device", "cpu"]
    with pytest.raises(UserError, match="1 of 2 tasks have no result: svhn"):
        vivi_here(*words, "--data", tmp_path / "data", "--out", tmp_path / "results")
    (result,) = read_results(tmp_path / "results")[0]
    assert (result.task, result.benchmark, result.score.setting) == ("bars", probe, None)
    assert result.score.median > 0.5  # chance is 0.25
    assert ("k" if probe == "knn" else "strength") in result.settings
