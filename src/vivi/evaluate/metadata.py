"""JSON files that describe the images of a benchmark: read as types, and how many of a kind are named in one line."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vivi.runtime.errors import UserError
from vivi.runtime.storage import LARGE, read_file

T = TypeVar("T")
NAMED = 5


def read_json(path: Path, kind: type[T] | Any) -> T:
    """The content of a file as this type, which msgspec checks; raises a UserError that says where it is wrong."""
    return read_hashed_json(path, kind)[0]  # type: ignore[no-any-return]


def read_hashed_json(path: Path, kind: Any) -> tuple[Any, str]:
    """The same, and the sha256 of the file."""
    try:
        content = read_file(path, LARGE)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return msgspec.json.decode(content, type=kind, strict=False), hashlib.sha256(content).hexdigest()
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is not in the format that is expected: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{path} is no JSON ({error})") from None


def named(names: Sequence[str]) -> str:
    """'a', 'b' and 3 more"""
    more = len(names) - NAMED
    return ", ".join(map(repr, names[:NAMED])) + (f" and {more:,} more" if more > 0 else "")


def counted(count: int, what: str) -> str:
    """1 anchor, 1,109 anchors"""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
