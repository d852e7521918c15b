"""Training with labelled images: along with videos, alone, and without their labels; what can be wrong with them."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from moments import start_signalled
from PIL import Image
from runs import OFTEN, SMALL, assert_same_run, vivi_here
from torch import nn

from vivi import load_encoder
from vivi.model.files import read_classifier
from vivi.runtime.errors import UserError
from vivi.train.metrics import read_metrics

LABELLED = ["--images.count", "8"]


def write_photos(folder: Path, each: int, seed: int) -> None:
    """Three classes: noise around red, green or blue, of many sizes."""
    rng = np.random.default_rng(seed)
    for label, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            size = rng.integers(20, 60, 2)
            pixels = rng.integers(0, 120, (*size, 3), np.uint8)
            pixels[:, :, label] += 120
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.jpg")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder / "train", 20, 0)
    write_photos(folder / "val", 5, 1)
    return folder


def words(recipe: str, out: Path, *flags: object) -> list[str]:
    return [str(word) for word in ("train", recipe, "--out", out, *SMALL, *flags)]


def run_here(recipe: str, out: Path, *flags: object) -> str:
    return vivi_here(*words(recipe, out, *flags))


def refusal(recipe: str, out: Path, *flags: object) -> str:
    with pytest.raises(UserError) as caught:
        run_here(recipe, out, *flags)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def co_trained(corpus: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps on videos and labelled images."""
    out = tmp_path_factory.mktemp("runs") / "co"
    flags = ("--corpus", corpus, "--images", photos, *LABELLED, "--steps", 12, *OFTEN)
    run_here("vivi-ex4-co100-tiny", out, *flags)
    return out


def test_co_training_adds_the_weighted_loss_of_the_labels(co_trained: Path, photos: Path) -> None:
    for line in read_metrics(co_trained)[1:]:
        total = line["exemplar"] + 0.2 * line["infonce"] + 1.0 * line["supervised"]
        assert line["loss"] == pytest.approx(total, rel=1e-5)
        assert 0 <= line["supervised_accuracy"] <= 1
    assert {"top1", "retrieval"} < set(read_metrics(co_trained)[0]) & set(read_metrics(co_trained)[-1])
    assert read_classifier(co_trained).classes == ("blue", "green", "red")
    with Image.open(co_trained / "labelled.png") as picture:
        assert picture.size == (4 * 32, 32), "the four images of the first core"
    about = json.loads((co_trained / "run.json").read_text())
    assert about["images"] == str((photos / "train").resolve()) and about["images_fingerprint"]


@pytest.mark.timeout(600)
def test_a_co_trained_run_killed_at_random_moments_ends_with_the_same_bits(
    co_trained: Path, corpus: Path, photos: Path, tmp_path: Path
) -> None:
    flags = ("--corpus", corpus, "--images", photos, *LABELLED, "--steps", 12, *OFTEN)
    out = tmp_path / "run"
    seed = time.time_ns()
    print(f"seed {seed}")  # pytest shows it if the test fails
    moments = random.Random(seed)
    for threads in (1, 3):
        command = words("vivi-ex4-co100-tiny", out, *flags, "--threads", threads)
        running = start_signalled(signal.SIGKILL, out / "*", moments.randint(1, 15), *command)
        running.communicate()
        assert running.returncode == -signal.SIGKILL
    run_here("vivi-ex4-co100-tiny", out, *flags)
    assert_same_run(co_trained, out)
    for name in ("classifier.safetensors", "classifier.json"):
        assert (co_trained / name).read_bytes() == (out / name).read_bytes()


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("ex-imagenet", {"exemplar", "triplet_violations"}),
        ("rot-imagenet", {"rotation", "rotation_accuracy"}),
        ("sup10", {"supervised", "supervised_accuracy", "top1"}),
        ("sup100", {"supervised", "supervised_accuracy", "top1"}),
        ("sup-rot100", {"supervised", "rotation", "top1"}),
        ("semi-ex10", {"supervised", "exemplar", "top1"}),
        ("jigsaw", {"jigsaw", "jigsaw_accuracy"}),
        ("rel-pat-loc", {"location", "location_accuracy"}),
    ],
)
def test_every_image_method_trains_without_videos(
    recipe: str, expected: set[str], photos: Path, tmp_path: Path
) -> None:
    flags = ["--images", photos, "--steps", 2]
    if recipe.startswith("sup"):
        flags += [*LABELLED, "--batch.videos", 0, "--images.fraction", 1.0]
    if recipe == "semi-ex10":
        flags += [*LABELLED, "--images-fraction", 0.2]
    if recipe in ("jigsaw", "rel-pat-loc"):
        flags += ["--augment.size", 16, "--loss.frame.hidden", 16]
    if recipe == "rot-imagenet":
        flags += ["--batch.frames", 1]
    printed = run_here(f"{recipe}-tiny", tmp_path / "run", *flags)
    line = read_metrics(tmp_path / "run")[-1]
    assert expected | {"loss", "retrieval", "effective_rank"} <= line.keys()
    assert np.isfinite(line["loss"])
    assert ("their labels unused" in printed) == (not recipe.startswith("sup"))
    assert (tmp_path / "run" / "classifier.json").exists() == ("supervised" in expected)


@pytest.mark.parametrize("recipe", ["ex-yt-s-aa", "vivi-ex4-aa", "vivi-ex4-co100-big"])
def test_recipes_with_autoaugment_train(recipe: str, corpus: Path, photos: Path, tmp_path: Path) -> None:
    images = ["--images", photos, *LABELLED] if "-co" in recipe else []
    run_here(f"{recipe}-tiny", tmp_path / "run", "--corpus", corpus, *images, "--steps", 2)
    assert np.isfinite(read_metrics(tmp_path / "run")[-1]["loss"])


def test_labels_are_learned_and_tested_from_the_command_line(photos: Path, tmp_path: Path) -> None:
    flags = ("--images", photos, *LABELLED, "--batch.videos", 0, "--steps", 40, "--augment.hue", 0)
    run_here("sup100-tiny", tmp_path / "run", *flags)
    trained = read_metrics(tmp_path / "run")[-1]
    assert trained["top1"] > 0.6, "three colours are easy to tell apart"
    of_run = ("evaluate", "classifier", "--encoder", tmp_path / "run")
    said = vivi_here(*of_run, "--images", photos, "--out", tmp_path / "results")
    assert f"top-1 {100 * trained['top1']:.1f} % of 15 images" in said
    assert "top5" not in trained and "top-5" not in said, "of three classes all are among the first five"
    on_training = vivi_here(
        *(
            "evaluate",
            "classifier",
            "--encoder",
            tmp_path / "run",
            "--images",
            photos / "train",
            "--out",
            tmp_path / "r",
        )
    )
    assert "this is no test accuracy" in on_training


def test_a_fraction_uses_as_many_labels_of_every_class(photos: Path, tmp_path: Path) -> None:
    flags = ("--images", photos, "--batch.videos", 0, "--images.count", 6, "--images.fraction", 0.1, "--steps", 1)
    printed = run_here("sup10-tiny", tmp_path / "run", *flags)
    assert "6 labelled images of 3 classes, 15 test images" in printed
    line = refusal("sup10-tiny", tmp_path / "none", *flags[:-4], "--images.fraction", 0.01)
    assert "--images.fraction 0.01" in line and "0.05" in line
    assert not (tmp_path / "none").exists() or not list((tmp_path / "none").glob("*.json"))


@pytest.mark.parametrize(
    ("recipe", "flags", "said"),
    [
        (
            "vivi-ex4-co100-tiny",
            ["--corpus", "{corpus}"],
            "co100-tiny learns from images: give a folder or list",
        ),
        ("vivi-ex4-co100-tiny", ["--images", "{photos}"], "vivi-ex4-co100-tiny learns from videos: give a corpus"),
        ("ex-imagenet-tiny", ["--corpus", "{corpus}"], "ex-imagenet-tiny learns from no videos: remove --corpus"),
        ("vivi-ex4-tiny", ["--corpus", "{corpus}", "--images", "{photos}"], "learns from no images: remove --images"),
        ("vivi-ex4-tiny", ["--corpus", "{corpus}", "--images-test", "x"], "from no images: remove --images-test"),
        ("ex-imagenet-tiny", ["--images", "{photos}/nowhere"], "nowhere"),
        (
            "ex-imagenet-tiny",
            ["--images", "{photos}/train/red", "--images-test", "{photos}"],
            "has no classes to test",
        ),
        (
            "vivi-ex4-tiny",
            ["--corpus", "{corpus}", "--images.count", "4"],
            "labelled images and their loss need each other",
        ),
        ("vivi-ex4-tiny", ["--corpus", "{corpus}", "--batch.videos", "0"], "both 0"),
        ("sup100-tiny", ["--images", "{photos}", "--images.count", "5"], "--images.count 5 is no multiple of"),
        ("jigsaw-tiny", ["--images", "{photos}", "--encoder.name", "resnet18", "--encoder.width", "1"], "resnetv2"),
        ("vivi-ex4-aa-tiny", ["--corpus", "{corpus}", "--augment.hsv"], "--augment.no-hsv"),
        ("jigsaw-tiny", ["--images", "{photos}", "--augment.flip"], "of --augment it allows the size alone"),
        ("ex-imagenet-tiny", ["--images", "{photos}", "--images.fraction", "0.5"], "set --images.count"),
        (
            "vivi-ex4-tiny",
            ["--corpus", "{corpus}", "--encoder.name", "resnet18", "--encoder.width=1", "--encoder.norm", "group"],
            "--encoder.norm group needs a resnetv2 model",
        ),
    ],
)
def test_what_does_not_fit_together_is_one_line(
    recipe: str, flags: list[str], said: str, corpus: Path, photos: Path, tmp_path: Path
) -> None:
    given = [flag.format(corpus=corpus, photos=photos) for flag in flags]
    assert said in refusal(recipe, tmp_path / "run", *given)


def test_a_run_is_not_continued_on_other_images(co_trained: Path, corpus: Path, photos: Path, tmp_path: Path) -> None:
    run, changed = tmp_path / "run", tmp_path / "photos"
    shutil.copytree(co_trained, run)
    shutil.copytree(photos, changed)
    (changed / "train" / "red" / "000.jpg").unlink()
    line = refusal("vivi-ex4-co100-tiny", run, "--corpus", corpus, "--images", changed, *LABELLED, "--steps", 14)
    assert f"was begun on other images than {changed / 'train'}: give {photos / 'train'}" in line


def test_a_list_of_labels_takes_the_place_of_the_fraction(photos: Path, tmp_path: Path) -> None:
    listed = tmp_path / "listed.txt"
    listed.write_text("".join(f"{name}/{number:03d}.jpg\n" for name in ("red", "blue") for number in range(4)))
    flags = ("--images", photos, "--images-list", listed, *LABELLED, "--steps", 1)
    printed = run_here("semi-ex10-tiny", tmp_path / "run", *flags)
    assert "60 images, their labels unused" in printed and "8 labelled images of 2 classes, 10 test images" in printed
    assert "of which" in printed and "'green'" in printed
    line = refusal("ex-imagenet-tiny", tmp_path / "none", "--images", photos, "--images-list", listed)
    assert "learns from no labels: remove --images-list" in line


def test_test_images_that_are_trained_on_are_told(photos: Path, tmp_path: Path) -> None:
    flags = ("--images", photos / "train", "--images-test", photos / "train", *LABELLED, "--batch.videos", 0)
    printed = run_here("sup100-tiny", tmp_path / "run", *flags, "--steps", 1)
    assert "60 of the 60 test images are also trained on" in printed


def test_images_without_classes_serve_methods_without_labels(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "train" / "red", tmp_path / "flat")
    printed = run_here("rot-imagenet-tiny", tmp_path / "run", "--images", tmp_path / "flat", "--steps", 1)
    assert "20 images, their labels unused" in printed


def test_a_patch_encoder_is_exported_for_whole_images_with_its_strides(photos: Path, tmp_path: Path) -> None:
    flags = ("--images", photos, "--steps", 1, "--augment.size", 16, "--loss.frame.hidden", 16)
    run_here("rel-pat-loc-tiny", tmp_path / "run", *flags)
    about = json.loads((tmp_path / "run" / "encoder.json").read_text())
    assert about["input_size"] == 56 and about["patch_strides"] is True
    encoder, _ = load_encoder(tmp_path / "run")
    strides = [module.stride for module in encoder.modules() if isinstance(module, nn.Conv2d)]
    assert strides[0] == (1, 1) and strides.count((2, 2)) == 4, "an eighth of the image, not a thirty-second"


def test_broken_pictures_are_named_and_training_goes_on(photos: Path, tmp_path: Path) -> None:
    broken = tmp_path / "photos"
    shutil.copytree(photos, broken)
    (broken / "train" / "red" / "003.jpg").write_bytes(b"no picture")
    (broken / "val" / "red" / "003.jpg").write_bytes(b"")
    Image.new("CMYK", (30, 40), (0, 200, 200, 20)).save(broken / "train" / "red" / "004.jpg")
    Image.new("L", (30, 40), 99).save(broken / "train" / "red" / "005.jpg")
    frames = [Image.new("P", (30, 40), level) for level in (1, 2, 3)]
    frames[0].save(broken / "train" / "red" / "006.gif", save_all=True, append_images=frames[1:])
    Image.new("RGB", (6000, 4000), (200, 0, 0)).save(broken / "train" / "red" / "007.jpg", quality=30)
    (broken / "train" / "empty").mkdir()
    flags = ("--images", broken, *LABELLED, "--batch.videos", 0, "--steps", 8)
    printed = run_here("sup100-tiny", tmp_path / "run", *flags)
    assert printed.count("unreadable, the next of its class takes its place") == 1 and "red/003.jpg" in printed
    assert "unreadable test images, left out: 1; the first is " in printed
    assert "left out 1 class folder without images: 'empty'" in printed
    assert "61 labelled images of 3 classes, 15 test images" in printed
