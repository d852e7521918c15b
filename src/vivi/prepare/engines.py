"""Where the videos are prepared: a pool of local processes, or a Ray cluster.

An engine takes tasks and yields prepared videos, in any order. A worker that dies (its decoder crashes on a damaged
file, or hangs and is stopped by the worker's alarm) costs its own video at most, after a second try.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from vivi.prepare.identity import UNKNOWN, identify
from vivi.prepare.limits import STALL_SECONDS, Report, memory_limit
from vivi.prepare.piece import PreparedVideo, VideoTask, finished_piece, prepare_video, skip
from vivi.runtime.errors import UserError
from vivi.runtime.process_pool import Died, Done, ProcessPool, Progress
from vivi.runtime.storage import StorageError


def run_locally(
    tasks: Iterable[VideoTask], workers: int, report: Callable[[VideoTask, float, float], None]
) -> Iterator[PreparedVideo]:
    """Runs the tasks on a pool of processes, one task per process at a time.

    `report(task, share of the file that is read, seconds of footage)` is called about twice a second.
    """
    began = time.time_ns()
    waiting, tried = deque(tasks), set[VideoTask]()
    with ProcessPool[VideoTask](_serve, [()] * min(workers, len(waiting))) as pool:
        for task, message in pool.run(waiting):
            if isinstance(message, Progress):
                report(task, *message.value)
            elif isinstance(message, Done):
                yield _unless_error(message.value)
            elif task in tried or finished_piece(task):
                yield _worker_died(task, _cause_of_death(message), began)
            else:
                tried.add(task)
                waiting.appendleft(task)


def run_on_ray(tasks: Iterable[VideoTask], address: str) -> Iterator[PreparedVideo]:
    """Runs the tasks on a Ray cluster, or on a local one that is started if no address is given."""
    import ray

    began = time.time_ns()
    started = not ray.is_initialized()
    if started:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
        try:
            ray.init(address=address or None, **quiet)
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
        raise UserError("--engine ray needs Ray: pip install 'vivi[ray]'")
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
    with memory_limit(task.worker_memory, lambda: skip(task, too_large, file)):
        try:
            return prepare_video(task, report, file)
        except StorageError as error:
            return error


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
    return skip(task, reason, file if file.file_changed < began else UNKNOWN)
