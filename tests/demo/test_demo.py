"""vivi demo: the whole flow, small."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from runs import vivi_here

from vivi.demo.demo import TRAINED, WORLD, demo, print_gains
from vivi.evaluate.results import Result, Score, read_results, write_result
from vivi.runtime.errors import UserError


def test_the_demo_ends_with_a_page_of_all_it_made(tmp_path: Path) -> None:
    world = replace(WORLD, videos=40, seed=1, size=64, task_train=16, task_val=8, task_test=8)
    console = Console(file=io.StringIO(), width=200)
    demo(tmp_path, world, 2, console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert re.search(r"another shot of its video: \d+ of (\d+) frames before training, \d+ of \1 after; ", said)
    assert "open " in said
    results, problems = read_results(tmp_path / "results")
    assert not problems and len(results) == 2 * 4 * 4
    assert {result.encoder for result in results} == {"untrained", *TRAINED}
    page = (tmp_path / "page" / "index.html").read_text()
    for part in ("Linear probe", "kNN probe", "curves.png", "Film strips", "Nearest neighbours"):
        assert part in page


def test_gains_are_told_from_their_errors(tmp_path: Path) -> None:
    for encoder, share in (("untrained", 0.2), ("frames", 0.21), ("shots", 0.1), ("vivi", 0.4)):
        for benchmark in ("linear", "knn"):
            result = Result(
                encoder=encoder,
                benchmark=benchmark,
                protocol="v2",
                task="place",
                title="place",
                group="own",
                classes=8,
                score=Score((share,)),
                images={"test": 500},
            )
            write_result(tmp_path, result)
    console = Console(file=io.StringIO(), width=200, color_system="truecolor", force_terminal=True)
    print_gains(tmp_path, console)
    assert isinstance(console.file, io.StringIO)
    said = dict(re.findall(r"(\w+) +│ \d\d\.\d(.*?)│", console.file.getvalue()))
    assert "+1.0 ± 5.0, within error" in said["frames"] and "32m" not in said["frames"]
    assert "\x1b[31m  −10.0 ± " in said["shots"] and "\x1b[32m  +20.0 ± " in said["vivi"]
    assert "within" not in said["vivi"] + said["shots"] and "±" not in said["untrained"]


def test_too_few_videos_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--videos is 24; a batch takes 32 training videos"):
        vivi_here("demo", "--out", tmp_path / "demo", "--videos", 24)
    assert not (tmp_path / "demo").exists()
