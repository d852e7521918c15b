"""One table and its four renderings: HTML on the page (templates/table.html), CSV, Markdown and LaTeX (booktabs).

CSV is for programs and has records of its own, with more columns and exact numbers; the others share the cells.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vivi.runtime.storage import write_atomically

FORMATS = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}
Record = dict[str, str]


@dataclass(frozen=True)
class Column:
    """What stands above the cells; `heading`, `small`, `hint` and `group` (a colour) are for the page."""

    title: str
    heading: str = ""
    small: str = ""
    hint: str = ""
    group: str = ""
    only: Literal["", "page", "files"] = ""


@dataclass(frozen=True)
class Cell:
    """What a cell says; `small` (below it), `hint` (a tooltip), `kind` (CSS classes) and `badge` are for the page."""

    text: str = ""
    spread: str = ""
    bold: bool = False
    small: str = ""
    hint: str = ""
    kind: str = ""
    badge: bool = False
    in_files: str | None = None  # what Markdown and LaTeX say instead


@dataclass(frozen=True)
class Row:
    """The first cell is the row's name."""

    cells: tuple[Cell, ...]
    paper: bool = False
    baseline: bool = False


@dataclass(frozen=True)
class Span:
    """A heading over several columns."""

    title: str
    group: str
    columns: int


@dataclass(frozen=True)
class Table:
    """`name` is that of its files, `note` what their readers have to know, `caption` the same on the page."""

    name: str
    title: str
    note: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    records: Sequence[Record]  # for CSV, all with the same keys
    kind: str = "means"  # CSS class
    spans: tuple[Span, ...] = ()  # from the second column on, all but the last

    @property
    def ours(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.paper)

    @property
    def paper(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.paper)

    @property
    def files(self) -> dict[str, str]:
        """The names of its files, by the name of their format."""
        return {format_name: f"{self.name}.{suffix}" for suffix, format_name in FORMATS.items()}

    def shown(self, row: Row) -> list[tuple[Column, Cell]]:
        """The columns and cells that are on the page."""
        return [pair for pair in zip(self.columns, row.cells, strict=True) if pair[0].only != "files"]


def write_table(table: Table, folder: Path) -> None:
    """Writes the table in every format."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in (("csv", csv_text(table.records)), ("md", markdown(table)), ("tex", latex(table))):
        write_atomically(folder / f"{table.name}.{suffix}", text.encode("utf-8", "replace"), sync=False)


# --- numbers ---


def one_digit(value: float) -> float:
    """As it is printed, and compared; halves go up, although no float is exactly 80.95."""
    return round(value + math.copysign(1e-9, value), 1)


def number(value: float | None) -> str:
    return "" if value is None else f"{one_digit(value):.1f}"


def signed(value: float) -> str:
    """+3.0, −0.4, and 0.0 without a sign: a difference as it is printed."""
    text = number(abs(value))
    return text if text == "0.0" else ("+" if value > 0 else "−") + text


def number_range(low: float, high: float) -> str:
    """33.1–34.0, or one number where both are printed alike."""
    return number(low) if number(low) == number(high) else f"{number(low)}–{number(high)}"


def exact(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")


# --- CSV ---


def csv_text(records: Sequence[Record]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: plain_cell(cell) for name, cell in record.items()} for record in records)
    return text.getvalue()


def plain_cell(text: str) -> str:
    """With an apostrophe before what a spreadsheet would take for a formula: names come from files of others."""
    if not text or not (text[0] in "=+-@" or unicodedata.category(text[0]) == "Cc"):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


# --- Markdown and LaTeX ---


def _in_files(table: Table) -> tuple[list[str], list[list[Cell]], list[list[Cell]]]:
    """The titles, our rows and the paper's, without what is on the page alone."""

    def cells(row: Row) -> list[Cell]:
        return [cell for column, cell in zip(table.columns, row.cells, strict=True) if column.only != "page"]

    titles = [column.title for column in table.columns if column.only != "page"]
    return titles, [cells(row) for row in table.ours], [cells(row) for row in table.paper]


def _text(cell: Cell) -> str:
    return cell.text if cell.in_files is None else cell.in_files


def markdown(table: Table) -> str:
    """As GitHub and others read it."""

    def shown(cell: Cell) -> str:
        text = markdown_escaped(_text(cell)) + (f" ± {cell.spread}" if cell.spread else "")
        return f"**{text}**" if cell.bold and text else text

    titles, ours, paper = _in_files(table)
    lines = [f"**{markdown_escaped(table.title)}**. {markdown_escaped(table.note)}", ""]
    lines.append("| " + " | ".join(map(markdown_escaped, titles)) + " |")
    lines.append("| :--- |" + " ---: |" * (len(titles) - 1))
    lines += ["| " + " | ".join(map(shown, row)) + " |" for row in (*ours, *paper)]
    return "\n".join(lines) + "\n"


def markdown_escaped(text: str) -> str:
    """Text that means itself, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|~$&#])", r"\\\1", " ".join(text.split()))


def latex(table: Table) -> str:
    """A tabular; its first lines say what it needs."""

    def shown(cell: Cell) -> str:
        text = latex_escaped(_text(cell))
        text = rf"\textbf{{{text}}}" if cell.bold and text else text
        return text + (rf" {{\scriptsize$\pm${cell.spread}}}" if cell.spread else "")

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    titles, ours, paper = _in_files(table)
    upright = len(titles) <= 8  # long titles of many columns stand on end, where graphicx is loaded
    first, *others = map(latex_escaped, titles)
    head = [first, *(title if upright else rf"\rotatebox{{90}}{{{title}}}" for title in others)]
    lines = [f"% {' '.join(text.split())}" for text in (table.title, table.note)]
    lines.append(r"% \usepackage{booktabs}" + ("" if upright else r" and, for titles on end, \usepackage{graphicx}"))
    lines += [] if upright else [r"\providecommand{\rotatebox}[2]{#2}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(others)}}}", r"\toprule", line(head), r"\midrule"]
    lines += [line([*map(shown, row)]) for row in ours]
    lines += [r"\midrule"] if ours and paper else []
    lines += [line([*map(shown, row)]) for row in paper]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "−": r"$-$",
    "±": r"$\pm$",
    '"': "''",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def latex_escaped(text: str) -> str:
    """Text that means itself, on one line. A row may begin with [: braces keep LaTeX from reading an argument."""
    escaped = "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
    return f"{{{escaped}}}" if escaped[:1] in ("[", "*") else escaped
