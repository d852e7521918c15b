"""Recipes say what the paper's table says, and nothing else gets through."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from conftest import Run

from vivi.errors import UserError
from vivi.recipe_files import differences, find_recipe, flat, read_recipe, recipe_json, sweep, with_field
from vivi.recipes import PAPER, RECIPES, VIDEO_WEIGHT_SWEEPS, Recipe, check_recipe

# The rows of the paper's table that learn from videos alone.
ROWS = {
    "Ex-YT-F": "ex-yt-f",
    "Ex-YT-S": "ex-yt-s",
    "VIVI-Ex(2)-Ord": "vivi-ex2-ord",
    "VIVI-Ex(2)": "vivi-ex2",
    "VIVI-Ex(4)": "vivi-ex4",
    "VIVI-Ex(4)-Big": "vivi-ex4-big",
    "Rot-YT-F": "rot-yt-f",
    "VIVI-Rot(2)": "vivi-rot2",
    "VIVI-Rot(4)": "vivi-rot4",
}


def paper_rows() -> list[dict[str, str]]:
    with resources.files("vivi.paper").joinpath("recipes.csv").open() as file:
        return list(csv.DictReader(file))


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(";") if number)


def test_every_video_row_of_the_papers_table_is_a_recipe() -> None:
    rows = {row["method"] for row in paper_rows() if row["videos_per_batch"] and not row["images_per_batch"]}
    assert rows == set(ROWS)
    assert {recipe.name for recipe in PAPER} == set(ROWS.values())


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
    assert (batch.videos, batch.shots) == (int(row["videos_per_batch"]), int(row["shots_per_video"]))
    assert batch.frames == int(row["exemplars"])
    assert batch.source == ("frame" if "one frame" in row["exemplars_from"] else "shot")
    assert row["augmentation_frames"] == "inception"
    assert VIDEO_WEIGHT_SWEEPS.get(recipe.name, ()) == numbers(row["video_loss_weight_sweep"])
    assert loss.video_weight == (float(row["video_loss_weight"]) if row["video_loss_weight"] else 0)
    assert (loss.video == "none") == (row["video_loss_weight"] == "")
    assert loss.frame == ("rotation" if "Rot" in row["method"] else "exemplar")


def test_recipes_have_the_papers_set_up_where_its_table_is_silent() -> None:
    for recipe in PAPER:
        assert recipe.batch.cores == 128
        assert recipe.augment.size == 224
        assert (recipe.encoder.name, recipe.encoder.width) == ("resnetv2_50", 3 if "big" in recipe.name else 1)
    assert RECIPES["vivi-ex2-ord"].loss.video == "order"
    for name, across in (("vivi-ex2", "core"), ("vivi-rot2", "core"), ("vivi-ex4", "all"), ("vivi-rot4", "all")):
        assert (RECIPES[name].loss.video, RECIPES[name].loss.across) == ("infonce", across)


def test_every_recipe_exists_in_three_sizes_and_can_work() -> None:
    for recipe in PAPER:
        for name in (recipe.name, f"{recipe.name}-small", f"{recipe.name}-tiny"):
            assert RECIPES[name].name == name
            check_recipe(RECIPES[name])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(recipe_json(RECIPES[name]))
    assert read_recipe(path) == RECIPES[name]
    assert find_recipe(str(path)) == RECIPES[name]
    assert find_recipe(str(tmp_path)) == RECIPES[name]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"colour": 1}, "there is no field 'colour'"),
        ({"loss": {"video_wieght": 1}}, "no field 'loss.video_wieght'; did you mean 'video_weight'?"),
        ({"loss": 3}, "loss must be an object"),
        ({"steps": 1.5}, "steps is 1.5, which is no whole number"),
        ({"steps": True}, "steps is True, which is no whole number"),
        ({"loss": {"frame": "jigsaw"}}, "loss.frame is 'jigsaw'; it must be one of exemplar, rotation"),
        ({"augment": {"crop_area": [0.1]}}, "augment.crop_area is [0.1], which is no list of 2 numbers"),
        ({"optimiser": {"decay_at": 3}}, "optimiser.decay_at is 3, which is no list of numbers"),
        ({"optimiser": {"decay_at": ["x"]}}, "optimiser.decay_at is x, which is no whole number"),
        ({"optimiser": {"lr": 10**400}}, "optimiser.lr is 1000"),
        ({"name": "\ud800"}, "cannot be printed"),
    ],
)
def test_a_recipe_file_with_a_mistake_is_named(change: dict[str, object], line: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"name": "mine", **change}))
    with pytest.raises(UserError) as caught:
        read_recipe(path)
    assert line in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "3", "{}", "[" * 100_000])
def test_what_is_no_recipe_file_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(content)
    with pytest.raises(UserError, match=str(path)):
        read_recipe(path)


def test_a_missing_recipe_file_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.json"):
        find_recipe("nowhere.json")
    with pytest.raises(UserError, match="File name too long"):
        find_recipe("long" * 100)


def test_a_field_is_set_by_its_dotted_name() -> None:
    recipe = RECIPES["vivi-ex4"]
    assert with_field(recipe, "loss.video_weight", "0.5").loss == replace(recipe.loss, video_weight=0.5)
    assert with_field(recipe, "loss.video-weight", "1").loss.video_weight == 1.0
    assert with_field(recipe, "optimiser.decay_at", "[1, 2]").optimiser.decay_at == (1, 2)
    assert with_field(recipe, "encoder.name", "resnetv2_18").encoder.name == "resnetv2_18"
    assert with_field(recipe, "steps", "7") == replace(recipe, steps=7)
    for name, text in (("loss.nothing", "1"), ("loss", "1"), ("steps", "many")):
        with pytest.raises(UserError):
            with_field(recipe, name, text)


def test_differences_name_exactly_the_fields_that_changed() -> None:
    recipe = RECIPES["vivi-ex4"]
    for name, value in flat(recipe).items():
        if isinstance(value, float) and not isinstance(value, bool):
            assert differences(recipe, with_field(recipe, name, str(value + 1))) == {name: (value, value + 1)}
    assert differences(recipe, recipe) == {}


def test_a_sweep_is_a_run_for_each_value(tmp_path: Path) -> None:
    recipe = RECIPES["vivi-ex4"]
    runs = list(sweep(recipe, tmp_path, "loss.video_weight=0.04,0.02"))
    assert [(folder.name, run.loss.video_weight) for folder, run in runs] == [
        ("loss.video_weight=0.04", 0.04),
        ("loss.video_weight=0.02", 0.02),
    ]
    assert sweep(recipe, tmp_path, "loss.video-weight=0.04,0.040,0.02") == runs
    assert list(sweep(recipe, tmp_path, "")) == [(tmp_path, recipe)]
    for wrong in ("loss.video_weight", "loss.video_weight=", "nothing=1", "=1", "optimiser.decay_at=[1]"):
        with pytest.raises(UserError):
            list(sweep(recipe, tmp_path, wrong))


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("steps", "0", "--steps"),
        ("batch.videos", "510", "--batch.videos 510"),
        ("batch.frames", "1", "--batch.frames"),
        ("batch.cores", "1024", "--batch.cores"),
        ("batch.shots", "1", "--batch.shots"),
        ("batch.source", "frame", "--batch.source"),
        ("loss.video", "order", "--batch.shots 2"),
        ("loss.ahead", "4", "--loss.ahead 4"),
        ("loss.negatives", '"others"', "loss.negatives"),
        ("loss.both_ways", "true", "--loss.both-ways"),
        ("batch.resample", "true", "--batch.resample"),
        ("loss.temperature", "0", "--loss.temperature"),
        ("augment.crop_area", "[0.5, 0.2]", "--augment.crop-area"),
        ("augment.hue", "2", "--augment.hue"),
        ("optimiser.lr", "-1", "--optimiser.lr"),
        ("optimiser.lr", "1e400", "optimiser.lr is inf"),
        ("encoder.width", "0", "--encoder.width"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_by_its_flag(name: str, value: str, flag: str) -> None:
    with pytest.raises(UserError) as caught:
        check_recipe(with_field(RECIPES["vivi-ex4"], name, value))
    assert flag in str(caught.value)


def test_infonce_without_negatives_is_refused() -> None:
    recipe = RECIPES["vivi-ex2"]
    lonely = replace(recipe, batch=replace(recipe.batch, cores=recipe.batch.videos))
    with pytest.raises(UserError, match="no negatives"):
        check_recipe(lonely)


def test_the_command_lists_recipes_and_prints_every_field(vivi: Run) -> None:
    listed = vivi("recipes")
    assert listed.returncode == 0
    for recipe in PAPER:
        assert recipe.name in listed.stdout
    printed = vivi("recipes", "vivi-ex4-tiny")
    for name in flat(RECIPES["vivi-ex4-tiny"]):
        assert name in printed.stdout
    assert "0.04,0.02,0.01" in vivi("recipes", "vivi-ex4").stdout
    as_json = vivi("recipes", "vivi-ex4", "--json")
    assert json.loads(as_json.stdout)["loss"]["video_weight"] == 0.04


def test_an_unknown_recipe_gets_one_line_with_the_nearest_name(vivi: Run) -> None:
    for command in (("recipes", "vivi-ex5"), ("train", "vivi-ex5", "--corpus", "x", "--out", "y")):
        done = vivi(*command)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1 and "did you mean 'vivi-ex" in done.stderr


def test_a_recipe_needs_nothing_but_a_name() -> None:
    assert Recipe("mine") == replace(RECIPES["vivi-ex4"], name="mine")
