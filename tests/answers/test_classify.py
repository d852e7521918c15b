"""Classifiers from folders of images, and labels of footage."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from browser import Page
from conftest import ENCODER, Run, write_video
from PIL import Image
from torch.nn import functional as F

from vivi.answers.classify import best_temperature, fit_classifier
from vivi.answers.embeddings import Embeddings
from vivi.answers.fit_page import confusion_matrix
from vivi.answers.label import label_footage
from vivi.evaluate.classifiers import open_classifier
from vivi.runtime.errors import UserError

COLOURS = {"blue": (30, 40, 200), "green": (30, 180, 40), "red": (200, 40, 30)}


def write_photos(folder: Path, each: int = 12, seed: int = 0) -> Path:
    """Class folders of noisy images of one colour, which any encoder tells apart."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = np.clip(np.array(colour) + rng.integers(-30, 30, (24, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def classifier(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "classifier"
    fitted = fit_classifier(photos, ENCODER, out, size=32, device="cpu")
    assert fitted.accuracy == 1.0 and len(fitted.labels) == 6 and fitted.interval[0] < 0.7
    torch.testing.assert_close(fitted.probabilities.sum(dim=1), torch.ones(6))
    return out


def test_what_is_written_is_the_classifier_that_was_tested(classifier: Path) -> None:
    opened = open_classifier(str(classifier))
    assert opened.classes == ("blue", "green", "red")
    pixels = torch.stack([torch.tensor(colour).view(3, 1, 1).expand(3, 32, 32) for colour in COLOURS.values()])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (opened.model.mean, opened.model.std))
    with torch.no_grad():
        logits = opened.network((pixels / 255 - mean) / std)
    assert logits.argmax(dim=1).tolist() == [0, 1, 2]


def test_the_page_says_how_good_it_is(classifier: Path) -> None:
    page = Page(classifier / "index.html")
    for words in ("100.0 %", "of 6 test images", "by chance 33.3 %", "Confusion matrix", "split by seed 0"):
        assert words in page.text
    assert (classifier / "tables" / "classes.csv").read_text().count("\n") == 4


def test_a_fine_tuned_classifier_is_another_network(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vivi.answers import classify

    monkeypatch.setattr(classify, "QUICK_SCHEDULES", (2, 6))
    fitted = fit_classifier(photos, ENCODER, tmp_path, finetune=True, size=32, device="cpu")
    assert "fine-tuned with learning rate" in fitted.how
    tuned, untrained = (open_classifier(str(tmp_path)).model, open_classifier_model())
    assert tuned.checksum != untrained
    opened = open_classifier(str(tmp_path))
    assert len(fitted.labels) == 6 and opened.outputs == 3


def open_classifier_model() -> str:
    from vivi.evaluate.encoders import load_model

    return load_model(ENCODER, None, 32).checksum


@pytest.mark.parametrize("seed", range(4))
def test_the_temperature_is_the_most_likely_one(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(200, 5, generator=generator), torch.randint(0, 5, (200,), generator=generator)
    logits[torch.arange(200), labels] += 1.0
    found = best_temperature(logits, labels)
    for other in (found / 1.3, found * 1.3):
        assert F.cross_entropy(found * logits, labels) <= F.cross_entropy(other * logits, labels)


@pytest.mark.parametrize("seed", range(4))
def test_the_confusion_matrix_counts_pairs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels, guesses = torch.randint(0, 4, (2, 50), generator=generator)
    matrix = confusion_matrix(labels, guesses, 4)
    for row in range(4):
        for column in range(4):
            assert matrix[row, column] == sum(
                int(a == row and b == column) for a, b in zip(labels, guesses, strict=True)
            )


def test_frames_shots_and_videos_are_labelled(classifier: Path, corpus: Path, tmp_path: Path) -> None:
    page = Page(label_footage(classifier, corpus, tmp_path, device="cpu"))
    frames = pq.read_table(tmp_path / "frames.parquet").to_pylist()
    assert len(frames) == len(Embeddings(tmp_path / "embeddings"))
    for row in frames:
        assert sum(row["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert row["probability"] == max(row["probabilities"])
    for name, keys in (("shots.csv", ("video", "shot")), ("videos.csv", ("video",))):
        by_key: dict[tuple[object, ...], list[list[float]]] = {}
        for row in frames:
            by_key.setdefault(tuple(str(row[key]) for key in keys), []).append(row["probabilities"])
        with open(tmp_path / name, newline="") as file:
            labelled = {tuple(row[key] for key in keys): row for row in csv.DictReader(file)}
        assert labelled.keys() == by_key.keys()
        for key, probabilities in by_key.items():
            mean = np.mean(probabilities, axis=0)
            assert float(labelled[key]["probability"]) == pytest.approx(mean.max(), abs=6e-5)  # as the CSV rounds
            assert labelled[key]["label"] == ("blue", "green", "red")[int(mean.argmax())]
            assert int(labelled[key]["frames"]) == len(probabilities)
    assert "most likely of 3 classes" in page.text and page.strips


def test_a_video_file_is_prepared_and_labelled(classifier: Path, tmp_path: Path, vivi: Run) -> None:
    write_video(tmp_path / "clip.mp4", shots=3, shot_seconds=3.0)
    done = vivi("classify", "run", classifier, tmp_path / "clip.mp4", "--out", tmp_path / "labels", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "labels" / "videos.csv").read_text().count("clip.mp4") >= 1
    again = vivi("classify", "run", classifier, tmp_path / "labels" / "embeddings", "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    for name in ("shots.csv", "videos.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "labels" / name).read_bytes()


def test_embeddings_of_another_encoder_are_refused(classifier: Path, embeddings: Embeddings, tmp_path: Path) -> None:
    about = json.loads((embeddings.folder / "embeddings.json").read_text())
    assert about["size"] == 32
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "embeddings.json").write_text(json.dumps({**about, "checksum": "other"}))
    with pytest.raises(UserError, match="not by the encoder of"):
        label_footage(classifier, folder, tmp_path / "labels", device="cpu")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["fit", "nowhere", "--encoder", ENCODER], "there is no nowhere; give a folder with a folder of images"),
        (["run", "nowhere", "."], "there is no nowhere"),
        (["run", ".", "."], "has no classifier"),
    ],
)
def test_wrong_arguments_are_one_line(vivi: Run, arguments: list[str], line: str, tmp_path: Path) -> None:
    done = vivi("classify", *arguments, "--out", tmp_path / "out")
    assert done.returncode == 1 and line in done.stderr and done.stderr.count("\n") == 1


def test_classes_that_cannot_be_split_are_one_line(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", each=1)
    with pytest.raises(UserError, match="give each class two"):
        fit_classifier(tmp_path / "photos", ENCODER, tmp_path / "out", size=32, device="cpu")
