"""vivi evaluate vtab --check DIR: which tasks are there, which are missing, and where to get them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vivi.errors import UserError
from vivi.transfer.examples import Task
from vivi.transfer.find import find_places
from vivi.transfer.lists import LISTS, read_task
from vivi.transfer.originals import look
from vivi.transfer.tasks import VTAB, Definition

LISTS_AT = (
    "The exact splits of Version 2 are the community's VTAB-1k folders (<task>/train800.txt, val200.txt, "
    "train800val200.txt, test.txt, images/), for example those that github.com/ZhangYuanhan-AI/NOAH links to."
)


def print_check(data: Path, console: Console) -> None:
    """One line for every task of VTAB, then one for each of the user's own."""
    places = find_places(data, "v2")
    table = Table(title=f"tasks in {data}", title_justify="left")
    for column in ("task", "group", "there", "images", "VTAB has"):
        table.add_column(column, overflow="fold")
    counts = {"exact": 0, "usable": 0, "missing": 0}
    notes = []
    for known in VTAB:
        state, there, images, note = _row(known, places.get(known.name), data)
        counts[state] += 1
        style = {"exact": "green", "usable": "", "missing": "dim"}[state]
        table.add_row(known.title, known.group, there, images, _known(known), style=style)
        if note:
            notes.append(f"{known.title}: {note}")
    own = [place for name, place in sorted(places.items()) if isinstance(place, Path) and not _is_vtab(name)]
    for folder in own:
        there, images, note = _lists(folder)
        table.add_row(folder.name, "own", there, images, "")
        if note:
            notes.append(f"{folder.name}: {note}")
    console.print(table)
    for note in dict.fromkeys(notes):
        console.print(note, soft_wrap=True)
    console.print(LISTS_AT, soft_wrap=True)
    console.print(
        f"{counts['exact']} of {len(VTAB)} tasks exact, {counts['usable']} on a split of their own, "
        f"{counts['missing']} missing; {len(own)} tasks of your own",
        soft_wrap=True,
    )


def _row(known: Definition, place: Path | Definition | None, data: Path) -> tuple[str, str, str, str]:
    """exact, usable or missing; what is there; how many images; what is wrong or where to get it."""
    if isinstance(place, Path):
        there, images, note = _lists(place)
        if not images:
            return "missing", there, images, note
        exact = read_task(place).split == "lists"
        return ("exact", there, images, note) if exact else ("usable", f"{there}, own split", images, note)
    found = look(known.name, data)
    if found.missing:
        rest = len(found.missing) - 3
        what = ", ".join(found.missing[:3]) + (f" and {rest} more" if rest > 0 else "")
        return "missing", "nothing", "", f"missing {what} in {found.place}; get it: {found.where}"
    if found.problem:
        return "missing", "damaged", "", found.problem
    images = " / ".join(f"{count:,}" for count in found.counts.values()) if found.counts else "not counted"
    return "usable", "original, own split", images, ""


def _lists(folder: Path) -> tuple[str, str, str]:
    """What is in a folder of lists: in words, its counts, and what is wrong."""
    try:
        task = read_task(folder)
        task.checksum()  # are the images there?
    except UserError as error:
        return "lists, damaged", "", str(error)
    return "lists", " / ".join(_counts(task)), ""


def _counts(task: Task) -> Iterator[str]:
    for part in LISTS:
        yield f"{len(task.parts()[part]):,}"


def _known(known: Definition) -> str:
    return f"{known.train:,} / {known.val:,} / {known.test:,}"


def _is_vtab(name: str) -> bool:
    return any(known.name == name for known in VTAB)
