"""The figure of robustness: pm-k over k, a line for each model with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vivi.evaluate.tasks import Group
from vivi.evaluate.vid_robust.result import RobustResult
from vivi.evaluate.vid_robust.scores import Interval
from vivi.report.figures import (
    LEGEND,
    WIDTH,
    Picture,
    Theme,
    bare_axes,
    legend_columns,
    put_legend,
    put_title,
    short,
    write_picture,
)
from vivi.report.paper import PaperRobust
from vivi.report.tables import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = 6  # as many as there are colours
MARKERS = "o^vP<>"  # the paper's points are squares
_NAME = 30  # characters of a name in the legend


def draw_curves(
    results: Sequence[RobustResult], paper: Sequence[PaperRobust], folder: Path, name: str
) -> Picture | None:
    """The curves of the models on one set, the best first; None where no anchor has a neighbour."""
    shown = [result for result in results if result.farthest > 0][:MAX_LINES]
    if not shown:
        return None
    farthest = max(result.farthest for result in shown)
    labels = [short(result.encoder, _NAME) for result in shown]
    labels += [short(f"{row.model} (paper)", _NAME) for row in paper]
    lines = -(-len(labels) // legend_columns(labels, WIDTH))
    size = (WIDTH, 3.4 + LEGEND * lines)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = bare_axes(figure, theme, left=0.55, right=0.2, top=0.45 + LEGEND * lines, bottom=0.5)
        colours = _palette(theme, len(shown))
        for place, result in reversed([*enumerate(shown)]):  # the best lies on top
            _line(axes, result, colours[place], MARKERS[place])
        marks = [(theme.text, theme.muted)[turn % 2] for turn in range(len(paper))]
        for row, colour, turn in zip(paper, marks, range(len(paper)), strict=True):
            _paper_points(axes, row, farthest, colour, turn)
        axes.set_xticks(range(farthest + 1))
        axes.set_xlim(-0.35, farthest + 0.35)
        axes.grid(axis="y", color=theme.line, linewidth=0.8, zorder=0)
        axes.set_xlabel("k: frames away from the anchor, at most", fontsize=8.5, color=theme.muted)
        axes.set_ylabel("PM-k accuracy (%)", fontsize=8.5, color=theme.muted)
        put_title(figure, theme, short(shown[0].set, 60))
        put_legend(figure, theme, labels, [*colours, *marks])

    caption = "PM-k: the anchor and all its neighbours at most k frames away are right. Shaded: 95 % intervals."
    if any(result.curve.missing for result in shown):
        caption += " Where frames are missing: over complete anchors, and dotted, with missing frames as wrong."
    if paper:
        caption += " Points: the paper’s two numbers."
    left_out = sum(result.farthest > 0 for result in results) - len(shown)
    caption += f" Not drawn: {left_out} of the rows above." if left_out else ""
    words = "; ".join(
        f"{result.encoder} from {_percent(result.curve.strict[0])} to {_percent(result.curve.strict[-1])}"
        for result in shown
    )
    alt = f"Curves of accuracy over the distance of neighbouring frames. {words}."
    return write_picture(folder, name, size, draw, caption, alt)


def _palette(theme: Theme, count: int) -> list[str]:
    """Colours that the colour-blind tell apart: those of groups first."""
    groups: tuple[Group, ...] = ("structured", "natural", "specialized", "own")
    return [*(theme.groups[group] for group in groups), theme.ramp[1], theme.baseline][:count]


def _line(axes: Axes, result: RobustResult, colour: str, marker: str) -> None:
    complete = [(k, found) for k, found in enumerate(result.curve.complete) if found.n]
    places = [k for k, _ in complete]
    shares = [100 * found.share for _, found in complete]
    axes.plot(places, shares, color=colour, linewidth=1.8, marker=marker, markersize=3.6, zorder=3)
    low, high = [100 * found.low for _, found in complete], [100 * found.high for _, found in complete]
    axes.fill_between(places, low, high, color=colour, alpha=0.16, linewidth=0, zorder=2)
    if result.curve.missing:
        strict = [100 * found.share if found.n else 0.0 for found in result.curve.strict]
        axes.plot(range(len(strict)), strict, color=colour, linewidth=1.4, linestyle=":", zorder=3)


def _paper_points(axes: Axes, row: PaperRobust, farthest: int, colour: str, turn: int) -> None:
    """Two points with their intervals, a little beside those of the lines."""
    for place, share in ((0.0, row.anchors), (float(farthest), row.perturbed)):
        inwards = (0.12 + 0.14 * turn) * (1 if place == 0 else -1)
        around = [[share.accuracy - share.low], [share.high - share.accuracy]]
        style = {"markersize": 4.5, "capsize": 2.5, "linewidth": 1.2, "zorder": 4}
        axes.errorbar([place + inwards], [share.accuracy], yerr=around, fmt="Ds"[turn % 2], color=colour, **style)  # type: ignore[arg-type]


def _percent(found: Interval) -> str:
    return number(100 * found.share if found.n else 0.0)
