"""What the sections of the page share: their parts as data, and the pictures that results and runs bring.

A section is data; the words around it are in its template. Its tables are written by page.py.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivi.evaluate.results import DetectionResult, RobustResult
from vivi.report.figures import Figure
from vivi.report.table import Table
from vivi.runtime.image_files import open_image
from vivi.runtime.storage import read_file, write_atomically


@dataclass(frozen=True)
class Picture:
    """A picture of a result: its title, and its path on the page."""

    title: str
    path: str


@dataclass(frozen=True)
class Section:
    """A part of the page. `key` is its anchor, `label` its name in the navigation."""

    key: str
    title: str
    template: str
    label: str = ""
    warnings: Sequence[str] = ()
    notes: Sequence[tuple[str, str]] = ()  # (result, what else is to be known of it)
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    pictures: Sequence[Picture] = ()
    parts: Sequence[Section] = ()  # folded
    problems: Sequence[str] = ()  # pictures that cannot be shown
    data: Any = None  # what else its template needs


def differing(pairs: Iterable[tuple[str, str]], what: str) -> list[str]:
    """A line for each set that comes with several values, such as checksums of its data, from pairs of both."""
    values: dict[str, set[str]] = {}
    for name, value in pairs:
        values.setdefault(name, set()).add(value)
    return [f"On {name}, {what}." for name, several in values.items() if len(several) > 1]


def numbered(kind: str, number: int, name: str) -> str:
    """The beginning of a file's name that is safe in addresses, and that two names never share."""
    safe = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    return "-".join(filter(None, (kind, str(number), safe)))


def section_of(
    table: Table, named: Sequence[tuple[str, RobustResult | DetectionResult]], source: Path, out: Path, **others: Any
) -> Section:
    """The section of a table, with the notes of its results, and their pictures, copied from `source`."""
    key = table.name
    pictures, problems = [], []
    for number, (name, result) in enumerate(named, start=1):
        path = f"pictures/{numbered(key, number, name)}.png"
        if result.picture and (problem := copy_png(source, result.picture, out / path)):
            problems.append(f"the picture of {name} ({result.picture}): {problem}")
        elif result.picture:
            pictures.append(Picture(name, path))
    notes = [(name, note) for name, result in named for note in result.notes]
    found: dict[str, Any] = {"notes": notes, "pictures": pictures, "problems": problems}
    return Section(key, table.title, f"{key}.html", tables=[table], **found, **others)


def copy_png(folder: Path, name: str, target: Path) -> str:
    """Copies a whole PNG that is in the folder itself; why it cannot be copied, if so."""
    if Path(name).name != name:
        return "it is not beside its result"
    try:
        content = read_file(folder / name)
    except (OSError, ValueError) as error:  # a name may have characters that no file system has
        return getattr(error, "strerror", None) or str(error)
    try:
        with open_image(io.BytesIO(content), formats=("PNG",)) as image:
            image.load()
    except (OSError, ValueError):
        return "it is damaged, or no PNG"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, content, sync=False)
    return ""
