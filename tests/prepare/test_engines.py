"""Workers that die: their video is tried again, then given up, and nothing else is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import write_video

from vivi.prepare.corpus import VideoRow
from vivi.prepare.engines import run_locally
from vivi.prepare.piece import PrepareSettings, VideoTask, prepare_video
from vivi.prepare.sources import Source
from vivi.runtime.storage import StorageError


@pytest.fixture(scope="module")
def long_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes a worker much longer than it takes to find out that it has opened it."""
    path = tmp_path_factory.mktemp("long") / "long.mp4"
    write_video(path, shots=5, shot_seconds=100)
    return path


def tasks(folder: Path, *videos: Path) -> list[VideoTask]:
    settings = PrepareSettings(rate=10)
    return [VideoTask(Source(video.name, str(video)), str(folder), settings) for video in videos]


def run_and_kill(work: list[VideoTask], number: signal.Signals, kills: int) -> dict[str, VideoRow]:
    """Runs the tasks, one worker at a time, and sends the signal to the first workers that open the first video."""
    for _ in range(5):  # on a busy machine a worker may be done before it is found
        killed: set[int] = set()
        over = threading.Event()

        def kill(killed: set[int] = killed, over: threading.Event = over) -> None:
            while len(killed) < kills and not over.is_set():
                for reader in readers(Path(work[0].source.path)) - killed:
                    with suppress(ProcessLookupError):
                        os.kill(reader, number)
                        killed.add(reader)

        with ThreadPoolExecutor(1) as thread:
            killing = thread.submit(kill)
            rows = {video.row.video: video.row for video in run_locally(work, 1, lambda *_: None)}
            over.set()
            killing.result()
        if len(killed) == kills:
            return rows
    pytest.fail("came too late five times")


def readers(path: Path) -> set[int]:
    """The other processes that have a file open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it may be gone by now
            if os.readlink(link) == str(path):
                found.add(int(link.parts[2]))
    return found - {os.getpid()}


def test_a_video_whose_worker_is_killed_once_is_prepared_all_the_same(
    long_video: Path, videos: Path, tmp_path: Path
) -> None:
    rows = run_and_kill(tasks(tmp_path, long_video, videos / "a.mp4"), signal.SIGKILL, kills=1)
    assert {name: row.status for name, row in rows.items()} == {"long.mp4": "ok", "a.mp4": "ok"}


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGSEGV, "the decoder crashed (SIGSEGV)"), (signal.SIGALRM, "decoding made no progress for 120 s")],
)
def test_a_video_that_no_worker_survives_is_given_up_and_the_others_go_on(
    long_video: Path, videos: Path, tmp_path: Path, number: signal.Signals, reason: str
) -> None:
    rows = run_and_kill(tasks(tmp_path, long_video, videos / "a.mp4"), number, kills=2)
    assert (rows["long.mp4"].status, rows["long.mp4"].reason) == ("skipped", reason)
    assert rows["a.mp4"].status == "ok"
    assert not multiprocessing.active_children()


def test_a_worker_sets_its_alarm_while_it_decodes(long_video: Path, tmp_path: Path) -> None:
    left: list[float] = []
    (task,) = tasks(tmp_path, long_video)
    prepare_video(task, lambda share, seconds: left.append(signal.getitimer(signal.ITIMER_REAL)[0]))
    assert left and min(left) > 100
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_folder_that_cannot_be_written_ends_the_run(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file or directory"):
        list(run_locally(tasks(tmp_path / "nowhere", videos / "a.mp4"), 1, lambda *report: None))
    assert not multiprocessing.active_children()
