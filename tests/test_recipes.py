"""Recipes say what the paper's table says, and nothing else gets through."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from conftest import Run

from vivi.errors import UserError
from vivi.recipe_checks import check_recipe
from vivi.recipe_files import differences, find_recipe, flat, read_recipe, recipe_json, sweep, with_field
from vivi.recipes import IMAGENET, PAPER, RECIPES, SWEEPS, Augment, Encoder, Recipe, epochs

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


def paper_rows() -> list[dict[str, str]]:
    with resources.files("vivi.paper").joinpath("recipes.csv").open() as file:
        return list(csv.DictReader(file))


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(";") if number)


def test_every_row_of_the_papers_table_is_a_recipe() -> None:
    assert {row["method"] for row in paper_rows()} == set(ROWS)
    assert set(ROWS.values()) <= set(RECIPES)


@pytest.mark.parametrize("table", ["vtab_v1_1000", "vtab_v1_full", "vtab_v2_1000"])
def test_every_row_of_the_papers_results_has_its_command_in_the_docs(table: str) -> None:
    with resources.files("vivi.paper").joinpath(f"{table}.csv").open() as file:
        methods = {row["method"] for row in csv.DictReader(file)}
    commands = (Path(__file__).parents[1] / "docs" / "paper.md").read_text()
    for method in methods - IMPORTED:
        name = {**ROWS, **OTHER_ROWS}[method]
        assert name in RECIPES
        assert f"| {method} | `vivi train {name} " in commands
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
    sweeps = numbers(row["video_loss_weight_sweep"]), numbers(row["supervised_weight_sweep"])
    swept, values = SWEEPS.get(recipe.name, ("loss.video_weight", ()))
    assert (values, ()) == (sweeps if swept == "loss.video_weight" else sweeps[::-1])
    assert loss.video_weight == (float(row["video_loss_weight"]) if row["video_loss_weight"] else 0)
    assert (loss.video == "none") == (row["video_loss_weight"] == "")
    assert loss.supervised_weight == (float(row["supervised_weight"]) if row["supervised_weight"] else 0)
    assert loss.frame == ("rotation" if "Rot" in row["method"] else "exemplar")
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
        (
            {"loss": {"frame": "puzzle"}},
            "loss.frame is 'puzzle'; it must be one of none, exemplar, rotation",
        ),
        ({"augment": {"crop_area": [0.1]}}, "augment.crop_area is [0.1], which is no list of 2 numbers"),
        ({"optimiser": {"decay_at": 3}}, "optimiser.decay_at is 3, which is no list of numbers"),
        ({"optimiser": {"decay_at": ["x"]}}, "optimiser.decay_at is x, which is no whole number"),
        ({"optimiser": {"lr": 10**400}}, "optimiser.lr is 1000"),
        ({"name": "\ud800"}, "cannot be printed"),
        ({"name": "x" * 1000}, "over 200 characters"),
        ({"a\nb": 1}, r"there is no field 'a\nb'"),
        ({"x" * 10**6: 1}, "there is no field 'xxx"),
        ({"steps": "a\nb"}, "steps is a b, which is no whole number"),
        ({"loss": {"frame": "x" * 10**6}}, "loss.frame is 'xxx"),
    ],
)
def test_a_recipe_file_with_a_mistake_is_named(change: dict[str, object], line: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"name": "mine", **change}))
    with pytest.raises(UserError) as caught:
        read_recipe(path)
    assert line in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


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
        ("encoder.width", "1e9", "--encoder.width"),
        ("augment.size", "1000000000", "--augment.size"),
        ("steps", "1" + "0" * 400, "--steps"),
        ("batch.frames", "1000000000000", "--batch.frames"),
        ("images.copies", "1000000000000", "--images.copies"),
        ("loss.shot_features", "1000000000000", "--loss.shot-features"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_by_its_flag(name: str, value: str, flag: str) -> None:
    with pytest.raises(UserError) as caught:
        check_recipe(with_field(RECIPES["vivi-ex4"], name, value))
    assert flag in str(caught.value)


def test_patches_are_cut_from_images_that_can_be_computed() -> None:
    jigsaw = RECIPES["jigsaw"]
    check_recipe(with_field(jigsaw, "augment.size", "1000"))
    with pytest.raises(UserError, match=r"--augment\.size is 2000; it must be between 8 and 1170"):
        check_recipe(with_field(jigsaw, "augment.size", "2000"))


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


def test_the_command_line_starts_without_torch() -> None:
    """It takes seconds to load, and most commands answer at once."""
    said = subprocess.run(
        [sys.executable, "-c", "import vivi.cli, sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "False\n"
