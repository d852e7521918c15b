"""vivi train auto: what it chooses for which footage, and that its choice is an ordinary recipe."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, write_video
from corpora import index_of
from rich.console import Console
from runs import assert_same_run, vivi_here

from vivi.data.footage import about, suit
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.recipes import RECIPES
from vivi.runtime.errors import UserError
from vivi.train.auto import steps_in
from vivi.train.settings import DataPaths, Execution

# Small enough for seconds.
SMALL = ("--encoder.width", 0.125, "--augment.size", 32, "--loss.shot-features", 16, "--loss.frame.dimension", 32)


@pytest.mark.parametrize(
    ("videos", "rate", "chosen"),
    [
        # Films with cuts, as prepared: shots, seconds of a shot, minutes of a segment.
        ([[9] * 6] * 80, 1.0, (4, 0.0, 0.0)),
        # Clips of one take at 5 frames a second, of 12 s and of 4 s.
        ([[60]] * 100, 5.0, (4, 3.0, 0.0)),
        ([[20]] * 100, 5.0, (4, 1.0, 0.0)),
        # Clips of 7 s at one frame a second: two shots of three frames. Of 3 s: one shot.
        ([[7]] * 100, 1.0, (2, 3.0, 0.0)),
        ([[3]] * 100, 1.0, (1, 0.0, 0.0)),
        # A quarter of the videos may have too few shots, but no more.
        ([[9] * 4] * 75 + [[9]] * 25, 1.0, (4, 0.0, 0.0)),
        ([[9] * 4] * 70 + [[9]] * 30, 1.0, (4, 2.0, 0.0)),
        # One file of two hours, uncut and cut; three of ten hours; ten minutes; too short to be divided.
        ([[500] * 14 + [200]], 1.0, (4, 3.0, 1.0)),
        ([[6] * 1200], 1.0, (4, 0.0, 1.0)),
        ([[500] * 72] * 3, 1.0, (4, 3.0, 5.0)),
        ([[500, 100]], 1.0, (4, 3.0, 0.5)),
        ([[20]], 1.0, (4, 3.0, 0.0)),
    ],
)
def test_footage_decides_shots_and_segments(
    videos: list[list[int]], rate: float, chosen: tuple[int, float, float]
) -> None:
    batch = suit(index_of(videos), {"rate": rate, "test_fraction": 0.1})
    assert (batch.shots, batch.max_shot_seconds, batch.segment_minutes) == chosen
    assert ("few cuts" in about(batch), "divided" in about(batch)) == (chosen[1] > 0, chosen[2] > 0)


def auto(corpus: Path, out: Path, *flags: object) -> str:
    return vivi_here("train", "auto", "--corpus", corpus, "--out", out, *SMALL, *flags)


def test_the_choice_is_a_recipe_that_repeats_the_run_bit_for_bit(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    printed = auto(corpus, run, "--steps", 3, "--checkpoint-every", 1)
    why = printed.splitlines()[:3]
    assert "12 videos, 3.5 shots each; few cuts, so takes are cut into shots of" in why[0]
    assert why[1].startswith("vivi-ex") and "training videos a step" in why[1] and "not told apart" in why[1]
    assert "CPU cores: resnetv2_18 ×0.125 at 32 px, 3 steps" in why[2]
    vivi_here("train", run / "recipe.json", "--corpus", corpus, "--out", tmp_path / "again", "--checkpoint-every", 1)
    assert_same_run(run, tmp_path / "again")
    # A run that was stopped goes on with what was chosen, whatever would be chosen now.
    (run / "checkpoints" / "step-00000003.safetensors").unlink()
    again = auto(corpus, run, "--steps", 3, "--minutes", 7)
    assert "going on after step 2" in again and "few cuts" not in again
    assert_same_run(run, tmp_path / "again")


def test_flags_override_the_choice_and_the_choice_is_recorded(corpus: Path, tmp_path: Path) -> None:
    flags = ("--batch.videos", 3, "--loss.video", "order", "--loss.frame.margin", 0.3, "--optimiser.warmup", 1)
    auto(corpus, tmp_path / "run", *flags, "--steps", 2)
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["name"].endswith("-auto") and recipe["steps"] == 2
    assert recipe["batch"]["videos"] == 3 and recipe["batch"]["max_shot_seconds"] > 0
    assert recipe["loss"]["video"] == {"kind": "order"}
    assert recipe["loss"]["frame"]["margin"] == 0.3 and recipe["loss"]["frame"]["negatives"] == "videos"
    assert recipe["optimiser"]["schedule"] == "cosine" and recipe["optimiser"]["warmup"] == 1
    overridden = json.loads((tmp_path / "run" / "run.json").read_text())["overridden"]
    assert overridden["batch.videos"]["to"] == 3 and "steps" not in overridden


def test_steps_fill_the_minutes(corpus: Path) -> None:
    recipe: Any = RECIPES["vivi-ex4-tiny"]
    recipe = replace(recipe, batch=replace(recipe.batch, videos=2), augment=replace(recipe.augment, size=16))
    recipe = replace(recipe, encoder=replace(recipe.encoder, width=0.125))
    few, many = (steps_in(minutes, recipe, DataPaths(corpus), Execution(device="cpu")) for minutes in (0.001, 100.0))
    assert few == 100  # at least
    assert many > 1000 and many % 100 == 0


def test_a_single_long_file_trains(tmp_path: Path) -> None:
    """Of 12 minutes here, at a low rate; of two hours, see the rules above."""
    write_video(tmp_path / "long.mp4", shots=1, shot_seconds=720, rate=1, size=(48, 32))
    settings = PrepareSettings(rate=0.5)
    prepare([tmp_path / "long.mp4"], tmp_path / "corpus", settings, PrepareExecution(workers=1), Console(quiet=True))
    printed = auto(tmp_path / "corpus", tmp_path / "run", "--steps", 2)
    assert "few and long videos, so they are divided into segments of up to 0.5 min;" in printed
    assert "23 training videos, 2 held out" in printed and "step 2/2" in printed


def test_what_cannot_be_chosen_is_one_line(corpus: Path, tmp_path: Path, vivi: Run) -> None:
    for words, said in (
        (("train", "auto", "--out", tmp_path / "run"), "auto learns from videos: give a corpus"),
        (("train", "auto", "--corpus", corpus, "--out", tmp_path / "run", "--sweep", "seed=1,2"), "--sweep needs"),
        (("train", "auto", "--corpus", corpus, "--out", tmp_path / "run", "--minutes", -1), "--minutes is -1"),
        (("train", "ex-yt-s-tiny", "--corpus", corpus, "--out", tmp_path / "r", "--minutes", 3), "with auto alone"),
        (("train", "auto", "--corpus", tmp_path, "--out", tmp_path / "run"), "is no corpus"),
        (("recipes", "auto"), "vivi train auto --corpus CORPUS chooses one"),
    ):
        with pytest.raises(UserError, match=said):
            vivi_here(*words)
    assert not (tmp_path / "run").exists()
    assert "auto: vivi train auto" in vivi_here("recipes")


def test_prepare_names_the_command_and_what_it_will_do(tmp_path: Path) -> None:
    for number in range(3):
        write_video(tmp_path / "videos" / f"{number}.mp4", shots=1, shot_seconds=8, seed=number)
    printed = vivi_here("prepare", tmp_path / "videos", "--out", tmp_path / "corpus")
    assert printed.splitlines()[-2] == f"train on it: vivi train auto --corpus {tmp_path / 'corpus'} --out run/"
    assert printed.splitlines()[-1] == "(few cuts, so takes are cut into shots of 2 s)"
    shutil.rmtree(tmp_path / "corpus")
