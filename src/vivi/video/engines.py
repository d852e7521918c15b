"""Where the videos are prepared: a pool of local processes, or a Ray cluster. Both run `prepare_video`.

An engine takes tasks and yields outcomes as they come. A worker that dies (a decoder that crashes on a damaged
file, or is stopped by its alarm because it hangs) costs its own video at most, after a second try.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from vivi.errors import UserError
from vivi.machine import children_ignore_ctrl_c
from vivi.storage import StorageError
from vivi.video.identity import identify
from vivi.video.limits import STALL_SECONDS, memory_ceiling
from vivi.video.piece import (
    PreparedVideo,
    VideoTask,
    finish_piece,
    finished_piece,
    prepare_video,
    skipped_row,
)

TRIES = 2


@dataclass(frozen=True)
class Outcome:
    """How a task ended: with a prepared video, or with the reason why its worker died."""

    task: VideoTask
    prepared: PreparedVideo | None
    reason: str = ""


Report = Callable[[VideoTask, float, float], None]
"""Called with a task, the share of its file that is done, and the seconds of footage."""


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection[Any, Any]
    task: VideoTask
    tries: int = 1


def run_locally(tasks: Iterable[VideoTask], workers: int, report: Report) -> Iterator[Outcome]:
    """Runs the tasks on a pool of processes, one task per process at a time."""
    waiting = iter(tasks)
    pool = [_start(task) for task in itertools.islice(waiting, workers)]
    try:
        while pool:
            ready = wait([worker.connection for worker in pool])
            for worker in [worker for worker in pool if worker.connection in ready]:
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    pool.remove(worker)
                    worker.process.join()
                    message = finished_piece(worker.task) or _death(worker)
                    if isinstance(message, str) and worker.tries < TRIES:
                        pool.append(_start(worker.task, worker.tries + 1))
                        continue
                if isinstance(message, tuple):
                    report(worker.task, *message)
                    continue
                if isinstance(message, StorageError):
                    raise message
                lost = isinstance(message, str)
                yield Outcome(worker.task, None, message) if lost else Outcome(worker.task, message)
                following = next(waiting, None)
                if worker not in pool:  # it died
                    pool += [_start(following)] if following is not None else []
                elif following is not None:
                    worker.task, worker.tries = following, 1
                    worker.connection.send(following)
                else:
                    pool.remove(worker)
                    _stop(worker)
    finally:
        for worker in pool:
            _stop(worker)


def _start(task: VideoTask, tries: int = 1) -> _Worker:
    context = multiprocessing.get_context("spawn")  # forked decoders and locks do not mix
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    with children_ignore_ctrl_c():
        process.start()
    theirs.close()
    ours.send(task)
    return _Worker(process, ours, task, tries)


def _stop(worker: _Worker) -> None:
    worker.connection.close()
    worker.process.kill()
    worker.process.join()


def _death(worker: _Worker) -> str:
    code = worker.process.exitcode or 0
    if code == -signal.SIGALRM:
        return f"decoding made no progress for {STALL_SECONDS} s"
    return f"the decoder crashed ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _work(connection: Connection[Any, Any]) -> None:
    """A worker process: tasks in; progress and outcomes out; ends when the other side is gone."""

    def report(share: float, seconds: float) -> None:
        _send(connection, (share, seconds))

    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        _send(connection, _attempt(task, report))


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
