"""VTAB: try the settings on every task, choose by validation accuracy, train the chosen one again, and test it.

tasks ──sweep──▶ a validation accuracy for each task and setting ──choose──▶ ──final, each seed──▶ results/*.json
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import torch
from rich.console import Console

from vivi.evaluate.estimate import Speed
from vivi.evaluate.finetune import Tuning
from vivi.evaluate.results import Result, Score, Setting, Trial, write_result
from vivi.evaluate.runs import Job, Run, Runs
from vivi.evaluate.settings import FinetuneExecution, Subject, Sweep
from vivi.evaluate.subject import Session, open_session
from vivi.evaluate.tasks.examples import Task
from vivi.evaluate.workers import Here, Outcome, Processes, Report, Work, devices
from vivi.runtime.progress import ProgressLine
from vivi.runtime.signals import StopRequest
from vivi.runtime.storage import locked


def evaluate_vtab(subject: Subject, sweep: Sweep, machine: FinetuneExecution, console: Console) -> list[Result]:
    """Evaluates an encoder on the tasks in a folder; runs of earlier calls are used, and none is lost."""
    sweep.check()
    machine.check()
    places = devices(machine)
    with open_session(subject, sweep.protocol, console) as session:
        model = session.model
        folder = subject.out / "runs" / model.checksum[:16]
        runs = Runs(folder, model.checksum, model.size, sweep.antialias, session.checksums)
        evaluation = Evaluation(session, sweep, subject.out, runs)
        work = Work(subject, sweep, machine, runs)
        # Other encoders may be evaluated into the same folder at the same time.
        with locked(folder, "vivi evaluate"), StopRequest() as stop:
            workers = (
                Processes(work, places, stop)
                if len(places) > 1
                else Here(work, model, session.usable(), places[0], stop)
            )
            with closing(workers):
                _describe(session, sweep, places)
                evaluation.run(workers.carry_out)
        session.finish(evaluation.results)
    return evaluation.results


Carrier = Callable[[Sequence[Job], Report], Iterator[tuple[Job, Outcome]]]


class Evaluation:
    """One encoder on some tasks: what is known so far."""

    def __init__(self, session: Session, sweep: Sweep, out: Path, runs: Runs) -> None:
        self.session, self.sweep, self.out, self.runs = session, sweep, out, runs
        self.settings = sweep.settings(session.model.learning_rates)
        self.speed = Speed(session.model, session.usable(), sweep, session.console)
        self.done: dict[Job, Run] = {}
        self.results: list[Result] = []

    def run(self, carry_out: Carrier) -> None:
        if len(self.settings) > 1:
            self._do([job for task in self.session.usable() for job in self.sweep_jobs(task)], "sweep", carry_out)
        tasks = self.session.usable()
        if not tasks:
            return
        chosen = {task.name: self.chosen(task, tasks) for task in tasks}
        finals = {
            task.name: [job for setting, _ in chosen[task.name] for job in self.final_jobs(task, setting)]
            for task in tasks
        }

        def finished() -> None:
            """Writes the results whose runs are all there."""
            written = {result.task for result in self.results}
            for task in tasks:
                if task.name not in written and all(job in self.done for job in finals[task.name]):
                    self.results.append(self.result(task, chosen[task.name]))
                    write_result(self.out, self.results[-1])

        # Where both ways choose the same setting, its runs count for both.
        self._do(list(dict.fromkeys(job for jobs in finals.values() for job in jobs)), "test", carry_out, finished)
        order = [task.name for task in tasks]
        self.results.sort(key=lambda result: order.index(result.task))

    def _do(
        self, jobs: Sequence[Job], what: str, carry_out: Carrier, finished: Callable[[], None] = lambda: None
    ) -> None:
        """Carries out the jobs that were not before."""
        found = {job: run for job in jobs if (run := self.runs.find(job))}
        self.done.update(found)
        finished()
        missing = [job for job in jobs if job not in found]
        if found:
            self.session.console.print(f"{what}: {len(found)} of {len(jobs)} runs were done before")
        if not missing:
            return
        total = sum(job.tuning.setting.steps for job in missing)
        steps: dict[Job, int] = {}
        with ProgressLine(what, total, self.session.console) as progress:

            def report(job: Job, step: int) -> None:
                steps[job] = step
                self.speed.step(job, step)
                progress.show(sum(steps.values()), f"{what} · {_words(job)} · step {step:,}")

            for job, outcome in carry_out(missing, report):
                steps[job] = job.tuning.setting.steps
                if isinstance(outcome, Run):
                    self.done[job] = outcome
                    progress.show(sum(steps.values()), f"{what} · {_words(job)} · {100 * outcome.accuracy:.1f} %")
                    finished()
                else:
                    self.session.fail(job.task, outcome)

    def sweep_jobs(self, task: Task) -> list[Job]:
        return [Job(task.name, "sweep", self._tuning(setting, 0)) for setting in self.settings]

    def final_jobs(self, task: Task, setting: Setting) -> list[Job]:
        return [Job(task.name, "final", self._tuning(setting, seed)) for seed in range(self.sweep.seeds)]

    def _tuning(self, setting: Setting, seed: int) -> Tuning:
        return Tuning(setting, seed, self.sweep.images_a_step, self.sweep.micro_batch)

    def trials(self, task: Task) -> list[Trial]:
        if len(self.settings) == 1:
            return []
        jobs = self.sweep_jobs(task)
        return [Trial(job.tuning.setting, self.done[job].accuracy) for job in jobs]

    def chosen(self, task: Task, tasks: Sequence[Task]) -> list[tuple[Setting, str]]:
        """The settings to be tested on a task, and why: the headline's first."""
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

    def result(self, task: Task, chosen: Sequence[tuple[Setting, str]]) -> Result:
        scores = []
        for setting, why in chosen:
            accuracies = tuple(self.done[job].accuracy for job in self.final_jobs(task, setting))
            scores.append(Score(accuracies, setting, why))
        mine = [run.seconds for job, run in self.done.items() if job.task == task.name]
        settings = {
            "learning_rates": sorted({setting.lr for setting in self.settings}, reverse=True),
            "schedules": sorted({setting.steps for setting in self.settings}),
            "batch": min(self.sweep.images_a_step, len(task.final)),
            "micro_batch": self.sweep.micro_batch,
            "size": self.session.model.size,
            "antialias": self.sweep.antialias,
        }
        return Result(
            **self.session.about(task),
            benchmark="vtab",
            protocol=self.sweep.protocol,
            score=scores[0],
            score_per_task=scores[1] if len(scores) > 1 else None,
            sweep=tuple(self.trials(task)),
            quick=self.sweep.is_quick,
            settings=settings,
            seconds=round(sum(mine), 1),
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


def _words(job: Job) -> str:
    setting = job.tuning.setting
    seed = f" · seed {job.tuning.seed}" if job.phase == "final" else ""
    return f"{job.task} · lr {setting.lr:g} · {setting.steps:,} steps{seed}"


def _describe(session: Session, sweep: Sweep, places: Sequence[torch.device]) -> None:
    model, tasks = session.model, len(session.usable())
    settings = sweep.settings(model.learning_rates)
    session.console.print(
        f"{model.name} at {model.size} px: {tasks} task{'s' * (tasks != 1)}, "
        f"{' / '.join(f'lr {s.lr:g} × {s.steps:,} steps' for s in settings)} of {sweep.images_a_step} images, "
        f"then {sweep.seeds} seeds, on {len(places)} × {places[0]}",
        soft_wrap=True,
    )
