"""The section of robustness to the frames around a frame: a table as the paper's, curves, the worst anchors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from vivi.evaluate.metadata import counted
from vivi.evaluate.vid_robust.result import RobustResult
from vivi.evaluate.vid_robust.scores import Interval
from vivi.report.figures import draw_curves
from vivi.report.paper import PaperRobust, PaperShare, robust_rows
from vivi.report.sections import Section, copy_pictures, first_of_each, is_best, numbered, unequal
from vivi.report.table import Cell, Column, Record, Row, Table, csv_text, exact, number
from vivi.runtime.storage import write_atomically

TITLE = "Robustness"
CURVES = "robust-curves.csv"
PAPER_SET, PAPER_ANCHORS, PAPER_FRAMES, PAPER_K = "ImageNet-Vid-Robust", 1109, 22179, 10
MAX_NAMES = 10  # of missing frames
COMPLETE, STRICT = "anchors with all frames", "missing frames as wrong"
_ABOUT = (
    "Accuracy in percent on anchors, and where the anchor and all its neighbours at most k frames away must be right "
    "(PM-k); the drop from one to the other. In brackets 95 % Clopper–Pearson intervals."
)


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
    first, problems = first_of_each(
        results,
        lambda result: (result.encoder, result.set),
        lambda result: f"the robustness of {result.encoder} on {result.set}",
    )
    papers_sets = {result.set for result in first if is_papers(result)}

    def order(result: RobustResult) -> tuple[bool, str, int, float, str]:
        # PM accuracies of different k are not to be compared: those of the farthest neighbours come first.
        score = percent(result.curve.strict[-1]) or 0
        return result.set not in papers_sets, result.set, -result.farthest, -score, result.encoder

    return sorted(first, key=order), problems


def is_papers(result: RobustResult) -> bool:
    """Whether it is about the frames that the paper has rows on, whatever their folder is called."""
    return (result.anchors, result.frames, result.farthest) == (PAPER_ANCHORS, PAPER_FRAMES, PAPER_K)


def percent(interval: Interval | None) -> float | None:
    """None where no anchor is left."""
    return 100 * interval.share if interval and interval.n else None


def robust_section(
    results: Sequence[RobustResult], source: Path, out: Path, paper: bool
) -> tuple[Section, list[str]]:
    """Draws the curves, and copies pictures from `source`; a line for each that cannot be shown."""
    names = [(f"{each.encoder} on {each.set}", each) for each in results]
    pictures, problems = copy_pictures([(name, each.picture) for name, each in names], source, out, "robust")
    printed = robust_rows() if paper and any(map(is_papers, results)) else []
    lines = [line for result in results for line in _lines(result)]
    (out / "tables").mkdir(parents=True, exist_ok=True)
    curves = csv_text([record for line in lines for record in _curve_records(line)])
    write_atomically(out / "tables" / CURVES, curves.encode("utf-8", "replace"), sync=False)
    figures = []
    for place, (name, group) in enumerate(groupby(results, key=lambda result: result.set), start=1):
        on_set = list(group)
        beside = printed if any(map(is_papers, on_set)) and on_set[0].farthest == PAPER_K else []
        figures.append(draw_curves(on_set, beside, out / "figures", numbered("robust", place, name)))
    section = Section(
        key="robust",
        title=TITLE,
        template="robust.html",
        warnings=tuple(_warnings(results, bool(printed))),
        notes=tuple((name, note) for name, each in names for note in each.notes),
        tables=(_table(lines, printed),),
        figures=tuple(figure for figure in figures if figure),
        pictures=pictures,
        data={"curves": CURVES, "missing": any(result.curve.missing for result in results)},
    )
    return section, problems


def _lines(result: RobustResult) -> Iterator[Line]:
    """One line; two where frames are missing."""
    if result.curve.missing:
        yield Line(result, result.curve.complete, COMPLETE)
    yield Line(result, result.curve.strict, STRICT if result.curve.missing else "")


def _warnings(results: Sequence[RobustResult], paper: bool) -> Iterator[str]:
    for name in unequal((result.set, result.data_checksum) for result in results):
        yield f"On {name}, the models were not tested on the same frames."
    for name in unequal((result.set, result.reduction) for result in results if result.reduction):
        yield f"On {name}, outputs were reduced to the set’s classes in different ways."
    papers_sets = {result.set for result in results if is_papers(result)}
    if paper and any(result.set in papers_sets and not is_papers(result) for result in results):
        yield f"The paper’s rows are over {PAPER_ANCHORS:,} anchors, with k = {PAPER_K}: others differ."


def _table(lines: Sequence[Line], paper: Sequence[PaperRobust]) -> Table:
    all_k = {line.result.farthest for line in lines}
    k = f"{max(all_k)}" if len(all_k - {0}) == 1 else "k"
    titles = ("Model", "Set", "Anchor accuracy", f"PM-{k} accuracy", "Drop", "Anchors", "Missing")
    several_k = len(all_k) > 1
    rows = [_row(line, lines, several_k) for line in lines]
    rows += [
        Row(
            (
                Cell(row.model, in_files=f"{row.model} (paper)"),
                _set(PAPER_SET, PAPER_K, several_k),
                *(_accuracy(share.accuracy, share) for share in (row.anchors, row.perturbed)),
                *(Cell(number(row.drop)), Cell(f"{PAPER_ANCHORS:,}"), Cell()),
            ),
            paper=True,
        )
        for row in paper
    ]
    records = [*map(_record, lines), *map(_paper_record, paper)]
    columns = tuple(map(Column, titles))
    return Table("robust", TITLE, _ABOUT, f"{_ABOUT} Best in bold.", columns, tuple(rows), records)


def _row(line: Line, lines: Sequence[Line], several_k: bool) -> Row:
    result, missing = line.result, line.result.curve.missing
    best_anchors, best_perturbed = _bests(line, lines)
    complete = f"{line.scores[-1].n:,} of {result.anchors:,}" if line.over == COMPLETE else None
    some = ", ".join([*missing[:MAX_NAMES], *(["…"] if len(missing) > MAX_NAMES else [])])
    name = f"{result.encoder} ({line.over})" if line.over else None
    return Row(
        (
            Cell(result.encoder, small=line.over, in_files=name),
            _set(result.set, result.farthest, several_k),
            _interval(line.anchors, result, best_anchors),
            _interval(line.perturbed, result, best_perturbed),
            Cell(number(line.drop)),
            Cell(f"{result.anchors:,}", in_files=complete),
            Cell(
                counted(len(missing), "frame") if missing else "none",
                small=f"of {result.frames:,}" if missing else "",
                hint=some,
            ),
        )
    )


def _bests(line: Line, lines: Sequence[Line]) -> tuple[bool, bool]:
    """Whether its accuracies are the highest on its set. Only those over all anchors are compared."""
    if line.over == COMPLETE:
        return False, False
    rivals = [other for other in lines if other.result.set == line.result.set and other.over != COMPLETE]
    far = [percent(other.scores[-1]) for other in rivals if len(other.scores) == len(line.scores)]
    first = is_best(percent(line.anchors), (percent(other.anchors) for other in rivals))
    return first, is_best(percent(line.perturbed), far)


def _set(name: str, k: int, several_k: bool) -> Cell:
    return Cell(name, small=f"k = {k}", in_files=f"{name}, k = {k}") if several_k else Cell(name)


def _interval(interval: Interval | None, result: RobustResult, bold: bool) -> Cell:
    if interval is None:
        return Cell()
    fewer = f"of {counted(interval.n, 'anchor')}" if interval.n < result.anchors else ""
    share = PaperShare(*(100 * value for value in (interval.share, interval.low, interval.high)))
    return _accuracy(percent(interval), share, fewer, bold)


def _accuracy(accuracy: float | None, share: PaperShare, below: str = "", bold: bool = False) -> Cell:
    """An accuracy with its interval: below it on the page, beside it in files."""
    if accuracy is None:
        return Cell(small=below)
    limits = f"[{number(share.low)}, {number(share.high)}]"
    small = "\n".join(filter(None, (limits, below)))
    return Cell(number(accuracy), bold=bold, small=small, in_files=f"{number(accuracy)} {limits}")


# --- CSV ---


def _record(line: Line) -> Record:
    result = line.result
    return {
        "source": "ours",
        "model": result.encoder,
        "set": result.set,
        "over": line.over or "all anchors",
        "k": str(result.farthest),
        **_interval_record("anchor_accuracy", line.anchors),
        **_interval_record("pm_accuracy", line.perturbed),
        "drop": exact(line.drop),
        "anchors": str(result.anchors),
        "frames": str(result.frames),
        "missing_frames": str(len(result.curve.missing)),
        "classes": str(result.classes),
        "reduction": str(result.reduction or ""),
        "data_checksum": result.data_checksum,
    }


def _interval_record(name: str, interval: Interval | None) -> Record:
    empty = interval is None or not interval.n
    low, high = (None, None) if interval is None or empty else (100 * interval.low, 100 * interval.high)
    return {
        name: exact(percent(interval)),
        f"{name}_low": exact(low),
        f"{name}_high": exact(high),
        f"{name}_anchors": "" if interval is None else str(interval.n),
    }


def _paper_record(row: PaperRobust) -> Record:
    record = {"source": "paper", "model": row.model, "set": PAPER_SET, "over": "all anchors", "k": str(PAPER_K)}
    for name, share in (("anchor_accuracy", row.anchors), ("pm_accuracy", row.perturbed)):
        record |= {name: exact(share.accuracy), f"{name}_low": exact(share.low), f"{name}_high": exact(share.high)}
        record[f"{name}_anchors"] = str(PAPER_ANCHORS)
    record |= {"drop": exact(row.drop), "anchors": str(PAPER_ANCHORS)}
    return record | dict.fromkeys(("frames", "missing_frames", "classes", "reduction", "data_checksum"), "")


def _curve_records(line: Line) -> Iterator[Record]:
    """One for each k."""
    for k, interval in enumerate(line.scores):
        values = _interval_record("accuracy", interval)
        yield {
            "model": line.result.encoder,
            "set": line.result.set,
            "over": line.over or "all anchors",
            "k": str(k),
            "right": str(interval.right),
            "anchors": values["accuracy_anchors"],
            "accuracy": values["accuracy"],
            "low": values["accuracy_low"],
            "high": values["accuracy_high"],
        }
