"""Tasks in the layout of the community's VTAB-1k folders, and the tasks that users bring in the same layout.

<task>/train800.txt  val200.txt  train800val200.txt  test.txt     lines `images/000000.jpg 3`
<task>/classes.txt                                                optional: a class in each line
"""

from __future__ import annotations

from pathlib import Path

import torch

from vivi.evaluate.tasks.definitions import definition
from vivi.evaluate.tasks.examples import Examples, Task
from vivi.runtime.errors import UserError
from vivi.runtime.storage import LARGE, leads_out, read_file

# What each list is for in Version 2.
LISTS = {"sweep": "train800", "validation": "val200", "final": "train800val200", "test": "test"}
# More would not fit into memory.
MOST_CLASSES = 1_000_000


def is_task(folder: Path) -> bool:
    """Whether a folder is meant as a task: it has one of the lists. (Original data sets have images/ too.)"""
    return any((folder / f"{name}.txt").exists() for name in LISTS.values())


def read_task(folder: Path) -> Task:
    """Reads the lists of a task; its images are read when they are needed."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder of a task: it does not exist")
    known = definition(folder.name)
    limit = known.classes if known else _classes_named(folder)
    parts = [read_list(folder / f"{name}.txt", limit) for name in LISTS.values()]
    classes = limit or 1 + max(int(examples.labels.max()) for examples in parts)
    if known is None:
        return Task(folder.name, folder.name, "own", classes, "lists", *parts)  # a user's own are what they are
    exact = [len(examples) for examples in parts] == [800, 200, 1000, known.test]
    return Task(known.name, known.title, known.group, classes, "lists" if exact else "own split", *parts)


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
    most = classes or MOST_CLASSES
    for number, line in enumerate(_lines(path, "a task needs this list of images and labels"), start=1):
        if not line.strip():
            continue
        name, label = line.rsplit(maxsplit=1) if len(line.split()) > 1 else ("", "")
        known = label.isascii() and label.isdecimal() and len(label) < 10 and int(label) < most
        if not known or leads_out(name.strip()) or "\0" in name:
            raise UserError(
                f"{path} line {number} is {line[:200]!r}; it must be the path of an image below the list's folder "
                f"and a label from 0 to {most - 1:,}"
            )
        paths.append(path.parent / name.strip())
        labels.append(int(label))
    if not paths:
        raise UserError(f"{path} lists no images; each line must be the path of an image and its label")
    return Examples(tuple(paths), torch.tensor(labels))


def _lines(path: Path, needed: str) -> list[str]:
    try:
        return read_file(path, LARGE).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{path} cannot be read ({reason}); {needed}") from None
