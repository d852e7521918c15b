"""Paths in lists that come with a data set, which may be somebody else's."""

from __future__ import annotations

import os


def leads_out(name: str) -> bool:
    """Whether a path in a list leads out of the folder it starts from: it is absolute, or has a `..`.

    Only the text counts. A link in the folder may lead anywhere: whoever made it wanted that.
    """
    return os.path.isabs(name) or ".." in name.split(os.sep)
