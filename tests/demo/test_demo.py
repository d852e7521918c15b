"""vivi demo: the whole flow, small."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from runs import vivi_here

from vivi.demo.demo import TRAINED, WORLD, demo
from vivi.evaluate.results import read_results
from vivi.runtime.errors import UserError


def test_the_demo_ends_with_a_page_of_all_it_made(tmp_path: Path) -> None:
    world = replace(WORLD, size=64, task_train=16, task_val=8, task_test=8)
    console = Console(file=io.StringIO(), width=200)
    demo(tmp_path, world, 2, console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "a held-out frame finds another shot of its video" in said and "open " in said
    results, problems = read_results(tmp_path / "results")
    assert not problems and len(results) == 2 * 4 * 4
    assert {result.encoder for result in results} == {"untrained", *TRAINED}
    page = (tmp_path / "page" / "index.html").read_text()
    for part in ("Linear probe", "kNN probe", "curves.png", "Film strips", "Nearest neighbours"):
        assert part in page


def test_too_few_videos_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--videos is 24; a batch takes 32 training videos"):
        vivi_here("demo", "--out", tmp_path / "demo", "--videos", 24)
    assert not (tmp_path / "demo").exists()
