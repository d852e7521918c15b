"""vivi train --log: what a tracking server is sent, and that no server is ever in the way.

The packages of the servers are too heavy for these tests: a tiny one in the place of mlflow writes down what it is
told.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from runs import run_here

from vivi.recipes import RECIPES
from vivi.runtime.errors import UserError
from vivi.train import tracking
from vivi.train.metrics import read_metrics
from vivi.train.settings import Execution
from vivi.train.tracking import Sender

_MLFLOW = """
import json, os, types
from types import SimpleNamespace

def note(**facts):
    with open(os.environ["TOLD"], "a") as file:
        file.write(json.dumps(facts) + "\\n")

class MlflowClient:
    def get_experiment_by_name(self, name): return None
    def create_experiment(self, name): return "7"
    def create_run(self, experiment, run_name):
        note(created=run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id="run-1"))
    def update_run(self, run, status): note(run=run, status=status)
    def set_terminated(self, run): note(run=run, status="FINISHED")
    def log_batch(self, run, metrics=(), params=()):
        note(run=run, params=len(params), metrics={key: [step, value] for key, value, _, step in metrics})
        if os.environ.get("BROKEN"): raise ConnectionError("no route to host\\nand more")
"""
_ENTITIES = (
    "def Param(key, value): return key, value\ndef Metric(key, value, time, step): return key, value, time, step\n"
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in which the package in the place of mlflow writes what it is told, a line each."""
    package = tmp_path / "packages" / "mlflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_MLFLOW)
    (package / "entities.py").write_text(_ENTITIES)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    yield tmp_path / "told"
    for name in ("mlflow", "mlflow.entities"):
        sys.modules.pop(name, None)


def test_a_server_has_the_numbers_of_a_run_which_goes_on_in_its_place_when_resumed(
    corpus: Path, tmp_path: Path, told: Path
) -> None:
    for steps in ("2", "3"):
        run_here(corpus, tmp_path / "run", "--steps", steps, "--log-every", "1", "--log", "mlflow")
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [line for line in lines if "created" in line] == [{"created": "run"}]
    assert [line["status"] for line in lines if "status" in line] == ["RUNNING", "FINISHED"] * 2
    assert {line["run"] for line in lines if "run" in line} == {"run-1"}
    assert max(line.get("params", 0) for line in lines) > 40
    logged = {values["step"]: values for values in read_metrics(tmp_path / "run")}
    sent = [line["metrics"]["loss"] for line in lines if "loss" in line.get("metrics", {})]
    assert sent == [[step, logged[step]["loss"]] for step in (1, 2, 3)]


def test_a_server_that_fails_is_named_once_and_training_goes_on(
    corpus: Path, tmp_path: Path, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "1")
    said = run_here(corpus, tmp_path / "run", "--steps", "3", "--log-every", "1", "--log", "mlflow")
    assert said.count("--log mlflow has stopped (no route to host); training goes on") == 1
    assert read_metrics(tmp_path / "run")[-1]["step"] == 3


def test_nobody_waits_long_for_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tracking.TRACKERS, "mlflow", lambda *_: time.sleep(100))
    monkeypatch.setattr(tracking, "_LAST_SECONDS", 0.2)
    console = Console(file=io.StringIO(), width=1000)
    began = time.monotonic()
    with Sender("mlflow", tmp_path, RECIPES["vivi-ex4"], console) as sender:
        for step in range(20_000):  # more than it keeps
            sender.log(step, {"loss": 1.0})
    assert time.monotonic() - began < 10
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "--log mlflow does not answer; metrics.jsonl has what was not sent\n"


def test_a_package_that_is_missing_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else name)
    with pytest.raises(UserError, match=r"--log wandb needs a package: pip install 'vivi-video\[wandb\]'"):
        Execution(log="wandb,mlflow").check(RECIPES["vivi-ex4"])
