"""What one video may cost a worker: memory, time without progress, and time in all."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# FFmpeg on a damaged file, or a network disk, may hang inside one call; a worker that gives no sign of life for
# this long is killed by its own alarm clock.
STALL_SECONDS = 120
REPORT_SECONDS = 0.5


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
def limited_memory(gigabytes: float) -> Iterator[None]:
    """Allocations inside fail, with MemoryError in Python, where the process would take so much more than it did when
    this was first called. Only Linux enforces it."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = _data_bytes_at_first() + round(gigabytes * 1e9)
    if before[1] != resource.RLIM_INFINITY:
        ceiling = min(ceiling, before[1])
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (ceiling, before[1]))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, before)


@cache
def _data_bytes_at_first() -> int:
    """Private memory of this process, as RLIMIT_DATA counts it: measured once, because what was freed since and is
    kept for later use would count as well."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    return 0
