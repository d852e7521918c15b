"""Several processes train a run together: rank 0's state and data are the truth, and who differs is named."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import write_video
from rich.console import Console
from runs import OFTEN, Outcome, assert_same_run, command, run_here, train_in_two, without_timing

from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.recipes import RECIPES, Rotation
from vivi.runtime.distributed import Claims, compare_claims
from vivi.runtime.errors import UserError
from vivi.train.data import open_data
from vivi.train.settings import DataPaths
from vivi.train.train import _claims


def state_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(outcomes: tuple[Outcome, Outcome]) -> str:
    """The line that two processes end with; rank 0 prints it."""
    (first, _, line), second = outcomes
    assert first == 1 and line.startswith("error: ") and line.count("\n") == 1, line
    assert second == (1, "", "")
    return line


def test_a_process_that_sees_another_run_goes_on_from_the_step_of_rank_0(corpus: Path, tmp_path: Path) -> None:
    alike, alone, mixed, nowhere, older = (
        tmp_path / name for name in ("alike", "alone", "mixed", "nowhere", "older")
    )
    run_here(corpus, older, "--steps", 1, *OFTEN)
    run_here(corpus, alike, "--steps", 2, *OFTEN)
    for run in (alone, mixed):
        shutil.copytree(alike, run)
    before = state_of(older)
    seen = [(alike, alike), (alone, nowhere), (mixed, older)]
    pairs = [tuple(command(corpus, out, "--steps", 4, *OFTEN) for out in pair) for pair in seen]
    for first, second in train_in_two([(first, second) for first, second in pairs]):
        assert (first[0], first[2]) == (0, "") and second == (0, "", "")
    for run in (alone, mixed):
        assert_same_run(alike, run)
        assert [line["step"] for line in without_timing(run)] == [0, 1, 2, 3, 4]
    assert not nowhere.exists() and state_of(older) == before


def test_a_process_with_other_data_or_another_command_is_named_and_nothing_is_written(
    corpus: Path, tmp_path: Path
) -> None:
    out, new, other = tmp_path / "run", tmp_path / "new", tmp_path / "other"
    run_here(corpus, out, "--steps", 1, *OFTEN)
    before = state_of(out)
    for index in range(4):
        write_video(tmp_path / "videos" / f"v{index}.mp4", shots=5, shot_seconds=0.8, seed=index)
    settings = PrepareSettings(rate=5, short_side=48, min_shot_seconds=0.3, test_fraction=0.0)
    prepare([tmp_path / "videos"], other, settings, PrepareExecution(workers=1), Console(quiet=True))
    cases: list[tuple[Path, tuple[object, ...], str]] = [
        (out, ("--corpus", other), ": corpus_fingerprint is "),
        (new, ("--seed", 5), ": --seed is 5 here, and 0 in process 0: give all"),
        (new, ("--batch.videos", 5), ": --batch.videos 5 is no multiple of"),
        (new, ("--corpus", "nowhere"), ": nowhere is no corpus"),
    ]
    pairs = [
        (command(corpus, run, "--steps", 2), command(corpus, run, "--steps", 2, *flags)) for run, flags, _ in cases
    ]
    for (_, _, said), outcomes in zip(cases, train_in_two(pairs), strict=True):
        assert f"error: process 1 of 2, on {socket.gethostname()}{said}" in refusal(outcomes)
    assert state_of(out) == before and not new.exists()


def test_what_a_process_claims_besides_rank_0_is_named() -> None:
    first: Claims = {"torch": "2.11.0", "images_fingerprint": "1"}
    compare_claims({**first}, first)
    for name, said in (
        ("torch", "torch is 2 here, and 2.11.0 in"),
        ("images_fingerprint", "fingerprint is 2 here, and 1"),
    ):
        with pytest.raises(UserError, match=said):
            compare_claims({**first, name: "2"}, first)
    with pytest.raises(UserError, match=r"images_fingerprint is None here, and 1 in process 0") as caught:
        compare_claims({"torch": "2.11.0"}, first)
    assert "\n" not in str(caught.value)


def test_every_process_claims_its_versions_its_recipe_and_its_data(corpus: Path) -> None:
    recipe = RECIPES["vivi-ex4-tiny"]
    recipe = replace(recipe, batch=replace(recipe.batch, videos=4, cores=2))
    data = open_data(recipe, DataPaths(corpus))
    claims = _claims(recipe, data)
    assert {"vivi", "torch", "timm", "--loss.frame", "--loss.video.across"} <= claims.keys()
    assert claims["--loss.frame.dimension"] == 1000
    assert claims["corpus_fingerprint"] == data.facts()["corpus_fingerprint"]
    assert "labels_fingerprint" not in claims
    changed = _claims(replace(recipe, loss=replace(recipe.loss, frame=Rotation())), data)
    compare_claims(claims, claims)
    with pytest.raises(UserError, match=r"--loss\.frame is rotation here, and exemplar in process 0"):
        compare_claims(changed, claims)
