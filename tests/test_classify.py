"""Classifiers: their files, top-1 and top-5, the images they are tested on, and the command."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from vivi import recipes
from vivi.batches.images import find_images
from vivi.errors import UserError
from vivi.model.classifier import Classifier, read_classifier, top_k, write_classifier
from vivi.model.encoder import build_encoder, load_encoder, write_encoder
from vivi.transfer import classify
from vivi.transfer.results import Result, read_result, read_results
from vivi.transfer.settings import Classified

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


# --- images ---


def write_images(folder: Path, classes: dict[str, int], seed: int = 0) -> Path:
    """A folder of so many images for each class: blotches of a colour of its own, of many shapes."""
    random = np.random.default_rng(seed)
    for number, (name, count) in enumerate(sorted(classes.items())):
        (folder / name).mkdir(parents=True)
        colour = np.array([number & 1, number >> 1 & 1, number >> 2 & 1]) * 150
        for image in range(count):
            height, width = random.integers(20, 90, 2)
            blotches = colour + random.integers(0, 105, (height // 6, width // 6, 3))
            picture = Image.fromarray(blotches.astype(np.uint8)).resize((int(width), int(height)))
            picture.save(folder / name / f"{image}.png")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven classes; one image is damaged and one is none."""
    folder = write_images(tmp_path_factory.mktemp("pictures") / "flowers", {f"n{n:04d}": 4 + n for n in range(7)})
    (folder / "n0002" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    (folder / "n0005" / "2.png").write_bytes(b"")
    return folder


def pillow_square(picture: Image.Image, size: int) -> Image.Image:
    """By Pillow: the short side to size · 256 / 224, then the central square."""
    short = round(size * 256 / 224)
    scale = short / min(picture.size)
    resized = picture.resize((int(picture.width * scale), int(picture.height * scale)), Image.Resampling.BILINEAR)
    left, top = round((resized.width - size) / 2), round((resized.height - size) / 2)
    return resized.crop((left, top, left + size, top + size))


@pytest.mark.parametrize("size", [32, 56, 224])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (40, 90), (300, 200), (17, 13), (20, 60)])
def test_squares_are_those_of_pillow(height: int, width: int, size: int) -> None:
    random = np.random.default_rng(height + size)
    picture = Image.fromarray(random.integers(0, 256, (5, 4, 3)).astype(np.uint8)).resize((width, height))
    found = classify.central_square(torch.from_numpy(np.array(picture)).permute(2, 0, 1), size)
    expected = torch.from_numpy(np.array(pillow_square(picture, size))).permute(2, 0, 1)
    assert found.shape == (3, size, size) and found.dtype == torch.uint8
    assert (found.int() - expected.int()).abs().float().mean() < 1


def test_a_strip_is_cut_before_it_is_resized() -> None:
    strip = torch.zeros(3, 1, 1_000_000, dtype=torch.uint8)
    strip[:, :, 499_990:500_010] = 200
    for picture in (strip, strip.transpose(1, 2)):
        assert (classify.central_square(picture, 32) == 200).all()


def test_some_images_stand_for_all(images: Path) -> None:
    found = find_images(images)
    assert len(found) == sum(4 + n for n in range(7)) == 49
    squares, labels, lines = classify.test_squares(found, SIZE, 1000)
    assert squares.shape == (47, 3, SIZE, SIZE) and squares.dtype == torch.uint8
    assert len(lines) == 2 and all("\n" not in line for line in lines)
    assert {Path(line.split("': ")[0].lstrip("'")).relative_to(images).as_posix() for line in lines} == {
        "n0002/1.png",
        "n0005/2.png",
    }
    readable = [n for n in range(49) if not any(line.startswith(f"'{found.path(n)}': ") for line in lines)]
    assert labels.tolist() == [int(found.labels[n]) for n in readable]
    for most in (1, 7, 30):
        some, some_labels, skipped = classify.test_squares(found, SIZE, most)
        assert len(some) == len(some_labels) == most - len(skipped)
        places = [next(n for n, one in enumerate(squares) if torch.equal(one, square)) for square in some]
        assert places == sorted(set(places))
        chosen = [readable[place] for place in places]
        steps = np.diff(chosen)
        assert most == 1 or steps.max() <= (1 + len(skipped)) * -(-49 // most)


def test_no_readable_image_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"no picture")
    said = refusal(lambda: classify.test_squares(find_images(tmp_path), SIZE, 10))
    assert "none of 2 test images" in said and "0.png': " in said


# --- accuracy ---


class Moody(nn.Module):
    """An encoder that refuses images in training mode."""

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training and not torch.is_grad_enabled()
        return F.adaptive_avg_pool2d(images, 4).flatten(1)  # (n, 48)


def test_top1_and_top5_are_those_of_one_image_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    random = generator(0)
    squares = torch.randint(256, (50, 3, 8, 8), generator=random, dtype=torch.uint8)
    classifier, labels = a_classifier(9, 48), torch.randint(9, (50,), generator=random)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    logits = []
    for image in squares:
        channels = [(image[c].float() / 255 - mean[c]) / std[c] for c in range(3)]
        pooled = F.adaptive_avg_pool2d(torch.stack(channels), 4).flatten()
        logits.append(classifier.weight @ pooled + classifier.bias)
    expected = tuple(slow_top_k(torch.stack(logits), labels, k) / 50 for k in (1, 5))
    assert 0 < expected[0] < expected[1] < 1
    encoder = Moody().train()
    for batch in (256, 7):
        monkeypatch.setattr(classify, "BATCH", batch)
        assert classify.top1_top5(encoder, classifier, squares, labels, mean, std, "cpu") == expected
    assert encoder.training


def test_a_look_at_an_encoder_in_training_changes_nothing() -> None:
    torch.manual_seed(0)
    encoder = build_encoder(recipes.Encoder("resnetv2_18", width=0.125), SIZE)
    squares = torch.randint(256, (20, 3, SIZE, SIZE), generator=generator(0), dtype=torch.uint8)
    labels, before = torch.arange(20) % 7, {name: value.clone() for name, value in encoder.state_dict().items()}
    random = torch.random.get_rng_state()
    found = classify.top1_top5(encoder, a_classifier(), squares, labels, HALF, HALF, "cpu")
    assert encoder.training and torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    # It sees what it will see once it is exported.
    assert found == classify.top1_top5(encoder.backbone, a_classifier(), squares, labels, HALF, HALF, "cpu")
    assert 0 < found[0] < found[1] < 1


# --- the command ---


def write_run(folder: Path, classes: tuple[str, ...], step: int = 5) -> Path:
    """An untrained encoder whose classifier is fitted to nothing."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    encoder = build_encoder(recipes.Encoder("resnetv2_18", width=0.125), SIZE)
    write_encoder(folder, encoder, "mine", 5)
    random = generator(1)
    weight, bias = torch.randn(len(classes), encoder.features, generator=random), torch.zeros(len(classes))
    write_classifier(folder, Classifier(weight, bias, classes), step)
    return folder


def evaluate(encoder: object, images: Path, out: Path, **others: Any) -> tuple[Result, str]:
    console = Console(file=io.StringIO(), width=1000)
    result = classify.evaluate_classifier(Classified(str(encoder), images, out, **others), console, "cpu")
    assert isinstance(console.file, io.StringIO)
    return result, console.file.getvalue()


def slow_accuracies(run: Path, images: Path) -> tuple[float, float]:
    """Image by image, with Pillow's pixels; the class is the name of the image's folder."""
    encoder, _ = load_encoder(run)
    classifier, logits, labels = read_classifier(run), [], []
    for path in sorted(images.glob("*/*.png")):
        try:
            picture = pillow_square(Image.open(path).convert("RGB"), SIZE)
        except OSError:
            continue
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 127.5 - 1
        with torch.no_grad():
            logits.append(encoder(pixels[None])[0] @ classifier.weight.T + classifier.bias)
        labels.append(classifier.classes.index(path.parent.name))
    counts = [slow_top_k(torch.stack(logits), torch.tensor(labels), k) for k in (1, 5)]
    return counts[0] / len(labels), counts[1] / len(labels)


def test_a_run_is_tested_by_the_names_of_its_classes(images: Path, tmp_path: Path) -> None:
    names = tuple(f"n{n:04d}" for n in (8, 3, 1, 5, 0, 2, 4, 9, 6))  # not sorted, and two without images
    run = write_run(tmp_path / "my-run", names)
    result, said = evaluate(run, images, tmp_path / "results")
    top1, top5 = slow_accuracies(run, images)
    assert 0 < top5 < 1 and top1 < top5
    # Pillow's resize is not quite torchvision's: of 47 images, one may fall on the other side.
    assert result.score.accuracies[0] == pytest.approx(top1, abs=1.01 / 47)
    assert result.top5 == pytest.approx(top5, abs=1.01 / 47)
    assert result.images == {"test": 47} and result.unreadable == 2 and result.classes == 9
    assert (result.encoder, result.task, result.benchmark) == ("my-run", "flowers", "classifier")
    assert sum("n0002/1.png': " in note or "n0005/2.png': " in note for note in result.notes) == 2
    tops = [f"{100 * share:.1f} %" for share in (result.score.median, result.top5 or 0)]
    line = f"my-run: top-1 {tops[0]}, top-5 {tops[1]} of 47 images"
    assert said.splitlines()[-1] == f"{line}; 2 could not be read"
    [path] = (tmp_path / "results").iterdir()
    assert read_result(path) == result and result.versions["torch"]
    # The encoder's file names the run as well.
    again, _ = evaluate(run / "encoder.safetensors", images, tmp_path / "results")
    assert replace(again, seconds=0, encoder_from="") == replace(result, seconds=0, encoder_from="")


def test_of_train_and_val_it_is_val_that_is_tested(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("val", 5)):
        write_images(tmp_path / "both" / part, {"a": count, "b": count + 1}, seed=count)
    run = write_run(tmp_path / "run", ("b", "a"))
    both, _ = evaluate(run, tmp_path / "both", tmp_path / "out1")
    alone, _ = evaluate(run, tmp_path / "both" / "val", tmp_path / "out2")
    assert both.images == alone.images == {"test": 11}
    assert (both.score, both.top5, both.title) == (alone.score, alone.top5, alone.title)
    assert both.title == "both" and both.top5 is None
    assert read_results(tmp_path / "out1") == ([both], [])


def test_another_classifier_on_the_same_encoder_never_replaces_a_result(images: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    network: Any = timm.create_model("test_resnet", num_classes=7)
    save_file(network.state_dict(), tmp_path / "one.safetensors")
    with torch.no_grad():
        network.fc.weight.neg_()
    save_file(network.state_dict(), tmp_path / "other.safetensors")
    evaluate("timm:test_resnet", images, tmp_path / "out", weights=tmp_path / "one.safetensors", name="it")
    with pytest.raises(UserError, match="another classifier that is called it too"):
        evaluate("timm:test_resnet", images, tmp_path / "out", weights=tmp_path / "other.safetensors", name="it")


def test_classes_that_it_does_not_know_are_left_out_and_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ("a", "b"))
    images = write_images(tmp_path / "more", {"a": 2, "b": 3, "rose": 4})
    result, said = evaluate(run, images, tmp_path / "out")
    assert result.images == {"test": 5} and any("'rose'" in note for note in result.notes) and "'rose'" in said


def test_timm_models_have_classes_by_number(images: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    network: nn.Module = timm.create_model("test_resnet", num_classes=7).eval()
    save_file(network.state_dict(), tmp_path / "mine.safetensors")
    weights = tmp_path / "mine.safetensors"
    result, said = evaluate("timm:test_resnet", images, tmp_path / "out", weights=weights)
    config = timm.models.get_pretrained_cfg("test_resnet")
    assert config is not None
    size = int(config.input_size[-1])
    squares, labels, _ = classify.test_squares(find_images(images), size, 100)
    logits = []
    for square in squares:
        channels = [(square[c].float() / 255 - config.mean[c]) / config.std[c] for c in range(3)]
        with torch.no_grad():
            logits.append(network(torch.stack(channels)[None])[0])
    expected = [slow_top_k(torch.stack(logits), labels, k) / 47 for k in (1, 5)]
    assert [result.score.median, result.top5] == expected and result.settings["size"] == size
    assert "test_resnet (mine): top-1 " in said
    few = write_images(tmp_path / "few", {"a": 1, "b": 1})
    line = refusal(lambda: evaluate("timm:test_resnet", few, tmp_path / "out", weights=weights))
    assert "does not fit test_resnet with 2 classes, as many as" in line and "2 of another shape" in line


def test_pretrained_timm_models_must_have_as_many_classes(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create: Any = timm.create_model
    known = 1000

    def offline(name: str, pretrained: bool, num_classes: int | None = None, **others: Any) -> nn.Module:
        torch.manual_seed(3)
        network: nn.Module = create(name, num_classes=known if num_classes is None else num_classes, **others)
        return network

    monkeypatch.setattr(timm, "create_model", offline)
    line = refusal(lambda: evaluate("timm:test_resnet", images, tmp_path / "out"))
    assert f"timm:test_resnet knows 1,000 classes, {images} has 7" in line
    known = 7
    assert evaluate("timm:test_resnet", images, tmp_path / "out")[0].encoder == "test_resnet"


def test_what_cannot_be_evaluated_is_said_in_one_line(images: Path, tmp_path: Path) -> None:
    names = tuple(f"n{n:04d}" for n in range(7))
    out = tmp_path / "out"

    def line(encoder: object, folder: Path = images, **others: Any) -> str:
        return refusal(lambda: evaluate(encoder, folder, out, **others))

    assert "untrained:resnet18 has no classifier" in line("untrained:resnet18")
    assert "timm has no model 'resnet1x8'" in line("timm:resnet1x8")
    assert "there is no run or file" in line(tmp_path / "nowhere")
    alone = write_run(tmp_path / "alone", names)
    (alone / "classifier.safetensors").unlink()
    assert f"{alone} has no classifier: it was trained without labels" in line(alone)
    late = write_run(tmp_path / "late", names, step=4)
    assert "the encoder is of step 5, the classifier of step 4" in line(late)
    wide = write_run(tmp_path / "wide", names)
    write_classifier(wide, a_classifier(7, 65), 5)
    assert "is for 65 features, its encoder has 64" in line(wide)
    run = write_run(tmp_path / "run", names)
    assert "'rose'" in line(run, write_images(tmp_path / "strangers", {"rose": 1, "tulip": 1}))
    assert not out.exists()
    # The name is taken by other weights.
    evaluate(run, images, out)
    (out.parent / "other").mkdir()
    other = write_run(tmp_path / "other" / "run", names)
    about = json.loads((other / "encoder.json").read_text()) | {"mean": [0.4] * 3}
    (other / "encoder.json").write_text(json.dumps({name: about[name] for name in about if name != "checksum"}))
    assert "is about other weights of the same name, 'run': give --name" in line(other)
    assert evaluate(other, images, out, name="other")[0].encoder == "other"
