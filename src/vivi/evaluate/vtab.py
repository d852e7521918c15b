"""VTAB: try the settings on every task, choose by validation accuracy, train the chosen one again, and test it.

tasks ──sweep──▶ a validation accuracy for each task and setting ──choose──▶ ──final, each seed──▶ results/*.json
"""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Sequence
from contextlib import closing

from rich.console import Console

from vivi.evaluate.finetune import Tuning
from vivi.evaluate.metadata import counted
from vivi.evaluate.results import Result, Score, Setting, Trial
from vivi.evaluate.settings import FinetuneExecution, Subject, Sweep
from vivi.evaluate.subject import Session, open_session
from vivi.evaluate.tasks.examples import Examples, Task
from vivi.evaluate.workers import Job, Run, Work, Workers, devices
from vivi.runtime.progress import ProgressLine, duration
from vivi.runtime.signals import StopRequest
from vivi.runtime.storage import locked

# An image that is only classified costs about a third of one that is trained on.
EVALUATION_COST = 1 / 3
# Steps of a run that are not timed, as torch compiles and warms up, and those that are.
WARM_UP, TIMED = 20, 50


def evaluate_vtab(subject: Subject, sweep: Sweep, machine: FinetuneExecution, console: Console) -> list[Result]:
    """Evaluates an encoder on the tasks in a folder; runs of earlier calls are used, and none is lost."""
    sweep.check()
    machine.check()
    places = devices(machine)
    with open_session(subject, sweep.protocol, console) as session:
        model, tasks = session.model, session.usable()
        work = Work(subject, sweep, machine, model.checksum, model.size, session.checksums)
        settings = " / ".join(f"lr {s.lr:g} × {s.steps:,} steps" for s in sweep.settings(model.learning_rates))
        # Other encoders may be evaluated into the same folder at the same time.
        with (
            locked(work.folder, "vivi evaluate"),
            StopRequest() as stop,
            closing(Workers(work, model, tasks, places, stop)) as workers,
        ):
            console.print(
                f"{model.name} at {model.size} px: {counted(len(tasks), 'task')}, {settings} "
                f"of {sweep.images_a_step} images, then {sweep.seeds} seeds, on {len(places)} × {places[0]}",
                soft_wrap=True,
            )
            Evaluation(session, work, workers).run()
    return session.results


class Evaluation:
    """One encoder on some tasks: what is known so far."""

    def __init__(self, session: Session, work: Work, workers: Workers) -> None:
        self.session, self.work, self.workers, self.sweep = session, work, workers, work.sweep
        self.settings = self.sweep.settings(session.model.learning_rates)
        self.done: dict[Job, Run] = {}
        self.chosen: dict[str, list[tuple[Setting, str]]] = {}  # of each task the settings to be tested, and why
        self.timed: dict[Job, tuple[int, float]] = {}  # from which step, and when
        self.estimated = False

    def run(self) -> None:
        if len(self.settings) > 1:
            self._do("sweep", [job for task in self.session.usable() for job in self.sweep_jobs(task)])
        tasks = self.session.usable()
        self.chosen = {task.name: self.choose(task, tasks) for task in tasks}
        # Where both ways choose the same setting, its runs count for both.
        self._do("test", list(dict.fromkeys(job for task in tasks for job in self.final_jobs(task))))

    def _do(self, what: str, jobs: Sequence[Job]) -> None:
        """Carries out the jobs that were not before."""
        done_before = {job: run for job in jobs if (run := self.work.find(job))}
        self.done |= done_before
        self._write_finished()
        missing = [job for job in jobs if job not in done_before]
        console = self.session.console
        if done_before:
            console.print(f"{what}: {len(done_before)} of {len(jobs)} runs were done before")
        if not missing:
            return
        steps = dict.fromkeys(missing, 0)
        with ProgressLine(what, sum(job.tuning.setting.steps for job in missing), console) as progress:

            def report(job: Job, step: int) -> None:
                steps[job] = step
                self._estimate(job, step)
                progress.show(sum(steps.values()), f"{what} · {_words(job)} · step {step:,}")

            for job, outcome in self.workers.carry_out(missing, report):
                steps[job] = job.tuning.setting.steps
                if isinstance(outcome, Run):
                    self.done[job] = outcome
                    progress.show(sum(steps.values()), f"{what} · {_words(job)} · {100 * outcome.accuracy:.1f} %")
                    self._write_finished()
                else:
                    self.session.fail(job.task, outcome)

    def _estimate(self, job: Job, step: int) -> None:
        """Says once, from the first steps of a run, how long all of it will take."""
        if self.estimated or step < WARM_UP:
            return
        first, began = self.timed.setdefault(job, (step, time.monotonic()))
        if step - first < TIMED:
            return
        self.estimated = True
        tasks = {task.name: task for task in self.session.tasks}
        images = (step - first) * min(job.tuning.batch, len(tasks[job.task].parts()[job.phase]))
        rate = images / (time.monotonic() - began)
        learning_rates = self.session.model.learning_rates
        one = duration(sweep_seconds(self.session.tasks, self.sweep, learning_rates, rate, devices=1))
        eight = duration(sweep_seconds(self.session.tasks, self.sweep, learning_rates, rate, devices=8))
        line = f"{rate:,.0f} images/s: about {one} for all of it on one such device, {eight} on eight"
        self.session.console.print(line, soft_wrap=True)

    def sweep_jobs(self, task: Task) -> list[Job]:
        return [Job(task.name, "sweep", self._tuning(setting, 0)) for setting in self.settings]

    def final_jobs(self, task: Task) -> list[Job]:
        grid = [(setting, seed) for setting, _ in self.chosen[task.name] for seed in range(self.sweep.seeds)]
        return [Job(task.name, "final", self._tuning(setting, seed)) for setting, seed in grid]

    def _tuning(self, setting: Setting, seed: int) -> Tuning:
        return Tuning(setting, seed, self.sweep.images_a_step, self.sweep.micro_batch)

    def trials(self, task: Task) -> list[Trial]:
        jobs = self.sweep_jobs(task) if len(self.settings) > 1 else []
        return [Trial(job.tuning.setting, self.done[job].accuracy) for job in jobs]

    def choose(self, task: Task, tasks: Sequence[Task]) -> list[tuple[Setting, str]]:
        """The settings to be tested on a task, and why: first the one whose accuracy is the task's result."""
        if len(self.settings) == 1:
            return [(self.settings[0], "the only setting")]
        chosen = []
        if self.sweep.choose in ("mean", "both"):
            setting, mean = best_by_mean([self.trials(other) for other in tasks])
            chosen.append((setting, f"the best mean validation accuracy over {len(tasks)} tasks, {mean:.4f}"))
        if self.sweep.choose in ("task", "both"):
            best = best_trial(self.trials(task))
            chosen.append((best.setting, f"the best validation accuracy on this task, {best.accuracy:.4f}"))
        return chosen

    def _write_finished(self) -> None:
        """Writes the results whose runs are all there."""
        written = {result.task for result in self.session.results}
        for task in self.session.usable():
            if task.name in self.chosen.keys() - written and self.done.keys() >= {*self.final_jobs(task)}:
                self._write(task)

    def _write(self, task: Task) -> None:
        jobs, each = self.final_jobs(task), self.sweep.seeds
        scores = [
            Score(tuple(self.done[job].accuracy for job in jobs[k * each : (k + 1) * each]), setting, why)
            for k, (setting, why) in enumerate(self.chosen[task.name])
        ]
        self.session.write(
            task,
            benchmark="vtab",
            score=scores[0],
            score_per_task=scores[1] if len(scores) > 1 else None,
            sweep=tuple(self.trials(task)),
            quick=self.sweep.is_quick,
            settings={
                "learning_rates": sorted({setting.lr for setting in self.settings}, reverse=True),
                "schedules": sorted({setting.steps for setting in self.settings}),
                "batch": min(self.sweep.images_a_step, len(task.final)),
                "micro_batch": self.sweep.micro_batch,
                "size": self.session.model.size,
                "antialias": self.sweep.antialias,
            },
            seconds=round(sum(run.seconds for job, run in self.done.items() if job.task == task.name), 1),
        )


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The one with the highest accuracy; of equal ones the first."""
    return max(trials, key=lambda trial: trial.accuracy)


def best_by_mean(trials: Sequence[Sequence[Trial]]) -> tuple[Setting, float]:
    """The setting with the highest mean accuracy over tasks, each of which has the same settings in one order."""
    columns = zip(*trials, strict=True)
    means = [(statistics.fmean(trial.accuracy for trial in column), column[0].setting) for column in columns]
    mean, setting = max(means, key=lambda pair: pair[0])
    return setting, mean


def sweep_seconds(
    tasks: Sequence[Task], sweep: Sweep, rates: tuple[float, ...], images_per_second: float, devices: int
) -> float:
    """Of the whole evaluation, if the longest schedule is chosen: both phases, their runs spread over the devices."""
    settings = sweep.settings(rates)
    longest = max(setting.steps for setting in settings)

    def seconds(steps: int, train: Examples, test: Examples) -> float:
        images = steps * min(sweep.images_a_step, len(train)) + EVALUATION_COST * len(test)
        return images / images_per_second

    first = [seconds(s.steps, task.sweep, task.validation) for task in tasks for s in settings]
    second = [seconds(longest, task.final, task.test) for task in tasks for _ in range(sweep.seeds)]
    total = 0.0
    for phase in (first if len(settings) > 1 else [], second):
        free = [0.0] * devices  # when each device is free
        for job in phase:
            heapq.heapreplace(free, free[0] + job)
        total += max(free)
    return total


def _words(job: Job) -> str:
    setting = job.tuning.setting
    seed = f" · seed {job.tuning.seed}" if job.phase == "final" else ""
    return f"{job.task} · lr {setting.lr:g} · {setting.steps:,} steps{seed}"
