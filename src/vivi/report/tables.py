"""The tables of a board as files: CSV for programs, Markdown and LaTeX (booktabs) for texts."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vivi.evaluate.tasks import Group
from vivi.report.boards import Board, Difference, Line, Mean, Row, best, mean, one_digit, summary
from vivi.runtime.storage import write_atomically

SHORT: dict[Group, str] = {"natural": "Nat.", "specialized": "Spec.", "structured": "Str.", "own": "Own"}
FORMATS = ("csv", "md", "tex")


@dataclass(frozen=True)
class Entry:
    """A cell of a table for reading: what it says, how far it varies, and whether it is the column's best."""

    text: str
    spread: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table for reading."""

    title: str
    note: str
    head: tuple[str, ...]
    ours: tuple[tuple[Entry, ...], ...]
    paper: tuple[tuple[Entry, ...], ...]


def write_tables(board: Board, folder: Path) -> dict[str, list[Path]]:
    """Writes both tables in every format; returns the files of each, by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "summary": (summary_csv(board), summary_sheet(board)),
        "tasks": (tasks_csv(board), tasks_sheet(board)),
    }
    files: dict[str, list[Path]] = {}
    for name, (table, sheet) in contents.items():
        for suffix, content in zip(FORMATS, (table, markdown(sheet), latex(sheet)), strict=True):
            path = folder / f"{board.slug}-{name}.{suffix}"
            write_atomically(path, content.encode("utf-8", "replace"), sync=False)
            files.setdefault(name, []).append(path)
    return files


def value(found: Mean | Difference | None) -> float | None:
    return found.value if found else None


def number(value: float | None) -> str:
    return "" if value is None else f"{one_digit(value):.1f}"


def signed(value: float) -> str:
    """+3.0, −0.4, and 0.0 without a sign: a difference as it is printed."""
    text = number(abs(value))
    return text if text == "0.0" else ("+" if value > 0 else "−") + text


def label(row: Row) -> str:
    """A row's name where the paper's rows stand among ours."""
    return row.name if not row.paper or row.name.endswith("(paper)") else f"{row.name} (paper)"


def about(board: Board, tasks: bool) -> str:
    """What a reader of a file has to know, without the page; `tasks`: of the table of all tasks."""
    parts = ["Test accuracy in percent"]
    if any(len(cell.seeds) > 1 for row in board.rows for cell in row.cells.values()):
        parts.append("median over seeds" + (" ± half the range of the seeds" if tasks else ""))
    if board.baseline and not tasks:
        parts.append(f"differences are to {board.baseline.name}, over the tasks that both have")
    if board.quick:
        parts.append("shortened schedules, not to be compared with the paper")
    if board.own_split:
        parts.append(f"own split: {', '.join(board.own_split)}")
    return "; ".join(parts) + "."


# --- CSV ---


def summary_csv(board: Board) -> str:
    """One line for each row, with what every mean is over."""
    head = ["source", "method", "mean", "mean_lowest_seed", "mean_highest_seed", "tasks", "tasks_in_all"]
    head += ["difference", "difference_tasks", "baseline"]
    head += [column for group in board.parts for column in (group, f"{group}_tasks")]
    return comma_separated([head, *(_summary_cells(board, line) for line in summary(board))])


def _summary_cells(board: Board, line: Line) -> list[str]:
    found, gain = line.mean or Mean(0, 0), line.difference
    cells = ["paper" if line.row.paper else "ours", line.row.name, exact(value(line.mean))]
    cells += [exact(found.low), exact(found.high), str(found.tasks), str(board.total)]
    cells += [exact(value(gain)), str(gain.tasks) if gain else ""]
    cells.append(board.baseline.name if board.baseline else "")
    for group in board.parts:
        of_group = line.groups[group]
        cells += [exact(value(of_group)), str(of_group.tasks if of_group else 0)]
    return cells


def tasks_csv(board: Board) -> str:
    """One line for each row and task: the seeds, and the setting that was chosen."""
    head = ["source", "method", "task", "title", "group", "accuracy", "lowest_seed", "highest_seed", "seeds"]
    head += ["lr", "steps", "chosen_by", "split", "accuracy_task_setting", "task_lr", "task_steps"]
    lines = [head]
    for row in (*board.rows, *board.paper):
        for column in board.columns:
            if column.task not in row.cells:
                continue
            cell, result = row.cells[column.task], row.cells[column.task].result
            line = ["paper" if row.paper else "ours", row.name, column.task, column.title, column.group]
            line += [exact(cell.value), exact(min(cell.seeds, default=None)), exact(max(cell.seeds, default=None))]
            line.append(" ".join(map(exact, cell.seeds)))
            if result:
                chosen, own = result.score, result.score_per_task
                line += [f"{chosen.setting.lr:g}", str(chosen.setting.steps)] if chosen.setting else ["", ""]
                line += [chosen.chosen_by, result.split, exact(100 * own.median if own else None)]
                line += [f"{own.setting.lr:g}", str(own.setting.steps)] if own and own.setting else ["", ""]
            lines.append(line + [""] * (len(head) - len(line)))
    return comma_separated(lines)


def exact(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")


def comma_separated(lines: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([plain_cell(cell) for cell in line] for line in lines)
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


# --- for reading ---


def summary_sheet(board: Board) -> Sheet:
    """As the paper's Table 1."""
    winners = {group: best(board.shown, board.tasks(group)) for group in board.parts}
    overall = best(board.shown, board.counted)
    lines = []
    for line in summary(board):
        name, found = line.row.name, line.mean
        gain = signed(line.difference.value) if line.difference else ""
        if line.difference and found and line.difference.tasks != found.tasks:
            gain += f" (over {line.difference.tasks})"
        entries = [Entry(label(line.row)), Entry(number(value(found)), "", name in overall), Entry(gain)]
        for group in board.parts:
            of_group = line.groups[group]
            entries.append(Entry(number(value(of_group)), "", name in winners[group]))
        lines.append((*entries, Entry(f"{found.tasks if found else 0} of {board.total}")))
    head = ("Method", "Mean", "Diff.", *(SHORT[group] for group in board.parts), "Tasks")
    ours = len(board.rows)
    return Sheet(board.title, about(board, False), head, tuple(lines[:ours]), tuple(lines[ours:]))


def tasks_sheet(board: Board) -> Sheet:
    """Every task of every row."""
    winners = {column.task: best(board.shown, [column.task]) for column in board.columns}
    overall = best(board.shown, board.counted)

    def entries(row: Row) -> tuple[Entry, ...]:
        found = [Entry(label(row))]
        for column in board.columns:
            cell = row.cells.get(column.task)
            if cell is None:
                found.append(Entry(""))
            else:
                found.append(Entry(number(cell.value), number(cell.spread), row.name in winners[column.task]))
        whole = mean(row, board.counted)
        return (*found, Entry(number(value(whole)), "", row.name in overall))

    head = ("Method", *(column.title for column in board.columns), "Mean")
    return Sheet(
        board.title, about(board, True), head, tuple(map(entries, board.rows)), tuple(map(entries, board.paper))
    )


def markdown(sheet: Sheet) -> str:
    """As GitHub and others read it."""

    def text(entry: Entry) -> str:
        said = markdown_escaped(entry.text) + (f" ± {entry.spread}" if entry.spread else "")
        return f"**{said}**" if entry.bold and said else said

    lines = [f"**{markdown_escaped(sheet.title)}**. {markdown_escaped(sheet.note)}", ""]
    lines.append("| " + " | ".join(map(markdown_escaped, sheet.head)) + " |")
    lines.append("| :--- |" + " ---: |" * (len(sheet.head) - 1))
    lines += ["| " + " | ".join(map(text, row)) + " |" for row in (*sheet.ours, *sheet.paper)]
    return "\n".join(lines) + "\n"


def markdown_escaped(text: str) -> str:
    """Text that means itself, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|~$&#])", r"\\\1", " ".join(text.split()))


def latex(sheet: Sheet) -> str:
    """A tabular; its first lines say what it needs."""

    def text(entry: Entry) -> str:
        said = latex_escaped(entry.text)
        said = rf"\textbf{{{said}}}" if entry.bold and said else said
        return said + (rf" {{\scriptsize$\pm${entry.spread}}}" if entry.spread else "")

    upright = len(sheet.head) <= 8  # long titles of many columns stand on end, where graphicx is loaded
    head = [
        latex_escaped(name) if upright else rf"\rotatebox{{90}}{{{latex_escaped(name)}}}" for name in sheet.head[1:]
    ]
    lines = [f"% {' '.join(line.split())}" for line in (sheet.title, sheet.note)]
    lines.append(r"% \usepackage{booktabs}" + ("" if upright else r" and, for titles on end, \usepackage{graphicx}"))
    if not upright:
        lines.append(r"\providecommand{\rotatebox}[2]{#2}")
    lines.append(rf"\begin{{tabular}}{{l{'r' * len(head)}}}")
    lines += [r"\toprule", " & ".join([latex_escaped(sheet.head[0]), *head]) + r" \\", r"\midrule"]
    lines += [" & ".join(map(text, row)) + r" \\" for row in sheet.ours]
    lines += [r"\midrule"] if sheet.ours and sheet.paper else []
    lines += [" & ".join(map(text, row)) + r" \\" for row in sheet.paper]
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
    said = "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
    return f"{{{said}}}" if said[:1] in ("[", "*") else said
