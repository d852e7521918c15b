"""A board as HTML: what is to be known of it, its two tables, its figures. Names go through `html.escape`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from vivi.evaluate.tasks import VTAB, Group
from vivi.report.boards import Board, Cell, Difference, Line, Mean, Row, best, mean, one_digit, summary
from vivi.report.figures import GROUP_TITLES, Picture
from vivi.report.tables import SHORT, number, signed

_FORMATS = {".csv": "CSV", ".md": "Markdown", ".tex": "LaTeX"}
_DASH = '<span class="none">–</span>'


@dataclass(frozen=True)
class BoardView:
    """A board, and the files that were written for it."""

    board: Board
    tables: dict[str, list[Path]]
    groups: Picture | None
    differences: Picture | None
    differences_note: str = ""  # why there is no chart of differences


def badges(board: Board) -> str:
    said = ["quick"] * board.quick + ["own split"] * bool(board.own_split)
    said += ["own tasks"] * (board.groups == ("own",))
    return "".join(f' <span class="badge">{text}</span>' for text in said)


def board_body(view: BoardView) -> str:
    """Everything below the board's heading."""
    board = view.board
    switch = ""
    if board.rows and board.paper:
        switch = (
            '<p class="switch" hidden><label><input type="checkbox" role="switch"> Show the paper’s rows</label>'
            f' <span class="hint">{len(board.paper)} methods, as printed</span></p>'
        )
    return f"""<div class="board">{_notes(board)}{switch}
<div class="card"><h3>Means {file_links(view.tables["summary"])}</h3>{_summary_table(board)}</div>
<div class="card"><h3>Every task {file_links(view.tables["tasks"])}</h3>{_tasks_table(board)}</div>
{_figures(view)}</div>"""


def _notes(board: Board) -> str:
    said = []
    if not board.rows:
        said.append(
            "The paper’s own numbers; nothing of yours was measured this way. Means are as printed, and where none "
            "is printed, of the tasks’ rounded numbers."
        )
    missing = len(VTAB) - len(board.counted)
    if board.rows and missing > 0 and board.total == len(VTAB):
        text = f"{len(board.counted)} of VTAB’s {len(VTAB)} tasks were measured."
        said.append(text + (" The paper’s rows are over these tasks alone." if board.paper else ""))
    if board.tasks("own") and len(board.groups) > 1:
        said.append("Means are over VTAB’s tasks; the tasks you brought have a column of their own.")
    if board.quick:
        said.append(
            "<b>Quick:</b> schedules are shortened, to compare these encoders with each other. The paper’s rows are "
            "not offered here: they would not be comparable."
        )
    if board.own_split:
        text = f"<b>Own split:</b> the images of {escape(listed(board.own_split))} are not VTAB’s, or dealt anew."
        said.append(text + (" The paper’s rows are on VTAB’s splits: the splits differ." if board.paper else ""))
    if board.rows:
        said.append(_certainty(board))
    if not board.equal:
        said.append(
            "<b>Not every encoder has every task.</b> A mean is over the row’s own tasks, as many as stand beside "
            "it; a difference is over the tasks that both have; only rows with all of a column’s tasks can be bold."
        )
    if board.baseline is None:
        said.append("The baseline is not on this board: there are no differences.")
    lines = "".join(f'<p class="intro">{line}</p>' for line in said)
    return lines + "".join(f'<p class="warning">{escape(line)}</p>' for line in board.warnings)


def _certainty(board: Board) -> str:
    """What guessing gives, and how far the number of test images alone makes an accuracy uncertain."""
    classes = {result.task: result.classes for result in board.results if result.task in board.counted}
    chance = 100 * sum(1 / count for count in classes.values()) / len(classes)
    shares = [(result.score.median, count) for result in board.results if (count := result.images.get("test"))]
    error = max((100 * (share * (1 - share) / count) ** 0.5 for share, count in shares), default=0.0)
    said = f"By chance, the mean would be about {chance:.1f}."
    if error >= 0.05:
        said += f" A task’s test images make its accuracy uncertain by up to ±{error:.1f} (one standard error)."
    return said


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def file_links(paths: Sequence[Path]) -> str:
    links = (f'<a href="tables/{path.name}" download>{_FORMATS[path.suffix]}</a>' for path in paths)
    return f'<span class="files">{" · ".join(links)}</span>'


def scroll(label: str, table: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def _with_paper(
    board: Board, label: str, kind: str, caption: str, head: str, ours: str, paper: str, width: int
) -> str:
    """A table of our rows and, folded below it, one of the paper's; the script moves those into the first."""

    def table(caption: str, bodies: str) -> str:
        top = f"<caption><span>{caption}</span></caption><thead>{head}</thead>"
        return f'<table class="results {kind}">{top}{bodies}</table>'

    if not board.rows:
        return scroll(label, table(caption, f'<tbody class="paper only">{paper}</tbody>'))
    result = scroll(label, table(caption, f"<tbody>{ours}</tbody>"))
    if not board.paper:
        return result
    heading = f'<tr class="heading"><th scope="rowgroup" colspan="{width}">In the paper</th></tr>'
    folded = scroll(
        f"{label}, the paper", table("The paper’s rows", f'<tbody class="paper">{heading}{paper}</tbody>')
    )
    return f'{result}<details class="paper-rows"><summary>The paper’s rows</summary>{folded}</details>'


def _row(board: Board, row: Row, cells: str) -> str:
    kind = ' class="baseline"' if row is board.baseline else ""
    return f'<tr{kind}><th scope="row"><bdi>{escape(row.name)}</bdi></th>{cells}</tr>'


def table_cell(text: str, small: str = "", bold: bool = False, title: str = "", kind: str = "") -> str:
    kinds = " ".join(filter(None, ("best" if bold else "", kind)))
    attributes = (f' class="{kinds}"' if kinds else "") + (f' title="{escape(title)}"' if title else "")
    return f"<td{attributes}>{text or _DASH}{f'<small>{small}</small>' if small else ''}</td>"


# --- means ---


def _summary_table(board: Board) -> str:
    winners = {group: best(board.shown, board.tasks(group)) for group in board.parts}
    overall = best(board.shown, board.counted)
    several = any(len(cell.seeds) > 1 for row in board.rows for cell in row.cells.values())
    head = ['<th scope="col">Method</th>', '<th scope="col">Mean</th>']
    if board.baseline:
        head.append(f'<th scope="col"><span title="minus {escape(board.baseline.name)}">Difference</span></th>')
    head += [_group_head(board, group) for group in board.parts]
    head.append('<th scope="col">Tasks</th>')

    def line(found: Line) -> str:
        name = found.row.name
        cells = [
            table_cell(number(found.mean.value), _range(found.mean), name in overall)
            if found.mean
            else table_cell("")
        ]
        if board.baseline:
            cells.append(_gain(found.difference, found.mean, found.row is board.baseline))
        for group in board.parts:
            of_group = found.groups[group]
            fewer = f"{of_group.tasks} of {len(board.tasks(group))}" if of_group else ""
            small = fewer if of_group and of_group.tasks != len(board.tasks(group)) else ""
            cells.append(table_cell(number(of_group.value) if of_group else "", small, name in winners[group]))
        cells.append(table_cell(f"{found.mean.tasks if found.mean else 0} of {board.total}"))
        return _row(board, found.row, "".join(cells))

    lines = summary(board)
    parts = ["Test accuracy in percent"]
    if board.baseline:
        parts[0] += f", and its difference to {escape(board.baseline.name)}"
    if several:
        parts.append(
            "Below a mean, its range over seeds: the mean over tasks is taken for the first seed of every task, for "
            "the second, and so on, and the lowest and the highest of these are given"
        )
    return _with_paper(
        board,
        f"Means, {board.title}",
        "means",
        ". ".join(parts) + ". Best in bold.",
        f"<tr>{''.join(head)}</tr>",
        "".join(line(found) for found in lines if not found.row.paper),
        "".join(line(found) for found in lines if found.row.paper),
        len(head),
    )


def _group_head(board: Board, group: Group) -> str:
    count, all_of_it = len(board.tasks(group)), sum(task.group == group for task in VTAB)
    of = "" if group == "own" or board.total != len(VTAB) or count == all_of_it else f" of {all_of_it}"
    tasks = f"<small>{count}{of} task{'s' * (count != 1 or bool(of))}</small>"
    title = f'<span title="{GROUP_TITLES[group]}">{SHORT[group]}</span>'
    return f'<th scope="col" class="is-group {group}"><i class="dot"></i>{title}{tasks}</th>'


def _range(found: Mean) -> str:
    if found.low is None or found.high is None:
        return ""
    low, high = number(found.low), number(found.high)
    return low if low == high else f"{low}–{high}"


def _gain(found: Difference | None, whole: Mean | None, is_baseline: bool) -> str:
    if found is None:
        return "<td></td>" if is_baseline else table_cell("")
    kind = "up" if one_digit(found.value) > 0 else "down" if one_digit(found.value) < 0 else ""
    fewer = f"over {found.tasks}" if whole and whole.tasks != found.tasks else ""
    return table_cell(signed(found.value), fewer, kind=kind)


# --- tasks ---


def _tasks_table(board: Board) -> str:
    winners = {column.task: best(board.shown, [column.task]) for column in board.columns}
    overall = best(board.shown, board.counted)
    starts = {board.tasks(group)[0] for group in board.groups}

    def line(row: Row) -> str:
        cells = []
        for column in board.columns:
            cell, kind = row.cells.get(column.task), "first" if column.task in starts else ""
            if cell is None:
                cells.append(table_cell("", kind=kind))
            else:
                spread = f"±{number(cell.spread)}" if cell.spread is not None else ""
                is_best = row.name in winners[column.task]
                cells.append(table_cell(number(cell.value), spread, is_best, _how(cell), kind))
        whole = mean(row, board.counted)
        cells.append(table_cell(number(whole.value) if whole else "", "", row.name in overall, kind="first"))
        return _row(board, row, "".join(cells))

    groups = "".join(
        f'<th scope="colgroup" colspan="{len(board.tasks(group))}" class="span {group}">'
        f"{GROUP_TITLES[group] if len(board.tasks(group)) > 2 else SHORT[group]}</th>"
        for group in board.groups
    )
    tasks = "".join(
        f'<th scope="col" class="task {column.group}"><span title="{escape(column.title)}"><i class="dot"></i>'
        f"{escape(column.title)}</span></th>"
        for column in board.columns
    )
    head = (
        f'<tr><th scope="col" rowspan="2">Method</th>{groups}'
        f'<th scope="col" rowspan="2" class="task"><span>Mean</span></th></tr><tr>{tasks}</tr>'
    )
    return _with_paper(
        board,
        f"Every task, {board.title}",
        "tasks",
        _tasks_caption(board),
        head,
        "".join(map(line, board.rows)),
        "".join(map(line, board.paper)),
        len(board.columns) + 2,
    )


def _tasks_caption(board: Board) -> str:
    if not board.rows:
        return "Test accuracy in percent, the median of three runs. Best in bold."
    counts = sorted({len(cell.seeds) for row in board.rows for cell in row.cells.values()})
    if counts == [1]:
        return "Test accuracy in percent, of one seed. Best in bold."
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    said = (
        f"Test accuracy in percent: the median of {seeds} seeds, and ± half the range from the lowest to the highest."
    )
    chosen = any(cell.result and cell.result.score.setting for row in board.rows for cell in row.cells.values())
    return said + (" Point at a number for its seeds and its setting. " if chosen else " ") + "Best in bold."


def _how(cell: Cell) -> str:
    """The seeds of a number and the setting that was chosen, for its tooltip."""
    if cell.result is None:
        return ""
    score, own = cell.result.score, cell.result.score_per_task
    parts = [f"seeds: {', '.join(map(number, cell.seeds))}"]
    if score.setting:
        chosen = f" ({score.chosen_by})" if score.chosen_by else ""
        parts.append(f"learning rate {score.setting.lr:g} × {score.setting.steps:,} steps{chosen}")
    if own:
        at = f" at {own.setting.lr:g} × {own.setting.steps:,} steps" if own.setting else ""
        parts.append(f"with this task’s own setting: {number(100 * own.median)}{at}")
    return "; ".join(parts)


# --- figures ---


def _figures(view: BoardView) -> str:
    parts = [
        _figure("Groups", view.groups) if view.groups else "",
        _figure("Task by task", view.differences) if view.differences else "",
    ]
    note = f'<p class="hint">{escape(view.differences_note)}</p>' if view.differences_note else ""
    return f'<div class="figures">{"".join(parts)}</div>{note}' if any(parts) else note


def _figure(title: str, picture: Picture) -> str:
    size = f'width="{picture.width}" height="{picture.height}"'
    return f"""<figure class="card">
<h3>{title} <span class="files"><a href="figures/{picture.file}" download>PNG</a></span></h3>
<div class="scroll" tabindex="0" role="region" aria-label="{title}"><picture>
<source srcset="figures/{picture.dark}" media="(prefers-color-scheme: dark)">
<img src="figures/{picture.file}" {size} alt="{escape(picture.alt)}"></picture></div>
<figcaption>{escape(picture.caption)}</figcaption></figure>"""
