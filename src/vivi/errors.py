"""The one exception a user is meant to see, and the commonest reason for it."""

from __future__ import annotations

from collections.abc import Mapping


class UserError(Exception):
    """What is wrong, where, and what to do about it: one line, shown without a traceback."""


def check_ranges(values: object, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises for the first field of `values` that lies outside its range (its ends allowed), by its flag."""
    for name, (least, most) in ranges.items():
        value = getattr(values, name)
        if not least <= value <= most:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} is {value}; it must be between {least:g} and {most:g}")
