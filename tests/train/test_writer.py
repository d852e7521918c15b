"""What is written while a run trains: the progress line, pictures, curves, checkpoints and results."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from vivi.losses import Exemplar, InfoNCE, Jigsaw, Loss, Rotation, Supervised
from vivi.model.files import read_classifier
from vivi.model.vivi import build_model
from vivi.recipes import RECIPES
from vivi.runtime.distributed import World
from vivi.train import writer as writer_module
from vivi.train.checkpoint import restore
from vivi.train.loop import Trainer
from vivi.train.metrics import MetricsLog, read_metrics
from vivi.train.monitor import Monitor, Watched
from vivi.train.pictures import draw_curves, picture_of_images, picture_of_shots
from vivi.train.settings import Execution
from vivi.train.writer import RunWriter

CPU = World(torch.device("cpu"))
NOTHING = Monitor(None, None)


def trainer_of(name: str = "vivi-ex4-tiny") -> Trainer:
    recipe = RECIPES[name]
    recipe = replace(
        recipe,
        encoder=replace(recipe.encoder, width=0.125),
        batch=replace(recipe.batch, videos=min(4, recipe.batch.videos), cores=2),
        augment=replace(recipe.augment, size=32),
    )
    return Trainer(build_model(recipe, 3 if recipe.images.count else 0), recipe, CPU)


@contextmanager
def writing(
    out: Path, trainer: Trainer, monitor: Monitor = NOTHING, start: int = 0
) -> Iterator[tuple[RunWriter, io.StringIO]]:
    """The writer of a run, and what it prints."""
    printed = io.StringIO()
    console = Console(file=printed, width=10_000)
    with RunWriter(out, trainer, ("a", "b", "c"), monitor, start, Execution(), console) as writer:
        yield writer, printed


# --- the progress line ---


def test_each_loss_and_its_metrics_stand_in_the_progress_line_by_their_labels(tmp_path: Path) -> None:
    values = {
        "loss": 3.25,
        "infonce": 2.0,
        "exemplar": 0.5,
        "supervised": 1.0,
        "triplet_violations": 0.75,
        "infonce_accuracy": 0.125,
        "supervised_accuracy": 0.25,
        "gradient_norm": 9.0,
        "frames_per_second": 12345.6,
    }
    with writing(tmp_path, trainer_of("vivi-ex4-co100-tiny")) as (writer, printed):
        writer.log(0, {"retrieval": 0.5, "top1": 0.375, "spread": 0.1})
        writer.log(1, values)
        writer.log(2, {})
    assert printed.getvalue().splitlines()[-1] == (
        "step 2/800 · loss 3.250 · exemplar 0.500 · infonce 2.000 · labels 1.000 · next shot 0.125 · "
        "label accuracy 0.250 · retrieval 0.500 · top-1 0.375 · 12,346 frames/s"
    )
    lines = read_metrics(tmp_path)
    assert lines == [{"step": 0, "retrieval": 0.5, "top1": 0.375, "spread": 0.1}, {"step": 1, **values}]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("rot-yt-f-tiny", ["rotation", "rotation accuracy"]),
        ("vivi-ex2-ord-tiny", ["exemplar", "order", "order accuracy"]),
        ("jigsaw-tiny", ["jigsaw", "jigsaw accuracy"]),
        ("rel-pat-loc-tiny", ["location", "location accuracy"]),
        ("sup100-tiny", ["labels", "label accuracy"]),
    ],
)
def test_the_progress_line_names_the_losses_that_the_recipe_has(name: str, shown: list[str], tmp_path: Path) -> None:
    trainer = trainer_of(name)
    losses = [loss for loss, _ in trainer.model.weighted_losses(trainer.recipe.loss)]
    values = {key: 0.5 for loss in losses for key in (loss.name, *loss.metrics)}
    with writing(tmp_path, trainer) as (writer, printed):
        writer.log(1, {"loss": 1.0, **values})
    line = printed.getvalue().splitlines()[-1]
    assert re.findall(r"· ([a-z ]+) 0\.500", line) == shown


# --- pictures ---


def frames(*shape: int) -> Tensor:
    return torch.rand(*shape, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_what_the_encoder_sees_is_written_in_the_first_step_alone(tmp_path: Path) -> None:
    trainer, shots = trainer_of(), frames(8, 2)
    with writing(tmp_path, trainer) as (writer, _):
        writer.write_picture_once("augmented", shots)
        writer.write_picture_once("labelled", frames(3, 1))
        first = (tmp_path / "augmented.png").read_bytes()
        writer.write_picture_once("augmented", -shots)
    assert (tmp_path / "augmented.png").read_bytes() == first
    with Image.open(tmp_path / "augmented.png") as picture:
        assert picture.size == (2 * 8, 8 * 8 + 4), "eight shots of two frames, two videos"
    assert (tmp_path / "labelled.png").exists()
    with writing(tmp_path / "resumed", trainer, start=5) as (writer, _):
        writer.write_picture_once("augmented", shots)
    assert not (tmp_path / "resumed" / "augmented.png").exists()


def test_a_picture_shows_sixteen_shots_and_the_patches_of_an_image_in_a_row() -> None:
    assert picture_of_shots(frames(20, 4), 4).shape == (16 * 8 + 3 * 4, 4 * 8, 3)
    patches = frames(3, 1, 9)
    picture = picture_of_shots(patches, 1)
    assert picture.shape == (3 * 8 + 2 * 4, 9 * 8, 3)
    expected = ((patches[1, 0, 4] / 2 + 1) * 127.5).round().permute(1, 2, 0).numpy()
    assert np.array_equal(picture[12:20, 4 * 8 : 5 * 8], expected)


@pytest.mark.parametrize(
    ("images", "copies", "rows", "columns"), [(3, 1, 1, 3), (4, 2, 1, 8), (9, 1, 1, 8), (40, 2, 8, 8)]
)
def test_a_picture_of_labelled_images_has_rows_of_up_to_eight(
    images: int, copies: int, rows: int, columns: int
) -> None:
    assert picture_of_images(frames(images, copies)).shape == (rows * 8 + (rows - 1) * 4, columns * 8, 3)


# --- curves ---


@pytest.mark.parametrize(
    ("losses", "logged", "panels"),
    [
        ([Exemplar(5), InfoNCE(5, 4)], [], 1),
        ([Exemplar(5)], ["exemplar"], 1),
        ([Exemplar(5), InfoNCE(5, 4)], ["exemplar", "infonce_accuracy", "retrieval", "effective_rank"], 4),
        ([Rotation(5), Supervised(5, 3)], ["rotation", "rotation_accuracy", "top1", "top5"], 3),
        ([Supervised(5, 3)], ["supervised", "retrieval_chance"], 2),
        ([Jigsaw(5, hidden=8)], ["jigsaw", "rotation_accuracy", "learning_rate"], 1),  # of no loss of this run
    ],
)
def test_curves_have_a_panel_for_each_kind_of_metric_that_was_logged(
    losses: Sequence[Loss], logged: list[str], panels: int, tmp_path: Path
) -> None:
    if logged:
        with MetricsLog(tmp_path, -1) as log:
            for step in range(3):
                log.log(step, {name: (step + 1) / 5 for name in logged} | {"seconds": math.inf})
    draw_curves(tmp_path, losses)
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size == (350 * panels, 320)


# --- results ---


def test_saving_writes_a_checkpoint_and_the_results_and_draws_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = tmp_path / "curves.png"
    with writing(tmp_path, trainer_of("sup100-tiny")) as (writer, _):
        for step in range(1, 6):
            writer.save(step, draw=False)
            if step == 1:
                assert curves.exists(), "the first time"
                curves.unlink()
        assert not curves.exists(), "not again so soon"
        writer.save(6, draw=True)
        assert curves.exists()
        curves.unlink()
        monkeypatch.setattr(writer_module, "_SECONDS_BETWEEN_CURVES", 0)
        writer.save(7, draw=False)
        assert curves.exists()
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3
    restored = restore(tmp_path / "checkpoints", pytest.fail)
    assert restored is not None and restored[0] == 7
    assert {"encoder.safetensors", "encoder.json"} <= {path.name for path in tmp_path.iterdir()}
    assert read_classifier(tmp_path).classes == ("a", "b", "c")


# --- what is watched ---


def watched(count: int, groups: list[int]) -> Watched:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return Watched(pixels, torch.tensor(groups), torch.arange(count))


@pytest.mark.parametrize("classes", [3, 7])
def test_a_monitor_measures_the_classifier_on_test_images(classes: int) -> None:
    model = build_model(trainer_of("sup100-tiny").recipe, classes).train()
    images = watched(12, [number % classes for number in range(12)])
    values = Monitor(None, images).measure(model)
    assert model.training and model.encoder.training
    model.eval()
    assert model.supervised_loss is not None
    with torch.no_grad():
        logits = model.supervised_loss.head(model.encoder(images.frames / 127.5 - 1))
    ranks = [int((row >= row[label]).sum()) for row, label in zip(logits, images.groups, strict=True)]
    assert values["top1"] == sum(rank == 1 for rank in ranks) / 12
    assert ("top5" in values) == (classes > 5), "of fewer classes all are among the first five"
    assert values.get("top5", 0) == (sum(rank <= 5 for rank in ranks) / 12 if classes > 5 else 0)
    assert {"retrieval", "retrieval_chance", "spread", "effective_rank"} < values.keys()


def test_a_monitor_looks_at_videos_first_and_at_nothing_where_there_is_nothing() -> None:
    model = trainer_of("vivi-ex4-tiny").model
    held_out, test = watched(8, [0, 0, 0, 0, 1, 1, 1, 1]), watched(6, [0, 0, 0, 1, 1, 1])
    both = Monitor(held_out, test).measure(model)
    assert both == Monitor(held_out, None).measure(model) != Monitor(None, test).measure(model)
    assert "top1" not in both, "there is no classifier"
    assert NOTHING.measure(model) == {}
