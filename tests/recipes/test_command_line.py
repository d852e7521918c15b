"""The command line of vivi train: recipes, losses and their settings as flags, before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Run

from vivi.cli.main import COMMANDS
from vivi.cli.parse import WrongCommand, parse
from vivi.cli.train import Train
from vivi.recipes import RECIPES, Exemplar, InfoNCE, Jigsaw, Optimiser, Order, Recipe, Rotation
from vivi.recipes.files import recipe_json
from vivi.runtime.errors import UserError


def parsed(*words: object) -> Recipe:
    """The recipe of a training command."""
    arguments = ["train", *map(str, words), "--out", "run"]
    command = parse(arguments, COMMANDS)
    assert isinstance(command, Train)
    return command.recipe


def refused(*words: object) -> str:
    """What is said where a command cannot be understood."""
    with pytest.raises(WrongCommand) as caught:
        parsed(*words)
    return str(caught.value)


# --- choosing a loss ---


@pytest.mark.parametrize("name", ["vivi-ex4-tiny", "semi-ex10", "vivi-ex2", "jigsaw", "sup100", "vivi-ex2-ord-small"])
def test_without_flags_a_recipe_is_what_it_is(name: str) -> None:
    assert parsed(name) == RECIPES[name]


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_a_loss_is_chosen_by_its_name_and_has_its_defaults(form: str) -> None:
    recipe = RECIPES["vivi-ex4-tiny"]

    def chosen(flag: str, value: str) -> Recipe:
        return parsed("vivi-ex4-tiny", *form.format(flag, value).split())

    assert chosen("--loss.frame", "rotation") == replace(recipe, loss=replace(recipe.loss, frame=Rotation()))
    assert chosen("--loss.frame", "jigsaw").loss.frame == Jigsaw()
    assert chosen("--loss.frame", "none").loss.frame is None
    assert chosen("--loss.video", "order").loss.video == Order()
    assert chosen("--loss.video", "none") == replace(recipe, loss=replace(recipe.loss, video=None))


def test_the_loss_that_is_chosen_has_settings_as_flags_wherever_they_stand() -> None:
    words = ("rot-yt-f", "--loss.frame.margin", 0.3, "--loss.frame", "exemplar", "--loss.frame.dimension", 32)
    assert parsed(*words).loss.frame == Exemplar(dimension=32, margin=0.3)
    of_video = ("ex-yt-s", "--loss.video=infonce", "--loss.video.across", "core", "--loss.video.both-ways")
    assert parsed(*of_video).loss.video == InfoNCE(across="core", both_ways=True)
    assert parsed("vivi-ex2", "--loss.video.ahead", 3).loss.video == InfoNCE(across="core", ahead=3)
    both = parsed("vivi-ex4", "--loss.frame", "location", "--loss.video", "none", "--loss.frame.hidden", 16)
    assert both.loss.frame is not None and both.loss.frame.name == "location" and both.loss.video is None


def test_the_loss_that_a_recipe_has_keeps_its_settings_when_it_is_named() -> None:
    assert parsed("semi-ex10", "--loss.frame", "exemplar") == RECIPES["semi-ex10"]
    assert parsed("vivi-ex2", "--loss.video=infonce") == RECIPES["vivi-ex2"]
    changed = parsed("semi-ex10", "--loss.frame", "exemplar", "--loss.frame.dimension", 32)
    assert changed.loss.frame == Exemplar(dimension=32, triplets="batch-hard")


def test_of_several_choices_the_last_counts_in_whatever_form() -> None:
    forms = [["--loss.frame", "{}"], ["--loss.frame={}"]]
    for first in forms:
        for second in forms:
            words = [word.format("rotation") for word in first] + [word.format("jigsaw") for word in second]
            assert parsed("vivi-ex4-tiny", *words).loss.frame == Jigsaw()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--loss.frame", "rotation", "--loss.frame.margin", "0.3"],
            "frame.margin is a setting of --loss.frame exemplar,",
        ),
        (
            ["--loss.frame", "none", "--loss.frame.dimension", "8"],
            "of --loss.frame exemplar and jigsaw and location, not",
        ),
        (
            ["--loss.video=order", "--loss.video.both-ways"],
            "both-ways is a setting of --loss.video infonce, not of order",
        ),
        (["--loss.frame.hidden=8"], "--loss.frame.hidden is a setting of --loss.frame jigsaw and location, not of"),
    ],
)
def test_settings_of_another_loss_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        parsed("vivi-ex4-tiny", *words)


def test_a_setting_that_no_loss_has_is_refused() -> None:
    assert "--loss.margin" in refused("vivi-ex4-tiny", "--loss.margin", "0.3")


@pytest.mark.parametrize("word", ["--loss.frame=puzzle", "--loss.frame puzzle", "--loss.frame order"])
def test_an_unknown_loss_is_refused_with_those_there_are(word: str) -> None:
    said = refused("vivi-ex4-tiny", *word.split())
    assert "--loss.frame" in said
    for name in ("none", "exemplar", "rotation", "jigsaw", "location"):
        assert name in said


def test_an_unknown_video_loss_is_refused_with_those_there_are() -> None:
    said = refused("vivi-ex4-tiny", "--loss.video", "exemplar")
    assert "--loss.video" in said
    for name in ("none", "infonce", "order"):
        assert name in said


def test_a_value_out_of_those_of_a_setting_is_refused() -> None:
    said = refused("vivi-ex4-tiny", "--loss.video.across", "everywhere")
    assert "--loss.video.across" in said and "core" in said


def test_losses_are_chosen_over_those_of_a_recipe_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    mine = replace(RECIPES["semi-ex10"], name="mine")
    path.write_text(recipe_json(mine))
    assert parsed(path) == mine
    assert parsed(path, "--loss.frame", "rotation") == replace(mine, loss=replace(mine.loss, frame=Rotation()))


def test_the_help_shows_the_settings_of_the_losses_that_the_recipe_has(vivi: Run) -> None:
    exemplar, rotation = vivi("train", "vivi-ex4", "--help-all"), vivi("train", "rot-yt-f", "--help-all")
    assert exemplar.returncode == rotation.returncode == 0
    for name in ("none", "exemplar", "rotation", "jigsaw", "location", "infonce", "order"):
        assert name in exemplar.stdout
    assert "--loss.frame.margin" in exemplar.stdout and "--loss.video.across" in exemplar.stdout
    assert "--loss.frame.margin" not in rotation.stdout and "--loss.video.across" not in rotation.stdout


# --- before torch is imported ---

_MAIN = """
import sys
from vivi.cli import main
code = 0
try:
    main()
except SystemExit as end:
    code = end.code
print(code, sorted({"torch", "torchvision", "timm", "matplotlib"} & {*sys.modules}))
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 1, "vivi-ex4-tiny learns from videos: give a corpus"),
        (["--corpus", "/nowhere"], 1, "/nowhere is no corpus"),
        (["--corpus", "{empty}"], 1, "is no corpus"),
        (["--corpus", "/nowhere", "--optimiser.lr", "-1"], 1, "--optimiser.lr is -1"),
        (["--corpus", "/nowhere", "--images", "x"], 1, "learns from no images: remove --images"),
        (
            ["--corpus", "/nowhere", "--batch.videos", "63", "--batch.cores", "2"],
            1,
            "is no multiple of --batch.cores",
        ),
        (["--corpus", "/nowhere", "--sweep", "loss.video_weight=-1,0.1"], 1, "--loss.video-weight is -1"),
        (["--corpus", "/nowhere", "--sweep", "nothing=1"], 1, "a recipe has no field 'nothing'"),
        (["--corpus", "/nowhere", "--threads", "-1"], 1, "--threads is -1"),
        (["--corpus", "/nowhere", "--micro-batch", "3"], 1, "--micro-batch 3 does not divide --batch.cores 1"),
        (["--corpus", "/nowhere", "--images", "/nowhere"], 1, "learns from no images"),
        (["--corpus", "/nowhere", "--resident", "on", "--batch.source", "image"], 1, "--batch.source image needs"),
        (
            ["--corpus", "/nowhere", "--loss.frame", "rotation", "--loss.frame.margin", "1"],
            1,
            "--loss.frame.margin is a setting of --loss.frame exemplar, not of rotation",
        ),
        (["--corpus", "/nowhere", "--loss.frame", "puzzle"], 2, "puzzle"),
        (["--corpus", "/nowhere", "--loss.video-wieght", "1"], 2, "--loss.video-wieght"),
        (["--steps", "many"], 2, "many"),
    ],
)
def test_what_is_wrong_with_a_command_is_said_before_torch_is_imported(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    given = [word.format(empty=tmp_path) for word in words]
    errors = without_torch("train", "vivi-ex4-tiny", "--out", str(run), *given, code=code)
    assert said in errors and errors.startswith("error: ") and errors.count("\n") == 1
    assert not run.exists()


@pytest.mark.parametrize("name", ["vivi-ex5", "nowhere/recipe.json", "{folder}"])
def test_a_wrong_recipe_is_said_before_torch_is_imported(name: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"name": "mine", "loss": {"frame": "puzzle"}}')
    errors = without_torch("train", name.format(folder=tmp_path), "--corpus", "x", "--out", str(tmp_path / "run"))
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_the_run_is_said_before_torch_is_imported(corpus: Path, tmp_path: Path) -> None:
    flags = ("train", "vivi-ex4-tiny", "--corpus", str(corpus), "--out", str(tmp_path))
    (tmp_path / "thesis").write_text("mine")
    assert "holds other files and is no run" in without_torch(*flags)
    (tmp_path / "thesis").unlink()
    (tmp_path / "recipe.json").write_text(recipe_json(RECIPES["vivi-ex4-tiny"]))
    (tmp_path / "run.json").write_text("{}")
    assert "begun with --loss.video-weight 0.2, not 0.3" in without_torch(*flags, "--loss.video-weight", "0.3")
    assert "has --steps 800, not 700: it can be continued to more" in without_torch(*flags, "--steps", "700")
    cosine = replace(RECIPES["vivi-ex4-tiny"], optimiser=replace(Optimiser(), schedule="cosine"))
    (tmp_path / "recipe.json").write_text(recipe_json(cosine))
    longer = without_torch("train", str(tmp_path), *flags[2:], "--steps", "900")
    assert "has --steps 800, not 900: its cosine ends there" in longer
    (tmp_path / "file").write_text("")
    assert "Not a directory" in without_torch(*flags[:-1], str(tmp_path / "file"))


@pytest.mark.parametrize("words", [["nonsense"], ["train"], ["prepare"], ["evaluate", "knn"], ["evaluate"], []])
def test_a_command_that_is_not_understood_is_one_line(words: list[str]) -> None:
    errors = without_torch(*words, code=2)
    assert errors.startswith("error: ") and errors.count("\n") == 1 and "──" not in errors and "│" not in errors
    assert "--help" in errors


@pytest.mark.parametrize("words", [["--help"], ["train", "vivi-ex4", "--help"], ["train", "--help"]])
def test_help_needs_no_torch(words: list[str]) -> None:
    assert without_torch(*words, code=0) == ""


def without_torch(*words: str, code: int = 1) -> str:
    """What a command prints as errors that ends with this code, without torch."""
    done = subprocess.run([sys.executable, "-c", _MAIN, *words], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-1] == f"{code} []", done.stdout + done.stderr
    return done.stderr


def test_the_command_line_is_imported_without_torch() -> None:
    """It takes seconds to load, and most commands answer at once."""
    said = subprocess.run(
        [sys.executable, "-c", "import vivi.cli, sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "False\n"
