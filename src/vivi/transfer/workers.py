"""Where fine-tuning runs are carried out: in this process, or in one process for each GPU.

Each worker takes a job, writes down the finished run, and takes the next. Between two jobs of a task its images stay
on the device.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from vivi.errors import UserError
from vivi.machine import available_cores, children_ignore_ctrl_c
from vivi.storage import StorageError
from vivi.training.distributed import choose_device
from vivi.training.stop import StopRequest
from vivi.transfer.examples import Task
from vivi.transfer.find import find_tasks
from vivi.transfer.finetune import Tuner
from vivi.transfer.models import Model
from vivi.transfer.pictures import Pictures
from vivi.transfer.runs import Job, Run, Runs
from vivi.transfer.settings import Machine, Subject, Sweep
from vivi.transfer.subject import load

# Compiling takes a minute or two in each process: worth it from so many steps on.
WORTH_COMPILING = 5000
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Work:
    """What a process needs to know to find the encoder and the images by itself."""

    subject: Subject
    sweep: Sweep
    machine: Machine
    runs: Runs

    def load(self) -> tuple[Model, list[Task]]:
        found = find_tasks(self.subject.data, self.sweep.protocol, tuple(self.runs.data), {})
        return load(self.subject), found.tasks


Outcome = Run | UserError
Report = Callable[[Job, int], None]
"""Called with a job and how many of its steps are done."""


class Worker:
    """Carries out jobs on one device, one after the other."""

    def __init__(self, work: Work, model: Model, tasks: Sequence[Task], device: torch.device, compile: bool) -> None:
        self.work, self.tasks = work, {task.name: task for task in tasks}
        self.tuner = Tuner(model, device, work.machine.precision, compile)
        self.at_hand: tuple[str, dict[str, Pictures]] = ("", {})

    def carry_out(self, job: Job, asked_to_stop: Callable[[int], bool]) -> Run:
        began, machine = time.monotonic(), self.work.machine
        train, test = ("sweep", "validation") if job.phase == "sweep" else ("final", "test")
        accuracy = self.tuner.accuracy(
            self._pictures(job.task, train),
            self._pictures(job.task, test),
            self.tasks[job.task].classes,
            job.tuning,
            self.work.runs.checkpoints(job),
            machine.checkpoint_seconds,
            asked_to_stop,
        )
        run = Run(accuracy, time.monotonic() - began)
        self.work.runs.write(job, run)
        return run

    def _pictures(self, task: str, part: str) -> Pictures:
        if self.at_hand[0] != task:
            self.at_hand = (task, {})
        kept = self.at_hand[1]
        if part not in kept:
            examples = self.tasks[task].parts()[part]
            size, threads = self.tuner.model.size, self.work.machine.threads
            kept[part] = Pictures(examples, size, self.work.sweep.antialias, self.tuner.device, threads)
        return kept[part]


def devices(machine: Machine) -> list[torch.device]:
    """One for each process."""
    first = choose_device(machine.device)
    if machine.device in ("auto", "cuda") and first.type == "cuda":
        there = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        count = machine.processes or len(there)
        return [there[index % len(there)] for index in range(count)]
    return [first] * (machine.processes or 1)


def worth_compiling(machine: Machine, device: torch.device, jobs: Sequence[Job]) -> bool:
    steps = sum(job.tuning.setting.steps for job in jobs)
    return machine.compile == "on" or (
        machine.compile == "auto" and device.type == "cuda" and steps >= WORTH_COMPILING
    )


class Here:
    """Carries out jobs one after the other in this process."""

    def __init__(
        self, work: Work, model: Model, tasks: Sequence[Task], place: torch.device, stop: StopRequest
    ) -> None:
        self.work, self.model, self.tasks, self.place, self.stop = work, model, tasks, place, stop
        self.worker: Worker | None = None

    def carry_out(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[Job, Outcome]]:
        """Yields each job with its run, or with the reason why its task cannot be read."""
        if self.worker is None:
            compile = worth_compiling(self.work.machine, self.place, jobs)
            self.worker = Worker(self.work, self.model, self.tasks, self.place, compile)
        for job in jobs:

            def asked_to_stop(step: int, job: Job = job) -> bool:
                report(job, step)
                return self.stop.requested

            try:
                yield job, self.worker.carry_out(job, asked_to_stop)
            except UserError as error:
                yield job, error
            if self.stop.requested:
                raise KeyboardInterrupt

    def close(self) -> None:
        """There is nothing to end."""


@dataclass
class _Process:
    process: SpawnProcess
    connection: Connection[Any, Any]
    job: Job | None = None


class Processes:
    """Carries out jobs in several processes at once, which stay from one call to the next."""

    def __init__(self, work: Work, places: Sequence[torch.device], stop: StopRequest) -> None:
        self.work, self.places, self.stop = work, places, stop
        self.pool: list[_Process] = []

    def carry_out(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[Job, Outcome]]:
        """Yields each job with its run, or with the reason why its task cannot be read, as they come."""
        waiting = deque(jobs)
        for place in self.places[len(self.pool) : len(jobs)]:
            compile = worth_compiling(self.work.machine, place, jobs[:: len(self.places)])
            self.pool.append(_start(self.work, place, max(1, available_cores() // len(self.places)), compile))
        for worker in self.pool:
            _give(worker, waiting)
        while busy := {worker.connection: worker for worker in self.pool if worker.job}:
            if self.stop.requested:
                raise KeyboardInterrupt
            for connection in wait(list(busy), timeout=1.0):
                worker = busy[connection]  # type: ignore[index]
                job, message = worker.job, _receive(worker)
                assert job is not None
                if isinstance(message, int):
                    report(job, message)
                    continue
                if isinstance(message, StorageError):
                    raise message
                yield job, message
                _give(worker, waiting)

    def close(self) -> None:
        """Ends the processes; those in the middle of a run keep a checkpoint."""
        for worker in self.pool:
            worker.connection.close()  # ends a process that waits for a job
            if worker.job:
                worker.process.terminate()
        for worker in self.pool:
            worker.process.join(timeout=60)
            worker.process.kill()
        self.pool = []


def _start(work: Work, place: torch.device, threads: int, compile: bool) -> _Process:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work, str(place), threads, compile), daemon=True)
    with children_ignore_ctrl_c():
        process.start()
    theirs.close()
    return _Process(process, ours)


def _give(worker: _Process, waiting: deque[Job]) -> None:
    """Gives a process the next job, if there is one."""
    worker.job = waiting.popleft() if waiting else None
    if worker.job:
        try:
            worker.connection.send(worker.job)
        except OSError:
            raise _ended(worker) from None


def _receive(worker: _Process) -> Any:
    try:
        return worker.connection.recv()
    except (EOFError, OSError):
        raise _ended(worker) from None


def _ended(worker: _Process) -> UserError:
    """The error for a process that is no more."""
    worker.process.join()
    assert worker.job is not None
    return UserError(
        f"the process that fine-tunes on {worker.job.task} ended with exit code {worker.process.exitcode}, "
        "perhaps for lack of memory: the same command goes on; try fewer --processes"
    )


def _serve(connection: Connection[Any, Any], work: Work, place: str, threads: int, compile: bool) -> None:
    """A worker process: jobs in; steps done, runs and reasons out; ends, with a checkpoint, when the other side is
    gone or a signal comes."""
    device = torch.device(place)
    if device.type == "cpu":
        torch.set_num_threads(threads)
    else:
        torch.cuda.set_device(device)
    gone = False
    said = 0.0

    def asked_to_stop(step: int) -> bool:
        nonlocal gone, said
        if time.monotonic() - said > REPORT_SECONDS:
            said = time.monotonic()
            try:
                connection.send(step)
            except OSError:
                gone = True
        return gone or stop.requested

    with StopRequest() as stop:
        worker: Worker | None = None
        try:
            while True:
                job = connection.recv()
                try:
                    worker = worker or Worker(work, *work.load(), device, compile)
                    connection.send(worker.carry_out(job, asked_to_stop))
                except (UserError, StorageError) as error:
                    connection.send(error)
        except (EOFError, OSError, KeyboardInterrupt):
            return
