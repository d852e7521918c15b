"""From results to boards: what was measured alike, side by side. Pure functions; all numbers are in percent.

A mean is never compared with one over other tasks: each mean knows how many tasks it is over, a difference is over
the tasks that both rows have, and only rows that have all tasks of a column compete for being its best.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from vivi.evaluate.results import Benchmark, Protocol, Result
from vivi.evaluate.tasks import GROUPS, VTAB, Group
from vivi.report.paper import paper_rows, summary_rows
from vivi.report.table import one_digit

PAPER_BASELINE = "Ex-ImageNet"
_ORDER = {task.name: place for place, task in enumerate(VTAB)}
_DEFINED = {task.name: task for task in VTAB}
_SETS = {frozenset(task.name for task in VTAB if task.group == group): str(group) for group in GROUPS}
_SETS[frozenset(_DEFINED)] = "all"
_BENCHMARKS: tuple[Benchmark, ...] = ("vtab", "linear", "knn")
_PROTOCOLS: tuple[Protocol, ...] = ("v1", "v2", "full")


@dataclass(frozen=True)
class BoardTask:
    """A task on a board."""

    task: str
    title: str
    group: Group


@dataclass(frozen=True)
class Accuracy:
    """A row's accuracy on a task: the median of its seeds, or what the paper prints (then there are no seeds)."""

    value: float
    seeds: tuple[float, ...] = ()
    result: Result | None = None

    @property
    def spread(self) -> float | None:
        """Half the way from the lowest seed to the highest; None for a single one."""
        return (max(self.seeds) - min(self.seeds)) / 2 if len(self.seeds) > 1 else None


@dataclass(frozen=True)
class Method:
    """An encoder, or a method of the paper."""

    name: str
    cells: dict[str, Accuracy]
    paper: bool = False
    printed: dict[str, float] = field(default_factory=dict)  # means that the paper prints, "all" and by group

    def tasks(self, among: Iterable[str]) -> list[str]:
        return [task for task in among if task in self.cells]


@dataclass(frozen=True)
class Mean:
    """Over so many tasks. `low` and `high` are the extremes of the means that single seeds have."""

    value: float
    tasks: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Difference:
    """A row's mean minus the baseline's, over the tasks that both have."""

    value: float
    tasks: int


@dataclass(frozen=True)
class Line:
    """A row of a board's summary."""

    method: Method
    mean: Mean | None
    difference: Difference | None
    groups: dict[Group, Mean | None]


@dataclass(frozen=True)
class Board:
    """All that was measured with one benchmark and protocol, in full or quick."""

    benchmark: Benchmark
    protocol: Protocol
    quick: bool
    columns: tuple[BoardTask, ...]
    rows: tuple[Method, ...]  # ours: the baseline, then by mean
    paper: tuple[Method, ...]  # in the paper's order
    baseline: Method | None
    own_split: tuple[str, ...] = ()  # titles of VTAB's tasks that were measured on other images than VTAB's
    warnings: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """Its part of file names."""
        return f"{self.benchmark}-{self.protocol}" + ("-quick" if self.quick else "")

    @property
    def title(self) -> str:
        vtab = any(column.task in _DEFINED and column.group != "own" for column in self.columns)
        version = "" if self.protocol == "full" else f" Version {self.protocol[1]}"
        if self.benchmark == "vtab":
            return f"{f'VTAB{version}' if vtab else 'Fine-tuning'}, {self.examples}"
        probe = {"knn": "kNN probe", "linear": "Linear probe"}[self.benchmark]
        return f"{probe}, {self.examples}" + (f" ({version.strip()})" if vtab and version else "")

    @property
    def examples(self) -> str:
        """How many labels there were for each task, in words."""
        if self.protocol == "full":
            return "all examples"
        counts = {count for result in self.results if (count := result.images.get("final"))}
        if len(counts) > 1:
            return f"{min(counts)} to {max(counts)} examples"
        return f"{next(iter(counts), 1000)} examples"

    @property
    def results(self) -> list[Result]:
        return [cell.result for row in self.rows for cell in row.cells.values() if cell.result]

    @property
    def has_several_seeds(self) -> bool:
        return any(len(accuracy.seeds) > 1 for row in self.rows for accuracy in row.cells.values())

    @property
    def chance(self) -> float:
        """The mean that guessing gives."""
        classes = {result.task: result.classes for result in self.results if result.task in self.counted}
        return 100 * sum(1 / count for count in classes.values()) / len(classes)

    @property
    def standard_error(self) -> float:
        """How far the number of test images alone makes an accuracy uncertain, at most."""
        shares = [(result.score.median, count) for result in self.results if (count := result.images.get("test"))]
        return max((100 * (share * (1 - share) / count) ** 0.5 for share, count in shares), default=0.0)

    @property
    def label(self) -> str:
        """Its title where there is no room for more."""
        return self.title + (", quick" if self.quick else "")

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

    def tasks(self, group: Group) -> tuple[str, ...]:
        return tuple(column.task for column in self.columns if column.group == group)

    @cached_property
    def counted(self) -> tuple[str, ...]:
        """The tasks that the mean is over: those that users bring stand apart, unless there are no others."""
        vtab = tuple(column.task for column in self.columns if column.group != "own")
        return vtab or tuple(column.task for column in self.columns)

    @property
    def total(self) -> int:
        """How many tasks a mean would be over if none were missing."""
        return len(VTAB) if all(task in _DEFINED for task in self.counted) else len(self.counted)

    @property
    def equal(self) -> bool:
        """Whether all its rows have the same tasks."""
        return all(len(row.cells) == len(self.columns) for row in self.rows)

    def find(self, name: str) -> Method | None:
        return next((row for row in (*self.rows, *self.paper) if row.name == name), None)


def mean(row: Method, tasks: Sequence[str]) -> Mean | None:
    """The mean over those of the tasks that the row has; None if it has none."""
    cells = [row.cells[task] for task in row.tasks(tasks)]
    if not cells:
        return None
    value = statistics.fmean(cell.value for cell in cells)
    if row.printed:  # of numbers not yet rounded: nearer to the truth than what can be recomputed
        value = row.printed.get(_SETS.get(frozenset(row.tasks(tasks)), ""), value)
    by_seed = [statistics.fmean(seeds) for seeds in zip(*(cell.seeds for cell in cells), strict=False)]
    if len(by_seed) < 2:
        return Mean(value, len(cells))
    return Mean(value, len(cells), min(by_seed), max(by_seed))


def difference(row: Method, other: Method, tasks: Sequence[str]) -> Difference | None:
    """How much better a row is than another, over the tasks that both have."""
    both = [task for task in row.tasks(tasks) if task in other.cells]
    if not both:
        return None
    first, second = mean(row, both), mean(other, both)  # of all 19 tasks, the paper's as printed
    return Difference(first.value - second.value, len(both)) if first and second else None


def best(rows: Sequence[Method], tasks: Sequence[str]) -> frozenset[str]:
    """The names of the rows with the highest mean, as printed, among those that have all of the tasks."""
    means = {row.name: mean(row, tasks) for row in rows if tasks and len(row.tasks(tasks)) == len(tasks)}
    printed = {name: one_digit(found.value) for name, found in means.items() if found}
    if len(printed) < 2:
        return frozenset()
    return frozenset(name for name, value in printed.items() if value == max(printed.values()))


def summary(board: Board) -> list[Line]:
    """A line for each of our rows, then for each of the paper's."""
    return [
        Line(
            row,
            mean(row, board.counted),
            difference(row, board.baseline, board.counted) if board.baseline and row is not board.baseline else None,
            {group: mean(row, board.tasks(group)) for group in board.parts},
        )
        for row in (*board.rows, *board.paper)
    ]


def leader(board: Board, with_baseline: bool = False) -> Method | None:
    """The best of the comparable rows over the tasks that they share; the baseline only if asked for, or alone."""
    rows = comparable(board.shown, board.counted)
    tasks = shared_tasks(rows, board.counted)
    if not with_baseline:
        rows = [row for row in rows if row is not board.baseline] or rows
    means = [(found.value, row) for row in rows if (found := mean(row, tasks))]
    return max(means, key=lambda pair: pair[0])[1] if means else None


def comparable(rows: Sequence[Method], tasks: Sequence[str]) -> list[Method]:
    """The rows to compare over the tasks they share: as many rows times as many tasks as can be.

    So an encoder of which a single task is measured yet does not reduce a comparison to this one.
    """
    complete = sorted(rows, key=lambda row: -len(row.tasks(tasks)))
    choices = [complete[:count] for count in range(min(2, len(rows)), len(rows) + 1)]
    chosen = max(choices, key=lambda some: (len(some) * len(shared_tasks(some, tasks)), len(some)))
    names = {row.name for row in chosen}
    return [row for row in rows if row.name in names]


def shared_tasks(rows: Sequence[Method], tasks: Sequence[str]) -> list[str]:
    return [task for task in tasks if all(task in row.cells for row in rows)]


# --- from results ---


def make_boards(results: Sequence[Result], paper: bool, baseline: str) -> tuple[list[Board], list[str]]:
    """The boards, those with results first, and a line for each result that is there twice.

    The paper's rows are offered for VTAB in full. `baseline` "" is the first encoder by name, one that is called
    untrained before the others; on the paper's own boards its ImageNet baseline.
    """
    kinds: dict[tuple[Benchmark, Protocol, bool], dict[tuple[str, str], Result]] = defaultdict(dict)
    problems = []
    for result in results:
        kind = kinds[(result.benchmark, result.protocol, result.quick)]
        if (result.encoder, result.task) in kind:
            problems.append(
                f"{result.encoder} on {result.task} ({result.benchmark} {result.protocol}) is there twice; "
                "the first file by name counts"
            )
        kind.setdefault((result.encoder, result.task), result)
    if paper:
        for protocol in _PROTOCOLS:
            kinds.setdefault(("vtab", protocol, False), {})
    encoders = {result.encoder for result in results}
    boards = [_board(kind, [*found.values()], paper, baseline, encoders) for kind, found in kinds.items()]
    return sorted(boards, key=_place), problems


def _place(board: Board) -> tuple[bool, int, bool, int]:
    benchmark, protocol = _BENCHMARKS.index(board.benchmark), _PROTOCOLS.index(board.protocol)
    return (not board.rows, benchmark, board.quick, protocol)


def _board(
    kind: tuple[Benchmark, Protocol, bool], results: list[Result], paper: bool, baseline: str, encoders: set[str]
) -> Board:
    benchmark, protocol, quick = kind
    columns = _columns(results)
    cells: dict[str, dict[str, Accuracy]] = defaultdict(dict)
    for result in results:
        seeds = tuple(100 * accuracy for accuracy in result.score.accuracies)
        cells[result.encoder][result.task] = Accuracy(100 * result.score.median, seeds, result)
    rows = [Method(name, cells[name]) for name in sorted(cells)]
    known = any(column.task in _DEFINED and column.group != "own" for column in columns)
    paper = paper and known and benchmark == "vtab" and not quick
    dealt = {result.task for result in results if result.split == "own split"}
    board = Board(
        benchmark,
        protocol,
        quick,
        columns,
        tuple(rows),
        tuple(_paper(protocol, columns, encoders)) if paper else (),
        None,
        tuple(column.title for column in columns if column.group != "own" and column.task in dealt),
        tuple(_warnings(results, columns)),
    )
    first = board.find(baseline) if baseline else _default_baseline(board)
    order = sorted(rows, key=lambda row: (row is not first, (mean(row, board.counted) or Mean(-1, 0)).value))
    return replace(board, rows=tuple(order), baseline=first)


def _columns(results: Sequence[Result]) -> tuple[BoardTask, ...]:
    """The tasks of some results, VTAB's in the paper's order, then others; of no results, all of VTAB's."""
    if not results:
        return tuple(BoardTask(task.name, task.title, task.group) for task in VTAB)
    found: dict[str, BoardTask] = {}
    for result in results:
        known = _DEFINED.get(result.task) if result.group != "own" else None
        title, group = (known.title, known.group) if known else (result.title, result.group)
        found.setdefault(result.task, BoardTask(result.task, title, group))
    return tuple(
        sorted(found.values(), key=lambda c: (GROUPS.index(c.group), _ORDER.get(c.task, len(VTAB)), c.title, c.task))
    )


def _paper(protocol: Protocol, columns: Sequence[BoardTask], encoders: set[str]) -> Iterable[Method]:
    """The paper's rows on a board's tasks; one called like an encoder of ours says whose it is."""
    tasks = [column.task for column in columns if column.task in _DEFINED and column.group != "own"]
    summaries = {"v1": summary_rows("table1"), "v2": summary_rows("groups_v2")}
    groups = {row.method: row.groups for row in summaries.get(protocol, [])}
    for row in paper_rows(protocol):
        printed = {"all": row.printed_mean, **groups.get(row.method, {})}
        name = f"{row.method} (paper)" if row.method in encoders else row.method
        yield Method(name, {task: Accuracy(row.accuracies[task]) for task in tasks}, True, printed)


def _default_baseline(board: Board) -> Method | None:
    if not board.rows:
        return board.find(PAPER_BASELINE)
    return min(board.rows, key=lambda row: (not row.name.lower().startswith("untrained"), row.name))


def _warnings(results: Sequence[Result], columns: Sequence[BoardTask]) -> Iterable[str]:
    """What makes numbers of one board incomparable after all."""
    for column in columns:
        here = [result for result in results if result.task == column.task]
        checksums = {result.data_checksum for result in here if result.data_checksum}
        if len(checksums) > 1 or len({result.split for result in here}) > 1:
            yield f"On {column.title}, the encoders were not measured on the same images."
    for name in ("schedules", "batch", "micro_batch", "antialias", "k", "temperature"):
        values = {str(result.settings[name]) for result in results if name in result.settings}
        if len(values) > 1:
            yield f"Results were measured with different settings: {name} is {' or '.join(sorted(values))}."
    for name in sorted({result.encoder for result in results}):
        if len({r.encoder_checksum for r in results if r.encoder == name and r.encoder_checksum}) > 1:
            yield f"The results of {name} are from different weights."
