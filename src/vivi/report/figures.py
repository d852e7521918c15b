"""The figures of a board: bars for each group of tasks, and the sorted differences between two rows, task by task."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivi.evaluate.tasks import Group
from vivi.report.boards import Board, Mean, Row, comparable, mean, shared_tasks
from vivi.report.tables import number, signed
from vivi.runtime.console import harmless
from vivi.runtime.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of 29 methods of the paper, those of its own first two charts.
PAPER_BARS = ("Ex-ImageNet", "Ex-YT-F", "Ex-YT-S", "VIVI-Ex(4)", "VIVI-Ex(4)-Big")
MAX_BARS = 12
_NAME = 34  # characters of a name that have room
WIDTH = 6.4  # inches
LEGEND = 0.2  # inches of a line of the legend
_DPI = 160


@dataclass(frozen=True)
class Theme:
    """The colours of a page, light or dark. Groups have Okabe and Ito's, which the colour-blind tell apart, near to
    the paper's red, green and blue."""

    page: str
    text: str
    muted: str
    line: str
    baseline: str
    ramp: tuple[str, str]  # of encoders, from the worst to the best
    groups: dict[Group, str]


LIGHT = Theme(
    "#ffffff",
    "#16181d",
    "#5a6170",
    "#e3e5ea",
    "#aeb4c0",
    ("#bcc8f5", "#2a3fae"),
    {"natural": "#d55e00", "specialized": "#009e73", "structured": "#0072b2", "own": "#b8589a"},
)
DARK = Theme(
    "#171a20",
    "#eceef2",
    "#a0a7b5",
    "#2a2f39",
    "#69707f",
    ("#3a4686", "#a9b8ff"),
    {"natural": "#f08a3c", "specialized": "#2fbf95", "structured": "#5aaeea", "own": "#dd8fc4"},
)
GROUP_TITLES: dict[Group, str] = {
    "natural": "Natural",
    "specialized": "Specialized",
    "structured": "Structured",
    "own": "Own",
}


@dataclass(frozen=True)
class Picture:
    """A figure in both themes, what it says in words, and its size in pixels."""

    file: str
    dark: str
    caption: str
    alt: str
    width: int
    height: int


def draw_groups(board: Board, folder: Path) -> Picture | None:
    """Bars for all tasks and for each group; None if the rows share no task."""
    rows = bar_rows(board)
    tasks = shared_tasks(rows, [column.task for column in board.columns])
    counted = [task for task in board.counted if task in tasks]
    places: list[tuple[str, list[str]]] = [("All", counted)] if counted else []
    for group in board.groups:
        places.append((GROUP_TITLES[group], [task for task in board.tasks(group) if task in tasks]))
    places = [place for place in places if place[1]]
    if len(places) == 2 and places[0][1] == places[1][1]:
        places = places[:1]  # one group is all there is
    if not rows or not places:
        return None
    means = [[mean(row, chosen) or Mean(0, 0) for _, chosen in places] for row in rows]
    labels = [f"{title}\n{len(chosen)} task{'s' * (len(chosen) != 1)}" for title, chosen in places]
    width = min(max(WIDTH, 1.2 + 0.17 * len(rows) * len(places)), 2 * WIDTH)
    lines = -(-len(rows) // legend_columns([short(row.name, 30) for row in rows], width))
    size = (width, 3.2 + LEGEND * lines)

    def draw(figure: Figure, theme: Theme) -> None:
        _bars(figure, theme, board, rows, labels, means, lines)

    words = "; ".join(f"{row.name} {number(found[0].value)}" for row, found in zip(rows, means, strict=True))
    left_out = len(board.shown) - len(rows)
    caption = f"Mean accuracy by group, over the {_tasks(len(tasks))} that all bars share."
    if any(found.low is not None for line in means for found in line):
        caption += " Whiskers: lowest and highest mean of a single seed."
    if left_out:
        caption += f" Not drawn: {left_out} of the rows above."
    alt = f"Bar chart of mean accuracy by group. {places[0][0]}: {words}."
    return write_picture(folder, f"{board.slug}-groups", size, draw, caption, alt)


def bar_rows(board: Board) -> list[Row]:
    """Those of the board's rows that can be compared and have room: the baseline and the best; or the paper's own
    choice."""
    if not board.rows:
        return [row for row in board.paper if row.name in PAPER_BARS]
    rows = comparable(board.rows, board.counted)
    return rows if len(rows) <= MAX_BARS else [rows[0], *rows[1 - MAX_BARS :]]


def draw_differences(board: Board, first: Row, second: Row, folder: Path) -> Picture | None:
    """How much better the first row is than the second on each task, sorted; None if they share no task."""
    shared = [column for column in board.columns if column.task in first.cells and column.task in second.cells]
    if not shared:
        return None
    gains = [(first.cells[column.task].value - second.cells[column.task].value, column) for column in shared]
    gains.sort(key=lambda gain: gain[0])
    size = (WIDTH, 1.15 + 0.235 * len(gains))

    def draw(figure: Figure, theme: Theme) -> None:
        axes = bare_axes(figure, theme, left=1.35, right=0.35, top=0.62, bottom=0.42)
        colours = [theme.groups[column.group] for _, column in gains]
        places = range(len(gains))
        axes.barh(places, [gain for gain, _ in gains], color=colours, height=0.72, zorder=2)
        low, high = min(0.0, gains[0][0]), max(0.0, gains[-1][0])
        room = 0.09 * (high - low) or 1.0
        axes.set_xlim(low - room * (low < 0), high + room)
        for place, (gain, _) in zip(places, gains, strict=True):
            side, shift = ("left", 3) if gain >= 0 else ("right", -3)
            style = {"textcoords": "offset points", "va": "center", "ha": side, "fontsize": 7.5, "color": theme.muted}
            axes.annotate(signed(gain), (gain, place), (shift, 0), **style)  # type: ignore[arg-type]
        axes.axvline(0, color=theme.muted, linewidth=0.8, zorder=3)
        axes.set_yticks(places, [short(column.title, 22) for _, column in gains], parse_math=False)
        axes.set_ylim(-0.6, len(gains) - 0.4)
        axes.grid(axis="x", color=theme.line, linewidth=0.8, zorder=0)
        axes.set_xlabel("difference in accuracy (points)", fontsize=8.5, color=theme.muted)
        put_title(figure, theme, f"{short(first.name)}  minus  {short(second.name)}")
        groups = [group for group in board.groups if any(column.group == group for _, column in gains)]
        put_legend(figure, theme, [GROUP_TITLES[g] for g in groups], [theme.groups[g] for g in groups])

    better = sum(gain > 0 for gain, _ in gains)
    caption = f"{first.name} minus {second.name} on the {_tasks(len(gains))} that both have: better on {better}."
    ends = f"from {signed(gains[0][0])} on {gains[0][1].title} to {signed(gains[-1][0])} on {gains[-1][1].title}"
    return write_picture(
        folder, f"{board.slug}-differences", size, draw, caption, f"Sorted bars of differences, {ends}."
    )


def _bars(
    figure: Figure,
    theme: Theme,
    board: Board,
    rows: Sequence[Row],
    labels: Sequence[str],
    means: list[list[Mean]],
    lines: int,
) -> None:
    axes = bare_axes(figure, theme, left=0.5, right=0.1, top=0.45 + LEGEND * lines, bottom=0.5)
    colours = _colours(theme, [row is board.baseline for row in rows])
    width = 0.84 / len(rows)
    for turn, found in enumerate(means):
        places = [group + width * (turn - (len(rows) - 1) / 2) for group in range(len(labels))]
        axes.bar(places, [m.value for m in found], width * 0.9, color=colours[turn], zorder=2)
        for place, m in zip(places, found, strict=True):
            if m.low is not None and m.high is not None:
                axes.vlines(place, m.low, m.high, color=theme.text, linewidth=1.0, zorder=3)
            if len(rows) <= 6:
                top = max(m.value, m.high or 0)
                style = {"ha": "center", "va": "bottom", "fontsize": 7, "color": theme.muted}
                axes.annotate(number(m.value), (place, top), (0, 2), textcoords="offset points", **style)  # type: ignore[arg-type]
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.55, len(labels) - 0.45)
    axes.set_ylim(0, min(112, 1.13 * max(max(m.value, m.high or 0) for found in means for m in found) + 1))
    axes.grid(axis="y", color=theme.line, linewidth=0.8, zorder=0)
    axes.set_ylabel("accuracy (%)", fontsize=8.5, color=theme.muted)
    put_title(figure, theme, board.label)
    put_legend(figure, theme, [short(row.name, 30) for row in rows], colours)


def bare_axes(figure: Figure, theme: Theme, left: float, right: float, top: float, bottom: float) -> Axes:
    """Axes with margins in inches: several times faster than to let matplotlib find them."""
    width, height = figure.get_size_inches()
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    axes = figure.add_axes(box, facecolor=theme.page)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=theme.muted, labelcolor=theme.text, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def put_title(figure: Figure, theme: Theme, text: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        0.1 / width, 1 - 0.1 / height, text, ha="left", va="top", fontsize=10.5, fontweight="bold", color=theme.text
    ).set_parse_math(False)


def legend_columns(names: Sequence[str], width: float) -> int:
    """How many columns the legend has room for."""
    column = 0.4 + 0.068 * max(map(len, names))  # inches of the longest
    return max(1, min(len(names), int((width - 0.1) / column)))


def put_legend(figure: Figure, theme: Theme, names: Sequence[str], colours: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    width, height = figure.get_size_inches()
    across = legend_columns(names, width)
    # Matplotlib fills column by column; one reads line by line.
    order = [place for column in range(across) for place in range(column, len(names), across)]
    # Names are set afterwards: a label that begins with _ would be left out, and $ would be read as mathematics.
    legend = figure.legend(
        [Patch(color=colours[place]) for place in order],
        ["x" * len(names[place]) for place in order],
        loc="upper left",
        bbox_to_anchor=(0.0, 1 - 0.3 / height),
        ncols=across,
        fontsize=8,
        frameon=False,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.6,
        labelcolor=theme.text,
    )
    for text, place in zip(legend.get_texts(), order, strict=True):
        text.set_parse_math(False)
        text.set_text(names[place])


def _colours(theme: Theme, baseline: Sequence[bool]) -> list[str]:
    """Grey for the baseline, and one hue from light to strong for the others."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ramp = LinearSegmentedColormap.from_list("ramp", theme.ramp)
    others = len(baseline) - sum(baseline)
    shades = iter([to_hex(ramp(place / max(others - 1, 1) if others > 1 else 1.0)) for place in range(others)])
    return [theme.baseline if grey else next(shades) for grey in baseline]


def write_picture(
    folder: Path, name: str, size: tuple[float, float], draw: Callable[[Figure, Theme], None], caption: str, alt: str
) -> Picture:
    """Draws in both themes."""
    from matplotlib.figure import Figure  # here: it takes a second to load; and not pyplot, which keeps state

    folder.mkdir(parents=True, exist_ok=True)
    files = (f"{name}.png", f"{name}-dark.png")
    for file, theme in zip(files, (LIGHT, DARK), strict=True):
        figure = Figure(figsize=size, facecolor=theme.page)
        draw(figure, theme)
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # names may be in any script
            figure.savefig(content, format="png", dpi=_DPI)
        write_atomically(folder / file, content.getvalue(), sync=False)
    width, height = (round(inches * _DPI) for inches in size)
    return Picture(*files, caption, alt, width, height)


def _tasks(count: int) -> str:
    return f"{count} tasks" if count != 1 else "one task"


def short(name: str, most: int = _NAME) -> str:
    name = harmless(" ".join(name.split()))  # matplotlib cannot draw halves of characters
    return name if len(name) <= most else f"{name[: most - 1]}…"
