"""What the sections beside boards share: each result once, its files, its table, the pictures that results bring."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypeVar

from vivi.report.board_html import scroll
from vivi.report.boards import one_digit
from vivi.report.figures import Picture
from vivi.report.tables import FORMATS, Sheet, latex, markdown
from vivi.runtime.image_files import open_image
from vivi.runtime.storage import read_file, write_atomically

PICTURES = "pictures"  # the folder of copies
MAX_NOTES = 40
_SAFE = re.compile(r"[^a-z0-9]+")
R = TypeVar("R")


@dataclass(frozen=True)
class Copied:
    """A picture of a result that was copied: its title, and its path on the page."""

    title: str
    path: str


def first_of_each(
    results: Iterable[R], key: Callable[[R], Hashable], name: Callable[[R], str]
) -> tuple[list[R], list[str]]:
    """The first result under each key, and a line for each that is there again."""
    found: dict[Hashable, R] = {}
    problems = []
    for result in results:
        if key(result) in found:
            problems.append(f"{name(result)} is there twice; the first file by name counts")
        found.setdefault(key(result), result)
    return list(found.values()), problems


def is_best(value: float | None, rivals: Iterable[float | None]) -> bool:
    """Whether it is the highest, as printed, of several; `rivals` has the value itself too."""
    printed = [one_digit(rival) for rival in rivals if rival is not None]
    return value is not None and len(printed) > 1 and one_digit(value) == max(printed)


def unequal(checksums: Iterable[tuple[str, str]]) -> list[str]:
    """The sets that come with more than one checksum of their data, from pairs of both."""
    found: dict[str, set[str]] = {}
    for name, checksum in checksums:
        found.setdefault(name, set()).add(checksum)
    return [name for name, several in found.items() if len(several) > 1]


def numbered(kind: str, number: int, name: str) -> str:
    """The beginning of a file's name that is safe in addresses, and that two names never share."""
    return "-".join(filter(None, (kind, str(number), _SAFE.sub("-", name.lower()).strip("-")[:40].rstrip("-"))))


def write_sheet(name: str, csv: str, sheet: Sheet, folder: Path) -> list[Path]:
    """Writes a table in every format."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in FORMATS]
    for path, content in zip(paths, (csv, markdown(sheet), latex(sheet)), strict=True):
        write_atomically(path, content.encode("utf-8", "replace"), sync=False)
    return paths


def copy_pictures(
    pictures: Iterable[tuple[str, str]], source: Path, out: Path, kind: str
) -> tuple[list[Copied], list[str]]:
    """Copies the pictures of results, given as (title, file name or nothing), into the page's folder; and a line for
    each that is not there or is none."""
    copied, problems = [], []
    for number, (title, picture) in enumerate(pictures, start=1):
        if not picture:
            continue
        try:
            content = whole_png(source, picture)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.append(f"the picture of {title} ({picture}): {reason}")
            continue
        file = f"{numbered(kind, number, title)}.png"
        (out / PICTURES).mkdir(parents=True, exist_ok=True)
        write_atomically(out / PICTURES / file, content, sync=False)
        copied.append(Copied(title, f"{PICTURES}/{file}"))
    return copied, problems


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


# --- HTML ---


def table_html(label: str, about: str, head: Sequence[str], ours: str, paper: str) -> str:
    """A table of our rows, and below them those of the paper; `head` and the rows are HTML."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    heading = f'<tr class="heading"><th scope="rowgroup" colspan="{len(head)}">In the paper</th></tr>'
    below = f'<tbody class="paper">{heading}{paper}</tbody>' if paper else ""
    return scroll(
        label,
        f'<table class="results means"><caption><span>{about}</span></caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{ours}</tbody>{below}</table>",
    )


def row_html(name: str, cells: Iterable[str], small: str = "") -> str:
    below = f"<small>{escape(small)}</small>" if small else ""
    return f'<tr><th scope="row"><bdi>{escape(name)}</bdi>{below}</th>{"".join(cells)}</tr>'


def warnings_html(warnings: Iterable[str]) -> str:
    return "".join(f'<p class="warning">{escape(warning)}</p>' for warning in warnings)


def notes_html(notes: Sequence[tuple[str, str]]) -> str:
    """What else is to be known of results, from (title, note), folded."""
    if not notes:
        return ""
    items = "".join(f"<li><bdi>{escape(name)}</bdi>: {escape(note)}</li>" for name, note in notes[:MAX_NOTES])
    items += f"<li>and {len(notes) - MAX_NOTES} more</li>" if len(notes) > MAX_NOTES else ""
    return f'<details><summary>Notes ({len(notes)})</summary><ul class="problems">{items}</ul></details>'


def pictures_html(pictures: Sequence[Copied], heading: str, what: str, caption: str) -> str:
    """The pictures; several are folded, with the first open."""

    def shown(picture: Copied, heading_html: str) -> str:
        title = escape(picture.title)
        return (
            f'<figure class="card sheet"><h3><span>{heading_html}</span> '
            f'<span class="files"><a href="{picture.path}" download>PNG</a></span></h3>'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{heading}, {title}">'
            f'<img src="{picture.path}" alt="{what} of {title}" loading="lazy"></div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    if len(pictures) < 2:
        return "".join(shown(each, f"{heading}, <bdi>{escape(each.title)}</bdi>") for each in pictures)
    folds = (
        f'<details class="fold"{" open" * (number == 0)}><summary><bdi>{escape(each.title)}</bdi></summary>'
        f"{shown(each, heading)}</details>"
        for number, each in enumerate(pictures)
    )
    return f'<div class="sheet">{"".join(folds)}</div>'


def figure_html(title: str, picture: Picture, links: str) -> str:
    """A figure in both themes; `links`: to what it was drawn from."""
    size = f'width="{picture.width}" height="{picture.height}"'
    return f"""<figure class="card">
<h3>{title} <span class="files"><a href="figures/{picture.file}" download>PNG</a> · {links}</span></h3>
<div class="scroll" tabindex="0" role="region" aria-label="{title}"><picture>
<source srcset="figures/{picture.dark}" media="(prefers-color-scheme: dark)">
<img src="figures/{picture.file}" {size} alt="{escape(picture.alt)}"></picture></div>
<figcaption>{escape(picture.caption)}</figcaption></figure>"""
