"""Where the videos are prepared: a pool of local processes, or a Ray cluster.

An engine takes tasks and yields prepared videos, in any order. A worker that dies (its decoder crashes on a damaged
file, or hangs and is stopped by the worker's alarm) costs its own video at most, after a second try.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from vivi.prepare.corpus import VideoRow
from vivi.prepare.decode import Report
from vivi.prepare.identity import UNKNOWN, identify
from vivi.prepare.piece import STALL_SECONDS, PreparedVideo, VideoTask, finish, finished_piece, prepare_video
from vivi.runtime.console import explain
from vivi.runtime.errors import UserError, check_ranges
from vivi.runtime.machine import available_cores
from vivi.runtime.process_pool import Died, Done, ProcessPool, Progress
from vivi.runtime.progress import ProgressLine
from vivi.runtime.storage import StorageError

Prepared = Generator[PreparedVideo, None, None]


@dataclass(frozen=True)
class PrepareExecution:
    """Where and how to run; what a video becomes does not depend on it."""

    engine: Literal["local", "ray"] = "local"
    """A pool of local processes, or a Ray cluster."""
    workers: int = 0
    """Local processes; 0: one for each core."""
    ray_address: str = ""
    """Address of a running Ray cluster; without it, a local one is started."""
    shard_megabytes: float = 256.0
    """Size of a shard file. A video is never split over two."""
    retry_skipped: bool = False
    """Try the videos again that an earlier run skipped. Those whose file has changed are tried again in any case."""
    worker_memory: float = 2.0
    """Gigabytes that a worker may take for one video; one that needs more is skipped. Enforced on Linux."""
    video_minutes: float = 24 * 60.0
    """A video that takes longer is skipped."""

    def check(self) -> None:
        """Raises a UserError for the first wrong argument."""
        ranges = {"workers": (0, 4096), "shard_megabytes": (1e-3, 2**20)}
        check_ranges(self, ranges | {"worker_memory": (0.1, 2**20), "video_minutes": (1e-6, 1e6)})
        if self.engine == "ray":
            check_ray(self.ray_address)


def run(tasks: Sequence[VideoTask], execution: PrepareExecution, console: Console) -> Prepared:
    """Runs the tasks on the chosen engine, and shows how far they are."""
    with PrepareProgress(tasks, console) as progress:
        if execution.engine == "ray":
            videos = run_on_ray(tasks, execution.ray_address)
        else:
            workers = execution.workers or available_cores()
            explain(f"{workers} worker processes: {available_cores()} cores, --workers {execution.workers}")
            videos = run_locally(tasks, workers, progress.report)
        for video in videos:
            progress.finished(video.row)
            yield video


class PrepareProgress(ProgressLine):
    """Videos done, videos/s, hours of footage/s, skipped; measured in bytes, so that long videos count more."""

    def __init__(self, tasks: Sequence[VideoTask], console: Console) -> None:
        self.sizes = {task.source.video: 0 for task in tasks}
        for task in tasks:
            with suppress(OSError):
                self.sizes[task.source.video] = os.path.getsize(task.source.path)
        super().__init__("prepare", sum(self.sizes.values()), console)
        self.in_work: dict[str, tuple[float, float]] = {}  # bytes and seconds
        self.done = self.skipped = 0
        self.bytes = self.seconds = 0.0

    def report(self, video: str, share: float, seconds: float) -> None:
        """So much of a video in work is read, with so many seconds of footage."""
        bytes_before, seconds_before = self.in_work.get(video, (0.0, 0.0))
        self.in_work[video] = self.sizes[video] * min(share, 1.0), seconds
        self.bytes += self.in_work[video][0] - bytes_before
        self.seconds += seconds - seconds_before
        elapsed, hours = max(time.monotonic() - self.started, 1e-9), self.seconds / 3600
        videos = f"{self.done}/{len(self.sizes)} videos · {self.done / elapsed:.1f} videos/s"
        footage = f"{hours:.1f} h of footage, {hours / elapsed:.3f} h/s"
        self.show(self.bytes, f"{videos} · {footage} · {self.skipped} skipped")

    def finished(self, row: VideoRow) -> None:
        """A video is prepared, or skipped."""
        self.done += 1
        self.skipped += row.status == "skipped"
        self.report(row.video, 1.0, row.seconds)
        del self.in_work[row.video]


def run_locally(tasks: Sequence[VideoTask], workers: int, report: Callable[[str, float, float], None]) -> Prepared:
    """Runs the tasks on a pool of processes, one task per process at a time.

    `report(video, share of the file that is read, seconds of footage)` is called about twice a second.
    """
    began = time.time_ns()
    waiting, tried = deque(tasks), set[VideoTask]()
    with ProcessPool[VideoTask](_serve, [()] * min(workers, len(waiting))) as pool:
        for task, message in pool.run(waiting):
            if isinstance(message, Progress):
                report(task.source.video, *message.value)
            elif isinstance(message, Done):
                yield _unless_error(message.value)
            elif task in tried or finished_piece(task):
                yield _worker_died(task, _cause_of_death(message), began)
            else:
                tried.add(task)
                waiting.appendleft(task)


def run_on_ray(tasks: Sequence[VideoTask], address: str) -> Prepared:
    """Runs the tasks on a Ray cluster, or on a local one that is started if no address is given."""
    import ray

    began = time.time_ns()
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(
                address=address or None, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False
            )
        except (ConnectionError, ValueError) as error:
            raise UserError(f"no Ray cluster at {address}: {error}") from None
    # Ray schedules, and starts a task again elsewhere when its worker or machine dies.
    remote = ray.remote(max_retries=1)(run_task)
    waiting = iter(tasks)
    running: dict[Any, VideoTask] = {}
    try:
        while True:
            # Enough queued to keep every core busy, few enough that millions of videos do not flood the scheduler.
            room = 4 * max(1, int(ray.cluster_resources().get("CPU", 1))) - len(running)
            running.update((remote.remote(task), task) for task in itertools.islice(waiting, max(room, 0)))
            if not running:
                return
            for reference in ray.wait(list(running))[0]:
                task = running.pop(reference)
                try:
                    yield _unless_error(ray.get(reference))
                except ray.exceptions.RayError as error:
                    yield _worker_died(task, f"the decoder crashed or hung ({type(error).__name__})", began)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()


def check_ray(address: str) -> None:
    """Raises one line, soon, where Ray itself would try for minutes."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("--engine ray needs Ray: pip install 'vivi-video[ray]'")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise UserError(f"no Ray cluster at --ray-address {address}: {error.strerror or error}") from None


def _serve(connection: Connection[Any, Any]) -> None:
    """A local worker process, until the parent process is gone."""
    try:
        while True:
            task = connection.recv()
            connection.send(Done(run_task(task, lambda *state: connection.send(Progress(state)))))
    except (EOFError, ConnectionError):
        pass


def run_task(task: VideoTask, report: Report | None = None) -> PreparedVideo | StorageError:
    """Prepares a video in a worker process, which may die of it; `finished_piece` then knows why, if it could say."""
    signal.alarm(STALL_SECONDS)  # a network disk may hang at the first touch; prepare_video sets it again
    file = identify(task.source.path)
    too_large = f"needs more than {task.worker_memory:g} GB of memory (--worker-memory)"
    with memory_limit(task.worker_memory, lambda: finish(task, file, too_large)):
        try:
            return prepare_video(task, report, file)
        except StorageError as error:
            return error


@contextmanager
def memory_limit(gigabytes: float, on_exceeded: Callable[[], object]) -> Iterator[None]:
    """Ends this process, after `on_exceeded()`, as soon as it takes more memory than this, without files mapped into
    it; only where there is /proc.

    A limit that makes allocations fail (setrlimit) would not do: FFmpeg ignores some failures, and a file that asks
    for too much then looks like one without frames.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            with suppress(OSError, ValueError):
                _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
                if (int(resident) - int(shared)) * resource.getpagesize() > gigabytes * 1e9:
                    try:
                        on_exceeded()
                    finally:
                        os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _unless_error(result: PreparedVideo | StorageError) -> PreparedVideo:
    if isinstance(result, StorageError):
        raise result
    return result


def _cause_of_death(died: Died) -> str:
    code = -died.exit_code
    if code == signal.SIGALRM:
        return f"decoding made no progress for {STALL_SECONDS} s"
    return f"the decoder crashed ({signal.Signals(code).name if code > 0 else f'exit code {-code}'})"


def _worker_died(task: VideoTask, reason: str, began: int) -> PreparedVideo:
    """What the worker wrote before it died, or else a skipped video. A file that has changed since the run began, a
    time in nanoseconds, is recorded as unknown, so that the next run tries it again."""
    if prepared := finished_piece(task):
        return prepared
    file = identify(task.source.path)
    return finish(task, file if file.file_changed < began else UNKNOWN, reason)
