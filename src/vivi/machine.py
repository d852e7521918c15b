"""What the present machine offers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that this process can have without others being driven out; 0 where that cannot be told."""
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
        return min(free, _left_in_container())
    return 0


def _left_in_container() -> int:
    """Bytes to the limit of the container, where there is one."""
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    with suppress(OSError, ValueError):
        limit, used = (group / "memory" / f"memory.{name}_in_bytes" for name in ("limit", "usage"))
        return int(limit.read_text()) - int(used.read_text())
    return sys.maxsize


@contextmanager
def children_ignore_ctrl_c() -> Iterator[None]:
    """Processes started inside leave Ctrl-C, which reaches the whole group, to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
