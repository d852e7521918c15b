"""The paper's own numbers, as printed: in percent, rounded to one digit."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_FILES = {"v1": "vtab_v1_1000", "v2": "vtab_v2_1000", "full": "vtab_v1_full"}


@dataclass(frozen=True)
class PaperRow:
    """A row of a table: a method, and its numbers by the names of their columns."""

    method: str
    numbers: dict[str, float]


@cache
def paper_rows(table: str) -> tuple[PaperRow, ...]:
    """The rows of a table in the paper's order; numbers that it does not print are left out.

    v1, v2, full: accuracies on VTAB's tasks, and their mean, which is of numbers not yet rounded. table1, table1_v2,
    groups_v2: means of all tasks and of groups. autoaugment, coco_ap, vid_robust: the other tables.
    """
    text = (files("vivi") / "paper" / f"{_FILES.get(table, table)}.csv").read_text(encoding="utf-8")
    [_, *columns], *lines = csv.reader(text.splitlines())
    return tuple(
        PaperRow(method, {name: float(value) for name, value in zip(columns, values, strict=True) if value})
        for method, *values in lines
    )
