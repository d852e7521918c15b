"""What one video may cost a worker: memory, time without progress, and time in all."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# FFmpeg on a damaged file, or a network disk, may hang inside one call; a worker that gives no sign of life for
# this long is killed by its own alarm clock.
STALL_SECONDS = 120
REPORT_SECONDS = 0.5
WATCH_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one video may take."""

    gigabytes: float = 2.0
    minutes: float = 24 * 60.0


class TookTooLong(Exception):
    """A video took longer than its limit."""


class Heartbeat:
    """Keeps the worker alive while packets come in, ends it in time, and reports progress now and then."""

    def __init__(self, limits: Limits, report: Callable[[float, float], None] | None) -> None:
        self.report = report
        self.next_report = 0.0
        self.deadline = time.monotonic() + 60 * limits.minutes
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
def memory_ceiling(gigabytes: float, last_words: Callable[[], None]) -> Iterator[None]:
    """Ends this process, after `last_words()`, as soon as it takes more memory than this; only where there is /proc.

    A limit that makes allocations fail (setrlimit) would not do: FFmpeg ignores some failures, and a file that asks
    for too much then looks like one without frames.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if private_bytes() > gigabytes * 1e9:
                try:
                    last_words()
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
