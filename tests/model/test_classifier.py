"""The classifier of a run: its files, and how often it is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from vivi import recipes
from vivi.model.encoder import build_encoder
from vivi.model.features import encode, top_k
from vivi.model.files import Classifier, read_classifier, write_classifier
from vivi.runtime.errors import UserError

SIZE = 32
HALF = (0.5, 0.5, 0.5)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def refusal(call: Callable[[], object]) -> str:
    """The one line that it ends with."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- top-k ---


def slow_top_k(logits: Tensor, labels: Tensor, k: int) -> int:
    """One image after the other: how many other classes are at least as likely as the label."""
    right = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        rivals = [value for other, value in enumerate(row) if other != label and value >= row[label]]
        right += len(rivals) < k
    return right


@pytest.mark.parametrize(("images", "classes"), [(1, 1), (7, 2), (50, 4), (60, 5), (80, 6), (200, 30)])
def test_top_k_is_that_of_a_count_one_by_one(images: int, classes: int) -> None:
    random = generator(images)
    for levels in (3, 1000):  # of few levels many are equal
        logits = torch.randint(levels, (images, classes), generator=random).float()
        labels = torch.randint(classes, (images,), generator=random)
        found = top_k(logits, labels, (1, 2, 5))
        assert found == tuple(slow_top_k(logits, labels, k) for k in (1, 2, 5))
        assert top_k(logits, labels) == (found[0], found[2])


def test_constant_and_broken_outputs_are_right_about_nothing() -> None:
    labels = torch.arange(8)
    assert top_k(torch.zeros(8, 8), labels) == (0, 0)
    assert top_k(torch.full((8, 8), torch.nan), labels) == (0, 0)
    broken = torch.eye(8)
    assert top_k(broken, labels) == (8, 8)
    broken[:, 0] = torch.nan
    assert top_k(broken, labels) == (0, 7)


def test_with_fewer_than_five_classes_the_first_five_are_all() -> None:
    assert top_k(torch.zeros(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])) == (0, 6)


# --- files ---


def a_classifier(classes: int = 7, features: int = 64, seed: int = 0) -> Classifier:
    names = tuple(f"n{number:04d}" for number in range(classes))
    random = generator(seed)
    weight, bias = torch.randn(classes, features, generator=random), torch.randn(classes, generator=random)
    return Classifier(weight, bias, names)


def test_a_classifier_is_read_as_it_was_written(tmp_path: Path) -> None:
    classifier = replace(a_classifier(), classes=("zebra", "a b", "ü", "0", "n01", "/", '"'))
    write_classifier(tmp_path, classifier, 40)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["classifier.json", "classifier.safetensors"]
    assert json.loads((tmp_path / "classifier.json").read_text())["step"] == 40
    found = read_classifier(tmp_path)
    assert found.classes == classifier.classes
    assert torch.equal(found.weight, classifier.weight) and torch.equal(found.bias, classifier.bias)
    features, before = torch.randn(5, 64, generator=generator(1)), torch.random.get_rng_state()
    expected = features @ classifier.weight.T + classifier.bias
    torch.testing.assert_close(found.layer()(features), expected)
    assert torch.equal(torch.random.get_rng_state(), before)  # training goes on as if nobody had looked


def test_damaged_files_are_named_in_one_line(tmp_path: Path) -> None:
    assert "was trained without labels" in refusal(lambda: read_classifier(tmp_path))
    assert "was trained without labels" in refusal(lambda: read_classifier(tmp_path / "nowhere"))
    write_classifier(tmp_path, a_classifier(), 1)
    weights, about = tmp_path / "classifier.safetensors", tmp_path / "classifier.json"
    good, content = json.loads(about.read_text()), weights.read_bytes()
    del good["checksum"]
    for wrong in (
        "",
        "[]",
        "{}",
        json.dumps(good | {"classes": []}),
        json.dumps(good | {"classes": ["a"] * 7}),
        json.dumps(good | {"classes": [1, 2, 3, 4, 5, 6, 7]}),
        json.dumps(good | {"features": "64"}),
    ):
        about.write_text(wrong)
        assert f"{about} is missing or damaged (" in refusal(lambda: read_classifier(tmp_path))
    about.unlink()
    assert f"{about} is missing or damaged (" in refusal(lambda: read_classifier(tmp_path))
    for other in (good | {"features": 63}, good | {"classes": good["classes"][:-1]}):
        about.write_text(json.dumps(other))
        assert f"{weights} does not fit classifier.json" in refusal(lambda: read_classifier(tmp_path))
    about.write_text(json.dumps(good))
    weights.write_bytes(content[:-9])
    assert f"{weights} cannot be read (" in refusal(lambda: read_classifier(tmp_path))
    save_file({"weight": torch.zeros(7, 64)}, weights)
    assert f"{weights} does not fit classifier.json" in refusal(lambda: read_classifier(tmp_path))


# --- accuracy ---


class Moody(nn.Module):
    """An encoder that refuses images in training mode."""

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training and not torch.is_grad_enabled()
        return F.adaptive_avg_pool2d(images, 4).flatten(1)  # (n, 48)


def test_top1_and_top5_are_those_of_one_image_after_the_other() -> None:
    random = generator(0)
    squares = torch.randint(256, (50, 3, 8, 8), generator=random, dtype=torch.uint8)
    classifier, labels = a_classifier(9, 48), torch.randint(9, (50,), generator=random)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    logits = []
    for image in squares:
        channels = [(image[c].float() / 255 - mean[c]) / std[c] for c in range(3)]
        pooled = F.adaptive_avg_pool2d(torch.stack(channels), 4).flatten()
        logits.append(classifier.weight @ pooled + classifier.bias)
    expected = tuple(slow_top_k(torch.stack(logits), labels, k) for k in (1, 5))
    assert 0 < expected[0] < expected[1] < 50
    encoder = Moody().train()
    for batch in (256, 7):
        network = nn.Sequential(encoder, classifier.layer())
        assert top_k(encode(network, squares.split(batch), mean, std, "cpu"), labels) == expected
    assert encoder.training


def test_a_look_at_an_encoder_in_training_changes_nothing() -> None:
    torch.manual_seed(0)
    encoder = build_encoder(recipes.Encoder("resnetv2_18", width=0.125), SIZE)
    squares = torch.randint(256, (20, 3, SIZE, SIZE), generator=generator(0), dtype=torch.uint8)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    random = torch.random.get_rng_state()
    features = encode(encoder, [squares], HALF, HALF, "cpu")
    assert encoder.training and torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    # It sees what it will see once it is exported.
    assert torch.equal(features, encode(encoder.backbone, [squares], HALF, HALF, "cpu"))
