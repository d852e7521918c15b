"""Fine-tuning runs: carried out in this process, or in one process for each GPU, and never repeated.

    results/runs/<encoder>/<key>.json     what a run was and its accuracy
    results/runs/<encoder>/<key>/         the checkpoint of one that was interrupted

The key is a checksum of what the accuracy depends on (see Model.checksum and Task.checksum), so that other weights,
tasks or settings never meet a run that is not theirs.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch

from vivi.evaluate.encoders import Model, load_model
from vivi.evaluate.features import Pictures
from vivi.evaluate.finetune import Tuner, Tuning
from vivi.evaluate.settings import FinetuneExecution, Subject, Sweep
from vivi.evaluate.tasks.examples import Task
from vivi.evaluate.tasks.find import find_tasks
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.machine import available_cores
from vivi.runtime.process_pool import Died, Done, ProcessPool, Progress
from vivi.runtime.signals import StopRequest
from vivi.runtime.storage import StorageError, read_file, write_atomically

# Compiling takes a minute or two in each process: worth it from so many steps on.
WORTH_COMPILING = 5000


@dataclass(frozen=True)
class Job:
    """A run to be done: fine-tune on a task's sweep images and judge by validation, or on the final ones and test."""

    task: str
    phase: Literal["sweep", "final"]
    tuning: Tuning


@dataclass(frozen=True)
class Run:
    """A run that was done."""

    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Work:
    """What all runs of one encoder have in common: enough for a process to find it and the images by itself."""

    subject: Subject
    sweep: Sweep
    machine: FinetuneExecution
    encoder: str  # its checksum
    size: int
    data: dict[str, str]  # the checksum of each task's data

    @property
    def folder(self) -> Path:
        return self.subject.out / "runs" / self.encoder[:16]

    def about(self, job: Job) -> dict[str, Any]:
        """All that the accuracy of a run depends on."""
        common = {"encoder": self.encoder, "size": self.size, "antialias": self.sweep.antialias}
        return {**common, "data": self.data[job.task], "phase": job.phase, **asdict(job.tuning)}

    def checkpoints(self, job: Job) -> Path:
        return self.folder / hashlib.sha256(json.dumps(self.about(job), sort_keys=True).encode()).hexdigest()[:32]

    def find(self, job: Job) -> Run | None:
        try:
            content = json.loads(read_file(self.checkpoints(job).with_suffix(".json")))
            return Run(float(content["accuracy"]), float(content["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # there is none, or it was damaged: the job is done again

    def write(self, job: Job, run: Run) -> None:
        content = {"task": job.task, **self.about(job), **asdict(run)}
        path = self.checkpoints(job).with_suffix(".json")
        write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")


Report = Callable[[Job, int], None]
"""Called with a job and how many of its steps are done."""


def devices(machine: FinetuneExecution) -> list[torch.device]:
    """The device of each process."""
    first = choose_device(machine.device)
    if machine.device in ("auto", "cuda") and first.type == "cuda":
        gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        count = machine.processes or len(gpus)
        return [gpus[index % len(gpus)] for index in range(count)]
    return [first] * (machine.processes or 1)


class Worker:
    """Carries out jobs on one device, one after the other. The images of a task stay there between its jobs."""

    def __init__(self, work: Work, model: Model, tasks: Sequence[Task], device: torch.device, compile: bool) -> None:
        self.work, self.tasks = work, {task.name: task for task in tasks}
        self.tuner = Tuner(model, device, work.machine.precision, compile)
        self.at_hand: dict[tuple[str, str], Pictures] = {}

    def carry_out(self, job: Job, asked_to_stop: Callable[[int], bool]) -> Run:
        """Writes down the finished run."""
        began = time.monotonic()
        train, test = ("sweep", "validation") if job.phase == "sweep" else ("final", "test")
        accuracy = self.tuner.accuracy(
            self._pictures(job.task, train),
            self._pictures(job.task, test),
            self.tasks[job.task].classes,
            job.tuning,
            self.work.checkpoints(job),
            self.work.machine.checkpoint_seconds,
            asked_to_stop,
        )
        run = Run(accuracy, time.monotonic() - began)
        self.work.write(job, run)
        return run

    def _pictures(self, task: str, part: str) -> Pictures:
        self.at_hand = {key: pictures for key, pictures in self.at_hand.items() if key[0] == task}
        if (task, part) not in self.at_hand:
            examples, antialias = self.tasks[task].parts()[part], self.work.sweep.antialias
            threads, device = self.work.machine.threads, self.tuner.device
            self.at_hand[task, part] = Pictures(examples, self.work.size, antialias, device, threads)
        return self.at_hand[task, part]


class Workers:
    """Carries out jobs one after the other in this process; or, where there are several places, in a process for each
    of them, which stay from one call to the next."""

    def __init__(
        self, work: Work, model: Model, tasks: Sequence[Task], places: Sequence[torch.device], stop: StopRequest
    ) -> None:
        self.work, self.model, self.tasks, self.places, self.stop = work, model, tasks, places, stop
        self.worker: Worker | None = None
        self.pool: ProcessPool[Job] | None = None

    def carry_out(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[Job, Run | UserError]]:
        """Yields each job with its run, or with the reason why its task cannot be used, as they come."""
        return self._here(jobs, report) if len(self.places) == 1 else self._in_processes(jobs, report)

    def _here(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[Job, Run | UserError]]:
        place = self.places[0]
        if self.worker is None:
            self.worker = Worker(self.work, self.model, self.tasks, place, self._worth_compiling(place, jobs))
        for job in jobs:

            def asked_to_stop(step: int, job: Job = job) -> bool:
                report(job, step)
                return self.stop.requested

            try:
                yield job, self.worker.carry_out(job, asked_to_stop)
            except UserError as error:
                yield job, error
            self._check_stop()

    def _in_processes(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[Job, Run | UserError]]:
        if self.pool is None:
            threads = max(1, available_cores() // len(self.places))
            share = jobs[:: len(self.places)]  # about what each process does
            arguments = [(self.work, str(p), threads, self._worth_compiling(p, share)) for p in self.places]
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

    def _worth_compiling(self, place: torch.device, jobs: Sequence[Job]) -> bool:
        steps, compile = sum(job.tuning.setting.steps for job in jobs), self.work.machine.compile
        return compile == "on" or (compile == "auto" and place.type == "cuda" and steps >= WORTH_COMPILING)

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

    def asked_to_stop(step: int) -> bool:
        try:
            connection.send(Progress(step))
        except OSError:
            return True
        return stop.requested

    worker: Worker | None = None
    with StopRequest() as stop:
        try:
            while True:
                job = connection.recv()
                try:
                    if worker is None:
                        subject = work.subject
                        model = load_model(subject.encoder, subject.weights, subject.size, subject.name)
                        wanted, seed = tuple(work.data), subject.split_seed
                        tasks = find_tasks(subject.data, work.sweep.protocol, wanted, {}, seed).tasks
                        worker = Worker(work, model, tasks, device, compile)
                    connection.send(Done(worker.carry_out(job, asked_to_stop)))
                except (UserError, StorageError) as error:
                    connection.send(Done(error))
        except (EOFError, OSError, KeyboardInterrupt):
            return
