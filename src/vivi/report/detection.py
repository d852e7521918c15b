"""The section of detection: COCO's average precisions of detectors on encoders, and pictures of what they find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vivi.evaluate.detection.result import DetectionResult
from vivi.report.paper import detection_rows
from vivi.report.sections import Section, copy_pictures, first_of_each, is_best, unequal
from vivi.report.table import Cell, Column, Record, Row, Table, exact, number, number_range

TITLE = "Detection"
STANDARD = "standard"
PAPER_SET, PAPER_RUNS, COCO_IMAGES = "COCO 2017", 3, 4000
PARTS = {"ap": "AP", "ap50": "AP50", "ap75": "AP75", "small": "Small", "medium": "Medium", "large": "Large"}


def pick_detection(results: Sequence[DetectionResult]) -> tuple[list[DetectionResult], list[str]]:
    """Each encoder once on a set under a schedule, by both, the best first; a line for each that is there twice."""
    first, problems = first_of_each(
        results,
        lambda result: (result.encoder, result.set, result.schedule),
        lambda result: f"detection by {_title(result)}",
    )

    def order(result: DetectionResult) -> tuple[object, ...]:
        schedule = (result.schedule != STANDARD, result.schedule)
        return not is_coco(result), result.set, *schedule, -result.median.ap, result.encoder

    return sorted(first, key=order), problems


def is_coco(result: DetectionResult) -> bool:
    """Whether the result is on the paper's set: the validation images of COCO 2017 are 5000."""
    return "coco" in result.set.lower() and result.images.get("test", 0) >= COCO_IMAGES


def detection_section(
    results: Sequence[DetectionResult], source: Path, out: Path, paper: bool
) -> tuple[Section, list[str]]:
    """Copies pictures from `source`; a line for each that cannot be shown."""
    pictures, problems = copy_pictures([(_title(each), each.picture) for each in results], source, out, "detection")
    printed = detection_rows() if paper and any(map(is_coco, results)) else []
    different = unequal((result.set, result.data_checksum) for result in results)
    section = Section(
        key="detection",
        title=TITLE,
        template="detection.html",
        warnings=tuple(
            f"On {name}, the detectors were not trained and tested on the same images." for name in different
        ),
        notes=tuple((_title(result), note) for result in results for note in result.notes),
        tables=(_table(results, printed),),
        pictures=pictures,
        data={"other_schedules": any(result.schedule != STANDARD for result in results)},
    )
    return section, problems


def _title(result: DetectionResult) -> str:
    return f"{result.encoder} on {_where(result)}"


def _where(result: DetectionResult) -> str:
    return result.set if result.schedule == STANDARD else f"{result.set}, {result.schedule} schedule"


def _table(results: Sequence[DetectionResult], paper: Sequence[tuple[str, float]]) -> Table:
    counts = sorted({len(result.runs) for result in results})
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    of = "of one run" if counts == [1] else f"the median of {runs} runs"
    about = (
        f"COCO’s average precision of boxes in percent, {of}: over overlaps from 0.5 to 0.95 (AP), at 0.5 and at "
        "0.75, and AP of small, medium and large objects."
    )
    note = about
    if any(result.schedule != STANDARD for result in results):
        note += " Schedules other than the standard one are not to be compared with the paper."
    empty = [Cell()] * (len(PARTS) + 1)
    printed = (
        Row(
            (Cell(name, in_files=f"{name} (paper)"), Cell(PAPER_SET), Cell(STANDARD), Cell(number(ap)), *empty),
            paper=True,
        )
        for name, ap in paper
    )
    columns = (
        *(Column("Encoder"), Column("Set"), Column("Schedule", only="page"), *map(Column, PARTS.values())),
        *(Column("Learning rate", only="page"), Column("Images", only="page")),
    )
    rows = (*(_row(result, results) for result in results), *printed)
    caption = f"{about} Point at a number for its runs. Best in bold, among equal settings."
    return Table("detection", TITLE, note, caption, columns, rows, _records(results, paper))


def _runs(result: DetectionResult, part: str) -> tuple[float, ...]:
    """One of the precisions of each run in percent; none where no object has that size."""
    if getattr(result.median, part) is None:
        return ()
    return tuple(100 * getattr(run.precision, part) for run in result.runs)


def _median(result: DetectionResult, part: str) -> float | None:
    value: float | None = getattr(result.median, part)
    return None if value is None else 100 * value


def _row(result: DetectionResult, results: Sequence[DetectionResult]) -> Row:
    settings = "; ".join(f"{name} {value}" for name, value in result.settings.items())
    test, train = result.images.get("test"), result.images.get("train")
    return Row(
        (
            Cell(result.encoder),
            Cell(result.set, in_files=_where(result)),
            Cell(result.schedule, hint=settings, badge=result.schedule != STANDARD),
            *(_precision(result, part, results) for part in PARTS),
            _learning_rate(result),
            Cell(f"{test:,}" if test else "", small=f"{train:,} to train" if train else ""),
        )
    )


def _precision(result: DetectionResult, part: str, results: Sequence[DetectionResult]) -> Cell:
    """Bold if it is the highest among equal images and settings."""

    def conditions(one: DetectionResult) -> tuple[object, ...]:
        return one.set, one.data_checksum, one.schedule, one.settings

    median, runs = _median(result, part), _runs(result, part)
    if median is None:
        return Cell()
    rivals = [_median(other, part) for other in results if conditions(other) == conditions(result)]
    low, high, each = number(min(runs)), number(max(runs)), ", ".join(map(number, runs))
    hint = "one run" if len(runs) == 1 else f"runs: {each}; from {low} to {high}"
    small = number_range(min(runs), max(runs)) if part == "ap" and low != high else ""
    return Cell(number(median), bold=is_best(median, rivals), small=small, hint=hint)


def _learning_rate(result: DetectionResult) -> Cell:
    """The learning rates that the runs ended with, and how often they were halved."""
    rates = sorted({run.lr for run in result.runs})
    shown = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g}–{rates[-1]:g}"
    counts = sorted(len(run.restarts) for run in result.runs)
    halved = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]}–{counts[-1]}"
    reasons = [f"seed {run.seed}: {reason}" for run in result.runs for reason in run.restarts]
    return Cell(shown, small=f"halved {halved}×" if reasons else "", hint="; ".join(reasons))


def _records(results: Sequence[DetectionResult], paper: Sequence[tuple[str, float]]) -> list[Record]:
    """One for each row, with the lowest and the highest run of every number."""
    records = []
    for result in results:
        record = {"source": "ours", "encoder": result.encoder, "set": result.set, "schedule": result.schedule}
        for part in PARTS:
            runs = _runs(result, part)
            record[part] = exact(_median(result, part))
            record[f"{part}_lowest_run"] = exact(min(runs, default=None))
            record[f"{part}_highest_run"] = exact(max(runs, default=None))
        records.append(
            {
                **record,
                "runs": str(len(result.runs)),
                "ap_runs": " ".join(map(exact, _runs(result, "ap"))),
                "lr": " ".join(f"{run.lr:g}" for run in result.runs),
                "restarts": " ".join(str(len(run.restarts)) for run in result.runs),
                "train_images": str(result.images.get("train", "")),
                "test_images": str(result.images.get("test", "")),
                "classes": str(result.classes),
                "data_checksum": result.data_checksum,
            }
        )
    empty = dict.fromkeys(records[0], "")
    same = {"source": "paper", "set": PAPER_SET, "schedule": STANDARD, "runs": str(PAPER_RUNS)}
    return [*records, *(empty | same | {"encoder": name, "ap": exact(ap)} for name, ap in paper)]
