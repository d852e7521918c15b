"""Writing that survives: whole files or none, one writer per folder, and one exception for a disk that refuses."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vivi.errors import UserError


class StorageError(Exception):
    """Something cannot be written: the disk is full, read-only or gone. Says what, and why."""

    full = False


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turns the OSErrors of writing into StorageError, so that they are never taken for bad input."""
    try:
        yield
    except OSError as error:
        failure = StorageError(f"{path}: {os.strerror(error.errno) if error.errno else error}")
        failure.full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise failure from error


def write_atomically(path: Path, content: bytes, sync: bool = True) -> None:
    """Replaces a file as a whole: readers see the old content or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with storage(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                if sync:
                    fsync_file(file)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_checked_json(path: Path, content: Any, sync: bool = True) -> None:
    """Writes a JSON file that holds a checksum of its content."""
    write_atomically(path, json.dumps({"content": content, "crc32": _crc32(content)}).encode(), sync)


def read_checked_json(path: Path) -> Any:
    """The content of a file that `write_checked_json` wrote; raises ValueError if it is any other."""
    try:
        whole = json.loads(path.read_bytes())
        if whole["crc32"] == _crc32(whole["content"]):
            return whole["content"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path.name} is not as it was written")


def _crc32(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def fsync(path: Path) -> None:
    """Puts a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _fsync(handle)
    finally:
        os.close(handle)


def fsync_file(file: IO[bytes]) -> None:
    """Puts what was written to an open file on the disk."""
    file.flush()
    _fsync(file.fileno())


def _fsync(handle: int) -> None:
    # As in git's tests, ours need no power cut survived, and a busy disk may take minutes.
    if os.environ.get("VIVI_FSYNC", "1") != "0":
        os.fsync(handle)


@contextmanager
def locked(folder: Path, command: str) -> Iterator[None]:
    """Makes the folder, and keeps other processes that lock it out for as long as this one lives, on file systems
    that can."""
    try:
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another {command} is writing to {folder}; wait for it to end") from None
        except OSError:
            pass  # a file system without locks
        yield
    except UserError:
        if new and not any(folder.iterdir()):
            folder.rmdir()  # nothing came of it
        raise
    finally:
        os.close(lock)
