"""The HTML of `vivi report`. Everything that comes from files goes through `html.escape`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from urllib.parse import quote

from vivi.evaluate.detection.result import DetectionResult
from vivi.evaluate.results import Result
from vivi.evaluate.tasks import VTAB
from vivi.evaluate.vid_robust.result import RobustResult
from vivi.report import classifiers, detection, robust
from vivi.report.board_html import BoardView, badges, board_body, listed
from vivi.report.boards import Board, comparable, difference, leader, mean, one_digit, shared_tasks
from vivi.report.detection import DetectionView
from vivi.report.folders import Section, document
from vivi.report.inspect.content import Strip
from vivi.report.inspect.html import VIEWER, film_strip_html
from vivi.report.inspect.style import SCRIPT as STRIPS_SCRIPT
from vivi.report.neighbours import NeighbourSheet
from vivi.report.paper import OtherTable
from vivi.report.robust import RobustView, percent
from vivi.report.style import SCRIPT, STYLE
from vivi.report.tables import number, signed

MAX_PROBLEMS = 40
_VTAB = {task.name for task in VTAB}


@dataclass(frozen=True)
class ShownRun:
    """A training run: its name, and the pictures of it that were copied, (path on the page, what it is)."""

    name: str
    pictures: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Content:
    """All that the page shows."""

    results: Path
    views: Sequence[BoardView]
    classifiers: Sequence[Result] = ()
    classifier_files: Sequence[Path] = ()
    robust: RobustView | None = None
    detection: DetectionView | None = None
    problems: Sequence[str] = ()
    others: Sequence[OtherTable] = ()
    runs: Sequence[ShownRun] = ()
    corpus: Path | None = None
    strips: Sequence[Strip] = ()
    digits: int = 0  # of the times below film strips
    neighbours: Sequence[NeighbourSheet] = field(default_factory=tuple)

    @property
    def ours(self) -> list[BoardView]:
        return [view for view in self.views if view.board.rows]

    @property
    def paper_only(self) -> list[BoardView]:
        return [view for view in self.views if not view.board.rows]


def render(content: Content) -> str:
    """The whole page."""
    name = escape(content.results.resolve().name or str(content.results))
    header = f"""<h1>{_question(content)}</h1>
<p class="path"><bdi>{escape(str(content.results.resolve()))}</bdi></p>
<p class="lead">{_lead(content)}</p>
{_problems(content.problems)}
{_tiles(content)}"""
    viewer = f"{VIEWER}<script>{STRIPS_SCRIPT}</script>" if content.strips else ""
    after = f"{viewer}\n<script>{SCRIPT}</script>"
    sections = [*_boards(content), *_others(content)]
    return document("vivi report", "VIVI report", name, STYLE, header, sections, after)


def _section(key: str, title: str, html: str) -> Section:
    return Section(key, title, title, html)


def _boards(content: Content) -> list[Section]:
    sections = [
        Section(view.board.slug, view.board.label, view.board.title + badges(view.board), board_body(view))
        for view in content.ours
    ]
    if content.classifiers:
        html = classifiers.classifiers_html(content.classifiers, content.classifier_files)
        sections.append(_section("classifiers", classifiers.TITLE, html))
    if content.robust:
        sections.append(_section("robust", robust.TITLE, robust.robust_html(content.robust)))
    if content.detection:
        sections.append(_section("detection", detection.TITLE, detection.detection_html(content.detection)))
    if content.paper_only:
        folds = "".join(_fold(view.board.title, board_body(view)) for view in content.paper_only)
        sections.append(_section("paper", "The paper’s results", folds))
    return sections


def _others(content: Content) -> list[Section]:
    sections: list[Section] = []
    if content.runs:
        sections.append(_section("training", "Training", "".join(map(_run, content.runs))))
    if content.corpus:
        sections.append(_section("strips", "Film strips", _strips(content)))
    if content.neighbours:
        sections.append(_section("neighbours", "Nearest neighbours", "".join(map(_sheet, content.neighbours))))
    if content.others:
        tables = _fold("The paper’s other tables", "".join(map(_other, content.others)))
        sections.append(_section("other", "Beyond VTAB", tables))
    return sections


def _fold(title: str, html: str) -> str:
    return f'<details class="fold"><summary>{title}</summary>{html}</details>'


# --- the head of the page ---


def _question(content: Content) -> str:
    if content.ours:
        return "How well do they transfer?"
    kinds = (bool(content.classifiers), bool(content.robust), bool(content.detection))
    return {
        (True, False, False): "How well do they classify?",
        (False, True, False): "How robust are they?",
        (True, True, False): "How well do they classify, and how robustly?",
        (False, False, True): "How well do they detect?",
    }.get(kinds, "How well do they transfer?")


def _lead(content: Content) -> str:
    said = [_boards_lead(content)] if content.ours else []
    if content.classifiers and not content.ours:
        named = {result.encoder for result in content.classifiers}
        said.append(f"{_plural(len(named), 'classifier')}. A number is a test accuracy in percent.")
    if content.robust:
        models, sets = _names(content.robust.results)
        said.append(
            f"{_plural(models, 'model')} on {_plural(sets, 'set')} of neighbouring frames of videos: how often they "
            "are right on a frame, and on it and all frames around it."
        )
    if content.detection:
        models, sets = _names(content.detection.results)
        backbones = "encoder as the backbone of a detector" if models == 1 else "encoders as backbones of detectors"
        said.append(f"{models:,} {backbones}, on {_plural(sets, 'set')}: average precision in percent.")
    return " ".join(said)


def _names(results: Sequence[RobustResult] | Sequence[DetectionResult]) -> tuple[int, int]:
    """How many models and how many sets there are."""
    return len({result.encoder for result in results}), len({result.set for result in results})


def _boards_lead(content: Content) -> str:
    boards = [view.board for view in content.ours]
    encoders = {row.name for board in boards for row in board.rows}
    tasks = {column.task for board in boards for column in board.columns}
    own = len(tasks - _VTAB)
    which = _plural(len(tasks), "task")
    if own and own < len(tasks):
        which += f", {len(tasks) - own} of VTAB and {own} of your own"
    elif own:
        which += " of your own"
    kinds = listed([*dict.fromkeys(map(_kind, boards))])
    seeds = {len(cell.seeds) for board in boards for row in board.rows for cell in row.cells.values()}
    each = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else _plural(min(seeds), "seed")
    said = f"{_plural(len(encoders), 'encoder')} on {which}, by {kinds}. "
    said += "A number is a test accuracy in percent, "
    said += "of one seed. " if seeds == {1} else f"the median of {each}. "
    names = {board.baseline.name for board in boards if board.baseline}
    if names:
        said += f"Differences are to {' or '.join(f'<b>{escape(name)}</b>' for name in sorted(names))}."
    return said


def _kind(board: Board) -> str:
    return {"vtab": "fine-tuning", "knn": "a kNN probe", "linear": "a linear probe"}[board.benchmark]


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems[:MAX_PROBLEMS])
    more = len(problems) - MAX_PROBLEMS
    items += f"<li>and {more} more</li>" if more > 0 else ""
    many = "One file was" if len(problems) == 1 else f"{len(problems)} files were"
    is_open = " open" if len(problems) <= 3 else ""
    summary = f'<summary class="warning">{many} skipped</summary>'
    return f'<details{is_open}>{summary}<ul class="problems">{items}</ul></details>'


@dataclass(frozen=True)
class Tile:
    """A number in large type; the note is HTML."""

    label: str
    value: str
    note: str = ""
    kind: str = ""  # up or down, for its colour


def _tiles(content: Content) -> str:
    tiles = _board_tiles(content) if content.ours else _other_tiles(content)
    shown = "".join(
        f'<div><dt>{tile.label}</dt><dd class="value {tile.kind}">{tile.value}</dd>'
        f'<dd class="note">{tile.note}</dd></div>'
        for tile in tiles
    )
    return f'<dl class="totals">{shown}</dl>' if tiles else ""


def _other_tiles(content: Content) -> list[Tile]:
    """Of what is not on a board: the best of the first set."""
    tiles = []
    if content.robust:
        first = content.robust.results[0]
        on_set = f"<bdi>{escape(first.encoder)}</bdi> · {escape(first.set)}"
        strict = " · missing frames as wrong" if first.curve.missing else ""
        tiles.append(Tile(f"Best PM-{first.farthest}", number(percent(first.curve.strict[-1])), on_set + strict))
        models, sets = _names(content.robust.results)
        tiles.append(Tile("Models", f"{models}", f"on {_plural(sets, 'set')} of frames"))
    if content.detection:
        best = content.detection.results[0]
        on_set = f"<bdi>{escape(best.encoder)}</bdi> · {escape(best.set)} · {escape(best.schedule)} schedule"
        tiles.append(Tile("Best AP", number(100 * best.median.ap), on_set))
        models, sets = _names(content.detection.results)
        tiles.append(Tile("Encoders", f"{models}", f"as detectors on {_plural(sets, 'set')}"))
    return tiles


def _board_tiles(content: Content) -> list[Tile]:
    board = content.ours[0].board
    tiles: list[Tile] = []
    best, winner, where = leader(board, with_baseline=True), leader(board), escape(board.label)
    shared = shared_tasks(comparable(board.shown, board.counted), board.counted)
    if best and (found := mean(best, shared)):
        over = f" · {found.tasks} of {board.total} tasks" if found.tasks < board.total else ""
        tiles.append(Tile("Best mean", number(found.value), f"<bdi>{escape(best.name)}</bdi> · {where}{over}"))
    if winner and board.baseline and (gain := difference(winner, board.baseline, shared)):
        kind = "up" if one_digit(gain.value) > 0 else "down" if one_digit(gain.value) < 0 else ""
        over = f"points, <bdi>{escape(winner.name)}</bdi> over <bdi>{escape(board.baseline.name)}</bdi>"
        over += f", on {_plural(gain.tasks, 'task')}" if gain.tasks < len(shared) else ""
        tiles.append(Tile("Gain over the baseline", signed(gain.value), over, kind))
    boards = [view.board for view in content.ours]
    rows = {row.name for each in boards for row in each.shown}
    tasks = {column.task for each in boards for column in each.columns}
    vtab = len(tasks & _VTAB)
    own = f"{len(tasks) - vtab} of your own"
    note = own if not vtab else f"{vtab} of VTAB’s {len(VTAB)}" + (f", {own}" if vtab < len(tasks) else "")
    tiles.append(Tile("Encoders", f"{len(rows)}"))
    tiles.append(Tile("Tasks", f"{len(tasks)}", note))
    tiles.append(Tile("Boards", f"{len(boards)}", ", ".join(sorted({_short_kind(each) for each in boards}))))
    return tiles


def _short_kind(board: Board) -> str:
    return {"vtab": "VTAB", "knn": "kNN", "linear": "linear"}[board.benchmark]


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# --- what else there is ---


def _run(run: ShownRun) -> str:
    name = escape(run.name)
    first, *more = [
        f'<div class="scroll" tabindex="0" role="region" aria-label="{what} of {name}">'
        f'<img src="{quote(path)}" alt="{what} of {name}" loading="lazy"></div>'
        for path, what in run.pictures
    ] or ['<p class="empty">No curves yet: they are drawn at the first checkpoint.</p>']
    # The frames of a batch are many; the curves say more at a glance.
    folded = "".join(
        f"<details><summary>{what}</summary>{html}</details>"
        for html, (_, what) in zip(more, run.pictures[1:], strict=True)
    )
    return f'<figure class="card sheet"><h3><bdi>{name}</bdi></h3>{first}{folded}</figure>'


def _strips(content: Content) -> str:
    if not content.strips:
        return '<p class="empty">No video of this corpus is held out.</p>'
    shown = "".join(film_strip_html(strip, content.digits) for strip in content.strips)
    where = f"<bdi>{escape(str(content.corpus))}</bdi>"
    return f'<p class="intro">Some of the videos of {where} that are held out from training.</p>{shown}'


def _sheet(sheet: NeighbourSheet) -> str:
    title, path = escape(sheet.title), quote(f"{sheet.picture.parent.name}/{sheet.picture.name}")
    return (
        f'<figure class="card sheet"><h3><bdi>{title}</bdi> '
        f'<span class="files"><a href="{path}" download>PNG</a></span></h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Neighbours of {title}">'
        f'<img src="{path}" alt="Frames and their nearest neighbours by {title}" loading="lazy"></div>'
        f"<figcaption>{escape(sheet.caption)}</figcaption></figure>"
    )


def _other(table: OtherTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    caption = escape(table.caption)
    return (
        f'<div class="card sheet"><div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f'<table class="results plain"><caption><span>{caption}.</span></caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></div>"
    )
