"""What every data set's reader shares: where its files lie, what is missing, and how damage is told."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from vivi.evaluate.examples import Original
from vivi.runtime.errors import UserError, first_line

Sizes = tuple[int, int, int]


@dataclass(frozen=True)
class Source:
    """A data set: the places where it may lie under the user's folder, where it comes from, how it is read."""

    folders: tuple[str, ...]
    """Folders under the user's, likeliest first."""
    needs: tuple[str, ...]
    """What must lie in that folder, as patterns; the first match of each is enough."""
    where: str
    read: Callable[[Path], Original]
    count: Callable[[Path], Sizes] | None
    """The sizes of the splits without touching images; None where even that takes long."""


@dataclass(frozen=True)
class Found:
    """What lies in a user's folder of one task's data set."""

    place: Path
    missing: tuple[str, ...]
    """Names of missing files and folders."""
    where: str
    """Where to get the data set."""
    counts: dict[str, int] | None
    """Sizes of train, val and test, when everything is there and counting is quick."""
    problem: str
    """Why it cannot be read though it is there; empty if nothing is known to be wrong."""


def find(source: Source, names: Iterable[str], data: Path) -> tuple[Path, tuple[str, ...]]:
    """The first folder in which everything lies, or else the first in which most does; and what is missing in it.

    Besides the source's own folders those of these names are tried, and `data` itself.
    """
    places = [data / folder for folder in dict.fromkeys([*source.folders, *names, "."])]
    absent = [_missing(place, source.needs) for place in places]
    best = min(range(len(places)), key=lambda index: len(absent[index]))  # the first of several
    return places[best], absent[best]


def _missing(place: Path, needs: Iterable[str]) -> tuple[str, ...]:
    return tuple(need for need in needs if next(place.glob(need), None) is None)


def by_reading(read: Callable[[Path], Original]) -> Callable[[Path], Sizes]:
    """Counts a data set whose labels are quickly read."""

    def count(folder: Path) -> Sizes:
        original = read(folder)
        return len(original.train), len(original.val), len(original.test)

    return count


def damaged(path: Path, reason: str | BaseException, remedy: str = "download it again") -> UserError:
    """The error for a file that is there but not what it should be."""
    text = reason if isinstance(reason, str) else first_line(reason)
    return UserError(f"{path} is damaged or not the right file ({text}); {remedy}")


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some are saved with a byte order mark
    except UnicodeDecodeError:
        raise damaged(path, "it is not text") from None


def need_module(name: str, package: str) -> ModuleType:
    """A module that only few data sets need."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{package} is not installed but this data set needs it; pip install {package}") from None
