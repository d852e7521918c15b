"""The figures: means by group, differences task by task, and curves of robustness.

Each is drawn once and saved twice: as a PNG to take away, and as the SVG that the page shows, in which every colour
is a CSS variable with a value for light and one for dark screens.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivi.evaluate.tasks import Group
from vivi.evaluate.vid_robust.result import RobustResult
from vivi.report.boards import Board, Mean, Method, comparable, mean, shared_tasks
from vivi.report.paper import PaperRobust
from vivi.report.table import number, signed
from vivi.runtime.console import harmless
from vivi.runtime.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Of 29 methods of the paper, those of its own first two charts.
PAPER_BARS = ("Ex-ImageNet", "Ex-YT-F", "Ex-YT-S", "VIVI-Ex(4)", "VIVI-Ex(4)-Big")
MAX_BARS = 12
MAX_LINES = 6  # as many as there are colours
MARKERS = "o^vP<>"  # the paper's points are squares
_WIDTH = 6.4  # inches
_LEGEND = 0.2  # inches of a line of the legend
_DPI = 160
_NAME = 30  # characters of a name in a legend

# The colours on light and on dark screens, as in static/page.css. Groups have Okabe and Ito's, which the colour-blind
# tell apart, near to the paper's red, green and blue.
COLOURS = {
    "page": ("#ffffff", "#171a20"),
    "text": ("#16181d", "#eceef2"),
    "muted": ("#5a6170", "#a0a7b5"),
    "line": ("#e3e5ea", "#2a2f39"),
    "baseline": ("#aeb4c0", "#69707f"),
    "weakest": ("#bcc8f5", "#3a4686"),  # encoders, from the worst to the best
    "strongest": ("#2a3fae", "#a9b8ff"),
    "natural": ("#d55e00", "#f08a3c"),
    "specialized": ("#009e73", "#2fbf95"),
    "structured": ("#0072b2", "#5aaeea"),
    "own": ("#b8589a", "#dd8fc4"),
}
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
GROUP_TITLES: dict[Group, str] = {
    "natural": "Natural",
    "specialized": "Specialized",
    "structured": "Structured",
    "own": "Own",
}


@dataclass(frozen=True)
class Figure:
    """A figure's files, without their suffix; its title, what it says in words, its size in pixels."""

    title: str
    name: str
    caption: str
    alt: str
    width: int
    height: int

    @property
    def files(self) -> tuple[str, str]:
        return f"{self.name}.png", f"{self.name}.svg"


# --- means by group ---


def draw_groups(board: Board, folder: Path) -> Figure | None:
    """Bars for all tasks and for each group; None if the rows share no task."""
    rows = bar_rows(board)
    tasks = shared_tasks(rows, [column.task for column in board.columns])
    places = [("All", [task for task in board.counted if task in tasks])]
    places += [
        (GROUP_TITLES[group], [task for task in board.tasks(group) if task in tasks]) for group in board.groups
    ]
    places = [place for place in places if place[1]]
    if len(places) == 2 and places[0][1] == places[1][1]:
        places = places[:1]  # one group is all there is
    if not rows or not places:
        return None
    means = [[mean(row, chosen) or Mean(0, 0) for _, chosen in places] for row in rows]
    labels = [f"{title}\n{_tasks(len(chosen), '1 task')}" for title, chosen in places]
    names = [short(row.name, _NAME) for row in rows]
    width = min(max(_WIDTH, 1.2 + 0.17 * len(rows) * len(places)), 2 * _WIDTH)
    lines = -(-len(rows) // _legend_columns(names, width))
    colours = _shades([row is board.baseline for row in rows])

    def draw(canvas: Canvas) -> None:
        axes = _axes(canvas, left=0.5, right=0.1, top=0.45 + _LEGEND * lines, bottom=0.5)
        _bars(axes, means, [light for light, _ in colours])
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.55, len(labels) - 0.45)
        axes.grid(axis="y", color=LIGHT["line"], linewidth=0.8, zorder=0)
        axes.set_ylabel("accuracy (%)", fontsize=8.5, color=LIGHT["muted"])
        _title(canvas, board.label)
        _legend(canvas, names, [light for light, _ in colours])

    caption = f"Mean accuracy by group, over the {_tasks(len(tasks))} that all bars share."
    if any(bar.low is not None for bars in means for bar in bars):
        caption += " Whiskers: lowest and highest mean of a single seed."
    if len(board.shown) > len(rows):
        caption += f" Not drawn: {len(board.shown) - len(rows)} of the rows above."
    words = "; ".join(f"{row.name} {number(bars[0].value)}" for row, bars in zip(rows, means, strict=True))
    alt = f"Bar chart of mean accuracy by group. {places[0][0]}: {words}."
    figure = _figure("Groups", f"{board.slug}-groups", (width, 3.2 + _LEGEND * lines), caption, alt)
    return _save(figure, folder, draw, colours)


def bar_rows(board: Board) -> list[Method]:
    """Those of the board's rows that can be compared and have room: the baseline and the best; or the paper's own
    choice."""
    if not board.rows:
        return [row for row in board.paper if row.name in PAPER_BARS]
    rows = comparable(board.rows, board.counted)
    return rows if len(rows) <= MAX_BARS else [rows[0], *rows[1 - MAX_BARS :]]


def _bars(axes: Axes, means: Sequence[Sequence[Mean]], colours: Sequence[str]) -> None:
    """`means`: of each row, one for each place on the axis."""
    width = 0.84 / len(means)
    for turn, bars in enumerate(means):
        places = [place + width * (turn - (len(means) - 1) / 2) for place in range(len(bars))]
        axes.bar(places, [bar.value for bar in bars], width * 0.9, color=colours[turn], zorder=2)
        for place, bar in zip(places, bars, strict=True):
            if bar.low is not None and bar.high is not None:
                axes.vlines(place, bar.low, bar.high, color=LIGHT["text"], linewidth=1.0, zorder=3)
            if len(means) <= 6:
                top = (place, max(bar.value, bar.high or 0))
                _number(axes, number(bar.value), top, (0, 2), ha="center", va="bottom", fontsize=7)
    highest = max(max(bar.value, bar.high or 0) for bars in means for bar in bars)
    axes.set_ylim(0, min(112, 1.13 * highest + 1))


# --- differences ---


def draw_differences(board: Board, first: Method, second: Method, folder: Path) -> Figure | None:
    """How much better the first row is than the second on each task, sorted; None if they share no task."""
    shared = [column for column in board.columns if column.task in first.cells and column.task in second.cells]
    if not shared:
        return None
    gains = [(first.cells[column.task].value - second.cells[column.task].value, column) for column in shared]
    gains.sort(key=lambda gain: gain[0])
    low, high = min(0.0, gains[0][0]), max(0.0, gains[-1][0])
    room = 0.09 * (high - low) or 1.0
    groups = [group for group in board.groups if any(column.group == group for _, column in gains)]

    def draw(canvas: Canvas) -> None:
        axes = _axes(canvas, left=1.35, right=0.35, top=0.62, bottom=0.42)
        places = range(len(gains))
        colours = [LIGHT[column.group] for _, column in gains]
        axes.barh(places, [gain for gain, _ in gains], color=colours, height=0.72, zorder=2)
        axes.set_xlim(low - room * (low < 0), high + room)
        for place, (gain, _) in zip(places, gains, strict=True):
            side, shift = ("left", 3) if gain >= 0 else ("right", -3)
            _number(axes, signed(gain), (gain, place), (shift, 0), ha=side, va="center", fontsize=7.5)
        axes.axvline(0, color=LIGHT["muted"], linewidth=0.8, zorder=3)
        axes.set_yticks(places, [short(column.title, 22) for _, column in gains], parse_math=False)
        axes.set_ylim(-0.6, len(gains) - 0.4)
        axes.grid(axis="x", color=LIGHT["line"], linewidth=0.8, zorder=0)
        axes.set_xlabel("difference in accuracy (points)", fontsize=8.5, color=LIGHT["muted"])
        _title(canvas, f"{short(first.name)}  minus  {short(second.name)}")
        _legend(canvas, [GROUP_TITLES[group] for group in groups], [LIGHT[group] for group in groups])

    better = sum(gain > 0 for gain, _ in gains)
    caption = f"{first.name} minus {second.name} on the {_tasks(len(gains))} that both have: better on {better}."
    ends = f"from {signed(gains[0][0])} on {gains[0][1].title} to {signed(gains[-1][0])} on {gains[-1][1].title}"
    size = (_WIDTH, 1.15 + 0.235 * len(gains))
    alt = f"Sorted bars of differences, {ends}."
    return _save(_figure("Task by task", f"{board.slug}-differences", size, caption, alt), folder, draw)


# --- curves of robustness ---


def draw_curves(
    results: Sequence[RobustResult], paper: Sequence[PaperRobust], folder: Path, name: str
) -> Figure | None:
    """PM-k over k of the models on one set, the best first; None where no anchor has a neighbour."""
    shown = [result for result in results if result.farthest > 0][:MAX_LINES]
    if not shown:
        return None
    farthest = max(result.farthest for result in shown)
    labels = [short(result.encoder, _NAME) for result in shown]
    labels += [short(f"{row.model} (paper)", _NAME) for row in paper]
    lines = -(-len(labels) // _legend_columns(labels, _WIDTH))
    palette = ("structured", "natural", "specialized", "own", "strongest", "baseline")
    colours = [LIGHT[colour] for colour in palette[: len(shown)]]
    marks = [LIGHT[("text", "muted")[turn % 2]] for turn in range(len(paper))]

    def draw(canvas: Canvas) -> None:
        axes = _axes(canvas, left=0.55, right=0.2, top=0.45 + _LEGEND * lines, bottom=0.5)
        for place, result in reversed([*enumerate(shown)]):  # the best lies on top
            _curve(axes, result, colours[place], MARKERS[place])
        for turn, row in enumerate(paper):
            _paper_points(axes, row, farthest, marks[turn], turn)
        axes.set_xticks(range(farthest + 1))
        axes.set_xlim(-0.35, farthest + 0.35)
        axes.grid(axis="y", color=LIGHT["line"], linewidth=0.8, zorder=0)
        axes.set_xlabel("k: frames away from the anchor, at most", fontsize=8.5, color=LIGHT["muted"])
        axes.set_ylabel("PM-k accuracy (%)", fontsize=8.5, color=LIGHT["muted"])
        _title(canvas, short(shown[0].set, 60))
        _legend(canvas, labels, [*colours, *marks])

    caption = "PM-k: the anchor and all its neighbours at most k frames away are right. Shaded: 95 % intervals."
    if any(result.curve.missing for result in shown):
        caption += " Where frames are missing: over complete anchors, and dotted, with missing frames as wrong."
    if paper:
        caption += " Points: the paper’s two numbers."
    left_out = sum(result.farthest > 0 for result in results) - len(shown)
    caption += f" Not drawn: {left_out} of the rows above." if left_out else ""
    ends = [(result.encoder, result.curve.strict[0], result.curve.strict[-1]) for result in shown]
    words = "; ".join(
        f"{encoder} from {number(100 * near.share if near.n else 0.0)} to {number(100 * far.share if far.n else 0.0)}"
        for encoder, near, far in ends
    )
    alt = f"Curves of accuracy over the distance of neighbouring frames. {words}."
    return _save(_figure("Curves", name, (_WIDTH, 3.4 + _LEGEND * lines), caption, alt), folder, draw)


def _curve(axes: Axes, result: RobustResult, colour: str, marker: str) -> None:
    complete = [(k, interval) for k, interval in enumerate(result.curve.complete) if interval.n]
    places = [k for k, _ in complete]
    shares = [100 * interval.share for _, interval in complete]
    axes.plot(places, shares, color=colour, linewidth=1.8, marker=marker, markersize=3.6, zorder=3)
    low, high = [100 * interval.low for _, interval in complete], [100 * interval.high for _, interval in complete]
    axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0, zorder=2)
    if result.curve.missing:
        strict = [100 * interval.share if interval.n else 0.0 for interval in result.curve.strict]
        axes.plot(range(len(strict)), strict, color=colour, linewidth=1.4, linestyle=":", zorder=3)


def _paper_points(axes: Axes, row: PaperRobust, farthest: int, colour: str, turn: int) -> None:
    """Two points with their intervals, a little beside those of the lines."""
    style = {"markersize": 4.5, "capsize": 2.5, "linewidth": 1.2, "zorder": 4}
    for place, share in ((0.0, row.anchors), (float(farthest), row.perturbed)):
        inwards = (0.12 + 0.14 * turn) * (1 if place == 0 else -1)
        around = [[share.accuracy - share.low], [share.high - share.accuracy]]
        axes.errorbar([place + inwards], [share.accuracy], yerr=around, fmt="Ds"[turn % 2], color=colour, **style)  # type: ignore[arg-type]


# --- what they share ---


def _figure(title: str, name: str, size: tuple[float, float], caption: str, alt: str) -> Figure:
    width, height = (round(inches * _DPI) for inches in size)
    return Figure(title, name, caption, alt, width, height)


def _save(
    figure: Figure, folder: Path, draw: Callable[[Canvas], None], others: Sequence[tuple[str, str]] = ()
) -> Figure:
    """Writes both files; `others`: pairs of colours, light and dark, that are used beside COLOURS."""
    from matplotlib import rc_context  # here: it takes a second to load; and not pyplot, which keeps state
    from matplotlib.figure import Figure as Canvas

    folder.mkdir(parents=True, exist_ok=True)
    canvas = Canvas(figsize=(figure.width / _DPI, figure.height / _DPI), facecolor=LIGHT["page"])
    draw(canvas)
    png, svg = io.BytesIO(), io.StringIO()
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names may be in any script
        canvas.savefig(png, format="png", dpi=_DPI)
        canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    themed = _with_both_themes(svg.getvalue(), [*COLOURS.values(), *others])
    for file, content in zip(figure.files, (png.getvalue(), themed.encode("utf-8", "replace")), strict=True):
        write_atomically(folder / file, content, sync=False)
    return figure


def _with_both_themes(svg: str, pairs: Sequence[tuple[str, str]]) -> str:
    """An SVG in which each light colour of a style has become a variable that is another colour on dark screens."""
    variables = {light: (f"--c{place}", dark) for place, (light, dark) in enumerate(dict(pairs).items())}

    def variable(style: re.Match[str]) -> str:
        return re.sub(
            "#[0-9a-f]{6}",
            lambda colour: f"var({variables[colour[0]][0]})" if colour[0] in variables else colour[0],
            style[0],
        )

    svg = re.sub(r'style="[^"]*"', variable, svg).replace("'DejaVu Sans'", "system-ui, 'Segoe UI'")
    light = "".join(f"{name}:{colour};" for colour, (name, _) in variables.items())
    dark = "".join(f"{name}:{colour};" for name, colour in variables.values())
    css = f"<style>:root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    return svg.replace("<defs>", f"{css}<defs>", 1)


def _shades(is_baseline: Sequence[bool]) -> list[tuple[str, str]]:
    """Light and dark: grey for the baseline, and one hue from weak to strong for the others."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ends = zip(COLOURS["weakest"], COLOURS["strongest"], strict=True)
    ramps = [LinearSegmentedColormap.from_list("ramp", pair) for pair in ends]
    others = len(is_baseline) - sum(is_baseline)
    places = iter([place / (others - 1) if others > 1 else 1.0 for place in range(others)])

    def shade(place: float) -> tuple[str, str]:
        light, dark = (to_hex(ramp(place)) for ramp in ramps)
        return light, dark

    return [COLOURS["baseline"] if grey else shade(next(places)) for grey in is_baseline]


def _axes(canvas: Canvas, left: float, right: float, top: float, bottom: float) -> Axes:
    """Axes with margins in inches: several times faster than to let matplotlib find them."""
    width, height = canvas.get_size_inches()
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    axes = canvas.add_axes(box, facecolor=LIGHT["page"])
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=LIGHT["muted"], labelcolor=LIGHT["text"], length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def _number(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **style: object) -> None:
    axes.annotate(text, at, shift, textcoords="offset points", color=LIGHT["muted"], **style)  # type: ignore[arg-type]


def _title(canvas: Canvas, text: str) -> None:
    width, height = canvas.get_size_inches()
    style = {"ha": "left", "va": "top", "fontsize": 10.5, "fontweight": "bold", "color": LIGHT["text"]}
    canvas.text(0.1 / width, 1 - 0.1 / height, text, **style).set_parse_math(False)  # type: ignore[arg-type]


def _legend_columns(names: Sequence[str], width: float) -> int:
    """How many columns the legend has room for."""
    column = 0.4 + 0.068 * max(map(len, names))  # inches of the longest
    return max(1, min(len(names), int((width - 0.1) / column)))


def _legend(canvas: Canvas, names: Sequence[str], colours: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    width, height = canvas.get_size_inches()
    across = _legend_columns(names, width)
    # Matplotlib fills column by column; one reads line by line.
    order = [place for column in range(across) for place in range(column, len(names), across)]
    # Names are set afterwards: a label that begins with _ would be left out, and $ would be read as mathematics.
    legend = canvas.legend(
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
        labelcolor=LIGHT["text"],
    )
    for text, place in zip(legend.get_texts(), order, strict=True):
        text.set_parse_math(False)
        text.set_text(names[place])


def _tasks(count: int, one: str = "one task") -> str:
    return one if count == 1 else f"{count} tasks"


def short(name: str, most: int = 34) -> str:
    name = harmless(" ".join(name.split()))  # matplotlib cannot draw halves of characters
    return name if len(name) <= most else f"{name[: most - 1]}…"
