"""How both pages are written: the templates and how they print numbers, and the rules of the folders they lie in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vivi.evaluate.metadata import counted
from vivi.report.table import extent, number, signed
from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError, leads_out, write_atomically

_HERE = Path(__file__).parent


def write_html(index: Path, template: str, **data: Any) -> None:
    """Replaces a page in one step; then removes the files that only the one before referred to."""
    page = templates().get_template(template).render(**data)
    before = index.read_text(encoding="utf-8", errors="replace") if index.exists() else ""
    write_atomically(index, page.encode("utf-8", "replace"))
    for name in _files(before) - _files(page):
        (index.parent / name).unlink(missing_ok=True)


def _files(page: str) -> set[str]:
    """What a page shows and links to, in the folders that are made for it."""
    folders = "tables|figures|pictures|frames|runs|neighbours"
    names = re.findall(rf'(?:href|src|srcset)="((?:{folders})/[^"]+)"', page)
    return {name for name in map(unquote, map(unescape, names)) if not leads_out(name)}


@cache
def templates() -> Environment:
    """Everything that a template prints is escaped: names come from files of others."""
    loader = FileSystemLoader(_HERE / "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    functions = (number, signed, extent, clock, in_words, in_bytes, compact)
    environment.filters |= {function.__name__: function for function in functions}
    environment.filters |= {"plural": counted, "quoted": quote}
    environment.globals["static"] = lambda name: Markup((_HERE / "static" / name).read_text(encoding="utf-8"))
    return environment


def check_free(out: Path, command: str) -> Path:
    """The index.html of a page; raises before any work where it would replace what the command did not make."""
    index = out / "index.html"
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a folder")
    if index.exists():
        with open(index, "rb") as file:
            if f'<meta name="generator" content="{command}">'.encode() not in file.read(2000):
                raise UserError(f"{index} was not made by {command}; give --out another folder")
    return index


@contextmanager
def unwritable_named(out: Path) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise UserError(f"the page cannot be written: {error}") from None
    except OSError as error:
        raise UserError(f"{out}: {error.strerror or error}; give --out a folder that can be written") from None


# --- words and numbers ---


def compact(count: int) -> str:
    """1500 as 1.5k: axis labels have little room."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:g}{letter}"
    return str(count)


def in_bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def clock(seconds: float, digits: int = 0) -> str:
    """A time in the video: 1:04, 0:14.2, 1:02:03."""
    rounded = round(seconds, digits)
    minutes, rest = divmod(abs(rounded), 60)
    hours, minutes = divmod(int(minutes), 60)
    tail = f"{rest:0{digits + 3 if digits else 2}.{digits}f}"
    return "−" * (rounded < 0) + (f"{hours}:{minutes:02d}:{tail}" if hours else f"{minutes}:{tail}")


def in_words(seconds: float) -> str:
    """A length: 6.2 s, 3 min 4 s, 2 h 5 min; with spaces that do not break."""
    whole = round(seconds)
    if seconds < 59.95:
        words = f"{seconds:.1f} s"
    elif whole < 3600:
        words = f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    else:
        words = f"{whole // 3600:,} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")
    return words.replace(" ", "\N{NO-BREAK SPACE}")
