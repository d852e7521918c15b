"""JSON files that users bring, and how a few of many frames are named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import LARGE, read_file

NAMED = 5


def read_json(path: Path) -> Any:
    return _read(path)[0]


def read_object(path: Path) -> dict[str, Any]:
    return read_hashed_object(path)[0]


def read_hashed_object(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object, and the sha256 of its file."""
    content, checksum = _read(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a JSON {type(content).__name__}; it must be an object, {{...}}")
    return content, checksum


def _read(path: Path) -> tuple[Any, str]:
    try:
        content = read_file(path, LARGE)
        checksum = hashlib.sha256(content).hexdigest()
        text = content.decode(json.detect_encoding(content))
        del content  # a file of scores has half a gigabyte, which need not be there twice
        return json.loads(text), checksum
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON ({first_line(error)})") from None


def named(frames: Sequence[str]) -> str:
    """'a', 'b' and 3 more"""
    more = len(frames) - NAMED
    return ", ".join(map(repr, frames[:NAMED])) + (f" and {more:,} more" if more > 0 else "")


def counted(count: int, what: str) -> str:
    """1 anchor, 1,109 anchors"""
    return f"{count:,} {what}{'s' * (count != 1)}"


def is_index(value: object) -> bool:
    """Whether it is a whole number from 0 on; JSON's true and false are none."""
    return type(value) is int and value >= 0
