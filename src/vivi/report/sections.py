"""What the sections of the page share: their parts as data, each result once, the pictures that results bring.

A section is data; the words around it are in its template. Its tables are written by page.py.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vivi.report.figures import Figure
from vivi.report.table import Table, one_digit
from vivi.runtime.image_files import open_image
from vivi.runtime.storage import read_file, write_atomically

PICTURES = "pictures"  # the folder of copies
R = TypeVar("R")


@dataclass(frozen=True)
class Picture:
    """A picture of a result: its title, and its path on the page."""

    title: str
    path: str
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page. `key` is its anchor, `label` its name in the navigation."""

    key: str
    title: str
    template: str
    label: str = ""
    badges: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()  # (result, what else is to be known of it)
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    pictures: tuple[Picture, ...] = ()
    parts: tuple[Section, ...] = ()  # folded
    data: Any = None  # what else its template needs


def first_of_each(
    results: Iterable[R], key: Callable[[R], Hashable], name: Callable[[R], str]
) -> tuple[list[R], list[str]]:
    """The first result under each key, and a line for each that is there again."""
    first: dict[Hashable, R] = {}
    problems = []
    for result in results:
        if key(result) in first:
            problems.append(f"{name(result)} is there twice; the first file by name counts")
        first.setdefault(key(result), result)
    return list(first.values()), problems


def is_best(value: float | None, rivals: Iterable[float | None]) -> bool:
    """Whether it is the highest, as printed, of several; `rivals` has the value itself too."""
    printed = [one_digit(rival) for rival in rivals if rival is not None]
    return value is not None and len(printed) > 1 and one_digit(value) == max(printed)


def unequal(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The sets that come with more than one value, such as the checksum of their data, from pairs of both."""
    values: dict[str, set[str]] = {}
    for name, value in pairs:
        values.setdefault(name, set()).add(value)
    return [name for name, several in values.items() if len(several) > 1]


def numbered(kind: str, number: int, name: str) -> str:
    """The beginning of a file's name that is safe in addresses, and that two names never share."""
    safe = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    return "-".join(filter(None, (kind, str(number), safe)))


def copy_pictures(
    pictures: Sequence[tuple[str, str]], source: Path, out: Path, kind: str
) -> tuple[tuple[Picture, ...], list[str]]:
    """Copies the pictures of results, given as (title, file name or nothing), into the page's folder; and a line for
    each that is not there or is none."""
    copied, problems = [], []
    for number, (title, name) in enumerate(pictures, start=1):
        if not name:
            continue
        try:
            content = whole_png(source, name)
        except (OSError, ValueError) as error:
            problems.append(f"the picture of {title} ({name}): {getattr(error, 'strerror', None) or error}")
            continue
        path = f"{PICTURES}/{numbered(kind, number, title)}.png"
        (out / PICTURES).mkdir(parents=True, exist_ok=True)
        write_atomically(out / path, content, sync=False)
        copied.append(Picture(title, path))
    return tuple(copied), problems


def whole_png(folder: Path, name: str) -> bytes:
    """The bytes of a whole PNG; raises for a damaged one, and for one that is not in the folder itself."""
    if Path(name).name != name or "\0" in name:
        raise ValueError("it is not beside its result")
    content = read_file(folder / name)
    try:
        with open_image(io.BytesIO(content), formats=("PNG",)) as image:
            image.load()
    except (OSError, ValueError):
        raise ValueError("it is damaged, or no PNG") from None
    return content
