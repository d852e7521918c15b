"""A pool of processes that take tasks one after the other; one that dies is noticed, and replaced if it is needed.

In each process `serve(connection, *arguments)` runs: it receives tasks from the connection and sends Progress and, at
the end of each task, Done. It ends when the other side is gone (EOFError).
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, Self, TypeVar

from vivi.runtime.machine import children_ignore_ctrl_c

Task = TypeVar("Task")


@dataclass(frozen=True)
class Progress:
    """How far a process is with its task."""

    value: Any


@dataclass(frozen=True)
class Done:
    """What came of a task."""

    value: Any


@dataclass(frozen=True)
class Died:
    """The process of a task ended without a result; the exit code is negative for a signal."""

    exit_code: int


@dataclass
class _Worker(Generic[Task]):
    process: SpawnProcess
    connection: Connection[Any, Any]
    task: Task | None = None


class ProcessPool(Generic[Task]):
    """One process for each tuple of arguments, started when there is a task for it. Use it as a context manager."""

    def __init__(
        self, serve: Callable[..., None], arguments: Sequence[tuple[Any, ...]], seconds_to_end: float = 0.0
    ) -> None:
        """At the end processes get SIGTERM and this many seconds, then they are killed."""
        self.serve, self.arguments, self.seconds_to_end = serve, arguments, seconds_to_end
        self._workers: dict[int, _Worker[Task]] = {}

    def run(
        self, tasks: deque[Task], check: Callable[[], None] | None = None
    ) -> Iterator[tuple[Task, Progress | Done | Died]]:
        """Every message with the task it is of, as they come, until all tasks are done.

        More tasks may be added meanwhile. `check` is called every second, and may raise.
        """
        while True:
            for number in range(len(self.arguments)):
                worker = self._workers.get(number)
                if tasks and (worker is None or worker.task is None):
                    worker = worker or self._start(number)
                    worker.task = tasks.popleft()
                    with suppress(OSError):  # it died before it had a task: what is received says so
                        worker.connection.send(worker.task)
            busy = {worker.connection: number for number, worker in self._workers.items() if worker.task is not None}
            if not busy and not tasks:
                return
            if check is not None:
                check()
            for connection in wait(list(busy), timeout=1.0 if check is not None else None):
                yield self._receive(busy[connection])  # type: ignore[index]

    def _start(self, number: int) -> _Worker[Task]:
        context = multiprocessing.get_context("spawn")  # forked decoders and locks do not mix
        ours, theirs = context.Pipe()
        process = context.Process(target=self.serve, args=(theirs, *self.arguments[number]), daemon=True)
        with children_ignore_ctrl_c():
            process.start()
        theirs.close()
        worker = self._workers[number] = _Worker(process, ours)
        return worker

    def _receive(self, number: int) -> tuple[Task, Progress | Done | Died]:
        worker = self._workers[number]
        task = worker.task
        assert task is not None
        try:
            message: Progress | Done = worker.connection.recv()
        except (EOFError, OSError):
            del self._workers[number]
            worker.connection.close()
            worker.process.join()
            return task, Died(worker.process.exitcode or 0)
        if isinstance(message, Done):
            worker.task = None
        return task, message

    def close(self) -> None:
        """Ends the processes."""
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.connection.close()  # ends a process that waits for a task
            if worker.task is not None and self.seconds_to_end:
                worker.process.terminate()
        for worker in workers:
            if self.seconds_to_end:
                worker.process.join(timeout=self.seconds_to_end)
            worker.process.kill()
            worker.process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
