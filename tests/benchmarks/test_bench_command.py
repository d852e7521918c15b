"""vivi bench: it lists the benchmarks, and each is also a script; what is wrong is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Run
from runs import error_line

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = ["decode", "detection", "loader", "prepare", "search_scale", "train"]


@pytest.mark.parametrize("words", [[], ["nothing"], ["common"]])
def test_without_the_name_of_a_benchmark_all_are_listed_in_one_line(vivi: Run, words: list[str]) -> None:
    assert f"vivi bench {{{','.join(NAMES)}}}" in error_line(vivi("bench", *words))


def test_help_has_the_flags_and_the_recipes_own_values(vivi: Run) -> None:
    done = vivi("bench", "train", "vivi-rot4-tiny", "--help")
    assert done.returncode == 0, done.stderr
    assert "usage: vivi bench train" in done.stdout
    assert "--peers" in done.stdout and "--loss.frame" in done.stdout and "rotation" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prepare", "no-such-video.mp4"], "no-such-video.mp4 is not a file"),
        (["train", "no-such-recipe"], "there is no recipe 'no-such-recipe'"),
    ],
)
def test_what_is_wrong_is_one_line_however_it_is_started(vivi: Run, words: list[str], said: str) -> None:
    name, *flags = words
    script = [sys.executable, str(FOLDER / f"{name}.py"), *flags]
    started = subprocess.run(script, capture_output=True, text=True, timeout=100)
    assert said in error_line(started) and error_line(started) == error_line(vivi("bench", *words))
