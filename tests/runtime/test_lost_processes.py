"""Several processes of which one is missing, dies, or is told nonsense: one line, and no waiting without end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from runs import OFTEN, command, free_port, steps_logged

from vivi.runtime.distributed import join_world, processes_here
from vivi.runtime.errors import UserError

pytestmark = pytest.mark.timeout(120)

# Meets the others within seconds, or says why not.
_MEET = """
import sys
from datetime import timedelta
from vivi.runtime.errors import UserError
from vivi.runtime import distributed
distributed._RENDEZVOUS_TIMEOUT = timedelta(seconds=float(sys.argv[1]))
print("begun", flush=True)
try:
    with distributed.join_world("cpu") as world:
        print(world.all_gather_object(world.rank))
except UserError as error:
    sys.exit(f"error: {error}")
"""


def start(words: list[str], rank: int, port: int, size: int = 2) -> subprocess.Popen[str]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in place.items()}}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def meeting(seconds: float) -> list[str]:
    return [sys.executable, "-c", _MEET, str(seconds)]


def error_of(process: subprocess.Popen[str]) -> str:
    """The line it ends with; C++ may log others."""
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in errors, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    return line


def test_a_process_that_never_comes_is_not_waited_for_without_end() -> None:
    port, elsewhere = free_port(), free_port()
    for process in [start(meeting(2), 0, port), start(meeting(2), 1, elsewhere)]:
        expected = r"did not meet the others: 2 processes are expected at 127\.0\.0\.1:\d+ within .* check that all"
        assert re.search(expected, error_of(process))


def test_signals_end_the_wait_for_others() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(meeting(60), 0, free_port())
        assert process.stdout and process.stdout.readline() == "begun\n"
        time.sleep(1)
        process.send_signal(number)
        assert process.wait(timeout=10) == -number
        process.communicate()


def test_processes_meet_by_themselves_and_under_torchrun(tmp_path: Path) -> None:
    port = free_port()
    pair = [start(meeting(60), rank, port) for rank in range(2)]
    assert [process.communicate(timeout=60)[0].splitlines()[-1] for process in pair] == ["[0, 1]"] * 2
    script = tmp_path / "meet.py"
    script.write_text(_MEET)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        "60",
    ]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.count("[0, 1]") == 2


def test_a_process_whose_peer_is_killed_says_so(corpus: Path, tmp_path: Path) -> None:
    port, words = free_port(), command(corpus, tmp_path / "run", "--steps", 100000, *OFTEN)
    first, second = (start(words, rank, port) for rank in range(2))
    try:
        while steps_logged(tmp_path / "run") < 2 and first.poll() is None:
            time.sleep(0.1)
        second.kill()
        assert "error: another process of this run has ended or cannot be reached" in error_of(first)
    finally:
        first.kill()
        second.kill()
        second.communicate()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"RANK": "x"}, "RANK is 'x'; it must be a number from 0 to 1"),
        ({"RANK": "5"}, "RANK is '5'; it must be a number from 0 to 1"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK is '2'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR expected, but not set"),
        ({"MASTER_PORT": ""}, "process 0 did not meet the others"),
        ({"MASTER_PORT": "70000"}, "expected at 127.0.0.1:70000"),
    ],
)
def test_variables_that_make_no_sense_are_named(
    changed: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in {**right, **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught, join_world("cpu"):
        pass
    assert said in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(UserError, match="LOCAL_WORLD_SIZE is 'many'"):
        processes_here()


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("vivi.runtime.distributed._init_process_group", lambda *_: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with pytest.raises(RuntimeError, match="shapes do not fit"), join_world("cpu"):
        raise RuntimeError("shapes do not fit")
    with pytest.raises(UserError, match="has ended or cannot be reached"), join_world("cpu"):
        raise dist.DistNetworkError("gone")
