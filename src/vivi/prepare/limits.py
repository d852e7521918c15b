"""What one video may cost a worker: memory, time without progress, and time in all."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# FFmpeg on a damaged file, or a network disk, may hang inside one call. A worker that makes no progress for this
# long is killed by an alarm (SIGALRM) that it sets itself.
STALL_SECONDS = 120
REPORT_SECONDS = 0.5
WATCH_SECONDS = 0.02


class TookTooLong(Exception):
    """A video took longer than its limit."""


class Heartbeat:
    """Sets the alarm again while packets come in, enforces the time limit, and reports progress twice a second."""

    def __init__(self, minutes: float, report: Callable[[float, float], None] | None) -> None:
        self.report = report
        self.next_report = 0.0
        self.deadline = time.monotonic() + 60 * minutes
        signal.alarm(STALL_SECONDS)

    def __call__(self, share: float, seconds: float) -> None:
        """Called for every packet."""
        now = time.monotonic()
        if now >= self.next_report:
            signal.alarm(STALL_SECONDS)
            self.next_report = now + REPORT_SECONDS
            if self.report is not None:
                self.report(share, seconds)
        if now > self.deadline:
            raise TookTooLong


@contextmanager
def memory_limit(gigabytes: float, on_exceeded: Callable[[], None]) -> Iterator[None]:
    """Ends this process, after `on_exceeded()`, as soon as it takes more memory than this; only where there is /proc.

    A limit that makes allocations fail (setrlimit) would not do: FFmpeg ignores some failures, and a file that asks
    for too much then looks like one without frames.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if private_bytes() > gigabytes * 1e9:
                try:
                    on_exceeded()
                finally:
                    os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def private_bytes() -> int:
    """Memory of this process in use, without files mapped into it; 0 where that cannot be told."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()
