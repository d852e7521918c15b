"""From results to boards: what was measured alike, side by side. Pure functions; all numbers are in percent.

A mean is never compared with one over other tasks: each mean knows how many tasks it is over, a difference is over
the tasks that both rows have, and only rows that have all tasks of a column compete for being its best.

The error of a number is half of its 95 % interval, from how many test images a task has (binomial) and how much
several seeds differ. That of a difference adds the errors of both encoders on each task, as if they had been tested
on different images: on the same ones it is smaller. It covers neither other tasks nor another training run.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from vivi.evaluate.results import Protocol, Result
from vivi.evaluate.tasks import GROUPS, VTAB, Group
from vivi.report.paper import paper_rows
from vivi.report.table import extent

PAPER_BASELINE = "Ex-ImageNet"
INTERVAL = 1.96  # standard errors: 95 % of a normal distribution lie so near to its mean
_VTAB = {task.name: task for task in VTAB}
_ORDER = {name: place for place, name in enumerate(_VTAB)}
# What the paper calls the mean over all tasks of VTAB, or of a group.
_PRINTED = {frozenset(task.name for task in VTAB if task.group == group): str(group) for group in GROUPS}
_PRINTED[frozenset(_VTAB)] = "mean"
_SUMMARIES = {"v1": "table1", "v2": "groups_v2"}
_PROBES = {"linear": "Linear probe", "knn": "kNN probe"}


@dataclass(frozen=True)
class BoardTask:
    """A task on a board."""

    task: str
    title: str
    group: Group

    @property
    def known(self) -> bool:
        """Whether it is one of VTAB's."""
        return self.group != "own" and self.task in _VTAB


@dataclass(frozen=True)
class Accuracy:
    """A row's accuracy on a task: the median of its seeds, or what the paper prints (then there are no seeds)."""

    value: float
    seeds: tuple[float, ...] = ()
    result: Result | None = None

    @property
    def squared_errors(self) -> list[float]:
        """Of its test images, and of its seeds, as far as they are known."""
        interval = self.result.interval if self.result else None
        of_images = [((interval[1] - interval[0]) * 100 / 2) ** 2] if interval else []
        several = len(self.seeds) > 1
        return of_images + ([INTERVAL**2 * statistics.variance(self.seeds) / len(self.seeds)] if several else [])


@dataclass(frozen=True)
class Method:
    """An encoder, or a method of the paper."""

    name: str
    cells: dict[str, Accuracy]
    paper: bool = False
    printed: dict[str, float] = field(default_factory=dict)  # means that the paper prints, "mean" and by group

    def tasks(self, among: Iterable[str]) -> list[str]:
        return [task for task in among if task in self.cells]

    @property
    def results(self) -> list[Result]:
        return [cell.result for cell in self.cells.values() if cell.result]

    @property
    def is_untrained(self) -> bool:
        sources = [result.encoder_from for result in self.results]
        return self.name.lower().startswith("untrained") or any(source.startswith("untrained:") for source in sources)

    @property
    def architecture(self) -> str:
        """Nothing, of results that older versions wrote."""
        return next((result.architecture for result in self.results), "")


@dataclass(frozen=True)
class Mean:
    """Over so many tasks, or the difference of two; of no tasks, there is no value. `error` is half of the 95 %
    interval; None where it is not known."""

    value: float | None
    tasks: int
    error: float | None = None

    @property
    def verdict(self) -> Literal["", "within", "up", "down"]:
        """Of a difference: whether it is within its error, or beyond; nothing where one of both is not known."""
        if self.value is None or self.error is None:
            return ""
        return "within" if abs(self.value) <= self.error else "up" if self.value > 0 else "down"


@dataclass(frozen=True)
class Board:
    """All that was measured with one benchmark and protocol, in full or quick."""

    benchmark: str
    protocol: Protocol
    quick: bool
    columns: tuple[BoardTask, ...]
    rows: tuple[Method, ...]  # ours, the best first
    paper: tuple[Method, ...]  # the same
    baseline: Method | None

    @property
    def slug(self) -> str:
        """Its part of file names."""
        return f"{self.benchmark}-{self.protocol}" + ("-quick" if self.quick else "")

    @property
    def title(self) -> str:
        """The benchmark, and how many labels there were for each task."""
        full, vtab = self.protocol == "full", any(column.known for column in self.columns)
        version = f"Version {self.protocol[1]}" if vtab and not full else ""
        counts = {count for result in self.results if (count := result.images.get("final"))} or {1000}
        examples = "all examples" if full else f"{extent(counts)} examples"
        if self.benchmark == "vtab":
            return f"{f'VTAB {version}'.strip() if vtab else 'Fine-tuning'}, {examples}"
        return f"{_PROBES[self.benchmark]}, {examples}" + (f" ({version})" if version else "")

    @property
    def label(self) -> str:
        """Its title where there is no room for badges."""
        return self.title + (", quick" if self.quick else "")

    @property
    def results(self) -> list[Result]:
        return [result for row in self.rows for result in row.results]

    @property
    def seeds(self) -> list[int]:
        """How many seeds accuracies are of."""
        return sorted({len(accuracy.seeds) for row in self.rows for accuracy in row.cells.values()})

    @property
    def own_split(self) -> list[str]:
        """Titles of VTAB's tasks that were measured on other images than VTAB's."""
        dealt = {result.task for result in self.results if result.split == "own split"}
        return [column.title for column in self.columns if column.group != "own" and column.task in dealt]

    @property
    def notes(self) -> list[str]:
        """How users' own images were split, and what was left out."""
        return list(dict.fromkeys(note for result in self.results for note in result.notes))

    @property
    def chance(self) -> float:
        """The mean that guessing gives."""
        classes = {result.task: result.classes for result in self.results if result.task in self.counted}
        return 100 * statistics.fmean(1 / count for count in classes.values())

    @property
    def shown(self) -> tuple[Method, ...]:
        """The rows that the board is about: ours, or the paper's where there are none."""
        return self.rows or self.paper

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        return tuple(group for group in GROUPS if self.tasks(group))

    @property
    def parts(self) -> tuple[Group, ...]:
        """The groups that have means of their own: not that of own tasks where there are no others."""
        return self.groups if self.groups != ("own",) else ()

    def tasks(self, *groups: Group) -> tuple[str, ...]:
        return tuple(column.task for column in self.columns if column.group in groups)

    @cached_property
    def counted(self) -> tuple[str, ...]:
        """The tasks that the mean is over: those that users bring stand apart, unless there are no others."""
        return self.tasks("natural", "specialized", "structured") or self.tasks("own")

    @property
    def total(self) -> int:
        """How many tasks a mean would be over if none were missing."""
        known = {column.task for column in self.columns if column.known}
        return len(VTAB) if known >= {*self.counted} else len(self.counted)

    @property
    def equal(self) -> bool:
        """Whether all its rows have the same tasks."""
        return all(len(row.cells) == len(self.columns) for row in self.rows)

    def find(self, name: str) -> Method | None:
        return next((row for row in (*self.rows, *self.paper) if row.name == name), None)

    def warnings(self) -> Iterable[str]:
        """What makes its numbers incomparable after all."""
        for column in self.columns:
            here = [result for result in self.results if result.task == column.task]
            checksums = {result.data_checksum for result in here if result.data_checksum}
            if len(checksums) > 1 or len({result.split for result in here}) > 1:
                yield f"On {column.title}, the encoders were not measured on the same images."
        for name in ("schedules", "batch", "micro_batch", "antialias", "k", "temperature"):
            values = {str(result.settings[name]) for result in self.results if name in result.settings}
            if len(values) > 1:
                yield f"Results were measured with different settings: {name} is {' or '.join(sorted(values))}."
        for row in sorted(self.rows, key=lambda row: row.name):
            checksums = {result.encoder_checksum for result in row.results} - {""}
            if len(checksums) > 1:
                yield f"The results of {row.name} are from different weights."


def mean(row: Method, tasks: Sequence[str]) -> Mean:
    """The mean over those of the tasks that the row has."""
    own = row.tasks(tasks)
    if not own:
        return Mean(None, 0)
    value = statistics.fmean(row.cells[task].value for task in own)
    # A printed mean is of numbers not yet rounded: nearer to the truth than what can be recomputed.
    value = row.printed.get(_PRINTED.get(frozenset(own), ""), value)
    return Mean(value, len(own), _error([row], own))


def difference(row: Method, other: Method, tasks: Sequence[str]) -> Mean:
    """How much better a row is than another, over the tasks that both have."""
    both = other.tasks(row.tasks(tasks))
    first, second = mean(row, both).value, mean(other, both).value
    if first is None or second is None:
        return Mean(None, 0)
    return Mean(first - second, len(both), _error([row, other], both))


def _error(rows: Sequence[Method], tasks: Sequence[str]) -> float | None:
    """Of the mean of a row over tasks that it has, or of the difference of two."""
    squares = [row.cells[task].squared_errors for row in rows for task in tasks]
    return sum(map(sum, squares)) ** 0.5 / len(tasks) if all(squares) else None


def leader(board: Board, with_baseline: bool = False) -> Method | None:
    """The best of the comparable rows over the tasks that they share; the baseline only if asked for, or alone."""
    rows = comparable(board.shown, board.counted)
    tasks = shared_tasks(rows, board.counted)
    if not with_baseline:
        rows = [row for row in rows if row is not board.baseline] or rows
    return max(rows, key=lambda row: mean(row, tasks).value or 0.0) if tasks else None


def comparable(rows: Sequence[Method], tasks: Sequence[str]) -> list[Method]:
    """The rows to compare over the tasks they share: as many rows times as many tasks as can be.

    So an encoder of which a single task is measured yet does not reduce a comparison to this one.
    """
    complete = sorted(rows, key=lambda row: -len(row.tasks(tasks)))
    choices = [complete[:count] for count in range(min(2, len(rows)), len(rows) + 1)]
    chosen = max(choices, key=lambda some: (len(some) * len(shared_tasks(some, tasks)), len(some)))
    return [row for row in rows if row in chosen]


def shared_tasks(rows: Sequence[Method], tasks: Sequence[str]) -> list[str]:
    return [task for task in tasks if all(task in row.cells for row in rows)]


def make_boards(results: Sequence[Result], paper: bool, baseline: str) -> list[Board]:
    """The boards, those with results first. The paper's rows are offered for VTAB in full.

    `baseline` "" is the one of `automatic_baseline`; on the paper's own boards its ImageNet baseline.
    """
    kinds: dict[tuple[str, Protocol, bool], list[Result]] = defaultdict(list)
    for result in results:
        kinds[result.benchmark, result.protocol, result.quick].append(result)
    for protocol in get_args(Protocol) if paper else ():
        kinds["vtab", protocol, False] += []
    encoders = {result.encoder for result in results}
    boards = []
    for (benchmark, protocol, quick), found in kinds.items():
        columns = _columns(found)
        cells: dict[str, dict[str, Accuracy]] = defaultdict(dict)
        for result in found:
            seeds = tuple(100 * accuracy for accuracy in result.score.accuracies)
            cells[result.encoder][result.task] = Accuracy(100 * result.score.median, seeds, result)
        rows = tuple(Method(name, cells[name]) for name in sorted(cells))
        papers = _paper(protocol, columns, encoders) if paper and benchmark == "vtab" and not quick else ()
        board = Board(benchmark, protocol, quick, columns, rows, papers, None)
        rows, papers = best_first(rows, board.counted), best_first(papers, board.counted)
        first = board.find(baseline or PAPER_BASELINE) if baseline or not rows else automatic_baseline(rows)
        boards.append(replace(board, rows=rows, paper=papers, baseline=first))
    benchmarks, protocols = ["vtab", *_PROBES].index, get_args(Protocol).index
    return sorted(boards, key=lambda b: (not b.rows, benchmarks(b.benchmark), b.quick, protocols(b.protocol)))


def best_first(rows: Sequence[Method], tasks: Sequence[str]) -> tuple[Method, ...]:
    """By the mean over the tasks that are compared; then the rows that lack some of these."""
    compared = comparable(rows, tasks)
    shared = shared_tasks(compared, tasks) or tasks
    return tuple(sorted(rows, key=lambda row: (row not in compared, -(mean(row, shared).value or -1.0))))


def automatic_baseline(rows: Sequence[Method]) -> Method | None:
    """An untrained encoder of the same architecture as the best trained one; where there is none, the first trained
    one by name, if there are several to compare. The rows are in order, the best first."""
    trained = [row for row in rows if not row.is_untrained]
    alike = [row for row in rows if row.is_untrained and row.architecture == (trained or rows)[0].architecture]
    choice = alike or (trained if len(trained) > 1 else [])
    return min(choice, key=lambda row: row.name, default=None)


def _columns(results: Sequence[Result]) -> tuple[BoardTask, ...]:
    """The tasks of some results, VTAB's in the paper's order, then others; of no results, all of VTAB's.

    Where half of the tasks or more are a user's own, one that is called like one of VTAB's is taken for the user's as
    well: else the mean would be over it alone.
    """
    found = {task.name: BoardTask(task.name, task.title, task.group) for task in VTAB if not results}
    own = {result.task for result in results if result.group == "own"}
    mostly_own = 2 * len(own) >= len({result.task for result in results})
    for result in reversed(results):
        group: Group = "own" if mostly_own else result.group
        known = _VTAB.get(result.task) if group != "own" else None
        title, group = (known.title, known.group) if known else (result.title, group)
        found[result.task] = BoardTask(result.task, title, group)
    places = {column: _ORDER[column.task] if column.known else len(VTAB) for column in found.values()}
    return tuple(sorted(places, key=lambda c: (GROUPS.index(c.group), places[c], c.title, c.task)))


def _paper(protocol: Protocol, columns: Sequence[BoardTask], encoders: set[str]) -> tuple[Method, ...]:
    """The paper's rows on a board's tasks; one called like an encoder of ours says whose it is."""
    tasks = [column.task for column in columns if column.known]
    groups = {row.method: row.numbers for row in paper_rows(_SUMMARIES[protocol])} if protocol in _SUMMARIES else {}
    methods = []
    for row in paper_rows(protocol) if tasks else ():
        name = f"{row.method} (paper)" if row.method in encoders else row.method
        printed = row.numbers | groups.get(row.method, {})
        methods.append(Method(name, {task: Accuracy(row.numbers[task]) for task in tasks}, True, printed))
    return tuple(methods)
