"""The section of a board: the means as in the paper's Table 1, every task, and two figures."""

from __future__ import annotations

from pathlib import Path

from vivi.evaluate.tasks import GROUPS, VTAB, Group
from vivi.report.boards import (
    Accuracy,
    Board,
    Difference,
    Line,
    Mean,
    Method,
    best,
    leader,
    mean,
    summary,
)
from vivi.report.figures import GROUP_TITLES, draw_differences, draw_groups
from vivi.report.sections import Section
from vivi.report.table import Cell, Column, Record, Row, Span, Table, exact, number, number_range, one_digit, signed

SHORT: dict[Group, str] = {"natural": "Nat.", "specialized": "Spec.", "structured": "Str.", "own": "Own"}
PAPER_COMPARE = ("VIVI-Ex(4)", "Ex-ImageNet")


def board_section(board: Board, compare: tuple[str, ...], baseline: str, out: Path) -> Section:
    """Draws the figures of a board."""
    first, second = compared(board, compare, baseline)
    groups, differences, hint = draw_groups(board, out / "figures"), None, ""
    if first and second:
        differences = draw_differences(board, first, second, out / "figures")
        if not differences:
            hint = f"No chart of differences: {first.name} and {second.name} have no task in common."
    elif compare:
        hint = "No chart of differences: not both of the rows to compare are on this board."
    badges = ["quick"] * board.quick + ["own split"] * bool(board.own_split)
    return Section(
        key=board.slug,
        title=board.title,
        template="board.html",
        label=board.label,
        badges=(*badges, *["own tasks"] * (board.groups == ("own",))),
        warnings=board.warnings,
        tables=(means_table(board), tasks_table(board)),
        figures=tuple(figure for figure in (groups, differences) if figure),
        data={"board": board, "hint": hint},
    )


def compared(board: Board, compare: tuple[str, ...], baseline: str) -> tuple[Method | None, Method | None]:
    """The two rows of the chart of differences: those asked for, or the best and the baseline."""
    if compare or (not board.rows and not baseline):
        first, second = compare or PAPER_COMPARE
        return board.find(first), board.find(second)
    best_row = leader(board)
    return (best_row, board.baseline) if best_row is not board.baseline else (None, None)


def _note(board: Board, of_tasks: bool) -> str:
    """What a reader of a file has to know, without the page; `of_tasks`: of the table of all tasks."""
    parts = ["Test accuracy in percent"]
    if board.has_several_seeds:
        parts.append("median over seeds" + (" ± half the range of the seeds" if of_tasks else ""))
    if board.baseline and not of_tasks:
        parts.append(f"differences are to {board.baseline.name}, over the tasks that both have")
    if board.quick:
        parts.append("shortened schedules, not to be compared with the paper")
    if board.own_split:
        parts.append(f"own split: {', '.join(board.own_split)}")
    return "; ".join(parts) + "."


def _row(board: Board, method: Method, cells: list[Cell]) -> Row:
    marked = method.name if not method.paper or method.name.endswith("(paper)") else f"{method.name} (paper)"
    return Row((Cell(method.name, in_files=marked), *cells), method.paper, method is board.baseline)


# --- means ---


def means_table(board: Board) -> Table:
    """As the paper's Table 1."""
    bold = {group: best(board.shown, board.tasks(group)) for group in board.parts}
    bold_mean = best(board.shown, board.counted)
    rows = []
    for line in summary(board):
        name, whole = line.method.name, line.mean
        cells = [
            Cell(number(whole.value), bold=name in bold_mean, small=_seeds_range(whole)) if whole else Cell(),
            _gain(line.difference, whole, line.method is board.baseline),
        ]
        for group in board.parts:
            found, tasks = line.groups[group], len(board.tasks(group))
            small = f"{found.tasks} of {tasks}" if found and found.tasks != tasks else ""
            cells.append(Cell(number(found.value if found else None), bold=name in bold[group], small=small))
        cells.append(Cell(f"{whole.tasks if whole else 0} of {board.total}"))
        rows.append(_row(board, line.method, cells))
    about, caption = f"minus {board.baseline.name}" if board.baseline else "", "Test accuracy in percent"
    if board.baseline:
        caption += f", and its difference to {board.baseline.name}"
    if board.has_several_seeds:
        caption += (
            ". Below a mean, its range over seeds: the mean over tasks is taken for the first seed of every task, for"
            " the second, and so on, and the lowest and the highest of these are given"
        )
    columns = (
        Column("Method"),
        Column("Mean"),
        Column("Diff.", "Difference", hint=about, only="" if board.baseline else "files"),
        *(
            Column(SHORT[group], small=_how_many(board, group), hint=GROUP_TITLES[group], group=group)
            for group in board.parts
        ),
        Column("Tasks"),
    )
    records = [_means_record(board, line) for line in summary(board)]
    name, note = f"{board.slug}-summary", _note(board, of_tasks=False)
    return Table(name, board.title, note, f"{caption}. Best in bold.", columns, tuple(rows), records)


def _means_record(board: Board, line: Line) -> Record:
    whole, gain = line.mean, line.difference
    record = {
        "source": "paper" if line.method.paper else "ours",
        "method": line.method.name,
        "mean": exact(whole.value if whole else None),
        "mean_lowest_seed": exact(whole.low if whole else None),
        "mean_highest_seed": exact(whole.high if whole else None),
        "tasks": str(whole.tasks if whole else 0),
        "tasks_in_all": str(board.total),
        "difference": exact(gain.value if gain else None),
        "difference_tasks": str(gain.tasks) if gain else "",
        "baseline": board.baseline.name if board.baseline else "",
    }
    for group, found in line.groups.items():
        record[group] = exact(found.value if found else None)
        record[f"{group}_tasks"] = str(found.tasks if found else 0)
    return record


def _how_many(board: Board, group: Group) -> str:
    """5 tasks, or 5 of 7 tasks."""
    count, in_vtab = len(board.tasks(group)), sum(task.group == group for task in VTAB)
    if group == "own" or board.total != len(VTAB) or count == in_vtab:
        return f"{count} task{'s' * (count != 1)}"
    return f"{count} of {in_vtab} tasks"


def _seeds_range(whole: Mean) -> str:
    return "" if whole.low is None or whole.high is None else number_range(whole.low, whole.high)


def _gain(gain: Difference | None, whole: Mean | None, is_baseline: bool) -> Cell:
    if gain is None:
        return Cell(" " if is_baseline else "")
    kind = "up" if one_digit(gain.value) > 0 else "down" if one_digit(gain.value) < 0 else ""
    small = f"over {gain.tasks}" if whole and whole.tasks != gain.tasks else ""
    text = signed(gain.value)
    return Cell(text, small=small, kind=kind, in_files=f"{text} ({small})" if small else text)


# --- every task ---


def tasks_table(board: Board) -> Table:
    """Every task of every row."""
    bold = {task.task: best(board.shown, [task.task]) for task in board.columns}
    bold_mean = best(board.shown, board.counted)
    starts = {board.tasks(group)[0] for group in board.groups}
    rows = []
    for method in (*board.rows, *board.paper):
        cells = []
        for task in board.columns:
            found, kind = method.cells.get(task.task), "first" if task.task in starts else ""
            if found is None:
                cells.append(Cell(kind=kind))
            else:
                is_bold = method.name in bold[task.task]
                cells.append(Cell(number(found.value), number(found.spread), is_bold, hint=_how(found), kind=kind))
        whole = mean(method, board.counted)
        cells.append(Cell(number(whole.value if whole else None), bold=method.name in bold_mean, kind="first"))
        rows.append(_row(board, method, cells))
    columns = [Column(task.title, hint=task.title, group=task.group) for task in board.columns]
    groups = [(group, len(board.tasks(group))) for group in GROUPS if group in board.groups]
    spans = [Span(GROUP_TITLES[group] if tasks > 2 else SHORT[group], group, tasks) for group, tasks in groups]
    return Table(
        f"{board.slug}-tasks",
        board.title,
        _note(board, of_tasks=True),
        _tasks_caption(board),
        (Column("Method"), *columns, Column("Mean")),
        tuple(rows),
        _tasks_records(board),
        kind="tasks",
        spans=tuple(spans),
    )


def _tasks_caption(board: Board) -> str:
    if not board.rows:
        return "Test accuracy in percent, the median of three runs. Best in bold."
    counts = sorted({len(accuracy.seeds) for method in board.rows for accuracy in method.cells.values()})
    if counts == [1]:
        return "Test accuracy in percent, of one seed. Best in bold."
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    chosen = any(result.score.setting for result in board.results)
    return (
        f"Test accuracy in percent: the median of {seeds} seeds, and ± half the range from the lowest to the highest."
        f"{' Point at a number for its seeds and its setting.' if chosen else ''} Best in bold."
    )


def _how(accuracy: Accuracy) -> str:
    """The seeds of a number and the setting that was chosen, for its tooltip."""
    if accuracy.result is None:
        return ""
    score, own = accuracy.result.score, accuracy.result.score_per_task
    parts = [f"seeds: {', '.join(map(number, accuracy.seeds))}"]
    if score.setting:
        chosen = f" ({score.chosen_by})" if score.chosen_by else ""
        parts.append(f"learning rate {score.setting.lr:g} × {score.setting.steps:,} steps{chosen}")
    if own:
        at = f" at {own.setting.lr:g} × {own.setting.steps:,} steps" if own.setting else ""
        parts.append(f"with this task’s own setting: {number(100 * own.median)}{at}")
    return "; ".join(parts)


def _tasks_records(board: Board) -> list[Record]:
    """One for each row and task: the seeds, and the setting that was chosen."""
    records = []
    for method in (*board.rows, *board.paper):
        for task in board.columns:
            if task.task not in method.cells:
                continue
            found = method.cells[task.task]
            score = found.result.score if found.result else None
            own = found.result.score_per_task if found.result else None
            setting, own_setting = score.setting if score else None, own.setting if own else None
            records.append(
                {
                    "source": "paper" if method.paper else "ours",
                    "method": method.name,
                    "task": task.task,
                    "title": task.title,
                    "group": task.group,
                    "accuracy": exact(found.value),
                    "lowest_seed": exact(min(found.seeds, default=None)),
                    "highest_seed": exact(max(found.seeds, default=None)),
                    "seeds": " ".join(map(exact, found.seeds)),
                    "lr": f"{setting.lr:g}" if setting else "",
                    "steps": str(setting.steps) if setting else "",
                    "chosen_by": score.chosen_by if score else "",
                    "split": found.result.split if found.result else "",
                    "accuracy_task_setting": exact(100 * own.median if own else None),
                    "task_lr": f"{own_setting.lr:g}" if own_setting else "",
                    "task_steps": str(own_setting.steps) if own_setting else "",
                }
            )
    return records
