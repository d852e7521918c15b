"""Folders that hold a page: only ours is replaced, and one that cannot be written is said in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vivi.errors import UserError
from vivi.storage import StorageError


def check_free(out: Path, command: str) -> Path:
    """The index.html of a page; raises before any work where it would replace what the command did not make."""
    index = out / "index.html"
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a folder")
    if index.exists():
        with open(index, "rb") as file:
            if generator(command).encode() not in file.read(2000):
                raise UserError(f"{index} was not made by {command}; give --out another folder")
    return index


def generator(command: str) -> str:
    """What tells a page's maker, in its head."""
    return f'<meta name="generator" content="{command}">'


@contextmanager
def unwritable_named(out: Path) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise UserError(f"the page cannot be written: {error}") from None
    except OSError as error:
        raise UserError(f"{out}: {error.strerror or error}; give --out a folder that can be written") from None
