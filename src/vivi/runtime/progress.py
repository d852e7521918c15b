"""Progress of long work, and the time left: on a terminal a live bar, elsewhere a line now and then."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

FIRST_LINE_SECONDS, LINE_SECONDS = 5.0, 30.0


class ProgressLine:
    """`with ProgressLine("train", steps, console) as progress: ... progress.show(step, "what is going on")`."""

    def __init__(self, name: str, total: float, console: Console, start: int = 0) -> None:
        self.console, self.total, self.start = console, max(total, 1), start
        self.started = time.monotonic()
        self.unprinted, self.next_line = "", self.started + FIRST_LINE_SECONDS
        self.bar = Progress(
            TextColumn(name, markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[line]}", markup=False),  # names of files are no markup
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=self.total, completed=start, line="")

    def show(self, done: float, line: str) -> None:
        """Shows how much of the total is done, and a line about it."""
        self.unprinted = line
        self.bar.update(self.task, completed=done, line=line)
        now = time.monotonic()
        if not self.console.is_terminal and now > self.next_line:
            self.next_line = now + LINE_SECONDS
            since_start = done - self.start
            if since_start > 0:
                line += f" · {duration((now - self.started) / since_start * (self.total - done))} left"
            self.console.print(line, soft_wrap=True)
            self.unprinted = ""

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        if self.unprinted and not self.console.is_terminal:
            self.console.print(self.unprinted, soft_wrap=True)


def duration(seconds: float) -> str:
    """As people say it: 40 s, 12 min, 3.5 h."""
    minutes = seconds / 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
