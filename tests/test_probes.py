"""Features of labelled images and the kNN probe on them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from vivi.errors import UserError
from vivi.synthetic.synthesize import write_text
from vivi.transfer.features import embed, read_image
from vivi.transfer.lists import read_list, read_task
from vivi.transfer.probes import knn_accuracy

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
        monkeypatch.setattr("vivi.transfer.probes._CHUNK", chunk)
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


def make_task(folder: Path) -> None:
    """A small task in VTAB-1k layout whose label is the brightness."""
    lines: dict[str, str] = {}
    for split, count in (("train800", 8), ("val200", 4), ("test", 6)):
        (folder / "images" / split).mkdir(parents=True)
        for k in range(count):
            pixels = np.full((12, 16, 3), 60 + 100 * (k % 2), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / split / f"{k:06d}.jpg")
        lines[split] = "".join(f"images/{split}/{k:06d}.jpg {k % 2}\n" for k in range(count))
        write_text(folder / f"{split}.txt", lines[split])
    write_text(folder / "train800val200.txt", lines["train800"] + lines["val200"])


def test_a_task_is_read_and_solved(tmp_path: Path) -> None:
    make_task(tmp_path / "brightness")
    task = read_task(tmp_path / "brightness")
    assert (task.name, task.classes) == ("brightness", 2)
    assert [len(part.images) for part in (task.sweep, task.validation, task.final, task.test)] == [8, 4, 12, 6]
    assert task.final.images == task.sweep.images + task.validation.images
    assert task.test.labels.tolist() == [0, 1, 0, 1, 0, 1]
    train, test = (embed(Corner(), part.images, 8, HALF, HALF, "cpu") for part in (task.final, task.test))
    assert knn_accuracy(train, task.final.labels, test, task.test.labels, k=3) == 1


def test_lists_may_have_spaces_in_names_and_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"images/a b.jpg 3\r\n\n  \nimages/c.jpg\t0\n")
    examples = read_list(tmp_path / "a.txt")
    assert examples.images == (tmp_path / "images/a b.jpg", tmp_path / "images/c.jpg")
    assert examples.labels.tolist() == [3, 0]


@pytest.mark.parametrize("line", ["images/a.jpg", "images/a.jpg cat", "images/a.jpg -1", "images/a.jpg 1.5", "7"])
def test_a_bad_line_of_a_list_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "test.txt").write_text(f"images/b.jpg 0\n{line}\n")
    with pytest.raises(UserError, match=r"test\.txt line 2 is ") as raised:
        read_list(tmp_path / "test.txt")
    assert line in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_list_an_empty_list_and_a_missing_task_are_each_one_line(tmp_path: Path) -> None:
    make_task(tmp_path / "task")
    (tmp_path / "task" / "val200.txt").write_text("\n")
    with pytest.raises(UserError, match=r"val200\.txt lists no images"):
        read_task(tmp_path / "task")
    (tmp_path / "task" / "val200.txt").unlink()
    with pytest.raises(UserError, match=r"val200\.txt cannot be read \(No such file"):
        read_task(tmp_path / "task")
    with pytest.raises(UserError, match="elsewhere is no folder of a task"):
        read_task(tmp_path / "elsewhere")


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "truncated"])
def test_an_unreadable_image_is_named(tmp_path: Path, damage: str) -> None:
    make_task(tmp_path / "task")
    task = read_task(tmp_path / "task")
    path = task.test.images[3]
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"empty": b"", "text": b"no image\n" * 9, "truncated": content[: len(content) // 2]}[damage])
    with pytest.raises(UserError, match=r"image .*test/000003\.jpg cannot be read") as raised:
        embed(Corner(), task.test.images, 8, HALF, HALF, "cpu")
    assert "\n" not in str(raised.value)
