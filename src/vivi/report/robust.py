"""The section of robustness to the frames around a frame: a table as the paper's, curves, the worst anchors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from vivi.evaluate.metadata import counted
from vivi.evaluate.results import RobustResult
from vivi.evaluate.vid_robust.scores import Interval
from vivi.report.figures import draw_curves
from vivi.report.paper import PaperRow, paper_rows
from vivi.report.sections import Section, differing, numbered, section_of
from vivi.report.table import Cell, Cells, Table, csv_text, number
from vivi.runtime.storage import write_atomically

CURVES = "robust-curves.csv"
PAPER_SET, PAPER_ANCHORS, PAPER_FRAMES, PAPER_K = "ImageNet-Vid-Robust", 1109, 22179, 10
Percents = tuple[float, float, float] | tuple[None, None, None]
COLUMNS = {"model": "Model", "set": "Set", "anchor_accuracy": "Anchor accuracy", "pm_accuracy": "PM-k accuracy"}
COLUMNS |= {"drop": "Drop", "anchors": "Anchors", "missing_frames": "Missing"}
MAX_NAMES = 10  # of missing frames
COMPLETE, STRICT = "anchors with all frames", "missing frames as wrong"
_ABOUT = (
    "Accuracy in percent on anchors, and where the anchor and all its neighbours at most k frames away must be right "
    "(PM-k); the drop from one to the other. In brackets 95 % Clopper–Pearson intervals."
)


def in_order(results: Sequence[RobustResult]) -> list[RobustResult]:
    """By set, the best first."""
    papers_sets = {result.set for result in results if is_papers(result)}

    def place(result: RobustResult) -> tuple[bool, str, int, float, str]:
        # PM accuracies of different k are not to be compared: those of the farthest neighbours come first.
        score = _percents(result.curve.strict[-1])[0] or 0
        return result.set not in papers_sets, result.set, -result.farthest, -score, result.encoder

    return sorted(results, key=place)


def is_papers(result: RobustResult) -> bool:
    """Whether it is about the frames that the paper has rows on, whatever their folder is called."""
    return (result.anchors, result.frames, result.farthest) == (PAPER_ANCHORS, PAPER_FRAMES, PAPER_K)


def robust_section(results: Sequence[RobustResult], source: Path, out: Path, paper: bool) -> Section:
    """Draws the curves, and copies pictures from `source`."""
    printed = paper_rows("vid_robust") if paper and any(map(is_papers, results)) else ()
    all_k = {result.farthest for result in results}
    one_k = {"pm_accuracy": f"PM-{max(all_k)} accuracy"} if len(all_k - {0}) == 1 else {}
    rows = [_row(result, over, scores, len(all_k) > 1) for result in results for over, scores in _scores(result)]
    rows += [_paper_row(row, len(all_k) > 1) for row in printed]
    figures = []
    for place, (name, group) in enumerate(groupby(results, key=lambda result: result.set), start=1):
        on_set = list(group)
        beside = printed if any(map(is_papers, on_set)) and on_set[0].farthest == PAPER_K else ()
        figures.append(draw_curves(on_set, beside, out / "figures" / numbered("robust", place, name)))
    (out / "tables").mkdir(parents=True, exist_ok=True)
    curves = csv_text([record for result in results for record in _curve_records(result)])
    write_atomically(out / "tables" / CURVES, curves.encode("utf-8", "replace"), sync=False)
    return section_of(
        Table("robust", "Robustness", _ABOUT, COLUMNS | one_k, rows),
        [(f"{result.encoder} on {result.set}", result) for result in results],
        source,
        out,
        warnings=_warnings(results, bool(printed)),
        figures=[figure for figure in figures if figure],
        data={"curves": CURVES, "missing": any(result.curve.missing for result in results)},
    )


def _warnings(results: Sequence[RobustResult], paper: bool) -> list[str]:
    frames = ((result.set, result.data_checksum) for result in results)
    reductions = ((result.set, result.reduction) for result in results if result.reduction)
    papers_sets = {result.set for result in results if is_papers(result)}
    others = paper and any(result.set in papers_sets and not is_papers(result) for result in results)
    return [
        *differing(frames, "the models were not tested on the same frames"),
        *differing(reductions, "outputs were reduced to the set’s classes in different ways"),
        *[f"The paper’s rows are over {PAPER_ANCHORS:,} anchors, with k = {PAPER_K}: others differ."] * others,
    ]


def _scores(result: RobustResult) -> list[tuple[str, Sequence[Interval]]]:
    """pm-0 ... pm-k over all anchors; where frames are missing, first over those whose frames are all there."""
    if not result.curve.missing:
        return [("", result.curve.strict)]
    return [(COMPLETE, result.curve.complete), (STRICT, result.curve.strict)]


def _row(result: RobustResult, over: str, scores: Sequence[Interval], several_k: bool) -> Cells:
    missing, first, last = result.curve.missing, scores[0], scores[-1]
    (before, *_), (after, *_) = _percents(first), _percents(last)
    same = len(scores) > 1 and last.n == first.n  # of different anchors there is no drop
    frames = Cell(0, "none")
    if missing:
        some = ", ".join([*missing[:MAX_NAMES], *["…"] * (len(missing) > MAX_NAMES)])
        frames = Cell(len(missing), counted(len(missing), "frame"), small=f"of {result.frames:,}", hint=some)
    # Only accuracies over all anchors of a set are compared, and of PM-k those of one k.
    rivals = None if over == COMPLETE else (result.set, 0)
    far_rivals = rivals and (result.set, len(scores))
    pm = _accuracy("pm_accuracy", last.n, _percents(last), result.anchors, far_rivals)
    return {
        "source": "ours",
        "model": Cell(result.encoder, small=over, in_files=f"{result.encoder} ({over})" if over else None),
        "set": _set(result.set, result.farthest, several_k),
        "over": over or "all anchors",
        "k": result.farthest,
        **_accuracy("anchor_accuracy", first.n, _percents(first), result.anchors, rivals),
        **(pm if len(scores) > 1 else dict.fromkeys(pm)),
        "drop": before - after if before is not None and after is not None and same else None,
        "anchors": Cell(result.anchors, in_files=f"{last.n:,} of {result.anchors:,}" if over == COMPLETE else None),
        "frames": result.frames,
        "missing_frames": frames,
        "classes": result.classes,
        "reduction": result.reduction,
        "data_checksum": result.data_checksum,
    }


def _paper_row(row: PaperRow, several_k: bool) -> Cells:
    def accuracy(name: str, kind: str) -> Cells:
        printed = row.numbers
        percents = (printed[f"accuracy_{kind}"], printed[f"{kind}_low"], printed[f"{kind}_high"])
        return _accuracy(name, PAPER_ANCHORS, percents, PAPER_ANCHORS)

    return {
        "source": "paper",
        "model": Cell(row.method, in_files=f"{row.method} (paper)"),
        "set": _set(PAPER_SET, PAPER_K, several_k),
        "over": "all anchors",
        "k": PAPER_K,
        **accuracy("anchor_accuracy", "original"),
        **accuracy("pm_accuracy", "perturbed"),
        "drop": row.numbers["drop"],
        "anchors": PAPER_ANCHORS,
    }


def _set(name: str, k: int, several_k: bool) -> Cell:
    return Cell(name, small=f"k = {k}", in_files=f"{name}, k = {k}") if several_k else Cell(name)


def _percents(interval: Interval) -> Percents:
    """An accuracy and the ends of its interval; nothing where no anchor is left."""
    share, low, high = interval.share, interval.low, interval.high
    return (100 * share, 100 * low, 100 * high) if interval.n else (None, None, None)


def _accuracy(name: str, anchors: int, percents: Percents, all_anchors: int, rivals: object = None) -> Cells:
    """An accuracy with its interval: below it on the page, beside it in Markdown and LaTeX."""
    accuracy, low, high = percents
    cell = Cell(small=f"of {counted(anchors, 'anchor')}" if anchors < all_anchors else "")
    if accuracy is not None:
        limits = f"[{number(low)}, {number(high)}]"
        small = f"{limits}\n{cell.small}".strip()
        cell = Cell(accuracy, in_files=f"{number(accuracy)} {limits}", rivals=rivals, small=small)
    return {name: cell, f"{name}_low": low, f"{name}_high": high, f"{name}_anchors": anchors}


def _curve_records(result: RobustResult) -> Iterator[Cells]:
    """One for each k."""
    for over, scores in _scores(result):
        for k, interval in enumerate(scores):
            accuracy, low, high = _percents(interval)
            yield {
                "model": result.encoder,
                "set": result.set,
                "over": over or "all anchors",
                "k": k,
                "right": interval.right,
                "anchors": interval.n,
                "accuracy": accuracy,
                "low": low,
                "high": high,
            }
