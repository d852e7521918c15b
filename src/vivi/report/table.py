"""One table and its four renderings: HTML on the page (templates/table.html), CSV, Markdown and LaTeX (booktabs).

A row has a cell for each column of the CSV, which is for programs: numbers are exact, and there are more of them than
the others show.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vivi.runtime.storage import write_atomically

FORMATS = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}
Value = str | int | float | None


@dataclass(frozen=True)
class Cell:
    """A value, and how it is shown. The CSV has `value`; the page and the other files have `text`, where it is given.
    `small`, `hint`, `kind`, `badge` and `about` are for the page alone."""

    value: Value = None
    text: str | None = None
    in_files: str | None = None  # in place of `text`, in Markdown and LaTeX
    spread: str = ""  # shown behind ±
    rivals: object = None  # of a column's cells with the same rivals the highest is bold; None: it does not compete
    bold: bool = False  # set by Table.view
    small: str = ""  # below it
    hint: str = ""  # a tooltip
    kind: str = ""  # CSS classes
    badge: bool = False
    about: object = None  # what the template makes a tooltip of

    @property
    def shown(self) -> str:
        value = self.value if self.text is None else self.text
        if isinstance(value, str | None):
            return value or ""
        return number(value) if isinstance(value, float) else f"{value:,}"


Cells = dict[str, Cell | Value]
"""A row: its cells by the names of their columns."""


@dataclass(frozen=True)
class Column:
    """A column's title in the files, and on the page, if that is another; where it is empty, the column is left out.
    `small`, `hint` and `group` are for the page alone."""

    title: str
    on_page: str | None = None
    small: str = ""  # below the title
    hint: str = ""  # a tooltip
    group: str = ""  # of tasks: its colour

    @property
    def heading(self) -> str:
        return self.title if self.on_page is None else self.on_page


@dataclass(frozen=True)
class Table:
    """`name` is that of its files, `note` what their readers have to know."""

    name: str
    title: str
    note: str
    columns: Mapping[str, Column | str]  # what is shown of the rows, in this order; the first has the rows' names
    rows: Sequence[Cells]  # ours, then those that have the paper as their source
    records: Sequence[Cells] = ()  # of the CSV, where they are not the rows
    kind: str = "means"  # CSS class

    @property
    def files(self) -> dict[str, str]:
        """The names of its files, by the name of their format."""
        return {title: f"{self.name}.{suffix}" for suffix, title in FORMATS.items()}

    def view(self, where: Literal["files", "page"]) -> tuple[list[Column], list[list[Cell]], list[list[Cell]]]:
        """The columns that are shown there, and the cells of our rows and of the paper's."""
        columns = {name: Column(one) if isinstance(one, str) else one for name, one in self.columns.items()}
        shown = {name: one for name, one in columns.items() if (one.heading if where == "page" else one.title)}
        cells = (_marked([row.get(name) for row in self.rows]) for name in shown)
        lines = [[*line] for line in zip(*cells, strict=True)]
        ours = sum(row.get("source") != "paper" for row in self.rows)
        return [*shown.values()], lines[:ours], lines[ours:]


def _marked(column: Sequence[Cell | Value]) -> list[Cell]:
    """The cells of a column, with the best of them in bold, as printed."""
    cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in column]
    numbers = [(cell.rivals, one_digit(cell.value)) for cell in cells if isinstance(cell.value, float)]

    def is_best(cell: Cell) -> bool:
        rivals = [number for key, number in numbers if key == cell.rivals is not None]
        return len(rivals) > 1 and isinstance(cell.value, float) and one_digit(cell.value) == max(rivals)

    return [replace(cell, bold=is_best(cell)) for cell in cells]


def write_table(table: Table, folder: Path) -> None:
    """Writes the table in every format."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = (csv_text(table.records or table.rows), markdown(table), latex(table))
    for file, text in zip(table.files.values(), texts, strict=True):
        write_atomically(folder / file, text.encode("utf-8", "replace"), sync=False)


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


def extent(values: Collection[float], between: str = " to ", form: Callable[[float], str] = str) -> str:
    """From the lowest to the highest: 2 to 3, 33.1–34.0; or one number where both are printed alike."""
    return between.join(dict.fromkeys((form(min(values)), form(max(values)))))


def exact(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return "" if value is None else str(value)


# --- CSV ---


def csv_text(records: Sequence[Cells]) -> str:
    """The columns are those of the first record; others may leave some of them out."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*records[0]], lineterminator="\n")
    writer.writeheader()
    for record in records:
        values = {name: cell.value if isinstance(cell, Cell) else cell for name, cell in record.items()}
        writer.writerow({name: plain_cell(exact(value)) for name, value in values.items()})
    return text.getvalue()


def plain_cell(text: str) -> str:
    """With an apostrophe before what a spreadsheet would take for a formula: names come from files of others."""
    with suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if text and (text[0] in "=+-@" or unicodedata.category(text[0]) == "Cc") else text


# --- Markdown and LaTeX ---


def _in_files(cell: Cell) -> str:
    return cell.shown if cell.in_files is None else cell.in_files


def markdown(table: Table) -> str:
    """As GitHub and others read it."""

    def shown(cell: Cell) -> str:
        text = markdown_escaped(_in_files(cell)) + (f" ± {cell.spread}" if cell.spread else "")
        return f"**{text}**" if cell.bold else text

    columns, ours, paper = table.view("files")
    lines = [f"**{markdown_escaped(table.title)}**. {markdown_escaped(table.note)}", ""]
    lines.append("| " + " | ".join(markdown_escaped(column.title) for column in columns) + " |")
    lines.append("| :--- |" + " ---: |" * (len(columns) - 1))
    lines += ["| " + " | ".join(map(shown, cells)) + " |" for cells in (*ours, *paper)]
    return "\n".join(lines) + "\n"


def markdown_escaped(text: str) -> str:
    """Text that means itself, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|~$&#])", r"\\\1", " ".join(text.split()))


def latex(table: Table) -> str:
    """A tabular; its first lines say what it needs."""

    def shown(cell: Cell) -> str:
        text = latex_escaped(_in_files(cell))
        text = rf"\textbf{{{text}}}" if cell.bold else text
        return text + (rf" {{\scriptsize$\pm${cell.spread}}}" if cell.spread else "")

    columns, *parts = table.view("files")
    upright = len(columns) <= 8  # long titles of many columns stand on end, where graphicx is loaded
    first, *others = (latex_escaped(column.title) for column in columns)
    head = [first, *(title if upright else rf"\rotatebox{{90}}{{{title}}}" for title in others)]
    lines = [f"% {' '.join(text.split())}" for text in (table.title, table.note)]
    lines.append(r"% \usepackage{booktabs}" + ("" if upright else r" and, for titles on end, \usepackage{graphicx}"))
    lines += [] if upright else [r"\providecommand{\rotatebox}[2]{#2}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(others)}}}", r"\toprule", " & ".join(head) + r" \\"]
    for part in filter(None, parts):
        lines += [r"\midrule", *(" & ".join(map(shown, cells)) + r" \\" for cells in part)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


_NAMED = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
_LATEX = str.maketrans(
    {character: rf"\text{name}{{}}" for character, name in _NAMED.items()}
    | {character: f"\\{character}" for character in "&%$#_{}"}
    | {"−": r"$-$", "±": r"$\pm$", '"': "''"}
)


def latex_escaped(text: str) -> str:
    """Text that means itself, on one line. A row may begin with [: braces keep LaTeX from reading an argument."""
    escaped = " ".join(text.split()).translate(_LATEX)
    return f"{{{escaped}}}" if escaped[:1] in ("[", "*") else escaped
