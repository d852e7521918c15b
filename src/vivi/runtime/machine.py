"""What the present machine offers."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from vivi.runtime.signals import signals_go_to


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that this process can have without others being driven out; 0 where that cannot be told."""
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return max(0, min(1024 * int(lines["MemAvailable"].split()[0]), left_in_container()))
    return 0


# Of cgroups, version 2 and 1: where they are, the limit, what is used, and how much of that is old page cache.
_GROUPS = (
    ("0::", "", "memory.max", "memory.current", "inactive_file"),
    (":memory:", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def left_in_container(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes to the nearest limit of the containers that this process is in; page cache that can go does not count."""
    left = sys.maxsize
    with suppress(OSError):
        for line in own.read_text().splitlines():
            for mark, folder, limit, used, cache in _GROUPS:
                if mark in line:
                    path = line.split(mark, 1)[1].strip("/")
                    # In a container its own group may be mounted as the root.
                    for part in ("", *itertools.accumulate(path.split("/"), "{}/{}".format)):
                        left = min(left, _left(root / folder / part, limit, used, cache))
    return left


def _left(group: Path, limit: str, used: str, cache: str) -> int:
    with suppress(OSError, ValueError):
        statistics = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        old = next((int(value) for name, value in statistics if name == cache), 0)
        return int((group / limit).read_text()) - int((group / used).read_text()) + old
    return sys.maxsize  # no such group, or no limit ("max")


def children_ignore_ctrl_c() -> AbstractContextManager[None]:
    """Processes started inside leave Ctrl-C, which reaches the whole group, to this one."""
    return signals_go_to(signal.SIG_IGN, signal.SIGINT)
