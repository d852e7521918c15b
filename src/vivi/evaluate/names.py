"""Names in tables, as parts of the names of files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vivi.runtime.errors import UserError


def plain(name: str) -> str:
    """A name as a part of a file's name."""
    return re.sub(r"[^\w.()=+%-]+", "_", name) or "_"


def checked_names(names: Iterable[str]) -> None:
    """Raises for two names that would share files."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(plain(name).lower(), name)
        if other != name:
            raise UserError(f"'{name}' and '{other}' would have the same file names; rename one of them")
