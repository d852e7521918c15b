"""The one exception that users are meant to see, and the checks that raise it most often."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping


class UserError(Exception):
    """What is wrong, where, and what to do about it: one line, shown without a traceback."""


def first_line(error: BaseException) -> str:
    """What another exception says, short enough for a UserError."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A part of a message: which of the known names it may have been, if one is close."""
    close = difflib.get_close_matches(name[:80], list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def require(condition: bool, message: str) -> None:
    """Raises a UserError with this message unless the condition holds."""
    if not condition:
        raise UserError(message)


def check_ranges(values: object, ranges: Mapping[str, tuple[float, float]], prefix: str = "") -> None:
    """Raises for the first field of `values` that lies outside its range (its ends allowed), by its flag."""
    for name, (least, most) in ranges.items():
        value = getattr(values, name)
        if not least <= value <= most or math.isinf(value):
            flag = f"--{prefix}{name}".replace("_", "-")
            allowed = f"between {least:.15g} and {most:.15g}" if most < math.inf else f"at least {least:g}"
            raise UserError(f"{flag} is {value}; it must be {allowed}")
