"""vivi evaluate vtab --check DATA: which tasks are there, which are missing, and where to get them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from vivi.evaluate.tasks import originals, tfds
from vivi.evaluate.tasks.definitions import VTAB, definition
from vivi.evaluate.tasks.find import Place, find_places
from vivi.evaluate.tasks.lists import read_task
from vivi.evaluate.tasks.own import read_own_task
from vivi.runtime.errors import UserError

EXACT_AT = (
    "Exact splits for every protocol are the folders that TensorFlow Datasets prepares (<name>/<version>/); for "
    "Version 2 also the community's VTAB-1k folders (<task>/train800.txt, val200.txt, train800val200.txt, test.txt, "
    "images/), for example those that github.com/ZhangYuanhan-AI/NOAH links to."
)


@dataclass(frozen=True)
class _Row:
    title: str
    state: Literal["exact", "usable", "missing"]
    there: str
    images: str = ""
    wanted: str = ""
    note: str = ""


def print_check(data: Path, console: Console) -> dict[str, Any]:
    """One line for every task of VTAB, then one for each of the user's own; then what to do about them. Of a user's
    labelled images: what there is to train and to test on. Returns the same facts."""
    places, why_not = find_places(data, "v2"), ""
    if any(place.form == "images" for place in places.values()):
        try:
            notes = read_own_task(data, console=console).notes
            for line in notes:
                console.print(line, soft_wrap=True)
            return {"notes": notes}
        except UserError as error:
            places, why_not = {}, str(error)
    rows = [_check(known.name, places.get(known.name), data) for known in VTAB]
    mine = [_check(name, places[name], data) for name in sorted(places) if definition(name) is None]
    table = Table("task", "there", "images", "VTAB has", title=f"tasks in {data}", title_justify="left")
    for row in rows + mine:
        style = {"exact": "green", "usable": "", "missing": "dim"}[row.state]
        table.add_row(row.title, row.there, row.images, row.wanted, style=style)
    console.print(table)
    for note in dict.fromkeys(f"{row.title}: {row.note}" for row in rows + mine if row.note):
        console.print(note, soft_wrap=True)
    count = Counter(row.state for row in rows)
    if count["exact"] < len(rows):
        console.print(EXACT_AT, soft_wrap=True)
    console.print(
        f"{count['exact']} of VTAB's {len(VTAB)} tasks are exact, {count['usable']} on a split of their own, "
        f"{count['missing']} missing or damaged; {sum(row.state != 'missing' for row in mine)} of your own",
        soft_wrap=True,
    )
    if why_not:
        console.print(why_not, soft_wrap=True)
    return {"tasks": [asdict(row) for row in rows + mine]}


def _check(name: str, place: Place | None, data: Path) -> _Row:
    known = definition(name)
    title, note = known.title if known else name, ""
    sizes: list[int] = [known.train, known.val, known.test] if known else []
    if place is None:
        return _Row(title, "missing", "nothing", "", _numbers(sizes), _where(name, data))
    try:
        if place.form == "lists" or known is None:
            sizes = [800, 200, 1000, known.test] if known else []
            task = read_task(place.folder)
            task.checksum()  # are the images there?
            exact, there, counts = task.split == "lists", "lists", [len(part) for part in task.parts().values()]
        elif place.form == "tfds":
            folder = tfds.Folder(known, place.folder)
            exact, there, counts = folder.is_exact(), f"TFDS {place.folder.name}", [*folder.counts()]
            if not folder.is_version():
                note = f"{place.folder}: VTAB uses version {folder.source.version}.*, not {place.folder.name}"
        else:
            exact, there, counts = False, "original", [*map(len, originals.read_original(name, data))]
    except UserError as error:
        return _Row(title, "missing", "damaged", "", _numbers(sizes), str(error))
    own = "" if exact or place.form == "original" else ", own split"
    return _Row(title, "exact" if exact else "usable", there + own, _numbers(counts), _numbers(sizes), note)


def _where(name: str, data: Path) -> str:
    """What is missing, and where to get it."""
    source = tfds.SOURCES[name]
    prepared = f"TFDS prepares it as {source.folder}/{source.version}.*"
    if name not in originals.SOURCES:
        return f"{data} has no {source.folder}; {prepared}"
    folder, missing = originals.find_original(name, data)
    what = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"{folder} has no {what}; get it: {originals.SOURCES[name].where}; or {prepared}"


def _numbers(counts: Iterable[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)
