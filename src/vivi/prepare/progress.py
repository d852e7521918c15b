"""The progress line of vivi prepare: videos done, videos/s, hours of footage/s, skipped, time left."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console

from vivi.prepare.corpus import VideoRow
from vivi.prepare.piece import VideoTask
from vivi.runtime.progress import ProgressLine


class PrepareProgress(ProgressLine):
    """Measured in bytes, so that long videos count more."""

    def __init__(self, tasks: Sequence[VideoTask], console: Console) -> None:
        self.sizes = {task.source.video: 0 for task in tasks}
        for task in tasks:
            with suppress(OSError):
                self.sizes[task.source.video] = os.path.getsize(task.source.path)
        super().__init__("prepare", sum(self.sizes.values()), console)
        self.shares: dict[str, tuple[float, float]] = {}  # of videos in work: share done, seconds
        self.done = self.skipped = 0
        self.done_bytes = self.done_seconds = 0.0

    def report(self, task: VideoTask, share: float, seconds: float) -> None:
        """A video in work came this far."""
        self.shares[task.source.video] = min(max(share, 0.0), 1.0), seconds
        self._show()

    def finished(self, row: VideoRow) -> None:
        """A video is prepared, or skipped."""
        self.shares.pop(row.video, None)
        self.done += 1
        self.skipped += row.status == "skipped"
        self.done_bytes += self.sizes[row.video]
        self.done_seconds += row.seconds
        self._show()

    def _show(self) -> None:
        elapsed = max(time.monotonic() - self.started, 1e-9)
        seconds = self.done_seconds + sum(seconds for _, seconds in self.shares.values())
        line = (
            f"{self.done}/{len(self.sizes)} videos · {self.done / elapsed:.1f} videos/s · "
            f"{seconds / 3600:.1f} h of footage, {seconds / 3600 / elapsed:.3f} h/s · {self.skipped} skipped"
        )
        partly = sum(self.sizes[video] * share for video, (share, _) in self.shares.items())
        self.show(self.done_bytes + partly, line)
