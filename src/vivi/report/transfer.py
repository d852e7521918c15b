"""The section of a board: the means as in the paper's Table 1, every task, and two figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vivi.evaluate.metadata import counted
from vivi.evaluate.tasks import VTAB, Group
from vivi.report.boards import Accuracy, Board, BoardTask, Mean, Method, difference, leader, mean
from vivi.report.figures import draw_differences, draw_groups
from vivi.report.sections import Section
from vivi.report.table import Cell, Cells, Column, Table, exact, number, signed

SHORT: dict[Group, str] = {"natural": "Nat.", "specialized": "Spec.", "structured": "Str.", "own": "Own"}
PAPER_COMPARE = ("VIVI-Ex(4)", "Ex-ImageNet")


def board_section(board: Board, compare: tuple[str, ...], baseline: str, out: Path) -> Section:
    """Draws the figures of a board."""
    first, second = compared(board, compare, baseline)
    figures = [draw_groups(board, out / "figures")]
    if first and second:
        figures.append(draw_differences(board, first, second, out / "figures"))
    return Section(
        key=board.slug,
        title=board.title,
        template="board.html",
        label=board.label,
        warnings=[*board.warnings()],
        tables=[means_table(board), tasks_table(board)],
        figures=[figure for figure in figures if figure],
        data={"board": board, "baseline": baseline, "compare": compare, "first": first, "second": second},
    )


def compared(board: Board, compare: tuple[str, ...], baseline: str) -> tuple[Method | None, Method | None]:
    """The two rows of the chart of differences: those asked for, or the best and the baseline."""
    if compare or (not board.rows and not baseline):
        first, second = compare or PAPER_COMPARE
        return board.find(first), board.find(second)
    best_row = leader(board)
    return (None, None) if board.baseline in (None, best_row) else (best_row, board.baseline)


def _note(board: Board, of_tasks: bool) -> str:
    """What a reader of a file has to know, without the page; `of_tasks`: of the table of all tasks."""
    versus = board.baseline and not of_tasks and board.baseline.name
    parts = {
        "Test accuracy in percent": True,
        "median over seeds": max(board.seeds, default=0) > 1,
        "± half of the 95 % interval that test images and seeds leave": board.rows,
        f"differences are to {versus}, over the tasks that both have": versus,
        "shortened schedules, not to be compared with the paper": board.quick,
        f"own split: {', '.join(board.own_split)}": board.own_split,
    }
    return "; ".join(part for part, said in parts.items() if said) + "."


def _mean_cell(board: Board, row: Method, tasks: Sequence[str], **others: Any) -> Cell:
    """Only rows with all of the tasks compete for the best mean; of the paper's, if there are none of ours."""
    competes = row in board.shown and len(row.tasks(tasks)) == len(tasks)
    return Cell(mean(row, tasks).value, rivals="shown" if competes else None, **others)


def _name(board: Board, row: Method) -> Cells:
    marked = row.name if not row.paper or row.name.endswith("(paper)") else f"{row.name} (paper)"
    name = Cell(row.name, in_files=marked, kind="baseline" if row is board.baseline else "")
    return {"source": "paper" if row.paper else "ours", "method": name}


def means_table(board: Board) -> Table:
    """As the paper's Table 1."""
    versus = board.baseline.name if board.baseline else ""
    columns: dict[str, Column | str] = {
        "method": "Method",
        "mean": "Mean",
        "difference": Column("Diff.", "Difference" if versus else "", hint=f"minus {versus}"),
        **{group: _group_column(board, group) for group in board.parts},
        "tasks": "Tasks",
    }
    rows = [_means(board, row) for row in (*board.rows, *board.paper)]
    name, note = f"{board.slug}-summary", _note(board, of_tasks=False)
    return Table(name, board.title, note, columns, rows)


def _group_column(board: Board, group: Group) -> Column:
    count, in_vtab = len(board.tasks(group)), sum(task.group == group for task in VTAB)
    whole = group == "own" or board.total != len(VTAB) or count == in_vtab
    how_many = counted(count, "task") if whole else f"{count} of {in_vtab} tasks"
    return Column(SHORT[group], small=how_many, hint=group.capitalize(), group=group)


def _means(board: Board, row: Method) -> Cells:
    whole, gain = mean(row, board.counted), Mean(None, 0)
    if board.baseline and row is not board.baseline:
        gain = difference(row, board.baseline, board.counted)
    cells = _name(board, row) | {
        "mean": _mean_cell(board, row, board.counted, spread=number(whole.error)),
        "mean_error": whole.error,
        "tasks": Cell(whole.tasks, f"{whole.tasks} of {board.total}"),
        "tasks_in_all": board.total,
        "difference": _difference_cell(row, board.baseline, gain, whole.tasks),
        "difference_error": gain.error,
        "difference_tasks": gain.tasks or None,
        "baseline": board.baseline.name if board.baseline else "",
    }
    for group in board.parts:
        tasks = board.tasks(group)
        own = len(row.tasks(tasks))
        some = f"{own} of {len(tasks)}" if 0 < own < len(tasks) else ""
        cells |= {group: _mean_cell(board, row, tasks, small=some), f"{group}_tasks": own}
    return cells


def _difference_cell(row: Method, baseline: Method | None, gain: Mean, tasks: int) -> Cell:
    """Coloured only beyond its error; where the error is not known, as of the paper's numbers, it has no colour."""
    if baseline is None or gain.value is None:
        return Cell(text=" " if baseline is row else "")
    text, error = signed(gain.value), f"±{number(gain.error)}" if gain.error else ""
    over = f"over {counted(gain.tasks, 'task')}" if gain.tasks != tasks else ""
    within = "within error" if gain.verdict == "within" else ""
    other = "another architecture" if len({row.architecture, baseline.architecture} - {""}) > 1 else ""
    small = [error, within, over, other]
    in_files = [text, error.replace("±", "± "), over and f"({over})"]
    small, in_files = ([*filter(None, parts)] for parts in (small, in_files))
    return Cell(gain.value, text, " ".join(in_files), small="\n".join(small), kind=gain.verdict)


def tasks_table(board: Board) -> Table:
    """Every task of every row; in the CSV a line for each of both."""
    columns: dict[str, Column | str] = {"method": "Method"}
    for task in board.columns:
        short = SHORT[task.group]
        columns[f"task {task.task}"] = Column(task.title, small=short, hint=task.title, group=task.group)
    rows, records = [], []
    for row in (*board.rows, *board.paper):
        cells = _name(board, row) | {"mean": _mean_cell(board, row, board.counted)}
        for task in board.columns:
            if found := row.cells.get(task.task):
                error = mean(row, [task.task]).error
                cells[f"task {task.task}"] = _mean_cell(board, row, [task.task], spread=number(error), about=found)
                records.append(_record(row, task, found, error))
        rows.append(cells)
    columns["mean"] = "Mean"
    name, note = f"{board.slug}-tasks", _note(board, of_tasks=True)
    return Table(name, board.title, note, columns, rows, records, kind="tasks")


def _record(row: Method, task: BoardTask, found: Accuracy, error: float | None) -> Cells:
    """The seeds, and the setting that was chosen."""
    score = found.result.score if found.result else None
    own = found.result.score_per_task if found.result else None
    setting, own_setting = score and score.setting, own and own.setting
    return {
        "source": "paper" if row.paper else "ours",
        "method": row.name,
        "task": task.task,
        "title": task.title,
        "group": task.group,
        "accuracy": found.value,
        "error": error,
        "lowest_seed": min(found.seeds, default=None),
        "highest_seed": max(found.seeds, default=None),
        "seeds": " ".join(map(exact, found.seeds)),
        "lr": f"{setting.lr:g}" if setting else None,
        "steps": setting.steps if setting else None,
        "chosen_by": score.chosen_by if score else None,
        "split": found.result.split if found.result else None,
        "accuracy_task_setting": 100 * own.median if own else None,
        "task_lr": f"{own_setting.lr:g}" if own_setting else None,
        "task_steps": own_setting.steps if own_setting else None,
    }
