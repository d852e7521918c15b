"""The pool of processes: every task gets its result, however processes die, and all of them end with the pool."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from vivi.runtime.process_pool import Died, Done, ProcessPool, Progress


def serve(connection: Connection[Any, Any], offset: int = 0) -> None:
    """Doubles numbers, with progress; ends itself at negative ones, and hangs at 1000."""
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        if task < 0:
            os.kill(os.getpid(), -task)
        connection.send(Progress(task))
        if task == 1000:
            time.sleep(600)
        connection.send(Done((2 * task + offset, os.getpid())))


def serve_until_terminated(connection: Connection[Any, Any], path: Path) -> None:
    """Writes a file when it is asked to end in the middle of a task."""
    signal.signal(signal.SIGTERM, lambda *_: (path.write_text("saved"), os._exit(0)))
    connection.send(Progress(connection.recv()))
    time.sleep(600)


def run(pool: ProcessPool[int], tasks: list[int]) -> dict[int, object]:
    return {task: message for task, message in pool.run(deque(tasks)) if not isinstance(message, Progress)}


def test_every_task_gets_its_result_and_processes_stay_for_the_next_tasks() -> None:
    with ProcessPool[int](serve, [(1,)] * 2) as pool:
        first = run(pool, list(range(20)))
        assert {task: message.value[0] for task, message in first.items() if isinstance(message, Done)} == {
            task: 2 * task + 1 for task in range(20)
        }
        second = run(pool, [7, 8])
        processes = {message.value[1] for message in first.values() if isinstance(message, Done)}
        assert len(processes) == 2
        assert {message.value[1] for message in second.values() if isinstance(message, Done)} <= processes
    assert multiprocessing.active_children() == []


def test_progress_comes_before_the_result() -> None:
    with ProcessPool[int](serve, [()]) as pool:
        messages = [message for _, message in pool.run(deque([3]))]
    assert messages[0] == Progress(3) and isinstance(messages[1], Done) and len(messages) == 2


def test_a_process_that_dies_costs_its_own_task_and_is_replaced() -> None:
    with ProcessPool[int](serve, [()] * 2) as pool:
        results = run(pool, [1, -signal.SIGKILL, 2, -signal.SIGSEGV, 3])
    assert results[-signal.SIGKILL] == Died(-signal.SIGKILL) and results[-signal.SIGSEGV] == Died(-signal.SIGSEGV)
    assert all(isinstance(results[task], Done) for task in (1, 2, 3))


def test_a_process_that_died_without_a_task_is_noticed_with_the_next() -> None:
    with ProcessPool[int](serve, [()]) as pool:
        run(pool, [1])
        (process,) = multiprocessing.active_children()
        process.kill()
        process.join()
        assert run(pool, [2]) == {2: Died(-signal.SIGKILL)}
        assert isinstance(run(pool, [2])[2], Done)


def test_tasks_may_be_added_while_others_run() -> None:
    tasks = deque([-signal.SIGKILL, 1])
    results = []
    with ProcessPool[int](serve, [()]) as pool:
        for task, message in pool.run(tasks):
            if isinstance(message, Died):
                tasks.appendleft(5)  # the same work, done better
            elif isinstance(message, Done):
                results.append((task, message.value[0]))
    assert results == [(5, 10), (1, 2)]


def test_no_more_processes_are_started_than_there_are_tasks() -> None:
    with ProcessPool[int](serve, [()] * 8) as pool:
        run(pool, [1])
        assert len(multiprocessing.active_children()) == 1


def test_a_check_that_raises_ends_the_run_and_the_processes() -> None:
    calls = []

    def check() -> None:
        calls.append(time.monotonic())
        if len(calls) > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ProcessPool[int](serve, [()]) as pool:
        for _ in pool.run(deque([1000]), check):
            pass
    assert multiprocessing.active_children() == []


def test_processes_may_be_given_time_to_save_what_they_do(tmp_path: Path) -> None:
    with ProcessPool[int](serve_until_terminated, [(tmp_path / "file",)], seconds_to_end=30) as pool:
        assert next(pool.run(deque([1]))) == (1, Progress(1))
    assert (tmp_path / "file").read_text() == "saved"
