"""Results on the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from vivi.evaluate.results import Result
from vivi.evaluate.tasks import GROUPS, VTAB

TITLES = {"v1": "VTAB, Version 1", "v2": "VTAB, Version 2", "full": "VTAB, full data"}


def print_results(results: Sequence[Result], console: Console) -> None:
    """Of one encoder under one protocol: the tasks, the groups, the mean."""
    first = results[0]
    names = {known.name for known in VTAB}
    exact = sum(result.task in names and result.split != "own split" for result in results)
    dealt = sum(result.task in names and result.split == "own split" for result in results)
    tasks = TITLES[first.protocol] if exact or dealt else "own tasks"
    how = {"vtab": "fine-tuned", "knn": "kNN probe", "linear": "linear probe"}[first.benchmark]
    quick = " · quick" if first.quick else ""
    table = Table(title=f"{first.encoder} · {tasks} · {how}{quick}", title_justify="left")
    table.add_column("task")
    table.add_column("group")
    table.add_column("accuracy", justify="right")
    table.add_column("seeds", justify="right")
    table.add_column("setting")
    for result in results:
        table.add_row(result.title, result.group, _percent(result.score.median), _seeds(result), _setting(result))
    table.add_section()
    groups = {result.group for result in results}
    for group in GROUPS if len(groups) > 1 else ():
        mine = [result.score.median for result in results if result.group == group]
        if mine:
            table.add_row(f"mean of {len(mine)}", group, _percent(statistics.fmean(mine)), "", "")
    mean = statistics.fmean(result.score.median for result in results)
    table.add_row(f"mean of {len(results)}", "", _percent(mean), "", "", style="bold")
    console.print(table)
    if exact or dealt:
        said = f", {dealt} more on splits of their own" if dealt else ""
        console.print(f"{exact} of VTAB's {len(VTAB)} tasks{said}", soft_wrap=True)


def _percent(share: float) -> str:
    return f"{100 * share + 1e-9:.1f}"  # halves go up, as in the report


def _seeds(result: Result) -> str:
    accuracies = result.score.accuracies
    return f"{_percent(min(accuracies))}–{_percent(max(accuracies))}" if len(accuracies) > 1 else ""


def _setting(result: Result) -> str:
    setting = result.score.setting
    return f"lr {setting.lr:g} · {setting.steps:,} steps" if setting else ""
