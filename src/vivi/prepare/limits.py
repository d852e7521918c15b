"""What one video may cost a worker: memory, time without progress, and time in all."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vivi.prepare.container import UnusableVideo

# FFmpeg on a damaged file, or a network disk, may hang inside one call. A worker that makes no progress for this
# long is killed by an alarm (SIGALRM) that it sets itself.
STALL_SECONDS = 120
REPORT_SECONDS, WATCH_SECONDS = 0.5, 0.02

Report = Callable[[float, float], None]  # of the share of a file that is read, and of the seconds of footage in it


def heartbeat(minutes: float, report: Report | None) -> Report:
    """To be called for every packet: sets the alarm again, enforces the time limit, and reports twice a second."""
    next_report, deadline = 0.0, time.monotonic() + 60 * minutes

    def beat(share: float, seconds: float) -> None:
        nonlocal next_report
        now = time.monotonic()
        if now >= next_report:
            signal.alarm(STALL_SECONDS)
            next_report = now + REPORT_SECONDS
            if report is not None:
                report(share, seconds)
        if now > deadline:
            raise UnusableVideo(f"takes longer than {minutes:g} minutes (--video-minutes)")

    signal.alarm(STALL_SECONDS)
    return beat


@contextmanager
def memory_limit(gigabytes: float, on_exceeded: Callable[[], object]) -> Iterator[None]:
    """Ends this process, after `on_exceeded()`, as soon as it takes more memory than this, without files mapped into
    it; only where there is /proc.

    A limit that makes allocations fail (setrlimit) would not do: FFmpeg ignores some failures, and a file that asks
    for too much then looks like one without frames.
    """
    over = threading.Event()

    def watch() -> None:
        with suppress(OSError, ValueError):
            while not over.wait(WATCH_SECONDS):
                _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
                if (int(resident) - int(shared)) * resource.getpagesize() > gigabytes * 1e9:
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
