"""Files: safe reading of what may be no file at all, and writing that survives a kill: whole files or none, one
writer per folder, and one exception for a disk that cannot be written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from vivi.runtime.errors import UserError, first_line
from vivi.runtime.machine import available_memory

T = TypeVar("T")

MB, GB = 2**20, 2**30
SMALL, LARGE, WEIGHTS = 64 * MB, 8 * GB, 64 * GB
"""Bytes at most of a list or a small JSON file; of annotations, predictions or metrics; of weights."""


class Unfit(OSError):
    """Not a regular file, or too large to be one that is meant; `strerror` says which."""

    def __str__(self) -> str:
        return str(self.strerror)


def read_file(path: Path, most: int = SMALL) -> bytes:
    """The content of a regular file of at most `most` bytes; of anything else, an OSError that says so.

    A pipe would be waited for without end, and a device or a sparse file may fill the memory.
    """
    check_regular(path, most)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        _check(os.fstat(handle), most)  # again: it may have been replaced meanwhile
        return file.read()


def check_regular(path: Path, most: int = WEIGHTS) -> None:
    """Raises an OSError unless it is a regular file of at most `most` bytes, for what opens files by their name."""
    _check(os.stat(path), most)


def _check(status: os.stat_result, most: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Unfit(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise Unfit(errno.EINVAL, "is not a regular file")
    if status.st_size > most:
        raise Unfit(errno.EFBIG, f"is larger than {most // MB:,} MB")
    if status.st_size > GB and status.st_size > (available_memory() or sys.maxsize):
        raise Unfit(errno.EFBIG, "is larger than the memory that is free")


def read_json(path: Path, kind: type[T], remedy: str) -> T:
    """The content of a JSON file, which msgspec checks against a type; raises a UserError with the remedy."""
    try:
        return msgspec.convert(json.loads(read_file(path)), kind)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is missing or damaged ({first_line(error)}); {remedy}") from None


class StorageError(Exception):
    """Something cannot be written: the disk is full, read-only or gone. Says what, and why."""

    full = False


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turns the OSErrors of writing into StorageError, so that they are never taken for bad input."""
    try:
        yield
    except OSError as error:
        failure = StorageError(f"{path}: {error.strerror or error}")
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
    write_atomically(path, json.dumps({"content": content, "crc32": json_crc32(content)}).encode(), sync)


def read_checked_json(path: Path) -> Any:
    """The content of a file that `write_checked_json` wrote; raises ValueError if it is any other."""
    try:
        whole = json.loads(read_file(path))
        if whole["crc32"] == json_crc32(whole["content"]):
            return whole["content"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path.name} is not as it was written")


def json_crc32(content: Any) -> int:
    """The CRC-32 of what JSON can hold, whatever the order of its fields."""
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
    # Tests set it, as git's do: they need not survive a power cut, and a busy disk may take minutes.
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


def check_replaceable(folder: Path, ours: Sequence[str]) -> None:
    """Raises unless a folder is new or empty, or what a command may replace: it holds files of these names only, and
    the first of them, which tells that they are ours."""
    try:
        entries = sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    other = next((name for name in names if name not in ours), "")
    if entries and (other or not (folder / ours[0]).exists()):
        raise UserError(f"{folder} holds something else ({other or entries[0]}); choose a new or empty --out")


@contextmanager
def replaced_folder(folder: Path, ours: Sequence[str]) -> Iterator[Path]:
    """A new folder beside this one, to be filled, which takes its place at the end, if it may be replaced; where that
    fails, nothing has changed."""
    check_replaceable(folder, ours)
    folder = folder.resolve()
    new, old = (folder.with_name(f"{folder.name}.{os.getpid()}.{state}") for state in ("tmp", "old"))
    try:
        with storage(folder):
            new.mkdir(parents=True)
        yield new
        with storage(folder):
            for path in new.rglob("*"):
                fsync(path)
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def leads_out(name: str) -> bool:
    """Whether a path in a list leads out of the folder it starts from: it is absolute, or has a `..`.

    Only the text counts. A link in the folder may lead anywhere: whoever made it wanted that.
    """
    return os.path.isabs(name) or ".." in name.split(os.sep)
