"""What the machine offers: memory, also where a container limits it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vivi.runtime.machine import available_memory, left_in_container

GIB = 1 << 30


def write_group(folder: Path, version: int, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}[version]
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    prefix = "" if version == 2 else "total_"
    (folder / "memory.stat").write_text(f"anon 5\n{prefix}inactive_file {cache}\n{prefix}active_file 7\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_nearest_limit_of_all_groups_counts_and_old_page_cache_does_not(tmp_path: Path, version: int) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    base = root if version == 2 else root / "memory"
    own.write_text("0::/job/step\n" if version == 2 else "11:cpu:/x\n4:memory:/job/step\n0::/\n")
    write_group(base, version, "max" if version == 2 else str(2**63 - 4096), 5 * GIB, 0)
    assert left_in_container(root, own) > 10**18
    write_group(base / "job", version, str(64 * GIB), 64 * GIB - 1, 40 * GIB)
    assert left_in_container(root, own) == 40 * GIB + 1
    write_group(base / "job" / "step", version, str(8 * GIB), 3 * GIB, GIB)
    assert left_in_container(root, own) == 6 * GIB
    write_group(base / "other", version, "1", 1, 0)
    assert left_in_container(root, own) == 6 * GIB


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert left_in_container(tmp_path, tmp_path / "missing") == sys.maxsize
    (tmp_path / "own").write_text("0::/gone\n")
    assert left_in_container(tmp_path, tmp_path / "own") == sys.maxsize


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_some_of_the_memory_is_available_but_not_more_than_there_is() -> None:
    total = 1024 * int(Path("/proc/meminfo").read_text().split()[1])
    assert 0 < available_memory() <= total
