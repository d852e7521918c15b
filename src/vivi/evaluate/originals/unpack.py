"""Big files that come compressed are unpacked once, beside where they lie, so that they can be memory-mapped."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import Protocol

_PIECE = 1 << 20


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


def unpack(packed: Readable, target: Path) -> bool:
    """Writes what is read from `packed` to `target`, all of it or nothing; says whether it is there now.

    False means that there is no leave or no room to write; what is wrong with the compressed file itself is raised.
    """
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError:
        return False
    try:
        # Without a buffer, closing has nothing left to write that could fail.
        with os.fdopen(handle, "wb", buffering=0) as file:
            while piece := packed.read(_PIECE):
                if not _written(file, piece):
                    return False
        os.chmod(name, 0o644)  # mkstemp's files are for their owner alone
        os.replace(name, target)
        return True
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _written(file: RawIOBase, piece: bytes) -> bool:
    """Whether there was room: a full disk is no fault of the compressed file."""
    try:
        while piece:
            piece = piece[file.write(piece) :]
    except OSError:
        return False
    return True
