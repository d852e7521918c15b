"""vivi evaluate classifier: what it tests, on which images, and what it says."""

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

from vivi import recipes
from vivi.data.images import find_images
from vivi.data.squares import sample_squares
from vivi.evaluate.classifiers import evaluate_classifier
from vivi.evaluate.results import Result, read_result, read_results
from vivi.evaluate.settings import Classified
from vivi.model.encoder import build_encoder, load_encoder
from vivi.model.files import Classifier, read_classifier, write_classifier, write_encoder
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


def slow_top_k(logits: Tensor, labels: Tensor, k: int) -> int:
    """One image after the other: how many other classes are at least as likely as the label."""
    right = 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        rivals = [value for other, value in enumerate(row) if other != label and value >= row[label]]
        right += len(rivals) < k
    return right


def a_classifier(classes: int = 7, features: int = 64, seed: int = 0) -> Classifier:
    names = tuple(f"n{number:04d}" for number in range(classes))
    random = generator(seed)
    weight, bias = torch.randn(classes, features, generator=random), torch.randn(classes, generator=random)
    return Classifier(weight, bias, names)


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
    result = evaluate_classifier(Classified(str(encoder), images, out, **others), console, "cpu")
    assert isinstance(console.file, io.StringIO)
    return result, console.file.getvalue()


def pillow_square(picture: Image.Image, size: int) -> Image.Image:
    """By Pillow: the short side to size · 256 / 224, then the central square."""
    short = round(size * 256 / 224)
    scale = short / min(picture.size)
    resized = picture.resize((int(picture.width * scale), int(picture.height * scale)), Image.Resampling.BILINEAR)
    left, top = round((resized.width - size) / 2), round((resized.height - size) / 2)
    return resized.crop((left, top, left + size, top + size))


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
    squares, labels, _ = sample_squares(find_images(images), size, 100)
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
