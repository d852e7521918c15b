"""Which tasks lie in a folder of data: lists of VTAB-1k and of users, TFDS folders, and original data sets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vivi.evaluate.results import Protocol, checked_names
from vivi.evaluate.tasks import originals, tfds
from vivi.evaluate.tasks.definitions import VTAB, Definition, Group, definition
from vivi.evaluate.tasks.examples import Original, Task
from vivi.evaluate.tasks.lists import is_task, read_task
from vivi.runtime.errors import UserError

# Of the draws of 1000, 800 and 200 images of original data sets, which are the same for everyone.
DRAW = 2020


@dataclass(frozen=True)
class Place:
    """Where a task's data lies, and in which form."""

    form: str  # "lists", "tfds" or "original"
    folder: Path


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
            raise UserError(
                f"{data} has lists of Version 2 only; {_TITLES[protocol]} needs original data sets or TFDS folders"
            )
        raise UserError(f"there is no task in {data}; vivi evaluate vtab --check {data} says what is looked for")
    checked_names(places)
    for name in groups:
        if not any(name in (task, place.form == "lists" and place.folder.name) for task, place in places.items()):
            raise UserError(f"--groups has '{name}', which is no task in {data}")
    found = FoundTasks()
    for name in sorted(_choose(places, tuple(wanted), data), key=_order):
        try:
            found.tasks.append(_read(name, places[name], data, protocol, groups))
        except UserError as error:
            found.failures[name] = error
    return found


def _read(name: str, place: Place, data: Path, protocol: Protocol, groups: Mapping[str, Group]) -> Task:
    known = definition(name)
    if place.form == "lists" or known is None:
        return read_task(place.folder, groups)
    if place.form == "tfds":
        return tfds_task(tfds.Folder(known, place.folder), protocol)
    return original_task(known, originals.read_original(name, data), protocol)


def find_places(data: Path, protocol: Protocol) -> dict[str, Place]:
    """Where each task is: in a folder with lists, which have Version 2 only, in one of TFDS, or in its original form.
    What is exact comes first."""
    if not data.is_dir():
        raise UserError(f"there is no folder {data}; give one with tasks in it")
    places: dict[str, Place] = {}
    for known in VTAB:
        if folder := tfds.find_folder(known.name, data):
            places[known.name] = Place("tfds", folder)
        elif known.name in originals.SOURCES:
            folder, missing = originals.find_original(known.name, data)
            if not missing:
                places[known.name] = Place("original", folder)
    if protocol == "v2":
        for folder in [data] if is_task(data) else sorted(path for path in data.iterdir() if is_task(path)):
            other = places.get(_name(folder))
            if other and other.form == "lists":
                raise UserError(
                    f"{other.folder} and {folder} are the same task, {_name(folder)}; take one of them away"
                )
            places[_name(folder)] = Place("lists", folder)
    return places


def tfds_task(folder: tfds.Folder, protocol: Protocol) -> Task:
    """A task of VTAB with its own splits, if the folder has the version and the sizes of VTAB."""
    source, known = folder.source, folder.known
    train, val, test = (folder.records(cut) for cut in (source.train, source.val, source.test))
    for split, records in (("train", train), ("val", val), ("test", test)):
        if not len(records):
            raise UserError(
                f"{folder.folder} has too few images: none is left for {split}; prepare the whole data set"
            )
    if protocol == "v1":
        sweep, validation = folder.read(tfds.first_read(train, 1000)), folder.read(val)
        final = folder.read(tfds.first_read(np.concatenate([train, val]), 1000))
    else:
        most = {"v2": (800, 200), "full": (len(train), len(val))}[protocol]
        sweep, validation = folder.read(train[: most[0]]), folder.read(val[: most[1]])
        final = sweep.and_then(validation)
    split = "tfds" if folder.is_exact() else "own split"
    parts = {"sweep": sweep, "validation": validation, "final": final, "test": folder.read(test)}
    return Task(known.name, known.title, known.group, known.classes, split, **parts)


def original_task(known: Definition, original: Original, protocol: Protocol) -> Task:
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
