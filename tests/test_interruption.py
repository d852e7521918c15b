"""vivi prepare dies at any moment, in any part, and the same command ends with the same corpus."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import Disk, Run, contents, reasons, write_video

from vivi.video.prepare import Machine, prepare


def start(*arguments: object) -> subprocess.Popen[str]:
    """A vivi command as the leader of a process group of its own."""
    command = [sys.executable, "-m", "vivi", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_ray_gives_the_same_corpus_though_a_worker_dies(undisturbed: Path, videos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "text.mp4").write_text("not a video")
    write_video(tmp_path / "zz-long.mp4", shots=3, shot_seconds=100)
    extra = [tmp_path / "text.mp4", tmp_path / "zz-long.mp4"]
    flags = ["--rate", 5, "--engine", "ray", "--shard-megabytes", 0.05]
    running = start("prepare", videos, *extra, "--out", tmp_path / "corpus", *flags)
    while not (at_work := ray_workers(tmp_path)):
        assert running.poll() is None
        time.sleep(0.01)
    os.kill(at_work[0], signal.SIGKILL)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    rows = pq.read_table(tmp_path / "corpus" / "videos.parquet").to_pylist()
    assert reasons(tmp_path / "corpus").keys() == {"text.mp4"}
    assert rows[-1]["video"] == "zz-long.mp4" and rows[-1]["status"] == "ok"
    assert [row for row in rows if row["video"] not in ("text.mp4", "zz-long.mp4")] == contents(undisturbed)["videos"]


def ray_workers(folder: Path) -> list[int]:
    """Process ids of Ray workers that have a file of this folder open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::" in (process / "cmdline").read_bytes():
                links = [os.readlink(link) for link in (process / "fd").iterdir()]
                found += [int(process.name)] * any(link.startswith(str(folder)) for link in links)
        except OSError:
            continue  # it has just ended
    return found


def dies_after_changes(
    running: subprocess.Popen[str], folder: Path, changes: int, kill: Callable[[int, int], None]
) -> bool:
    """Kills a process when files in the folder have come or gone so many times; False if it ended before."""
    before: set[str] = set()
    while running.poll() is None:
        now = {path for path, _, files in os.walk(folder) for path in [path, *files]}
        changes -= now != before
        before = now
        if changes < 0:
            kill(running.pid, signal.SIGKILL)
            running.communicate()
            return True
    running.communicate()
    return False


@pytest.mark.parametrize("everything", [True, False], ids=["with its workers", "the parent alone"])
def test_killed_at_any_moment_the_same_command_ends_with_the_same_corpus(
    undisturbed: Path, videos: Path, tmp_path: Path, everything: bool
) -> None:
    rng = random.Random(everything)
    out = tmp_path / "corpus"
    kills = 0
    while True:
        running = start("prepare", videos, "--out", out, "--rate", 5, "--workers", 1, "--shard-megabytes", 0.05)
        if not dies_after_changes(running, out, rng.randint(1, 12), os.killpg if everything else os.kill):
            break
        kills += 1
    assert running.returncode == 0
    assert kills >= 2
    assert contents(out) == contents(undisturbed)
    assert sorted(path.name for path in out.iterdir()) == ["corpus.json", "shards", "videos.parquet"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_goes_on(
    undisturbed: Path, videos: Path, tmp_path: Path, vivi: Run, number: signal.Signals
) -> None:
    out = tmp_path / "corpus"
    flags = ["prepare", videos, "--out", out, "--rate", 5, "--shard-megabytes", 0.05, "--workers", 1]
    running = start(*flags)
    while not any((out / "work").glob("*.json")):
        assert running.poll() is None
        time.sleep(0.01)
    os.killpg(running.pid, number)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert errors.strip() == "stopped; the same command goes on from here"
    assert vivi(*flags).returncode == 0
    assert contents(out) == contents(undisturbed)


def test_a_retry_that_was_killed_before_its_end_is_not_lost(videos: Path, tmp_path: Path) -> None:
    out, late = tmp_path / "corpus", tmp_path / "late.mp4"
    late.write_text("still being copied")
    prepare([videos / "a.mp4", late], out)
    table = (out / "videos.parquet").read_bytes()
    late.write_bytes((videos / "b.mp4").read_bytes())
    rows = prepare([late], out, machine=Machine(retry_skipped=True))
    (out / "videos.parquet").write_bytes(table)  # as if killed between the new shard and the table
    assert prepare([late], out) == rows


def test_a_full_disk_is_a_clear_error_and_the_same_command_goes_on(
    undisturbed: Path, videos: Path, disk: Disk, vivi: Run
) -> None:
    small_disk = disk(1 << 20)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(600_000))
    flags = ["prepare", videos, "--out", small_disk / "corpus", "--rate", 5, "--shard-megabytes", 0.05]
    done = vivi(*flags)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write") and done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr and "run the same command again" in done.stderr
    filler.unlink()
    done = vivi(*flags)
    assert done.returncode == 0, done.stderr
    assert contents(small_disk / "corpus") == contents(undisturbed)


def test_a_worker_whose_parent_was_killed_leaves_no_half_video(tmp_path: Path) -> None:
    write_video(tmp_path / "long.mp4", shots=8, shot_seconds=100)
    out = tmp_path / "corpus"
    flags = ["prepare", tmp_path / "long.mp4", "--out", out, "--rate", 10]
    running = start(*flags)
    while not any((out / "work").glob("*.tmp")):
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    running.kill()
    running.wait()
    assert not list((out / "work").glob("*.json"))
    again = start(*flags)
    again.communicate()
    assert again.returncode == 0
    (row,) = pq.read_table(out / "videos.parquet").to_pylist()
    assert (row["reason"], row["frames"]) == ("", 8000)
