"""Recipes say what the paper's tables say: settings, results and sweeps, each method by its command."""

from __future__ import annotations

import csv
import inspect
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from conftest import Run

from vivi.recipes import METHODS, PAPER, RECIPES, Augment, Encoder, Exemplar, InfoNCE, Order, Rotation
from vivi.recipes.baselines import IMAGENET, epochs
from vivi.recipes.files import differences, flat

# The rows of the paper's table of training details.
ROWS = {
    "Ex-ImageNet": "ex-imagenet",
    "Ex-YT-F": "ex-yt-f",
    "Ex-YT-S": "ex-yt-s",
    "VIVI-Ex(2)-Ord": "vivi-ex2-ord",
    "VIVI-Ex(2)": "vivi-ex2",
    "VIVI-Ex(4)": "vivi-ex4",
    "VIVI-Ex(4)-Big": "vivi-ex4-big",
    "Rot-YT-F": "rot-yt-f",
    "VIVI-Rot(2)": "vivi-rot2",
    "VIVI-Rot(4)": "vivi-rot4",
    "Rot-ImageNet": "rot-imagenet",
    "VIVI-Ex(4)-Co(10%)": "vivi-ex4-co10",
    "VIVI-Ex(4)-Co(100%)": "vivi-ex4-co100",
    "VIVI-Ex(4)-Co(100%)-Big": "vivi-ex4-co100-big",
}
# What the tables of results name besides, and what makes it; MS, MT-SSL, TI and BigBiGAN are models of others.
OTHER_ROWS = {
    "VIVI-Ex(2)-TimeArrow": "vivi-ex2-ord",
    "Ex-YT-F-AA": "ex-yt-f-aa",
    "Ex-YT-S-AA": "ex-yt-s-aa",
    "VIVI-Ex(4)-AA": "vivi-ex4-aa",
    "VIVI-Ex(4)-Big-AA": "vivi-ex4-big-aa",
    "Rot-YT-F-AA": "rot-yt-f-aa",
    "Sup-10%": "sup10",
    "Sup-100%": "sup100",
    "Sup-Rot-100%": "sup-rot100",
    "Semi-Ex-10%": "semi-ex10",
    "Jigsaw": "jigsaw",
    "Rel.Pat.Loc": "rel-pat-loc",
}
IMPORTED = {"MS", "MT-SSL", "TI", "BigBiGAN"}


def table(name: str) -> list[dict[str, str]]:
    with resources.files("vivi.paper").joinpath(f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def paper_rows() -> list[dict[str, str]]:
    return table("recipes")


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(";") if number)


def test_every_row_of_the_papers_table_is_a_recipe() -> None:
    assert {row["method"] for row in paper_rows()} == set(ROWS)
    assert set(ROWS.values()) <= set(RECIPES)


@pytest.mark.parametrize("name", ["vtab_v1_1000", "vtab_v1_full", "vtab_v2_1000"])
def test_every_row_of_the_papers_results_has_its_command_in_the_docs(name: str) -> None:
    methods = {row["method"] for row in table(name)}
    commands = (Path(__file__).parents[2] / "docs" / "paper.md").read_text()
    for method in methods - IMPORTED:
        recipe = {**ROWS, **OTHER_ROWS}[method]
        assert recipe in RECIPES
        assert f"| {method} | `vivi train {recipe} " in commands
    for method in methods & IMPORTED:
        assert f"| {method} | " in commands


def test_the_methods_of_the_paper_are_the_rows_of_its_tables() -> None:
    assert {recipe.name for recipe in PAPER} == {*ROWS.values(), *OTHER_ROWS.values(), "vivi-rot4-aa"}


@pytest.mark.parametrize("row", [row for row in paper_rows() if row["method"] in ROWS], ids=lambda row: row["method"])
def test_a_recipe_has_the_numbers_of_its_row(row: dict[str, str]) -> None:
    recipe = RECIPES[ROWS[row["method"]]]
    optimiser, batch, loss = recipe.optimiser, recipe.batch, recipe.loss
    assert optimiser.lr == float(row["lr"])
    assert recipe.steps == int(row["iterations"])
    assert optimiser.warmup == int(row["warmup_iterations"])
    assert optimiser.decay_factor == float(row["lr_decay_factor"])
    assert optimiser.decay_at == numbers(row["lr_decay_at"])
    assert optimiser.weight_decay == float(row["weight_decay"])
    assert batch.frames == int(row["exemplars"])
    if row["videos_per_batch"]:
        assert (batch.videos, batch.shots) == (int(row["videos_per_batch"]), int(row["shots_per_video"]))
        assert recipe.images.count == int(row["images_per_batch"] or 0)
        assert batch.source == ("frame" if "one frame" in row["exemplars_from"] else "shot")
    else:
        assert (batch.videos, batch.shots, batch.source) == (int(row["images_per_batch"]), 1, "image")
    assert loss.video_weight == (float(row["video_loss_weight"]) if row["video_loss_weight"] else 0)
    assert (loss.video is None) == (row["video_loss_weight"] == "")
    assert loss.supervised_weight == (float(row["supervised_weight"]) if row["supervised_weight"] else 0)
    assert loss.frame == (Rotation() if "Rot" in row["method"] else Exemplar())
    assert recipe.images.fraction == (0.1 if "10%" in row["method"] else 1)
    assert augmentation(recipe.augment) in (row["augmentation_frames"], row["augmentation_images"])
    if recipe.images.count:
        policy = recipe.images.policy
        of_images = recipe.augment if policy == "same" else replace(recipe.augment, policy=policy)
        assert augmentation(of_images) == row["augmentation_images"]


def augmentation(augment: Augment) -> str:
    """In the words of the paper's table."""
    if augment.policy != "none":
        return "autoaugment"
    assert (augment.brightness, augment.saturation) == (32 / 255, 0.5)
    return "inception+hsv" if augment.hsv else "inception"


@pytest.mark.parametrize("name", [recipe.name for recipe in PAPER if recipe.name.endswith("-aa")])
def test_with_autoaugment_only_the_augmentation_and_half_of_lambda_change(name: str) -> None:
    plain, augmented = RECIPES[name.removesuffix("-aa")], RECIPES[name]
    halved = plain.loss.video_weight / 2
    wanted = {"name", "augment.policy"} | ({"loss.video_weight"} if halved else set())
    assert set(differences(plain, augmented)) == wanted
    assert augmented.loss.video_weight == halved and augmented.augment.policy == "v0"


def test_schedules_of_the_image_baselines_are_those_of_their_papers_in_epochs() -> None:
    assert epochs(90, 256) == round(90 * IMAGENET / 256)
    ten, all_of_them, semi = RECIPES["sup10"], RECIPES["sup100"], RECIPES["semi-ex10"]
    assert (ten.steps, ten.optimiser.warmup, ten.optimiser.decay_at) == (100_000, 2_500, (70_000, 80_000, 90_000))
    assert (semi.steps, semi.optimiser.warmup, semi.optimiser.decay_at) == (50_000, 2_500, (35_000, 40_000, 45_000))
    assert all_of_them.steps // 5004 == 90 and [step // 5004 for step in all_of_them.optimiser.decay_at] == [
        30,
        60,
        80,
    ]
    for name in ("jigsaw", "rel-pat-loc"):
        assert [step // 10_009 for step in (*RECIPES[name].optimiser.decay_at, RECIPES[name].steps)] == [15, 25, 35]


def test_recipes_have_the_papers_set_up_where_its_table_is_silent() -> None:
    for recipe in PAPER:
        of_others = recipe.name in ("sup10", "sup100", "sup-rot100", "semi-ex10", "jigsaw", "rel-pat-loc")
        assert recipe.batch.cores == (8 if of_others else 128)
        assert recipe.augment.size == (64 if recipe.name in ("jigsaw", "rel-pat-loc") else 224)
        wide = 3 if "big" in recipe.name else 1
        if "-co" in recipe.name:
            assert recipe.encoder == Encoder(f"resnetv2_50x{wide}_bit")
        else:
            assert (recipe.encoder.name, recipe.encoder.width) == ("resnetv2_50", wide)
    assert Exemplar() == Exemplar(1000, "semi-hard", 0.5, "shots")
    assert RECIPES["vivi-ex2-ord"].loss.video == Order()
    for name in ("vivi-ex2", "vivi-rot2"):
        assert RECIPES[name].loss.video == InfoNCE(across="core")
    for name in ("vivi-ex4", "vivi-rot4"):
        assert RECIPES[name].loss.video == InfoNCE(across="all")


# --- what the function of each method says ---


def said(name: str) -> str:
    """The docstring of a method."""
    return inspect.getdoc(METHODS[name]) or ""


def means(name: str) -> dict[str, float]:
    """The mean of each method in a table of results."""
    return {row["method"]: float(row["mean"]) for row in table(name)}


def reported(name: str) -> dict[str, float]:
    """What the tables report of a recipe: by version, the mean."""
    rows = {method for method, recipe in {**ROWS, **OTHER_ROWS}.items() if recipe == name}
    found = {}
    for version, results in (("Version 1", means("vtab_v1_1000")), ("Version 2", means("vtab_v2_1000"))):
        for method in rows & results.keys():
            found[version] = results[method]
    if name == "vivi-rot4-aa":  # in a table of its own
        found["Version 1"] = next(
            float(row["VIVI-Rot"]) for row in table("autoaugment") if row["augmentation"] == "autoaugment"
        )
    return found


def test_every_method_is_a_function_of_its_recipe() -> None:
    assert [recipe.name for recipe in PAPER] == list(METHODS)
    for recipe in PAPER:
        assert METHODS[recipe.name]() == recipe == RECIPES[recipe.name]
        assert METHODS[recipe.name].__name__ == recipe.name.replace("-", "_")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_said_with_its_command(name: str) -> None:
    """The command trains it, on what it learns from."""
    recipe = RECIPES[name]
    data = "--corpus C " * recipe.learns_from_videos + "--images I " * recipe.learns_from_images
    commands = [line for line in said(name).splitlines() if line.startswith("vivi ")]
    assert commands == [f"vivi train {name} {data}--out run/"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_said_with_what_the_paper_reports(name: str) -> None:
    pairs = re.findall(r"(\d+\.\d) \((Version \d)\)", said(name))
    assert {version: float(mean) for mean, version in pairs} == reported(name)
    assert len(pairs) == len(reported(name)) > 0 and "The paper: " in said(name)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_said_with_the_sweep_of_its_row(name: str) -> None:
    row: dict[str, str] = next((row for row in paper_rows() if ROWS[row["method"]] == name), {})
    expected = {
        "loss.video_weight": numbers(row.get("video_loss_weight_sweep", "")),
        "loss.supervised_weight": numbers(row.get("supervised_weight_sweep", "")),
    }
    found = re.findall(r"--sweep ([\w.]+)=([\d.,]+)", said(name))
    assert {field: numbers(values.replace(",", ";")) for field, values in found} == {
        field: values for field, values in expected.items() if values
    }
    assert len(found) == said(name).count("--sweep") == said(name).count("it tried")
    for field, values in found:  # of which the paper chose one
        assert flat(RECIPES[name])[field] in numbers(values.replace(",", ";"))


@pytest.mark.parametrize("name", ["vivi-ex4", "semi-ex10"])
def test_the_command_prints_what_is_said_of_a_method(name: str, vivi: Run) -> None:
    printed = vivi("recipes", name)
    assert printed.returncode == 0 and printed.stdout.startswith(said(name) + "\n")
    assert said(name).splitlines()[0] not in vivi("recipes", f"{name}-tiny").stdout
