"""Where the videos are prepared: a pool of local processes, or a Ray cluster. Both run `prepare_video`.

An engine takes tasks and yields outcomes as they come. A worker that dies (a decoder that crashes on a damaged
file, or is stopped by its alarm because it hangs) costs its own video at most, after a second try.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from vivi.prepare.identity import identify
from vivi.prepare.limits import STALL_SECONDS, memory_ceiling
from vivi.prepare.piece import (
    PreparedVideo,
    VideoTask,
    finish_piece,
    finished_piece,
    prepare_video,
    skipped_row,
)
from vivi.runtime.errors import UserError
from vivi.runtime.process_pool import Died, Done, ProcessPool, Progress
from vivi.runtime.storage import StorageError

TRIES = 2


@dataclass(frozen=True)
class Outcome:
    """How a task ended: with a prepared video, or with the reason why its worker died."""

    task: VideoTask
    prepared: PreparedVideo | None
    reason: str = ""


Report = Callable[[VideoTask, float, float], None]
"""Called with a task, the share of its file that is done, and the seconds of footage."""


def run_locally(tasks: Iterable[VideoTask], workers: int, report: Report) -> Iterator[Outcome]:
    """Runs the tasks on a pool of processes, one task per process at a time."""
    waiting = deque(tasks)
    tries: Counter[str] = Counter()
    with ProcessPool[VideoTask](_serve, [()] * min(workers, len(waiting))) as pool:
        for task, message in pool.run(waiting):
            if isinstance(message, Progress):
                report(task, *message.value)
            elif isinstance(message, Died):
                tries[task.source.video] += 1
                prepared = finished_piece(task)
                if prepared is None and tries[task.source.video] < TRIES:
                    waiting.appendleft(task)
                else:
                    yield Outcome(task, prepared, _cause_of_death(message.exit_code))
            elif isinstance(message.value, StorageError):
                raise message.value
            else:
                yield Outcome(task, message.value)


def _cause_of_death(exit_code: int) -> str:
    if exit_code == -signal.SIGALRM:
        return f"decoding made no progress for {STALL_SECONDS} s"
    return f"the decoder crashed ({signal.Signals(-exit_code).name if exit_code < 0 else f'exit code {exit_code}'})"


def _serve(connection: Connection[Any, Any]) -> None:
    """A worker process."""

    def report(share: float, seconds: float) -> None:
        _send(connection, Progress((share, seconds)))

    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        _send(connection, Done(_attempt(task, report)))


def _send(connection: Connection[Any, Any], message: object) -> None:
    try:
        connection.send(message)
    except OSError:  # the other side is gone
        os._exit(0)


def _attempt(task: VideoTask, report: Callable[[float, float], None] | None = None) -> PreparedVideo | StorageError:
    """Prepares a video in a process that may end over it; `finished_piece` then says why, where that is known."""
    signal.alarm(STALL_SECONDS)  # a network disk may hang at the first touch; prepare_video sets it again
    file = identify(task.source.path)

    def too_large() -> None:
        reason = f"needs more than {task.limits.gigabytes:g} GB of memory (--worker-memory)"
        finish_piece(task, PreparedVideo(skipped_row(task, reason, file)))

    with memory_ceiling(task.limits.gigabytes, too_large):
        try:
            return prepare_video(task, report, file)
        except StorageError as error:
            return error


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


def run_on_ray(tasks: Iterable[VideoTask], address: str, report: Report) -> Iterator[Outcome]:
    """Runs the tasks on a Ray cluster, or on a local one that is started if no address is given."""
    import ray

    started = not ray.is_initialized()
    if started:
        try:
            ray.init(
                address=address or None, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False
            )
        except (ConnectionError, ValueError) as error:
            raise UserError(f"no Ray cluster at {address}: {error}") from None
    # Ray schedules, and starts a task again elsewhere when its worker or machine dies.
    remote = ray.remote(max_retries=TRIES - 1)(_attempt)
    waiting = iter(tasks)
    running: dict[Any, VideoTask] = {}
    try:
        while True:
            # Enough queued to keep every core busy, few enough that millions of videos do not flood the scheduler.
            room = 4 * max(1, int(ray.cluster_resources().get("CPU", 1))) - len(running)
            running.update((remote.remote(task), task) for task in itertools.islice(waiting, max(room, 0)))
            if not running:
                return
            done, _ = ray.wait(list(running))
            for reference in done:
                task = running.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayError as error:
                    crash = f"the decoder crashed or hung ({type(error).__name__})"
                    yield Outcome(task, finished_piece(task), crash)
                    continue
                if isinstance(result, StorageError):
                    raise result
                yield Outcome(task, result)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()
