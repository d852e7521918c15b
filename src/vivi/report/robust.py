"""Robustness to the frames around a frame: a table as the paper's, the curves, the worst anchors; files and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from vivi.evaluate.metadata import counted
from vivi.evaluate.vid_robust.result import RobustResult
from vivi.evaluate.vid_robust.scores import Interval
from vivi.report.board_html import file_links, table_cell
from vivi.report.curves import draw_curves
from vivi.report.figures import Picture
from vivi.report.paper import PaperRobust, PaperShare, robust_rows
from vivi.report.sections import (
    Copied,
    copy_pictures,
    figure_html,
    first_of_each,
    is_best,
    notes_html,
    numbered,
    pictures_html,
    row_html,
    table_html,
    unequal,
    warnings_html,
    write_sheet,
)
from vivi.report.tables import Entry, Sheet, comma_separated, exact, number
from vivi.runtime.storage import write_atomically

TITLE = "Robustness"
PAPER_SET, PAPER_ANCHORS, PAPER_FRAMES, PAPER_K = "ImageNet-Vid-Robust", 1109, 22179, 10
MAX_NAMES = 10  # of missing frames
COMPLETE, STRICT = "anchors with all frames", "missing frames as wrong"


@dataclass(frozen=True)
class RobustView:
    """The results, and the files that were written for them."""

    results: Sequence[RobustResult]
    paper: Sequence[PaperRobust]  # where a result is on the paper's set
    tables: Sequence[Path]
    curves: Path
    figures: Sequence[Picture]
    pictures: Sequence[Copied]


@dataclass(frozen=True)
class Line:
    """A row of the table: a model over the anchors whose frames are all there, or, strictly, over all anchors."""

    result: RobustResult
    scores: Sequence[Interval]  # pm-0 ... pm-k
    over: str  # which of both, where frames are missing

    @property
    def anchors(self) -> Interval:
        return self.scores[0]

    @property
    def perturbed(self) -> Interval | None:
        return self.scores[-1] if len(self.scores) > 1 else None

    @property
    def drop(self) -> float | None:
        """In points; of different anchors there is none."""
        first, last = percent(self.anchors), percent(self.perturbed)
        same = self.perturbed is not None and self.perturbed.n == self.anchors.n
        return first - last if first is not None and last is not None and same else None


def pick_robust(results: Sequence[RobustResult]) -> tuple[list[RobustResult], list[str]]:
    """Each model once on a set, by set, the best first; and a line for each that is there twice."""
    found, problems = first_of_each(
        results,
        lambda result: (result.encoder, result.set),
        lambda result: f"the robustness of {title(result)}",
    )
    first = _papers_sets(found)

    def order(result: RobustResult) -> tuple[bool, str, int, float, str]:
        # PM accuracies of different k are not to be compared: those of the farthest neighbours come first.
        score = percent(result.curve.strict[-1]) or 0
        return result.set not in first, result.set, -result.farthest, -score, result.encoder

    return sorted(found, key=order), problems


def title(result: RobustResult) -> str:
    return f"{result.encoder} on {result.set}"


def is_papers(result: RobustResult) -> bool:
    """Whether it is about the frames that the paper has rows on, whatever their folder is called."""
    return (result.anchors, result.frames, result.farthest) == (PAPER_ANCHORS, PAPER_FRAMES, PAPER_K)


def _papers_sets(results: Sequence[RobustResult]) -> set[str]:
    return {result.set for result in results if is_papers(result)}


def write_robust(
    results: Sequence[RobustResult], source: Path, out: Path, paper: bool
) -> tuple[RobustView | None, list[str]]:
    """Writes tables and figures, and copies pictures from `source`; a line for each that cannot be shown."""
    if not results:
        return None, []
    pictures, problems = copy_pictures([(title(each), each.picture) for each in results], source, out, "robust")
    rows = robust_rows() if paper and any(map(is_papers, results)) else []
    tables = write_sheet("robust", robust_csv(results, rows), robust_sheet(results, rows), out / "tables")
    curves = out / "tables" / "robust-curves.csv"
    write_atomically(curves, curves_csv(results).encode("utf-8", "replace"), sync=False)
    figures = []
    for place, (name, group) in enumerate(groupby(results, key=lambda result: result.set), start=1):
        on_set = list(group)
        beside = rows if name in _papers_sets(on_set) and max(r.farthest for r in on_set) == PAPER_K else []
        figures.append(draw_curves(on_set, beside, out / "figures", numbered("robust", place, name)))
    view = RobustView(results, rows, tables, curves, [figure for figure in figures if figure], pictures)
    return view, problems


def lines_of(result: RobustResult) -> Iterator[Line]:
    """One line; two where frames are missing."""
    if result.curve.missing:
        yield Line(result, result.curve.complete, COMPLETE)
    yield Line(result, result.curve.strict, STRICT if result.curve.missing else "")


def percent(found: Interval | None) -> float | None:
    """None where no anchor is left."""
    return 100 * found.share if found and found.n else None


def bests(line: Line, results: Sequence[RobustResult]) -> tuple[bool, bool]:
    """Whether its accuracies are the highest on its set. Only those over all anchors are compared."""
    rivals = [other.curve.strict for other in results if other.set == line.result.set]
    if line.over == COMPLETE:
        return False, False
    far = [percent(other[-1]) for other in rivals if len(other) == len(line.scores)]
    first = is_best(percent(line.anchors), (percent(other[0]) for other in rivals))
    return first, is_best(percent(line.perturbed), far)


# --- files ---


def robust_csv(results: Sequence[RobustResult], paper: Sequence[PaperRobust]) -> str:
    """A line for each row of the table."""
    parts = ("", "_low", "_high", "_anchors")
    head = ["source", "model", "set", "over", "k", *(f"anchor_accuracy{part}" for part in parts)]
    head += [*(f"pm_accuracy{part}" for part in parts), "drop", "anchors", "frames", "missing_frames"]
    head += ["classes", "reduction", "data_checksum"]
    lines = [head]
    for line in (line for result in results for line in lines_of(result)):
        result = line.result
        row = ["ours", result.encoder, result.set, line.over or "all anchors", str(result.farthest)]
        row += [*_interval_cells(line.anchors), *_interval_cells(line.perturbed), exact(line.drop)]
        row += map(str, (result.anchors, result.frames, len(result.curve.missing), result.classes))
        lines.append([*row, str(result.reduction or ""), result.data_checksum])
    for printed in paper:
        row = ["paper", printed.model, PAPER_SET, "all anchors", str(PAPER_K)]
        for share in (printed.anchors, printed.perturbed):
            row += [*map(exact, (share.accuracy, share.low, share.high)), str(PAPER_ANCHORS)]
        lines.append([*row, exact(printed.drop), str(PAPER_ANCHORS), "", "", "", "", ""])
    return comma_separated(lines)


def _interval_cells(found: Interval | None) -> list[str]:
    if found is None or not found.n:
        return ["", "", "", "0" if found else ""]
    return [*(exact(100 * value) for value in (found.share, found.low, found.high)), str(found.n)]


def curves_csv(results: Sequence[RobustResult]) -> str:
    """A line for each k of each row."""
    lines = [["model", "set", "over", "k", "right", "anchors", "accuracy", "low", "high"]]
    for line in (line for result in results for line in lines_of(result)):
        for k, found in enumerate(line.scores):
            accuracy, low, high, anchors = _interval_cells(found)
            row = [line.result.encoder, line.result.set, line.over or "all anchors", str(k), str(found.right)]
            lines.append([*row, anchors, accuracy, low, high])
    return comma_separated(lines)


def robust_sheet(results: Sequence[RobustResult], paper: Sequence[PaperRobust]) -> Sheet:
    several = _several_k(results)

    def where(name: str, k: int) -> Entry:
        return Entry(f"{name}, k = {k}" if several else name)

    def entries(line: Line) -> tuple[Entry, ...]:
        result, bold = line.result, bests(line, results)
        complete = f"{line.scores[-1].n:,} of " if line.over == COMPLETE else ""
        name = f"{result.encoder} ({line.over})" if line.over else result.encoder
        return (
            *(Entry(name), where(result.set, result.farthest), Entry(_bracketed(line.anchors), "", bold[0])),
            *(Entry(_bracketed(line.perturbed), "", bold[1]), Entry(number(line.drop))),
            *(Entry(f"{complete}{result.anchors:,}"), Entry(_missing(result))),
        )

    ours = tuple(entries(line) for result in results for line in lines_of(result))
    below = tuple(
        (Entry(f"{row.model} (paper)"), where(PAPER_SET, PAPER_K), *map(Entry, _paper_cells(row)), Entry(""))
        for row in paper
    )
    return Sheet(TITLE, f"{_about()}.", _head(results), ours, below)


# --- HTML ---


def robust_html(view: RobustView) -> str:
    """Everything below the section's heading."""
    results = view.results
    several = _several_k(results)

    def row(line: Line) -> str:
        result, bold = line.result, bests(line, results)
        missing = [*result.curve.missing[:MAX_NAMES], *(["…"] if len(result.curve.missing) > MAX_NAMES else [])]
        cells = [
            table_cell(f"<bdi>{escape(result.set)}</bdi>", f"k = {result.farthest}" if several else ""),
            _accuracy_cell(line.anchors, result, bold[0]),
            _accuracy_cell(line.perturbed, result, bold[1]),
            table_cell(number(line.drop)),
            table_cell(f"{result.anchors:,}"),
            table_cell(_missing(result), _of_frames(result), title=", ".join(missing)),
        ]
        return row_html(result.encoder, cells, line.over)

    def printed(row: PaperRobust) -> str:
        shares = [table_cell(number(share.accuracy), _range(share)) for share in (row.anchors, row.perturbed)]
        others = [table_cell(text) for text in (number(row.drop), f"{PAPER_ANCHORS:,}", "")]
        return row_html(row.model, [table_cell(PAPER_SET, f"k = {PAPER_K}" if several else ""), *shares, *others])

    ours = "".join(row(line) for result in results for line in lines_of(result))
    table = table_html(TITLE, f"{_about()}. Best in bold.", _head(results), ours, "".join(map(printed, view.paper)))
    notes = [(title(result), note) for result in results for note in result.notes]
    links, sheets = file_links([view.curves]), "The anchors on which most goes wrong, with their frames."
    return f"""<div class="board">{_intro(results)}{warnings_html(_warnings(results, bool(view.paper)))}
<div class="card"><h3>Anchors and neighbours {file_links(view.tables)}</h3>{table}{notes_html(notes)}</div>
<div class="figures">{"".join(figure_html("Curves", figure, links) for figure in view.figures)}</div>
{pictures_html(view.pictures, "Worst anchors", "Contact sheet", sheets)}</div>"""


def _intro(results: Sequence[RobustResult]) -> str:
    if not any(result.curve.missing for result in results):
        return ""
    return (
        '<p class="intro"><b>Frames are missing.</b> Such a model has two rows: over the anchors whose frames are '
        "all there, from the anchor to k frames away; and over all anchors, where a missing frame counts as wrong. "
        "Only rows over all anchors can be bold.</p>"
    )


def _warnings(results: Sequence[RobustResult], paper: bool) -> list[str]:
    said = [
        f"On {name}, the models were not tested on the same frames."
        for name in unequal((result.set, result.data_checksum) for result in results)
    ]
    said += [
        f"On {name}, outputs were reduced to the set’s classes in different ways."
        for name in unequal((result.set, result.reduction) for result in results if result.reduction)
    ]
    if paper and any(r.set in _papers_sets(results) and not is_papers(r) for r in results):
        said.append(f"The paper’s rows are over {PAPER_ANCHORS:,} anchors, with k = {PAPER_K}: others differ.")
    return said


def _about() -> str:
    return (
        "Accuracy in percent on anchors, and where the anchor and all its neighbours at most k frames away must be "
        "right (PM-k); the drop from one to the other. In brackets 95 % Clopper–Pearson intervals"
    )


def _several_k(results: Sequence[RobustResult]) -> bool:
    return len({result.farthest for result in results}) > 1


def _head(results: Sequence[RobustResult]) -> tuple[str, ...]:
    ks = {result.farthest for result in results if result.farthest}
    k = f"{min(ks)}" if len(ks) == 1 else "k"
    return ("Model", "Set", "Anchor accuracy", f"PM-{k} accuracy", "Drop", "Anchors", "Missing")


def _share(found: Interval) -> PaperShare:
    return PaperShare(100 * found.share, 100 * found.low, 100 * found.high)


def _accuracy_cell(found: Interval | None, result: RobustResult, bold: bool) -> str:
    if found is None:
        return table_cell("")
    fewer = f"of {counted(found.n, 'anchor')}" if found.n < result.anchors else ""
    small = "<br>".join(filter(None, (_range(_share(found)) if found.n else "", fewer)))
    return table_cell(number(percent(found)), small, bold)


def _range(share: PaperShare) -> str:
    """On one line of the page."""
    return f"[{number(share.low)},&nbsp;{number(share.high)}]"


def _bracketed(found: Interval | None) -> str:
    return _in_brackets(_share(found)) if found and found.n else ""


def _in_brackets(share: PaperShare) -> str:
    return f"{number(share.accuracy)} [{number(share.low)}, {number(share.high)}]"


def _paper_cells(row: PaperRobust) -> tuple[str, ...]:
    return _in_brackets(row.anchors), _in_brackets(row.perturbed), number(row.drop), f"{PAPER_ANCHORS:,}"


def _missing(result: RobustResult) -> str:
    missing = len(result.curve.missing)
    return counted(missing, "frame") if missing else "none"


def _of_frames(result: RobustResult) -> str:
    return f"of {result.frames:,}" if result.curve.missing else ""
