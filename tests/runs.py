"""Small training runs, in a process of their own or in this one, and how two of them are compared."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from vivi.cli.main import COMMANDS
from vivi.cli.parse import parse
from vivi.runtime.errors import UserError
from vivi.train.checkpoint import restore
from vivi.train.metrics import TIMING, read_metrics

# Small enough for seconds: 4 videos × 4 shots × 2 frames of 32 px in 2 cores.
SMALL = [
    *("--batch.videos", "4", "--batch.cores", "2", "--batch.frames", "2", "--augment.size", "32"),
    *("--encoder.width", "0.125", "--loss.shot-features", "16", "--optimiser.warmup", "3"),
]
OFTEN = ["--log-every", "1", "--monitor-every", "4", "--checkpoint-every", "2"]


def command(corpus: Path, out: Path, *flags: object, recipe: str = "vivi-ex4-tiny") -> list[str]:
    arguments = ["train", recipe, "--corpus", corpus, "--out", out, *SMALL, *flags]
    return [sys.executable, "-m", "vivi", *map(str, arguments)]


def train(corpus: Path, out: Path, *flags: object, recipe: str = "vivi-ex4-tiny") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(corpus, out, *flags, recipe=recipe), capture_output=True, text=True, timeout=240, check=False
    )


# A process of two: its command lines, each after the other, as `python -m vivi` runs them.
_PROCESS_OF_TWO = """
import contextlib, io, json, os, sys
from vivi.cli import main

outcomes = []
for port, words in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"], sys.argv, code = str(port), ["vivi", *words], 0
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as end:
            code = end.code
    outcomes.append((code, output.getvalue(), errors.getvalue()))
print(json.dumps(outcomes))
"""
Outcome = tuple[int, str, str]  # exit code, stdout, stderr


def train_in_two(pairs: Sequence[tuple[list[str], list[str]]]) -> list[tuple[Outcome, Outcome]]:
    """Pairs of command lines, each in two processes that train together, as on two machines: torchrun does not watch
    over them, so that one which waits for ever is seen. The same two processes run all pairs."""
    ports = [free_port() for _ in pairs]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    running = []
    for rank in range(2):
        work = json.dumps(
            [(port, [*pair[rank][3:], "--device", "cpu"]) for port, pair in zip(ports, pairs, strict=True)]
        )
        environment = {**os.environ, **world, "RANK": str(rank)}
        words = [sys.executable, "-c", _PROCESS_OF_TWO, work]
        running.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        first, second = (json.loads(process.communicate(timeout=200)[0]) for process in running)
    finally:
        for process in running:
            process.kill()
    return list(zip(map(tuple, first), map(tuple, second), strict=True))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def run_here(corpus: Path, out: Path, *flags: object, recipe: str = "vivi-ex4-tiny") -> str:
    """The same in this process, which need not start first; returns what it prints."""
    return vivi_here(*command(corpus, out, *flags, recipe=recipe)[3:])


def vivi_here(*words: object) -> str:
    """Any command line in this process."""
    arguments = [str(word) for word in words]
    console = Console(file=io.StringIO(), width=10_000)
    parse(arguments, COMMANDS).run(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def refusal(corpus: Path, out: Path, *flags: object, recipe: str = "vivi-ex4-tiny") -> str:
    """The one line that a run in this process ends with."""
    with pytest.raises(UserError) as caught:
        run_here(corpus, out, *flags, recipe=recipe)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def without_timing(run: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMING} for line in read_metrics(run)]


def final_state(run: Path) -> dict[str, torch.Tensor]:
    restored = restore(run / "checkpoints", pytest.fail)
    assert restored is not None
    return restored[1]


def assert_same_run(first: Path, second: Path) -> None:
    """The same metrics and the same weights, bit for bit."""
    assert without_timing(first) == without_timing(second)
    one, two = final_state(first), final_state(second)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    for name in ("encoder.safetensors", "encoder.json", "recipe.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def steps_logged(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
