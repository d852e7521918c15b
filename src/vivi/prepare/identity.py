"""Which file a video was made from: enough to tell a changed file, or another of its name, without decoding it."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass

# What is read of a file: the first block is its head, the last its tail.
_BLOCKS, _BLOCK = 16, 1 << 16


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file as it was at one time. Without a hash it is unknown: not a regular file, or not recorded."""

    file_bytes: int = 0
    file_changed: int = 0  # when the file system saw it change, in nanoseconds (ctime, which no program can set back)
    file_hash: str = ""  # of its size and of 16 blocks of 64 KiB, evenly spread from head to tail


UNKNOWN = FileIdentity()


def identify(path: str, known: FileIdentity = UNKNOWN) -> FileIdentity:
    """The identity of a file now; unknown where it cannot be read. While size and time are the known ones, it is not
    read again."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return UNKNOWN
        if known.file_hash and (known.file_bytes, known.file_changed) == (status.st_size, status.st_ctime_ns):
            return known
        return FileIdentity(status.st_size, status.st_ctime_ns, _hash(path, status.st_size))
    except (OSError, ValueError):
        return UNKNOWN


def same_content(one: FileIdentity, other: FileIdentity) -> bool:
    """Whether two files hold the same; unknown ones never do."""
    return bool(one.file_hash) and (one.file_bytes, one.file_hash) == (other.file_bytes, other.file_hash)


def _hash(path: str, size: int) -> str:
    digest = hashlib.blake2b(b"%d" % size, digest_size=16)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe put in its place meanwhile must not make us wait
    try:
        last = max(0, size - _BLOCK)
        for start in sorted({last * block // (_BLOCKS - 1) for block in range(_BLOCKS)}):
            digest.update(os.pread(handle, _BLOCK, start))
    finally:
        os.close(handle)
    return digest.hexdigest()
