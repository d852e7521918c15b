"""The files of an index: arrays that are mapped into memory, with a checksum of every megabyte.

    index/KEY/NAME.npy          the arrays
    index/KEY/checksums.json    of their files, and of itself

Whoever maps an index holds a shared lock on its files for as long as the maps live, also on other machines where the
file system has locks. An index that is locked is not removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivi.storage import fsync_file, read_checked_json, write_checked_json

_CHECKSUMS = "checksums.json"
_CHUNK = 1 << 20  # bytes: what is read stays in the processor's cache until it is summed up
# Reading may wait for the disk, and neither reading nor zlib holds Python's lock.
_THREADS = 8
_KEY = re.compile(r"[0-9a-f]{24}")
_LEFT_ALONE = 24 * 3600  # seconds after which a temporary folder that nobody completed is removed


def save(arrays: Mapping[str, NDArray[Any]], folder: Path) -> None:
    """Writes arrays into a new folder, which appears when it is complete."""
    folder.parent.mkdir(exist_ok=True)
    temporary = Path(tempfile.mkdtemp(".tmp", dir=folder.parent))
    try:
        temporary.chmod(0o755)  # others of the group may train on the same corpus
        for name, array in arrays.items():
            with open(temporary / f"{name}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                fsync_file(file)
        with ExitStack() as stack:
            sums = _checksums(_open_all(temporary, list(arrays), stack))
        write_checked_json(temporary / _CHECKSUMS, {"key": folder.name, "crc32": sums})
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.exists():  # else another process was faster, with the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The arrays in a folder, mapped into memory. Raises ValueError for one that is not as it was written, and
    FileNotFoundError where something is missing."""
    with ExitStack() as stack:
        files = _open_all(folder, names, stack)
        for file in files.values():
            _lock(file, fcntl.LOCK_SH)
        expected = read_checked_json(folder / _CHECKSUMS)
        if expected.get("key") != folder.name:
            raise ValueError("it is the index of something else")
        found = _checksums(files)
        for name in names:
            if found[name] != expected.get("crc32", {}).get(name):
                raise ValueError(f"{name}.npy is not as it was written")
        return {name: _map(file) for name, file in files.items()}


def _open_all(folder: Path, names: Sequence[str], stack: ExitStack) -> dict[str, FileIO]:
    return {name: stack.enter_context(open(folder / f"{name}.npy", "rb", buffering=0)) for name in names}


def _checksums(files: Mapping[str, FileIO]) -> dict[str, list[int]]:
    """The size of each file and the CRC-32 of its chunks. They are read into small buffers: pages that are touched
    through a map count as memory in use."""
    sizes = {name: os.fstat(file.fileno()).st_size for name, file in files.items()}
    chunks = [(name, place) for name, size in sizes.items() for place in range(0, size, _CHUNK)]

    def stripe(start: int) -> list[int]:
        buffer = bytearray(_CHUNK)
        view, sums = memoryview(buffer), []
        for name, place in chunks[start::_THREADS]:
            count = os.preadv(files[name].fileno(), [buffer], place)
            sums.append(zlib.crc32(view[:count]))
        return sums

    sums = [0] * len(chunks)
    with ThreadPoolExecutor(_THREADS) as threads:
        for start, some in enumerate(threads.map(stripe, range(_THREADS))):
            sums[start::_THREADS] = some
    found: dict[str, list[int]] = {name: [size] for name, size in sizes.items()}
    for (name, _), value in zip(chunks, sums, strict=True):
        found[name].append(value)
    return found


def _map(file: FileIO) -> NDArray[Any]:
    """An array in an open file. The map keeps the file's lock: its own descriptor is a copy of this one."""
    np.lib.format.read_magic(file)  # of version 1.0, as np.save writes plain arrays
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    mapped = np.memmap(file, dtype, "r", file.tell(), shape)
    return np.asarray(mapped)  # a plain array is faster to index


def _lock(file: FileIO, kind: int) -> None:
    """Raises BlockingIOError where another process holds a lock of another kind; file systems may have no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        if kind == fcntl.LOCK_EX:
            raise


def move_away(folder: Path) -> None:
    """Makes room for a new index where there is a damaged one, which others may still have mapped."""
    away = folder.with_name(f"{folder.name}.{time.time_ns()}.tmp")
    with suppress(OSError):
        os.rename(folder, away)
        _remove(away)


def remove_others(folder: Path) -> None:
    """Removes what lies beside an index and nobody uses: others of its kind, and what killed processes left."""
    with suppress(OSError):
        for other in list(folder.parent.iterdir()):
            if _KEY.fullmatch(other.name) and other != folder:
                _remove(other)
            elif other.suffix == ".tmp":
                _remove_if_old(other)


def _remove_if_old(path: Path) -> None:
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _LEFT_ALONE:
            path.unlink() if path.is_file() else _remove(path)


def _remove(folder: Path) -> None:
    """Removes a folder unless one of its files is locked, or that cannot be told."""
    with ExitStack() as stack, suppress(OSError):
        for path in sorted(folder.glob("*.npy"))[:1]:  # whoever maps one has locked all
            # A lock that excludes others needs a file that may be written to, on NFS.
            _lock(stack.enter_context(open(path, "r+b", buffering=0)), fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
