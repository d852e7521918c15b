"""Tasks to evaluate on: what VTAB's 19 are, and how they are read from lists, TFDS folders and original data sets."""

from vivi.evaluate.tasks.definitions import GROUPS, VTAB, Definition, Group, definition

__all__ = ["GROUPS", "VTAB", "Definition", "Group", "definition"]
