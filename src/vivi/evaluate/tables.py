"""Results on the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from vivi.evaluate.results import Result
from vivi.evaluate.tasks import GROUPS, VTAB

TITLES = {"v1": "VTAB, Version 1", "v2": "VTAB, Version 2", "full": "VTAB, full data"}
BENCHMARKS = {"vtab": "fine-tuned", "knn": "kNN probe", "linear": "linear probe"}


def print_results(results: Sequence[Result], console: Console) -> None:
    """Of one encoder under one protocol: the tasks, the groups, the mean."""
    first = results[0]
    names = {known.name for known in VTAB}
    splits = [result.split for result in results if result.task in names]
    title = f"{first.encoder} · {TITLES[first.protocol] if splits else 'own tasks'} · {BENCHMARKS[first.benchmark]}"
    table = Table("task", "group", title=title + " · quick" * first.quick, title_justify="left")
    table.add_column("accuracy", justify="right")
    table.add_column("seeds", justify="right")
    table.add_column("setting")
    for result in results:
        score = result.score
        low, high = (_percent(pick(score.accuracies)) for pick in (min, max))
        seeds = f"{low}–{high}" if len(score.accuracies) > 1 else ""
        setting = f"lr {score.setting.lr:g} · {score.setting.steps:,} steps" if score.setting else ""
        table.add_row(result.title, result.group, _percent(score.median), seeds, setting)
    table.add_section()
    groups = {result.group for result in results}
    for group in [group for group in GROUPS if group in groups and len(groups) > 1]:
        mine = [result.score.median for result in results if result.group == group]
        table.add_row(f"mean of {len(mine)}", group, _percent(statistics.fmean(mine)))
    mean = statistics.fmean(result.score.median for result in results)
    table.add_row(f"mean of {len(results)}", "", _percent(mean), style="bold")
    console.print(table)
    if splits:
        dealt = splits.count("own split")
        said = f", {dealt} more on splits of their own" if dealt else ""
        console.print(f"{len(splits) - dealt} of VTAB's {len(VTAB)} tasks{said}", soft_wrap=True)


def _percent(share: float) -> str:
    return f"{100 * share + 1e-9:.1f}"  # halves go up, as in the report
