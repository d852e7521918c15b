"""JSON files that users bring, and how a few of many frames are named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vivi.errors import UserError, first_line

NAMED = 5


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON ({first_line(error)})") from None


def read_object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a JSON {type(content).__name__}; it must be an object, {{...}}")
    return content


def named(frames: Sequence[str]) -> str:
    """'a', 'b' and 3 more"""
    more = len(frames) - NAMED
    return ", ".join(map(repr, frames[:NAMED])) + (f" and {more:,} more" if more > 0 else "")


def is_index(value: object) -> bool:
    """Whether it is a whole number from 0 on; JSON's true and false are none."""
    return type(value) is int and value >= 0
