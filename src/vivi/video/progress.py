"""The progress line of vivi prepare."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from vivi.video.corpus import VideoRow
from vivi.video.piece import VideoTask

LOG_LINE_SECONDS = 30.0


class PrepareProgress:
    """Videos done, videos/s, hours of footage/s, skipped, time left; measured in bytes, so long videos count more.

    On a terminal a live bar, elsewhere a line now and then.
    """

    def __init__(self, tasks: Sequence[VideoTask], console: Console) -> None:
        self.console = console
        self.videos = len(tasks)
        self.sizes = {task.source.video: _size(task.source.path) for task in tasks}
        self.shares: dict[str, tuple[float, float]] = {}  # of videos in work: share done, seconds
        self.done = self.skipped = 0
        self.done_bytes = self.done_seconds = 0.0
        self.started = self.last_line = time.monotonic()
        self.bar = Progress(
            TextColumn("prepare"),
            BarColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=max(1, sum(self.sizes.values())), line="")

    def __enter__(self) -> PrepareProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.videos and not self.console.is_terminal:
            self.console.print(self.line(), soft_wrap=True)

    def report(self, task: VideoTask, share: float, seconds: float) -> None:
        """A video in work came this far."""
        self.shares[task.source.video] = min(max(share, 0.0), 1.0), seconds if seconds > 0 else 0.0
        self._show()

    def finished(self, task: VideoTask, row: VideoRow) -> None:
        self.shares.pop(task.source.video, None)
        self.done += 1
        self.skipped += row.status == "skipped"
        self.done_bytes += self.sizes[task.source.video]
        self.done_seconds += row.seconds
        self._show()

    def line(self) -> str:
        elapsed = max(time.monotonic() - self.started, 1e-9)
        seconds = self.done_seconds + sum(seconds for _, seconds in self.shares.values())
        return (
            f"{self.done}/{self.videos} videos · {self.done / elapsed:.1f} videos/s · "
            f"{seconds / 3600:.1f} h of footage, {seconds / 3600 / elapsed:.3f} h/s · {self.skipped} skipped"
        )

    def _show(self) -> None:
        partly = sum(self.sizes[video] * share for video, (share, _) in self.shares.items())
        completed = self.done_bytes + partly
        self.bar.update(self.task, completed=completed, line=self.line())
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_line > LOG_LINE_SECONDS:
            self.last_line = now
            left = (now - self.started) * (sum(self.sizes.values()) / max(completed, 1) - 1)
            self.console.print(f"{self.line()} · {left / 60:.0f} min left", soft_wrap=True)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
