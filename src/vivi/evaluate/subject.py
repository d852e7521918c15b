"""What every benchmark has in common: an encoder, some tasks, and a folder for the results."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from vivi.evaluate.encoders import Model, load_model
from vivi.evaluate.results import Protocol, Result, plain, read_all, versions, write_result
from vivi.evaluate.settings import Subject
from vivi.evaluate.tasks import GROUPS, VTAB, Group
from vivi.evaluate.tasks.examples import Task
from vivi.evaluate.tasks.find import find_tasks
from vivi.runtime.console import warn
from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError

LONGEST_NAME = 100  # it is a part of file names
TITLES = {"v1": "VTAB, Version 1", "v2": "VTAB, Version 2", "full": "VTAB, full data"}
BENCHMARKS = {"vtab": "fine-tuned", "knn": "kNN probe", "linear": "linear probe"}


@dataclass(frozen=True)
class Session:
    """An encoder, the tasks it is being evaluated on, and what came of them."""

    model: Model
    tasks: list[Task]
    protocol: Protocol
    out: Path
    console: Console
    checksums: dict[str, str] = field(default_factory=dict)  # of the tasks' data
    failures: dict[str, str] = field(default_factory=dict)  # why a task has no result
    results: list[Result] = field(default_factory=list)

    def usable(self) -> list[Task]:
        return [task for task in self.tasks if task.name not in self.failures]

    def fail(self, task: str, error: UserError) -> None:
        """Leaves a task out, and says why once; the others go on."""
        if task not in self.failures:
            self.failures[task] = str(error)
            warn(self.console, f"{task} is left out: {error}")

    def write(self, task: Task, **measured: Any) -> None:
        """Writes the result on a task; `measured` are the fields that depend on the benchmark."""
        result = Result(
            encoder=self.model.name,
            protocol=self.protocol,
            task=task.name,
            title=task.title,
            group=task.group,
            classes=task.classes,
            split=task.split,
            images={part: len(examples) for part, examples in task.parts().items()},
            notes=task.notes,
            encoder_from=self.model.source,
            encoder_checksum=self.model.checksum,
            architecture=str(self.model.architecture),
            data_checksum=self.checksums[task.name],
            versions=versions(),
            **measured,
        )
        write_result(self.out, result)
        self.results.append(result)

    def finish(self) -> None:
        """Shows the results; raises where there is none for some of the tasks."""
        order = [task.name for task in self.tasks]
        self.results.sort(key=lambda result: order.index(result.task))
        if self.results:
            print_results(self.results, self.console)
        if self.failures:
            count, names = len(self.failures), ", ".join(self.failures)
            raise UserError(f"{count} of {count + len(self.results)} tasks have no result: {names}")


@contextmanager
def open_session(subject: Subject, protocol: Protocol, console: Console) -> Iterator[Session]:
    """Loads the encoder and finds the tasks; shows the results at the end."""
    groups = read_groups(subject.groups)
    model = load_model(subject.encoder, subject.weights, subject.size, subject.name)
    found = find_tasks(subject.data, protocol, subject.tasks, groups, subject.split_seed, console)
    session = Session(model, found.tasks, protocol, subject.out, console)
    for name, error in found.failures.items():
        session.fail(name, error)
    for task in found.tasks:
        for line in task.notes:
            console.print(line, style="yellow" if line != task.notes[0] else "", soft_wrap=True)
        try:
            session.checksums[task.name] = task.checksum()
        except UserError as error:
            session.fail(task.name, error)
    check_name(model.name, model.checksum, subject.out)
    try:
        if session.usable():
            yield session
        session.finish()
    except StorageError as error:
        raise UserError(f"results cannot be written: {error}; the same command goes on") from None


def print_results(results: Sequence[Result], console: Console) -> None:
    """A table of the results of one encoder under one protocol: the tasks, the groups, the mean."""
    first = results[0]
    names = {known.name for known in VTAB}
    splits = [result.split for result in results if result.task in names and result.group != "own"]
    title = f"{first.encoder} · {TITLES[first.protocol] if splits else 'own tasks'} · {BENCHMARKS[first.benchmark]}"
    rows = []
    for result in results:
        score = result.score
        low, high = _percent(min(score.accuracies)), _percent(max(score.accuracies))
        seeds = f"{low}–{high}" if len(score.accuracies) > 1 else ""
        setting = f"lr {score.setting.lr:g} · {score.setting.steps:,} steps" if score.setting else ""
        interval = "–".join(map(_percent, result.interval or ()))
        rows.append((result.title, result.group, _percent(score.median), interval, seeds, setting))
    for group in GROUPS:
        medians = [result.score.median for result in results if result.group == group]
        if 0 < len(medians) < len(results):
            rows.append((f"mean of {len(medians)}", group, _percent(statistics.fmean(medians)), "", "", ""))
    numbers = [Column(name, justify="right") for name in ("accuracy", "95 %", "seeds")]
    columns = Column("task"), Column("group"), *numbers, Column("setting")
    shown = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    console.print(title + (" · quick" if first.quick else ""), soft_wrap=True)
    table = Table(*(columns[place] for place in shown))
    for number, row in enumerate(rows, start=1):
        table.add_row(*(row[place] for place in shown), end_section=number == len(results))
    console.print(table)
    of_vtab = ""  # which tasks they are
    if splits:
        own_splits = splits.count("own split")
        more = f", {own_splits} more on splits of their own" if own_splits else ""
        of_vtab = f"; {len(splits) - own_splits} of VTAB's {len(VTAB)} tasks{more}"
    mean = _percent(statistics.fmean(result.score.median for result in results))
    said = f"mean of {len(results)} tasks {mean} %"
    if len(results) == 1:
        margin = f" ± {_percent((first.interval[1] - first.interval[0]) / 2)}" if first.interval else ""
        said = f"accuracy {mean} %{margin} of {first.images['test']:,} test images"
    console.print(f"{first.encoder}: {said}{of_vtab}", soft_wrap=True)


def _percent(share: float) -> str:
    return f"{100 * share + 1e-9:.1f}"  # halves go up, as in the report


def read_groups(words: tuple[str, ...]) -> dict[str, Group]:
    """`natural=cifar10,sun28 structured=coil` as a mapping from task to group."""
    groups: dict[str, Group] = {}
    for word in words:
        name, _, tasks = word.partition("=")
        if name not in GROUPS or not tasks:
            raise UserError(f"--groups has '{word}'; write GROUP=TASK,TASK with one of {', '.join(GROUPS)}")
        groups |= dict.fromkeys(filter(None, tasks.split(",")), GROUPS[GROUPS.index(name)])
    return groups


def check_name(name: str, checksum: str, out: Path) -> None:
    """Raises where other weights have results under this name, or under one with the same files."""
    if len(name) > LONGEST_NAME:
        raise UserError(f"the encoder's name has {len(name)} characters; give a --name of {LONGEST_NAME} at most")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a folder")
    for other in read_all(out)[0] if out.exists() else ():
        if plain(other.encoder) == plain(name) and other.encoder_checksum != checksum:
            raise UserError(
                f"{out / other.file_name} is about other weights of the same name, '{other.encoder}': "
                "give --name or another --out"
            )
