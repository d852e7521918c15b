"""How long a whole sweep takes, from the speed of its first run: on one device and on eight."""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence

from rich.console import Console

from vivi.evaluate.runs import Job
from vivi.evaluate.settings import Sweep
from vivi.evaluate.tasks.examples import Task
from vivi.runtime.progress import duration

# An image that is only classified costs about a third of one that is trained on.
EVALUATION_COST = 1 / 3
# Steps that are not counted: compiling, warming up.
FIRST, ENOUGH = 20, 70


def sweep_seconds(
    tasks: Sequence[Task], sweep: Sweep, rates: tuple[float, ...], images_per_second: float, devices: int
) -> float:
    """Of the whole evaluation, if the longest schedule is chosen: both phases, their runs dealt to the devices."""
    settings = sweep.settings(rates)
    longest = max(setting.steps for setting in settings)

    def seconds(steps: int, train: int, test: int) -> float:
        images = steps * min(sweep.images_a_step, train) + EVALUATION_COST * test
        return images / images_per_second

    first = [seconds(s.steps, len(task.sweep), len(task.validation)) for task in tasks for s in settings]
    second = [seconds(longest, len(task.final), len(task.test)) for task in tasks for _ in range(sweep.seeds)]
    return _makespan(first if len(settings) > 1 else [], devices) + _makespan(second, devices)


def _makespan(jobs: Sequence[float], devices: int) -> float:
    """When the last job ends, if each device takes the next one as soon as it is free."""
    free = [0.0] * devices
    for job in jobs:
        heapq.heapreplace(free, free[0] + job)
    return max(free)


class Speed:
    """Watches the first steps of the first run, and says once how long all of it will take."""

    def __init__(self, tasks: Sequence[Task], sweep: Sweep, rates: tuple[float, ...], console: Console) -> None:
        self.tasks, self.sweep, self.rates, self.console = {task.name: task for task in tasks}, sweep, rates, console
        self.began: dict[Job, tuple[int, float]] = {}  # at which step, and when
        self.said = False

    def step(self, job: Job, step: int) -> None:
        if self.said or step < FIRST:
            return
        before, at = self.began.setdefault(job, (step, time.monotonic()))
        if step - before < ENOUGH - FIRST:
            return
        self.said = True
        images = min(job.tuning.batch, len(self.tasks[job.task].parts()[job.phase]))
        rate = (step - before) * images / (time.monotonic() - at)
        tasks = [*self.tasks.values()]
        one, eight = (duration(sweep_seconds(tasks, self.sweep, self.rates, rate, count)) for count in (1, 8))
        said = f"{rate:,.0f} images/s: about {one} for all of it on one such device, {eight} on eight"
        self.console.print(said, soft_wrap=True)
