"""vivi evaluate vtab --check DIR: which tasks are there, which are missing, and where to get them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from vivi.evaluate.tasks import originals, tfds
from vivi.evaluate.tasks.definitions import VTAB, Definition, definition
from vivi.evaluate.tasks.find import Place, find_places
from vivi.evaluate.tasks.lists import read_task
from vivi.runtime.errors import UserError

EXACT_AT = (
    "Exact splits for every protocol are the folders that TensorFlow Datasets prepares (<name>/<version>/); for "
    "Version 2 also the community's VTAB-1k folders (<task>/train800.txt, val200.txt, train800val200.txt, test.txt, "
    "images/), for example those that github.com/ZhangYuanhan-AI/NOAH links to."
)


def print_check(data: Path, console: Console) -> None:
    """One line for every task of VTAB, then one for each of the user's own; then what to do about them."""
    places = find_places(data, "v2")
    rows = [_check(known, places.get(known.name), data) for known in VTAB]
    own = sorted(place.folder for name, place in places.items() if definition(name) is None)
    mine = [_check_lists(folder.name, folder, None) for folder in own]
    table = Table(title=f"tasks in {data}", title_justify="left")
    for column in ("task", "there", "images", "VTAB has"):
        table.add_column(column)
    for row in rows + mine:
        style = {"exact": "green", "usable": "", "missing": "dim"}[row.state]
        table.add_row(row.title, row.there, row.images, row.wanted, style=style)
    console.print(table)
    for note in dict.fromkeys(f"{row.title}: {row.note}" for row in rows + mine if row.note):
        console.print(note, soft_wrap=True)
    if any(row.state != "exact" for row in rows):
        console.print(EXACT_AT, soft_wrap=True)
    count = Counter(row.state for row in rows)
    console.print(
        f"{count['exact']} of VTAB's {len(VTAB)} tasks are exact, {count['usable']} on a split of their own, "
        f"{count['missing']} missing or damaged; {sum(row.state != 'missing' for row in mine)} of your own",
        soft_wrap=True,
    )


@dataclass(frozen=True)
class _Row:
    title: str
    state: Literal["exact", "usable", "missing"]
    there: str
    images: str = ""
    wanted: str = ""
    note: str = ""


def _check(known: Definition, place: Place | None, data: Path) -> _Row:
    wanted = _numbers((known.train, known.val, known.test))
    if place is None:
        return _Row(known.title, "missing", "nothing", "", wanted, _where(known.name, data))
    if place.form == "lists":
        return _check_lists(known.title, place.folder, known)
    try:
        if place.form == "tfds":
            return _check_tfds(tfds.Folder(known, place.folder), wanted)
        original = originals.read_original(known.name, data)
    except UserError as error:
        return _Row(known.title, "missing", "damaged", "", wanted, str(error))
    images = _numbers(len(part) for part in (original.train, original.val, original.test))
    return _Row(known.title, "usable", "original", images, wanted)


def _check_tfds(folder: tfds.Folder, wanted: str) -> _Row:
    title, version = folder.known.title, folder.folder.name
    images = _numbers(folder.counts())
    if folder.is_exact():
        return _Row(title, "exact", f"TFDS {version}", images, wanted)
    note = (
        "" if folder.is_version() else f"{folder.folder}: VTAB uses version {folder.source.version}.*, not {version}"
    )
    return _Row(title, "usable", f"TFDS {version}, own split", images, wanted, note)


def _where(name: str, data: Path) -> str:
    """What is missing, and where to get it."""
    source = tfds.SOURCES[name]
    prepared = f"TFDS prepares it as {source.folder}/{source.version}.*"
    if name not in originals.SOURCES:
        return f"{data} has no {source.folder}; {prepared}"
    folder, missing = originals.find_original(name, data)
    rest = len(missing) - 3
    what = ", ".join(missing[:3]) + (f" and {rest} more" if rest > 0 else "")
    return f"{folder} has no {what}; get it: {originals.SOURCES[name].where}; or {prepared}"


def _check_lists(title: str, folder: Path, known: Definition | None) -> _Row:
    wanted = _numbers((800, 200, 1000, known.test)) if known else ""
    try:
        task = read_task(folder)
        task.checksum()  # are the images there?
    except UserError as error:
        return _Row(title, "missing", "lists, damaged", "", wanted, str(error))
    images = _numbers(len(examples) for examples in task.parts().values())
    if known and task.split != "lists":
        return _Row(title, "usable", "lists, own split", images, wanted)
    return _Row(title, "exact", "lists", images, wanted)


def _numbers(counts: Iterable[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)
