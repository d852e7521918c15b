"""The figures: means by group, differences task by task, and curves of robustness.

Each is a PNG to take away, and two SVGs that the page shows, on wide and on narrow screens, in which every colour is
a CSS variable with a value for light and one for dark screens.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vivi.evaluate.metadata import counted
from vivi.evaluate.results import RobustResult
from vivi.report.boards import Board, Method, comparable, difference, mean, shared_tasks
from vivi.report.paper import PaperRow
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
_WIDE, _NARROW = 6.4, 3.7  # inches
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
LINE_COLOURS = [LIGHT[name] for name in ("structured", "natural", "specialized", "own", "strongest", "baseline")]


@dataclass(frozen=True)
class Figure:
    """A figure's files, without their suffix; its title, what it says in words, its size in pixels."""

    title: str
    name: str
    caption: str
    alt: str
    width: int
    height: int


def draw_groups(board: Board, folder: Path) -> Figure | None:
    """Bars for all tasks and for each group; None if the rows share no task."""
    rows = comparable(board.rows, board.counted) or [row for row in board.paper if row.name in PAPER_BARS]
    if len(rows) > MAX_BARS:  # the best, and the baseline
        baseline = [row for row in rows[MAX_BARS:] if row is board.baseline]
        rows = [*rows[: MAX_BARS - len(baseline)], *baseline]
    tasks = shared_tasks(rows, [column.task for column in board.columns])
    places = {"All": shared_tasks(rows, board.counted)}
    places |= {group.capitalize(): shared_tasks(rows, board.tasks(group)) for group in board.groups}
    places = {title: chosen for title, chosen in places.items() if chosen and rows}
    if len(places) == 2 and len(places.get("All", ())) == len(tasks):
        places = {"All": tasks}  # one group is all there is
    if not places:
        return None
    means = [[mean(row, chosen) for chosen in places.values()] for row in rows]
    colours = _shades([row is board.baseline for row in rows])
    legend = [(short(row.name, _NAME), light) for row, (light, _) in zip(rows, colours, strict=True)]
    labels = [f"{title}\n{counted(len(chosen), 'task')}" for title, chosen in places.items()]

    def draw(width: float) -> Canvas:
        if width == _WIDE:
            width = min(max(width, 1.2 + 0.17 * len(rows) * len(places)), 2 * width)
        margins = (0.5, 0.1, 0.45, 0.5)
        canvas, axes = _chart(board.label, legend, (width, 3.2), margins, grid="y", ylabel="accuracy (%)")
        axes.set_xticks(range(len(places)), labels, fontsize=8.5 if width >= _WIDE else 6.5)
        step, highest = 0.84 / len(rows), 0.0
        has_room = (width - 0.6) / len(places) * step > 0.2  # inches, for a number above a bar
        for turn, bars in enumerate(means):
            at = [place + step * (turn - (len(rows) - 1) / 2) for place in range(len(bars))]
            axes.bar(at, [bar.value or 0.0 for bar in bars], step * 0.9, color=legend[turn][1], zorder=2)
            for place, bar in zip(at, bars, strict=True):
                value, error = bar.value or 0.0, bar.error or 0.0
                highest = max(highest, value + error)
                if error:
                    axes.vlines(place, value - error, value + error, color=LIGHT["text"], linewidth=1.0, zorder=3)
                if has_room:
                    above = {"ha": "center", "va": "bottom", "fontsize": 7}
                    _number(axes, number(bar.value), (place, value + error), (0, 2), **above)
        axes.set(xlim=(-0.55, len(places) - 0.45), ylim=(0, min(112, 1.13 * highest + 1)))
        return canvas

    caption = f"Mean accuracy by group, over the {counted(len(tasks), 'task')} that all bars share."
    if any(bar.error for bars in means for bar in bars):
        caption += " Whiskers: 95 % intervals."
    if len(board.shown) > len(rows):
        caption += f" Not drawn: {len(board.shown) - len(rows)} of the rows above."
    words = "; ".join(f"{row.name} {number(bars[0].value)}" for row, bars in zip(rows, means, strict=True))
    alt = f"Bar chart of mean accuracy by group. {next(iter(places))}: {words}."
    return _save(draw, folder / f"{board.slug}-groups", "Groups", caption, alt, colours)


def draw_differences(board: Board, first: Method, second: Method, folder: Path) -> Figure | None:
    """How much better the first row is than the second on each task, sorted; None if they share no task."""
    shared = [column for column in board.columns if column.task in first.cells and column.task in second.cells]
    if not shared:
        return None
    found = [(difference(first, second, [column.task]), column) for column in shared]
    gains = sorted(((gain.value or 0.0, gain, column) for gain, column in found), key=lambda gain: gain[0])
    lengths = [length for length, _, _ in gains]
    within, unsure = LIGHT["baseline"], sum(gain.verdict == "within" for _, gain, _ in gains)
    colours = [within if gain.verdict == "within" else LIGHT[column.group] for _, gain, column in gains]
    legend = [(group.capitalize(), LIGHT[group]) for group in board.groups if LIGHT[group] in colours]
    legend += [("Within error", within)] * (unsure > 0)
    ends = [length + sign * (gain.error or 0.0) for length, gain, _ in gains for sign in (-1, 1)]
    low, high = min(0.0, *ends), max(0.0, *ends)

    def draw(width: float) -> Canvas:
        share = 0.4 / (width - 1.7)  # of the axis, for a number at its end
        room = share / (1 - 2 * share) * (high - low) or 1.0
        title, xlabel = f"{short(first.name)}  minus  {short(second.name)}", "difference in accuracy (points)"
        size, margins = (width, 0.95 + 0.235 * len(gains)), (1.35, 0.35, 0.42, 0.42)
        canvas, axes = _chart(title, legend, size, margins, grid="x", xlabel=xlabel)
        axes.set_yticks(range(len(gains)), [short(column.title, 22) for _, _, column in gains], parse_math=False)
        axes.set(xlim=(low - room * (low < 0), high + room), ylim=(-0.6, len(gains) - 0.4))
        axes.barh(range(len(gains)), lengths, color=colours, height=0.72, zorder=2)
        for place, (length, gain, _) in enumerate(gains):
            error = gain.error or 0.0
            if error:
                axes.hlines(place, length - error, length + error, color=LIGHT["text"], linewidth=1.0, zorder=3)
            side, shift, end = ("left", 3, length + error) if length >= 0 else ("right", -3, length - error)
            _number(axes, signed(length), (end, place), (shift, 0), ha=side, va="center", fontsize=7.5)
        axes.axvline(0, color=LIGHT["muted"], linewidth=0.8, zorder=3)
        return canvas

    verdicts = [gain.verdict for _, gain, _ in gains]
    result = f"better on {verdicts.count('up')}, worse on {verdicts.count('down')}, within error on {unsure}"
    result = f"{result}. Whiskers: 95 % intervals" if any(verdicts) else f"better on {sum(x > 0 for x in lengths)}"
    caption = f"{first.name} minus {second.name} on the {counted(len(gains), 'task')} that both have: {result}."
    (least, _, worst), (most, _, best) = gains[0], gains[-1]
    alt = f"Sorted bars of differences, from {signed(least)} on {worst.title} to {signed(most)} on {best.title}."
    return _save(draw, folder / f"{board.slug}-differences", "Task by task", caption, alt)


def draw_curves(results: Sequence[RobustResult], paper: Sequence[PaperRow], path: Path) -> Figure | None:
    """PM-k over k of the models on one set, the best first; None where no anchor has a neighbour."""
    drawable = [result for result in results if result.farthest > 0]
    if not drawable:
        return None
    shown = drawable[:MAX_LINES]
    farthest = max(result.farthest for result in shown)
    marks = [LIGHT[("text", "muted")[turn % 2]] for turn in range(len(paper))]
    legend = [(short(result.encoder, _NAME), colour) for result, colour in zip(shown, LINE_COLOURS, strict=False)]
    legend += [(short(f"{row.method} (paper)", _NAME), mark) for row, mark in zip(paper, marks, strict=True)]
    labels = {"xlabel": "k: frames away from the anchor, at most", "ylabel": "PM-k accuracy (%)"}

    def draw(width: float) -> Canvas:
        title, margins = short(shown[0].set, 60 if width == _WIDE else 34), (0.55, 0.2, 0.45, 0.5)
        canvas, axes = _chart(title, legend, (width, 3.4), margins, grid="y", **labels)
        axes.set(xticks=range(farthest + 1), xlim=(-0.35, farthest + 0.35))
        for result, colour, marker in reversed([*zip(shown, LINE_COLOURS, MARKERS, strict=False)]):  # the best on top
            _curve(axes, result, colour, marker)
        for turn, (row, mark) in enumerate(zip(paper, marks, strict=True)):
            inwards = 0.12 + 0.14 * turn  # a little beside the points of the lines
            _paper_points(axes, row, (inwards, farthest - inwards), mark, "Ds"[turn % 2])
        return canvas

    caption = "PM-k: the anchor and all its neighbours at most k frames away are right. Shaded: 95 % intervals."
    if any(result.curve.missing for result in shown):
        caption += " Where frames are missing: over complete anchors, and dotted, with missing frames as wrong."
    if paper:
        caption += " Points: the paper’s two numbers."
    if len(drawable) > len(shown):
        caption += f" Not drawn: {len(drawable) - len(shown)} of the rows above."
    ends = [(result.encoder, _strict(result)) for result in shown]
    words = "; ".join(f"{encoder} from {number(pm[0])} to {number(pm[-1])}" for encoder, pm in ends)
    alt = f"Curves of accuracy over the distance of neighbouring frames. {words}."
    return _save(draw, path, "Curves", caption, alt)


def _paper_points(axes: Axes, row: PaperRow, places: tuple[float, float], colour: str, marker: str) -> None:
    style = {"color": colour, "markersize": 4.5, "capsize": 2.5, "linewidth": 1.2, "zorder": 4}
    for place, kind in zip(places, ("original", "perturbed"), strict=True):
        accuracy, low, high = (row.numbers[name] for name in (f"accuracy_{kind}", f"{kind}_low", f"{kind}_high"))
        around = [[accuracy - low], [high - accuracy]]
        axes.errorbar([place], [accuracy], yerr=around, fmt=marker, **style)  # type: ignore[arg-type]


def _curve(axes: Axes, result: RobustResult, colour: str, marker: str) -> None:
    complete = [(k, interval) for k, interval in enumerate(result.curve.complete) if interval.n]
    places, shares = [k for k, _ in complete], [100 * interval.share for _, interval in complete]
    low, high = [100 * interval.low for _, interval in complete], [100 * interval.high for _, interval in complete]
    axes.plot(places, shares, color=colour, linewidth=1.8, marker=marker, markersize=3.6, zorder=3)
    axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0, zorder=2)
    if result.curve.missing:
        strict = _strict(result)
        axes.plot(range(len(strict)), strict, color=colour, linewidth=1.4, linestyle=":", zorder=3)


def _strict(result: RobustResult) -> list[float]:
    """PM-k with missing frames as wrong."""
    return [100 * interval.share if interval.n else 0.0 for interval in result.curve.strict]


# --- what they share ---


def _chart(
    title: str,
    legend: Sequence[tuple[str, str]],
    size: tuple[float, float],
    margins: tuple[float, float, float, float],
    grid: Literal["x", "y"],
    **labels: str,
) -> tuple[Canvas, Axes]:
    """A canvas with a title and a legend of names and colours, which adds to its height; and axes.

    All in inches; margins are left, right, top and bottom: several times faster than to let matplotlib find them.
    """
    from matplotlib.figure import Figure  # here: it takes a second to load; and not pyplot, which keeps state
    from matplotlib.patches import Patch

    longest = 0.4 + 0.068 * max(len(name) for name, _ in legend)
    across = max(1, min(len(legend), int((size[0] - 0.1) / longest)))
    height = 0.2 * -(-len(legend) // across)  # of the legend
    pixels = round(size[0] * _DPI), round((size[1] + height) * _DPI)
    canvas = Figure((pixels[0] / _DPI, pixels[1] / _DPI), facecolor=LIGHT["page"])
    x, y = 1 / canvas.get_size_inches()
    points = 10.5 if size[0] >= _WIDE else 9
    style = {"ha": "left", "va": "top", "fontsize": points, "fontweight": "bold", "color": LIGHT["text"]}
    canvas.text(0.1 * x, 1 - 0.1 * y, title, parse_math=False, **style)  # type: ignore[arg-type]
    # Matplotlib fills column by column; one reads line by line.
    order = [one for column in range(across) for one in legend[column::across]]
    spacing = {"handlelength": 0.9, "handleheight": 0.9, "columnspacing": 1.6}
    names = canvas.legend(
        [Patch(color=colour) for _, colour in order],
        ["x" * len(name) for name, _ in order],
        loc="upper left",
        bbox_to_anchor=(0.0, 1 - 0.3 * y),
        ncols=across,
        fontsize=8,
        frameon=False,
        labelcolor=LIGHT["text"],
        **spacing,
    )
    # Names are set afterwards: a label that begins with _ would be left out, and $ would be read as mathematics.
    for text, (name, _) in zip(names.get_texts(), order, strict=True):
        text.set(parse_math=False, text=name)
    left, right, top, bottom = margins
    box = (left * x, bottom * y, 1 - (left + right) * x, 1 - (top + height + bottom) * y)
    axes = canvas.add_axes(box, facecolor=LIGHT["page"], axisbelow=True)
    axes.grid(axis=grid, color=LIGHT["line"], linewidth=0.8, zorder=0)
    axes.set(**labels)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(fontsize=8.5, color=LIGHT["muted"])
    axes.tick_params(labelsize=8.5, colors=LIGHT["muted"], labelcolor=LIGHT["text"], length=0)
    axes.spines[:].set_visible(False)
    return canvas, axes


def _number(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **style: object) -> None:
    axes.annotate(text, at, shift, textcoords="offset points", color=LIGHT["muted"], **style)  # type: ignore[arg-type]


def _save(
    draw: Callable[[float], Canvas],
    path: Path,
    title: str,
    caption: str,
    alt: str,
    others: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Writes the files of what is drawn at a width; `others`: pairs of colours, light and dark, that are used beside
    COLOURS."""
    from matplotlib import rc_context

    path.parent.mkdir(parents=True, exist_ok=True)
    png, svg, narrow_svg = io.BytesIO(), io.StringIO(), io.StringIO()
    wide = draw(_WIDE)
    with warnings.catch_warnings(), rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names may be in any script
        wide.savefig(png, format="png", dpi=_DPI)
        for canvas, text in ((wide, svg), (draw(_NARROW), narrow_svg)):
            canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    write_atomically(path.parent / f"{path.name}.png", png.getvalue(), sync=False)
    for name, text in ((path.name, svg), (f"{path.name}-narrow", narrow_svg)):
        themed = _with_both_themes(text.getvalue(), dict([*COLOURS.values(), *others]))
        write_atomically(path.parent / f"{name}.svg", themed.encode("utf-8", "replace"), sync=False)
    return Figure(title, path.name, caption, alt, *(round(inches * _DPI) for inches in wide.get_size_inches()))


def _with_both_themes(svg: str, dark: Mapping[str, str]) -> str:
    """An SVG in which each light colour of a style has become a variable, which is another colour on dark screens."""
    names = {light: f"--c{place}" for place, light in enumerate(dark)}
    in_style = "|".join(f'(?<=: ){light}(?=[;"])' for light in names)
    svg = re.sub(in_style, lambda light: f"var({names[light[0]]})", svg)
    svg = svg.replace("'DejaVu Sans'", "system-ui, 'Segoe UI'")
    on_light = "".join(f"{name}:{light};" for light, name in names.items())
    on_dark = "".join(f"{name}:{dark[light]};" for light, name in names.items())
    css = f"<style>:root{{{on_light}}}@media (prefers-color-scheme: dark){{:root{{{on_dark}}}}}</style>"
    return svg.replace("<defs>", f"{css}<defs>", 1)


def _shades(is_baseline: Sequence[bool]) -> list[tuple[str, str]]:
    """Light and dark: grey for the baseline, and one hue from strong to weak for the others."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ends = zip(COLOURS["weakest"], COLOURS["strongest"], strict=True)
    light, dark = (LinearSegmentedColormap.from_list("ramp", pair) for pair in ends)
    others = is_baseline.count(False)
    places = [1 - place / (others - 1) if others > 1 else 1.0 for place in range(others)]
    shades = iter([(to_hex(light(place)), to_hex(dark(place))) for place in places])
    return [COLOURS["baseline"] if grey else next(shades) for grey in is_baseline]


def short(name: str, most: int = 34) -> str:
    name = harmless(" ".join(name.split()))  # matplotlib cannot draw halves of characters
    return name if len(name) <= most else f"{name[: most - 1]}…"
