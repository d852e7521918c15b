"""vivi prepare dies at any moment, in any part, and the same command ends with the same corpus."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import Disk, Run, contents, reasons, write_video
from moments import start, start_signalled

from vivi.prepare.prepare import PrepareExecution, prepare


@pytest.mark.timeout(600)  # each try starts a Ray of its own
def test_ray_gives_the_same_corpus_though_a_worker_dies(undisturbed: Path, videos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "text.mp4").write_text("not a video")
    write_video(tmp_path / "zz-long.mp4", shots=3, shot_seconds=100)
    extra = [tmp_path / "text.mp4", tmp_path / "zz-long.mp4"]
    for attempt in range(5):  # a busy machine may let the workers end before this process sees one
        out = tmp_path / f"corpus{attempt}"
        flags = ["--rate", 5, "--engine", "ray", "--shard-megabytes", 0.05]
        running = start("prepare", videos, *extra, "--out", out, *flags)
        if killed := kill_a_ray_worker(running, tmp_path):
            break
    assert killed
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    rows = pq.read_table(out / "videos.parquet").to_pylist()
    assert reasons(out).keys() == {"text.mp4"}
    assert rows[-1]["video"] == "zz-long.mp4" and rows[-1]["status"] == "ok"
    assert [row for row in rows if row["video"] not in ("text.mp4", "zz-long.mp4")] == contents(undisturbed)["videos"]


def index_files(corpus: Path) -> dict[str, bytes]:
    return {str(path.relative_to(corpus)): path.read_bytes() for path in (corpus / "index").rglob("*.arrow")}


def kill_a_ray_worker(running: subprocess.Popen[str], folder: Path) -> bool:
    """Kills a worker that reads from this folder; False if the command ended before one was seen."""
    while running.poll() is None:
        for worker in ray_workers(folder):
            os.kill(worker, signal.SIGKILL)
            return True
        time.sleep(0.01)
    running.communicate()
    return False


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


@pytest.mark.parametrize("everything", [True, False], ids=["with its workers", "the parent alone"])
def test_killed_at_any_moment_the_same_command_ends_with_the_same_corpus(
    undisturbed: Path, videos: Path, tmp_path: Path, everything: bool
) -> None:
    out = tmp_path / "corpus"
    flags = ["prepare", videos, "--out", out, "--rate", 5, "--workers", 1, "--shard-megabytes", 0.05]
    kills = 0
    seed = time.time_ns()
    print(f"seed {seed}")  # pytest shows it if the test fails
    for moment in random.Random(seed).sample(range(1, 20), 4):
        running = start_signalled(signal.SIGKILL, out / "*", moment, *flags, group=everything)
        running.communicate()
        kills += running.returncode == -signal.SIGKILL
    assert kills >= 2
    running = start(*flags)
    _, errors = running.communicate()
    assert running.returncode == 0, errors
    assert contents(out) == contents(undisturbed)
    assert index_files(out) == index_files(undisturbed)
    assert sorted(path.name for path in out.iterdir()) == ["corpus.json", "index", "shards", "videos.parquet"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_goes_on(
    undisturbed: Path, videos: Path, tmp_path: Path, vivi: Run, number: signal.Signals
) -> None:
    out = tmp_path / "corpus"
    flags = ["prepare", videos, "--out", out, "--rate", 5, "--shard-megabytes", 0.05, "--workers", 1]
    running = start_signalled(number, out / "shards" / "*", 1, *flags, group=True)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert errors.strip() == "stopped; the same command goes on from here"
    assert len(list((out / "shards").iterdir())) < len(list((undisturbed / "shards").iterdir()))
    assert vivi(*flags).returncode == 0
    assert contents(out) == contents(undisturbed)


def test_a_retry_that_was_killed_before_its_end_is_not_lost(videos: Path, tmp_path: Path) -> None:
    out, late = tmp_path / "corpus", tmp_path / "late.mp4"
    late.write_text("still being copied")
    prepare([videos / "a.mp4", late], out)
    table = (out / "videos.parquet").read_bytes()
    late.write_bytes((videos / "b.mp4").read_bytes())
    rows = prepare([late], out, execution=PrepareExecution(retry_skipped=True))
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
    for attempt in range(5):  # a busy machine may let the worker end before this process sees it at work
        out = tmp_path / f"corpus{attempt}"
        flags = ["prepare", tmp_path / "long.mp4", "--out", out, "--rate", 10]
        running = start(*flags)
        while running.poll() is None and not any((out / "work").glob("*.tmp")):
            time.sleep(0.01)
        running.kill()
        running.communicate()  # until the worker has ended as well
        if running.returncode == -signal.SIGKILL and not any((out / "work").glob("*.json")):
            break
    else:
        pytest.fail("no worker was seen at work and then without its video")
    again = start(*flags)
    again.communicate()
    assert again.returncode == 0
    (row,) = pq.read_table(out / "videos.parquet").to_pylist()
    assert (row["reason"], row["frames"]) == ("", 8000)
