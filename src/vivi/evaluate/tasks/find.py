"""Which tasks lie in a folder of data: lists of VTAB-1k and of users, TFDS folders, original data sets, and users'
own labelled images."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console

from vivi.data.image_lists import LAYOUT
from vivi.data.images import set_name
from vivi.evaluate.results import Protocol, plain
from vivi.evaluate.tasks import originals, tfds
from vivi.evaluate.tasks.definitions import VTAB, Group, definition
from vivi.evaluate.tasks.examples import Task
from vivi.evaluate.tasks.lists import is_task, read_task
from vivi.evaluate.tasks.own import read_own_task
from vivi.runtime.errors import UserError


@dataclass(frozen=True)
class Place:
    """Where a task's data lies, and in which form."""

    form: Literal["lists", "tfds", "original", "images"]
    folder: Path  # of images also the list of them


class FoundTasks(NamedTuple):
    """The tasks that can be evaluated, in VTAB's order and then by name, and why others cannot."""

    tasks: list[Task]
    failures: dict[str, UserError]


def find_tasks(
    data: Path,
    protocol: Protocol,
    wanted: Sequence[str],
    groups: Mapping[str, Group],
    split_seed: int = 0,
    console: Console | None = None,
) -> FoundTasks:
    """Reads the wanted tasks in a folder, or all that are there; `groups` says where they belong."""
    places = find_places(data, protocol)
    if not places:
        raise UserError(
            f"there is no task in {data} for --protocol {protocol}: lists have Version 2 only, your own labelled "
            "images that and full, TFDS folders and original data sets all; "
            f"vivi evaluate vtab --check {data} says what is looked for"
        )
    for name in groups:
        if _name(name) not in places:
            raise UserError(f"--groups has '{name}', which is no task in {data}")
    given = {_name(name): group for name, group in groups.items()}
    order = {task.name: place for place, task in enumerate(VTAB)}
    found = FoundTasks([], {})
    for name in sorted(_choose(places, wanted, data), key=lambda name: (order.get(name, len(order)), name)):
        try:
            if places[name].form == "images":
                task = read_own_task(data, split_seed, console)
            else:
                task = _read(name, places[name], data, protocol)
            found.tasks.append(replace(task, group=given.get(name, task.group)))
        except UserError as error:
            if places[name].form == "images":
                raise  # there are no others
            found.failures[name] = error
    return found


def _read(name: str, place: Place, data: Path, protocol: Protocol) -> Task:
    known = definition(name)
    if place.form == "lists" or known is None:
        return read_task(place.folder)
    if place.form == "tfds":
        return tfds.read_task(known, place.folder, protocol)
    return originals.original_task(known, originals.read_original(name, data), protocol)


def find_places(data: Path, protocol: Protocol) -> dict[str, Place]:
    """Where each task is: in a folder with lists, which have Version 2 only, in one of TFDS, or in its original form.
    What is exact comes first. Anything else is taken for labelled images, which have no Version 1."""
    if not data.exists():
        raise UserError(f"there is no folder or list {data}; give {LAYOUT}")
    if not data.is_dir():
        return {_name(set_name(data)): Place("images", data)} if protocol != "v1" else {}
    places: dict[str, Place] = {}
    for known in VTAB:
        if folder := tfds.find_folder(known.name, data):
            places[known.name] = Place("tfds", folder)
        elif known.name in originals.SOURCES:
            folder, missing = originals.find_original(known.name, data)
            if not missing:
                places[known.name] = Place("original", folder)
    lists = [data] if is_task(data) else sorted(path for path in data.iterdir() if is_task(path))
    for folder in lists if protocol == "v2" else ():
        name = _name(folder.name)
        # Results of tasks with the same part of file names would replace each other.
        same = next((other for other in places if plain(other).lower() == plain(name).lower()), name)
        if same in places and (same != name or places[same].form == "lists"):
            raise UserError(f"{places[same].folder} and {folder} are the same task, {name}; take one of them away")
        places[name] = Place("lists", folder)
    if not places and not lists and protocol != "v1":
        places[_name(set_name(data))] = Place("images", data)
    return places


def _choose(names: Iterable[str], wanted: Sequence[str], data: Path) -> list[str]:
    for name in wanted:
        if _name(name) not in names:
            close = difflib.get_close_matches(name, list(names), n=1)
            hint = f"; did you mean {close[0]}?" if close else "; vivi evaluate vtab --check says what is there"
            raise UserError(f"there is no task '{name}' in {data}{hint}")
    return list(dict.fromkeys(_name(name) for name in wanted)) or list(names)


def _name(folder: str) -> str:
    known = definition(folder)
    return known.name if known else folder
