"""Which tasks lie in a folder of data: VTAB-1k lists, users' own in the same layout, and original data sets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vivi.evaluate.examples import Original, Task
from vivi.evaluate.lists import is_task, read_task
from vivi.evaluate.originals import is_there, read_original
from vivi.evaluate.results import Protocol, checked_names
from vivi.evaluate.tasks import VTAB, Definition, Group, definition
from vivi.runtime.errors import UserError

# Of the draws of 1000, 800 and 200 images, which are the same for everyone.
DRAW = 2020


@dataclass(frozen=True)
class FoundTasks:
    """The tasks that can be evaluated, in VTAB's order and then by name, and why others cannot."""

    tasks: list[Task] = field(default_factory=list)
    failures: dict[str, UserError] = field(default_factory=dict)


def find_tasks(data: Path, protocol: Protocol, wanted: Iterable[str], groups: Mapping[str, Group]) -> FoundTasks:
    """Reads the wanted tasks in a folder, or all that are there."""
    places = find_places(data, protocol)
    if not places:
        if find_places(data, "v2"):
            raise UserError(f"{data} has lists of Version 2 only; {_TITLES[protocol]} needs the original data sets")
        raise UserError(f"there is no task in {data}; vivi evaluate vtab --check {data} says what is looked for")
    checked_names(places)
    for name in groups:
        if not any(name in (task, isinstance(place, Path) and place.name) for task, place in places.items()):
            raise UserError(f"--groups has '{name}', which is no task in {data}")
    found = FoundTasks()
    for name in sorted(_choose(places, tuple(wanted), data), key=_order):
        place = places[name]
        try:
            if isinstance(place, Path):
                found.tasks.append(read_task(place, groups))
            else:
                found.tasks.append(under_protocol(place, read_original(name, data), protocol))
        except UserError as error:
            found.failures[name] = error
    return found


def find_places(data: Path, protocol: Protocol) -> dict[str, Path | Definition]:
    """Where each task is: in a folder with lists, which are exact and come first in Version 2, or among the original
    data sets, which the other protocols need."""
    if not data.is_dir():
        raise UserError(f"there is no folder {data}; give one with tasks in it")
    there: dict[str, Path | Definition] = {known.name: known for known in VTAB if is_there(known.name, data)}
    if protocol == "v2":
        folders = [data] if is_task(data) else sorted(path for path in data.iterdir() if is_task(path))
        for folder in folders:
            other = there.get(_name(folder))
            if isinstance(other, Path):
                raise UserError(f"{other} and {folder} are the same task, {_name(folder)}; take one of them away")
            there[_name(folder)] = folder
    return there


def under_protocol(known: Definition, original: Original, protocol: Protocol) -> Task:
    """The task of an original data set; the draws are fixed, but not those of VTAB."""
    train, val = original.train, original.val
    both = train.and_then(val)
    if protocol == "full":
        sweep, validation, final = train, val, both
    elif protocol == "v1":
        sweep, validation, final = train.draw(1000, DRAW), val, both.draw(1000, DRAW + 1)
    else:
        sweep, validation = train.draw(800, DRAW), val.draw(200, DRAW)
        final = sweep.and_then(validation)
    task = Task(
        known.name, known.title, known.group, known.classes, "own split", sweep, validation, final, original.test
    )
    for part, examples in task.parts().items():
        if not len(examples):
            raise UserError(f"{known.title} has too few images: none is left for {part}; get the whole data set")
        if int(examples.labels.max()) >= known.classes:
            raise UserError(
                f"{known.title} has {int(examples.labels.max()) + 1} classes, {known.classes} are known; "
                "take away the folders that are no classes"
            )
    return task


_TITLES = {"v1": "Version 1", "v2": "Version 2", "full": "the full regime"}


def _choose(names: Iterable[str], wanted: tuple[str, ...], data: Path) -> list[str]:
    if not wanted:
        return list(names)
    chosen = [known.name if (known := definition(name)) else name for name in wanted]
    for asked, name in zip(wanted, chosen, strict=True):
        if name not in names:
            close = difflib.get_close_matches(asked, list(names), n=1)
            hint = f"; did you mean {close[0]}?" if close else "; vivi evaluate vtab --check says what is there"
            raise UserError(f"there is no task '{asked}' in {data}{hint}")
    return list(dict.fromkeys(chosen))


def _name(folder: Path) -> str:
    known = definition(folder.name)
    return known.name if known else folder.name


def _order(name: str) -> tuple[int, str]:
    known = definition(name)
    return (VTAB.index(known), "") if known else (len(VTAB), name)
