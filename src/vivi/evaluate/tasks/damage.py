"""How damage to a data set's files is told: in one line, with the file and what to do."""

from __future__ import annotations

from pathlib import Path

from vivi.runtime.errors import UserError, first_line


def damaged(path: Path, reason: str | BaseException) -> UserError:
    """The error for a file that is there but not what it should be."""
    text = reason if isinstance(reason, str) else first_line(reason)
    return UserError(f"{path} is damaged or not the right file ({text}); get it again")


def unreadable(error: OSError, folder: Path) -> UserError:
    """The error for a file that the system does not let us read."""
    reason = error.strerror or first_line(error)
    return UserError(f"{error.filename or folder} cannot be read: {reason}; see to its permissions")
