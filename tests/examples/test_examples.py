"""The examples run, and do what they say."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import own_loss
import pytest
import torch
import vivi_in_100_lines
from conftest import write_video
from rich.console import Console
from runs import vivi_here

from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.train.metrics import read_metrics
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import train

EXAMPLES = Path(own_loss.__file__).parent


@pytest.fixture(scope="module")
def many_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with enough videos of four shots for a batch of the recipe."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(26):
        write_video(folder / "videos" / f"{number}.mp4", shots=4, shot_seconds=1.0, seed=number)
    settings = PrepareSettings(rate=5, short_side=48, min_shot_seconds=0.3, test_fraction=0.2)
    prepare([folder / "videos"], folder / "corpus", settings, PrepareExecution(workers=2), Console(quiet=True))
    return folder / "corpus"


def test_the_plain_loop_has_the_first_losses_of_vivi_train(many_videos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    vivi_here("train", "vivi-ex4-tiny", "--corpus", many_videos, "--out", run, "--steps", 2, "--log-every", 1)
    lines = [line for line in read_metrics(run) if line["step"] > 0]
    plain = list(vivi_in_100_lines.train(str(many_videos), 2))
    for line, losses in zip(lines, plain, strict=True):
        assert losses == pytest.approx((line["exemplar"], line["infonce"]), rel=1e-5)


def test_the_plain_loop_is_short(many_videos: Path) -> None:
    assert len((EXAMPLES / "vivi_in_100_lines.py").read_text().splitlines()) <= 100
    done = subprocess.run(
        [sys.executable, EXAMPLES / "vivi_in_100_lines.py", many_videos, "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("step 1: exemplar 0.") and done.stdout.count("\n") == 1


def test_a_loss_of_ones_own_is_trained_logged_and_resumed(many_videos: Path, tmp_path: Path) -> None:
    recipe, paths, quiet = own_loss.own_recipe(steps=4), DataPaths(many_videos), Console(quiet=True)
    train(replace(recipe, steps=2), paths, tmp_path / "run", Execution(log_every=1), quiet)
    train(recipe, paths, tmp_path / "run", Execution(log_every=1), quiet)
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(0 < line["vicreg"] < 10 and 0 < line["embedding_std"] < 10 for line in lines)
    assert '"kind": "vicreg"' in (tmp_path / "run" / "recipe.json").read_text()


def test_a_loss_of_ones_own_is_computed_core_by_core_or_alone() -> None:
    loss = own_loss.VICReg(32, shots=4, dimension=8, covariance_weight=0.04)
    h = torch.randn(3, 6, 4, 32)
    assert torch.allclose(loss(h), torch.stack([loss(core) for core in h]), rtol=1e-5)
