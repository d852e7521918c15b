"""Recipes as files and by field: nothing but a recipe gets through, and what cannot work is named by its flag."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Run

from vivi.recipes import (
    PAPER,
    RECIPES,
    Exemplar,
    InfoNCE,
    Jigsaw,
    Order,
    Recipe,
    Rotation,
)
from vivi.recipes.check import check_recipe
from vivi.recipes.files import differences, find_recipe, flat, read_recipe, recipe_json, sweep, with_field
from vivi.runtime.errors import UserError


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
        ({"loss": {"video_wieght": 1}}, "no field 'loss.video_wieght' (did you mean 'video_weight'?)"),
        ({"loss": 3}, "loss must be an object"),
        ({"steps": 1.5}, "steps is 1.5; it must be a whole number"),
        ({"steps": True}, "steps is True; it must be a whole number"),
        (
            {"loss": {"frame": "puzzle"}},
            "loss.frame is puzzle; it must be one of none, exemplar, rotation",
        ),
        ({"loss": {"frame": {"kind": "order"}}}, "loss.frame is order; it must be one of none, exemplar, rotation"),
        ({"loss": {"video": {"kind": "exemplar"}}}, "loss.video is exemplar; it must be one of none, infonce"),
        (
            {"loss": {"frame": {"margin": 0.3}}},
            "loss.frame is of no kind; it must be one of none",
        ),
        ({"loss": {"frame": {"kind": ["exemplar"]}}}, "loss.frame is ['exemplar']; it must be one of none"),
        ({"loss": {"frame": {"kind": "rotation", "margin": 0.3}}}, "there is no field 'loss.frame.margin'"),
        ({"loss": {"frame": {"kind": "exemplar", "margim": 1}}}, "'loss.frame.margim' (did you mean 'margin'?)"),
        ({"loss": {"frame": {"kind": "exemplar", "margin": "x"}}}, "loss.frame.margin is x; it must be a number"),
        (
            {"loss": {"frame": {"kind": "exemplar", "triplets": "soft"}}},
            "loss.frame.triplets is soft; it must be one of semi-hard, batch-hard",
        ),
        ({"loss": {"frame": 3}}, "loss.frame is 3; it must be one of none"),
        ({"loss": {"margin": 0.3}}, "there is no field 'loss.margin'"),
        ({"augment": {"crop_area": [0.1]}}, "augment.crop_area is [0.1]; it must be a list of 2 numbers"),
        ({"optimiser": {"decay_at": 3}}, "optimiser.decay_at is 3; it must be a list of whole numbers"),
        ({"optimiser": {"decay_at": ["x"]}}, "decay_at is ['x']; it must be a list of whole numbers"),
        ({"optimiser": {"lr": 10**400}}, "optimiser.lr is 1000"),
        ({"name": "\ud800"}, "cannot be printed"),
        ({"name": "x" * 1000}, "too long or cannot be printed"),
        ({"a\nb": 1}, r"there is no field 'a\nb'"),
        ({"x" * 10**6: 1}, "there is no field 'xxx"),
        ({"steps": "a\nb"}, "steps is a b; it must be a whole number"),
        ({"loss": {"frame": "x" * 10**6}}, "loss.frame is xxx"),
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
    with pytest.raises(UserError, match="there is no recipe ''"):
        find_recipe("")


def test_a_corpus_in_the_place_of_a_recipe_is_named(corpus: Path) -> None:
    with pytest.raises(UserError, match="is a corpus, not a recipe: vivi train RECIPE --corpus"):
        find_recipe(str(corpus))


def test_a_field_is_set_by_its_dotted_name() -> None:
    recipe = RECIPES["vivi-ex4"]
    assert with_field(recipe, "loss.video_weight", "0.5").loss == replace(recipe.loss, video_weight=0.5)
    assert with_field(recipe, "loss.video-weight", "1").loss.video_weight == 1.0
    assert with_field(recipe, "optimiser.decay_at", "[1, 2]").optimiser.decay_at == (1, 2)
    assert with_field(recipe, "encoder.name", "resnetv2_18").encoder.name == "resnetv2_18"
    assert with_field(recipe, "steps", "7") == replace(recipe, steps=7)
    assert with_field(recipe, "loss.frame.margin", "0.3").loss.frame == Exemplar(margin=0.3)
    assert with_field(recipe, "loss.video.both-ways", "true").loss.video == InfoNCE(both_ways=True)
    for name, text in (("loss.nothing", "1"), ("loss", "1"), ("steps", "many"), ("loss.frame.hidden", "8")):
        with pytest.raises(UserError):
            with_field(recipe, name, text)


def test_a_loss_is_set_by_its_name_and_has_its_defaults() -> None:
    recipe = RECIPES["vivi-ex4"]
    assert with_field(recipe, "loss.frame", "rotation").loss == replace(recipe.loss, frame=Rotation())
    assert with_field(recipe, "loss.frame", "jigsaw").loss.frame == Jigsaw()
    assert with_field(recipe, "loss.video", "order").loss.video == Order()
    assert with_field(recipe, "loss.video", "none").loss.video is None
    assert with_field(with_field(recipe, "loss.video", "none"), "loss.video", "order").loss.video == Order()
    for wrong in ("puzzle", "order", "Exemplar", "", "3", '{"kind": "puzzle"}'):
        with pytest.raises(UserError, match=r"loss\.frame is .*; it must be one of none, exemplar, rotation, jigsaw"):
            with_field(recipe, "loss.frame", wrong)


def test_a_loss_that_the_recipe_has_keeps_its_settings() -> None:
    """Naming it changes nothing."""
    for name in ("semi-ex10", "vivi-ex2", "jigsaw-tiny"):
        recipe = RECIPES[name]
        for field in ("loss.frame", "loss.video"):
            assert with_field(recipe, field, str(flat(recipe)[field])) == recipe


def test_recipe_json_says_which_loss_it_is_beside_its_settings(tmp_path: Path) -> None:
    loss = json.loads(recipe_json(RECIPES["semi-ex10"]))["loss"]
    assert loss["frame"] == {
        "kind": "exemplar",
        "dimension": 1000,
        "triplets": "batch-hard",
        "margin": 0.5,
        "negatives": "shots",
    }
    assert loss["video"] is None
    assert json.loads(recipe_json(RECIPES["rot-yt-f"]))["loss"]["frame"] == {"kind": "rotation"}
    # By its name alone it has its defaults; what is missing has those of a recipe.
    path = tmp_path / "recipe.json"
    path.write_text(
        json.dumps({"name": "mine", "loss": {"frame": "exemplar", "video": {"kind": "infonce", "ahead": 2}}})
    )
    assert read_recipe(path) == Recipe("mine", loss=replace(Recipe("x").loss, video=InfoNCE(ahead=2)))


def test_differences_of_losses_are_their_names_and_settings() -> None:
    recipe = RECIPES["vivi-ex4"]
    rotation = differences(recipe, with_field(recipe, "loss.frame", "rotation"))
    assert rotation == {
        "loss.frame": ("exemplar", "rotation"),
        "loss.frame.dimension": (1000, None),
        "loss.frame.triplets": ("semi-hard", None),
        "loss.frame.margin": (0.5, None),
        "loss.frame.negatives": ("shots", None),
    }
    none = differences(with_field(recipe, "loss.video", "none"), with_field(recipe, "loss.video", "order"))
    assert none == {"loss.video": ("none", "order")}


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
    of_losses = sweep(recipe, tmp_path, "loss.frame=exemplar,rotation,none")
    assert [(folder.name, run.loss.frame) for folder, run in of_losses] == [
        ("loss.frame=exemplar", Exemplar()),
        ("loss.frame=rotation", Rotation()),
        ("loss.frame=none", None),
    ]
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
        ("loss.video.ahead", "4", "--loss.video.ahead 4"),
        ("loss.video.ahead", "0", "--loss.video.ahead 0"),
        ("loss.frame.negatives", '"others"', "loss.frame.negatives"),
        ("loss.video.both_ways", "true", "--loss.video.both-ways"),
        ("loss.frame.dimension", "0", "--loss.frame.dimension"),
        ("loss.frame.dimension", "1000000000000", "--loss.frame.dimension"),
        ("loss.frame.margin", "-0.1", "--loss.frame.margin"),
        ("loss.frame", "jigsaw", "of --augment it allows the size alone"),
        ("batch.resample", "true", "--batch.resample"),
        ("loss.temperature", "0", "--loss.temperature"),
        ("augment.crop_area", "[0.5, 0.2]", "--augment.crop-area"),
        ("augment.grey", "1.5", "--augment.grey"),
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


@pytest.mark.parametrize(
    ("recipe", "name", "value", "line"),
    [
        ("jigsaw", "loss.frame.hidden", "0", "--loss.frame.hidden is 0"),
        ("rel-pat-loc", "loss.frame.dimension", "1000000", "--loss.frame.dimension is 1000000"),
        ("jigsaw", "loss.video", "infonce", "--loss.frame jigsaw sees patches: it needs --images.count 0"),
        ("ex-yt-s", "loss.video", "order", "--loss.video order compares shots: --batch.shots must be at least 2"),
        ("ex-yt-s", "loss.video", "infonce", "--batch.shots must be at least 2"),
        ("semi-ex10", "images.copies", "1", "--images.copies must be at least 2"),
        ("sup100", "loss.contrastive_weight", "1", "--loss.contrastive-weight needs --batch.videos above 0"),
        ("ex-yt-s", "loss.frame", "none", "the videos have no loss"),
    ],
)
def test_a_loss_that_cannot_work_with_the_rest_is_refused(recipe: str, name: str, value: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        check_recipe(with_field(RECIPES[recipe], name, value))
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_negatives_from_other_videos_need_two_videos_in_a_core() -> None:
    recipe = with_field(RECIPES["vivi-ex4"], "loss.frame.negatives", "videos")
    check_recipe(recipe)
    with pytest.raises(UserError, match=r"--loss\.frame\.negatives videos needs at least 2 videos a core"):
        check_recipe(with_field(recipe, "batch.cores", "512"))


def test_infonce_without_negatives_is_refused() -> None:
    recipe = RECIPES["vivi-ex2"]
    lonely = replace(recipe, batch=replace(recipe.batch, cores=recipe.batch.videos))
    with pytest.raises(UserError, match=r"no negatives: set --loss\.video\.across all"):
        check_recipe(lonely)
    check_recipe(with_field(lonely, "loss.video.across", "all"))


def test_the_command_lists_recipes_and_prints_every_field(vivi: Run) -> None:
    listed = vivi("recipes")
    assert listed.returncode == 0
    for recipe in PAPER:
        assert recipe.name in listed.stdout
    printed = vivi("recipes", "vivi-ex4-tiny")
    for name in flat(RECIPES["vivi-ex4-tiny"]):
        assert name in printed.stdout
    as_json = vivi("recipes", "vivi-ex4", "--json")
    assert json.loads(as_json.stdout)["loss"]["video_weight"] == 0.04


def test_an_unknown_recipe_gets_one_line_with_the_nearest_name(vivi: Run) -> None:
    for command in (("recipes", "vivi-ex5"), ("train", "vivi-ex5", "--corpus", "x", "--out", "y")):
        done = vivi(*command)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1 and "did you mean 'vivi-ex" in done.stderr


def test_a_recipe_needs_nothing_but_a_name() -> None:
    assert Recipe("mine") == replace(RECIPES["vivi-ex4"], name="mine")
