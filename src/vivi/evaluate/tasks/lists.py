"""Tasks in the layout of the community's VTAB-1k folders, and the tasks that users bring in the same layout.

<task>/train800.txt  val200.txt  train800val200.txt  test.txt     lines `images/000000.jpg 3`
<task>/classes.txt                                                optional: a class in each line
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from vivi.evaluate.tasks.definitions import Definition, Group, definition
from vivi.evaluate.tasks.examples import Examples, Task
from vivi.runtime.errors import UserError
from vivi.runtime.storage import LARGE, leads_out, read_file

# What each list is for in Version 2.
LISTS = {"sweep": "train800", "validation": "val200", "final": "train800val200", "test": "test"}


# No label is as large as this: more classes would not fit into memory.
MOST_CLASSES = 1_000_000


def is_task(folder: Path) -> bool:
    """Whether a folder is meant as a task: it has one of the lists. (Original data sets have images/ too.)"""
    return any((folder / f"{name}.txt").exists() for name in LISTS.values())


def read_task(folder: Path, groups: Mapping[str, Group] | None = None) -> Task:
    """Reads the lists of a task; its images are read when they are needed. `groups` says where users' own belong."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder of a task: it does not exist")
    known = definition(folder.name)
    limit = known.classes if known else _classes_named(folder)
    parts = {part: read_list(folder / f"{name}.txt", limit) for part, name in LISTS.items()}
    classes = limit or 1 + max(int(examples.labels.max()) for examples in parts.values())
    name, title = (known.name, known.title) if known else (folder.name, folder.name)
    groups = groups or {}
    group = groups.get(folder.name) or groups.get(name) or (known.group if known else "own")
    return Task(name, title, group, classes, _split(known, parts), **parts)


def _split(known: Definition | None, parts: Mapping[str, Examples]) -> str:
    if known is None:
        return "lists"  # a user's own are what they are
    exact = {"sweep": 800, "validation": 200, "final": 1000, "test": known.test}
    return "lists" if all(len(parts[part]) == count for part, count in exact.items()) else "own split"


def _classes_named(folder: Path) -> int:
    """How many classes classes.txt has, or 0 where there is none."""
    path = folder / "classes.txt"
    if not path.exists():
        return 0
    count = sum(bool(line.strip()) for line in _lines(path, "it must be text, a class in each line"))
    if not count:
        raise UserError(f"{path} names no class; write one in each line, or delete it")
    return count


def read_list(path: Path, classes: int = 0) -> Examples:
    """The images, below the list's folder, and their labels, below `classes` where that is known."""
    paths: list[Path] = []
    labels: list[int] = []
    for number, line in enumerate(_lines(path, "a task needs this list of images and labels"), start=1):
        if not line.strip():
            continue
        words = line.rsplit(maxsplit=1)
        if len(words) != 2 or not (words[1].isascii() and words[1].isdecimal()) or "\0" in line:
            raise UserError(
                f"{path} line {number} is {line[:200]!r}; it must be the path of an image and a label, 0 or more"
            )
        if leads_out(words[0].strip()):
            raise UserError(
                f"{path} line {number} is {line[:200]!r}, which leads out of the list's folder; "
                "name images below it, by links if they are elsewhere"
            )
        label = int(words[1]) if len(words[1]) < 10 else MOST_CLASSES
        if classes and label >= classes:
            raise UserError(
                f"{path} line {number} has label {words[1][:20]}; the task has {classes} classes: "
                f"write 0 to {classes - 1}"
            )
        if label >= MOST_CLASSES:
            raise UserError(f"{path} line {number} has label {words[1][:20]}; it must be below {MOST_CLASSES:,}")
        paths.append(path.parent / words[0].strip())
        labels.append(label)
    if not paths:
        raise UserError(f"{path} lists no images; each line must be the path of an image and its label")
    return Examples(tuple(paths), torch.tensor(labels))


def _lines(path: Path, needed: str) -> list[str]:
    try:
        return read_file(path, LARGE).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{path} cannot be read ({reason}); {needed}") from None
