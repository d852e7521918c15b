"""Detection: COCO's average precisions of detectors on encoders, and pictures of what they find; files and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from vivi.evaluate.detection.result import DetectionResult, Precision
from vivi.report.board_html import file_links, table_cell
from vivi.report.paper import detection_rows
from vivi.report.sections import (
    Copied,
    copy_pictures,
    first_of_each,
    is_best,
    notes_html,
    pictures_html,
    row_html,
    table_html,
    unequal,
    warnings_html,
    write_sheet,
)
from vivi.report.tables import Entry, Sheet, comma_separated, exact, number

TITLE = "Detection"
STANDARD = "standard"
PAPER_SET, PAPER_RUNS, COCO_IMAGES = "COCO 2017", 3, 4000
PARTS = {"ap": "AP", "ap50": "AP50", "ap75": "AP75", "small": "Small", "medium": "Medium", "large": "Large"}


@dataclass(frozen=True)
class DetectionView:
    """The results, and the files that were written for them."""

    results: Sequence[DetectionResult]
    paper: Sequence[tuple[str, float]]  # pre-training and AP, where a result is on COCO
    tables: Sequence[Path]
    pictures: Sequence[Copied]


@dataclass(frozen=True)
class Measured:
    """One of the precisions in percent: the median of the runs, and each of them."""

    median: float
    runs: tuple[float, ...]


def pick_detection(results: Sequence[DetectionResult]) -> tuple[list[DetectionResult], list[str]]:
    """Each encoder once on a set under a schedule, by both, the best first; a line for each that is there twice."""
    found, problems = first_of_each(
        results,
        lambda result: (result.encoder, result.set, result.schedule),
        lambda result: f"detection by {title(result)}",
    )

    def order(result: DetectionResult) -> tuple[object, ...]:
        schedule = (result.schedule != STANDARD, result.schedule)
        return not is_coco(result), result.set, *schedule, -result.median.ap, result.encoder

    return sorted(found, key=order), problems


def title(result: DetectionResult) -> str:
    where = result.set if result.schedule == STANDARD else f"{result.set}, {result.schedule} schedule"
    return f"{result.encoder} on {where}"


def is_coco(result: DetectionResult) -> bool:
    """Whether the result is on the paper's set: the validation images of COCO 2017 are 5000."""
    return "coco" in result.set.lower() and result.images.get("test", 0) >= COCO_IMAGES


def write_detection(
    results: Sequence[DetectionResult], source: Path, out: Path, paper: bool
) -> tuple[DetectionView | None, list[str]]:
    """Writes the table, and copies pictures from `source`; a line for each that cannot be shown."""
    if not results:
        return None, []
    pictures, problems = copy_pictures([(title(each), each.picture) for each in results], source, out, "detection")
    rows = detection_rows() if paper and any(map(is_coco, results)) else []
    files = write_sheet("detection", detection_csv(results, rows), detection_sheet(results, rows), out / "tables")
    return DetectionView(results, rows, files, pictures), problems


def measured(result: DetectionResult, part: str) -> Measured | None:
    """None where no object has that size."""
    median: float | None = getattr(result.median, part)
    if median is None:
        return None
    return Measured(100 * median, tuple(100 * getattr(run.precision, part) for run in result.runs))


def best_parts(result: DetectionResult, results: Sequence[DetectionResult]) -> dict[str, bool]:
    """Which of its numbers are the highest on its set. Only equal images and settings are compared."""

    def conditions(one: DetectionResult) -> tuple[object, ...]:
        return one.set, one.data_checksum, one.schedule, one.settings

    rivals = [other.median for other in results if conditions(other) == conditions(result)]

    def column(part: str, medians: Sequence[Precision]) -> list[float | None]:
        return [None if (value := getattr(median, part)) is None else 100 * value for median in medians]

    return {part: is_best(column(part, [result.median])[0], column(part, rivals)) for part in PARTS}


# --- files ---


def detection_csv(results: Sequence[DetectionResult], paper: Sequence[tuple[str, float]]) -> str:
    """A line for each row, with the lowest and the highest run of every number."""
    head = ["source", "encoder", "set", "schedule"]
    head += [f"{part}{end}" for part in PARTS for end in ("", "_lowest_run", "_highest_run")]
    head += ["runs", "ap_runs", "lr", "restarts", "train_images", "test_images", "classes", "data_checksum"]
    lines = [head]
    for result in results:
        row = ["ours", result.encoder, result.set, result.schedule]
        for part in PARTS:
            found = measured(result, part)
            row += map(exact, (found.median, min(found.runs), max(found.runs))) if found else ["", "", ""]
        row += [str(len(result.runs)), " ".join(exact(100 * run.precision.ap) for run in result.runs)]
        row += [" ".join(f"{run.lr:g}" for run in result.runs), " ".join(str(len(r.restarts)) for r in result.runs)]
        row += [str(result.images.get(part, "")) for part in ("train", "test")]
        lines.append([*row, str(result.classes), result.data_checksum])
    for name, ap in paper:
        row = ["paper", name, PAPER_SET, STANDARD, exact(ap)]
        row += [""] * (head.index("runs") - len(row)) + [str(PAPER_RUNS)]
        lines.append(row + [""] * (len(head) - len(row)))
    return comma_separated(lines)


def detection_sheet(results: Sequence[DetectionResult], paper: Sequence[tuple[str, float]]) -> Sheet:
    def entries(result: DetectionResult) -> tuple[Entry, ...]:
        bold = best_parts(result, results)
        where = result.set if result.schedule == STANDARD else f"{result.set}, {result.schedule} schedule"
        found = {part: measured(result, part) for part in PARTS}
        numbers = (Entry(number(value.median if value else None), "", bold[part]) for part, value in found.items())
        return Entry(result.encoder), Entry(where), *numbers

    empty = [Entry("")] * (len(PARTS) - 1)
    below = tuple((Entry(f"{name} (paper)"), Entry(PAPER_SET), Entry(number(ap)), *empty) for name, ap in paper)
    note = f"{_about(results)}."
    if not_standard(results):
        note += " Schedules other than the standard one are not to be compared with the paper."
    return Sheet(TITLE, note, ("Encoder", "Set", *PARTS.values()), tuple(map(entries, results)), below)


# --- HTML ---


def detection_html(view: DetectionView) -> str:
    """Everything below the section's heading."""
    results = view.results

    def line(result: DetectionResult) -> str:
        bold = best_parts(result, results)
        cells = [table_cell(f"<bdi>{escape(result.set)}</bdi>"), _schedule_cell(result)]
        for part in PARTS:
            found = measured(result, part)
            small = _range(found) if found and part == "ap" else ""
            shown = number(found.median) if found else ""
            cells.append(table_cell(shown, small, bold[part], _runs(found) if found else ""))
        return row_html(result.encoder, [*cells, _rate_cell(result), _images_cell(result)])

    def printed(row: tuple[str, float]) -> str:
        rest = [table_cell("") for _ in range(len(PARTS) + 1)]
        return row_html(row[0], [table_cell(PAPER_SET), table_cell(STANDARD), table_cell(number(row[1])), *rest])

    head = ("Encoder", "Set", "Schedule", *PARTS.values(), "Learning rate", "Images")
    caption = f"{_about(results)}. Point at a number for its runs. Best in bold, among equal settings."
    ours, paper = "".join(map(line, results)), "".join(map(printed, view.paper))
    table = table_html(TITLE, caption, head, ours, paper)
    notes = [(title(result), note) for result in results for note in result.notes]
    about = "What the detector finds on test images."
    return f"""<div class="board">{_intro(results)}{warnings_html(_warnings(results))}
<div class="card"><h3>Average precision {file_links(view.tables)}</h3>{table}{notes_html(notes)}</div>
{pictures_html(view.pictures, "Detections", "Detections", about)}</div>"""


def not_standard(results: Sequence[DetectionResult]) -> list[str]:
    """The schedules that the paper does not have."""
    return [*dict.fromkeys(result.schedule for result in results if result.schedule != STANDARD)]


def _intro(results: Sequence[DetectionResult]) -> str:
    if not not_standard(results):
        return ""
    return (
        '<p class="intro"><b>Other schedules:</b> a row that is marked was not trained by the standard schedule. It '
        "can be compared with rows of the same settings, not with the paper.</p>"
    )


def _warnings(results: Sequence[DetectionResult]) -> list[str]:
    different = unequal((result.set, result.data_checksum) for result in results)
    return [f"On {name}, the detectors were not trained and tested on the same images." for name in different]


def _about(results: Sequence[DetectionResult]) -> str:
    counts = sorted({len(result.runs) for result in results})
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    of = "of one run" if counts == [1] else f"the median of {runs} runs"
    return (
        f"COCO’s average precision of boxes in percent, {of}: over overlaps from 0.5 to 0.95 (AP), at 0.5 and at "
        "0.75, and AP of small, medium and large objects"
    )


def _schedule_cell(result: DetectionResult) -> str:
    settings = "; ".join(f"{name} {value}" for name, value in result.settings.items())
    schedule = escape(result.schedule)
    marked = schedule if result.schedule == STANDARD else f'<span class="badge">{schedule}</span>'
    return table_cell(marked, title=settings)


def _rate_cell(result: DetectionResult) -> str:
    """The learning rates that the runs ended with, and how often they were halved."""
    rates = sorted({run.lr for run in result.runs})
    shown = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g}–{rates[-1]:g}"
    counts = sorted(len(run.restarts) for run in result.runs)
    halved = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]}–{counts[-1]}"
    reasons = [f"seed {run.seed}: {reason}" for run in result.runs for reason in run.restarts]
    return table_cell(shown, f"halved {halved}×" if reasons else "", title="; ".join(reasons))


def _images_cell(result: DetectionResult) -> str:
    test, train = result.images.get("test"), result.images.get("train")
    return table_cell(f"{test:,}" if test else "", f"{train:,} to train" if train else "")


def _range(found: Measured) -> str:
    """The lowest and the highest run, where they differ."""
    low, high = number(min(found.runs)), number(max(found.runs))
    return "" if low == high else f"{low}–{high}"


def _runs(found: Measured) -> str:
    """For a number's tooltip."""
    if len(found.runs) == 1:
        return "one run"
    runs = ", ".join(map(number, found.runs))
    return f"runs: {runs}; from {number(min(found.runs))} to {number(max(found.runs))}"
