"""Where fine-tuning runs are carried out: in this process, or in one process for each GPU.

Each worker takes a job, writes down the finished run, and takes the next. Between two jobs of a task its images stay
on the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from vivi.evaluate.encoders import Model
from vivi.evaluate.finetune import Tuner
from vivi.evaluate.pictures import Pictures
from vivi.evaluate.runs import Job, Run, Runs
from vivi.evaluate.settings import FinetuneExecution, Subject, Sweep
from vivi.evaluate.subject import load
from vivi.evaluate.tasks.examples import Task
from vivi.evaluate.tasks.find import find_tasks
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.machine import available_cores
from vivi.runtime.process_pool import Died, Done, ProcessPool, Progress
from vivi.runtime.signals import StopRequest
from vivi.runtime.storage import StorageError

# Compiling takes a minute or two in each process: worth it from so many steps on.
WORTH_COMPILING = 5000
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Work:
    """What a process needs to know to find the encoder and the images by itself."""

    subject: Subject
    sweep: Sweep
    machine: FinetuneExecution
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


def devices(machine: FinetuneExecution) -> list[torch.device]:
    """One for each process."""
    first = choose_device(machine.device)
    if machine.device in ("auto", "cuda") and first.type == "cuda":
        there = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        count = machine.processes or len(there)
        return [there[index % len(there)] for index in range(count)]
    return [first] * (machine.processes or 1)


def worth_compiling(machine: FinetuneExecution, device: torch.device, jobs: Sequence[Job]) -> bool:
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


class Processes:
    """Carries out jobs in several processes at once, which stay from one call to the next."""

    def __init__(self, work: Work, places: Sequence[torch.device], stop: StopRequest) -> None:
        self.work, self.places, self.stop = work, places, stop
        self.pool: ProcessPool[Job] | None = None

    def carry_out(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[Job, Outcome]]:
        """Yields each job with its run, or with the reason why its task cannot be read, as they come."""
        if self.pool is None:
            threads, each = max(1, available_cores() // len(self.places)), jobs[:: len(self.places)]
            arguments = [
                (self.work, str(place), threads, worth_compiling(self.work.machine, place, each))
                for place in self.places
            ]
            self.pool = ProcessPool(_serve, arguments, seconds_to_end=60)  # for a checkpoint
        for job, message in self.pool.run(deque(jobs), self._check_stop):
            if isinstance(message, Progress):
                report(job, message.value)
            elif isinstance(message, Died):
                raise UserError(
                    f"the process that fine-tunes on {job.task} ended with exit code {message.exit_code}, "
                    "perhaps for lack of memory: the same command goes on; try fewer --processes"
                )
            elif isinstance(message.value, StorageError):
                raise message.value
            else:
                yield job, message.value

    def _check_stop(self) -> None:
        if self.stop.requested:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Ends the processes; those in the middle of a run keep a checkpoint."""
        if self.pool is not None:
            self.pool.close()


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
                connection.send(Progress(step))
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
                    connection.send(Done(worker.carry_out(job, asked_to_stop)))
                except (UserError, StorageError) as error:
                    connection.send(Done(error))
        except (EOFError, OSError, KeyboardInterrupt):
            return
