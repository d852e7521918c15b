"""The section of detection: COCO's average precisions of detectors on encoders, and pictures of what they find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vivi.evaluate.results import DetectionResult
from vivi.report.paper import paper_rows
from vivi.report.sections import Section, differing, section_of
from vivi.report.table import Cell, Cells, Column, Table, exact, extent, number

STANDARD = "standard"
PAPER_SET, PAPER_RUNS, COCO_IMAGES = "COCO 2017", 3, 4000
PARTS = {"ap": "AP", "ap50": "AP50", "ap75": "AP75", "small": "Small", "medium": "Medium", "large": "Large"}
COLUMNS: dict[str, Column | str] = {"encoder": "Encoder", "set": "Set", "schedule": Column("", "Schedule"), **PARTS}
COLUMNS |= {"lr": Column("", "Learning rate"), "test_images": Column("", "Images")}


def place(result: DetectionResult) -> tuple[object, ...]:
    """Results are in the order of sets and schedules, the best first."""
    schedule = (result.schedule != STANDARD, result.schedule)
    return not is_coco(result), result.set, *schedule, -result.median.ap, result.encoder


def is_coco(result: DetectionResult) -> bool:
    """Whether the result is on the paper's set: the validation images of COCO 2017 are 5000."""
    return "coco" in result.set.lower() and result.images.get("test", 0) >= COCO_IMAGES


def detection_section(results: Sequence[DetectionResult], source: Path, out: Path, paper: bool) -> Section:
    """Copies pictures from `source`."""
    counts = {len(result.runs) for result in results}
    of = "of one run" if counts == {1} else f"the median of {extent(counts)} runs"
    about = (
        f"COCO’s average precision of boxes in percent, {of}: over overlaps from 0.5 to 0.95 (AP), at 0.5 and at "
        "0.75, and AP of small, medium and large objects."
    )
    warning = " Schedules other than the standard one are not to be compared with the paper."
    others = any(result.schedule != STANDARD for result in results)
    rows = [*map(_row, results)]
    for row in paper_rows("coco_ap") if paper and any(map(is_coco, results)) else ():
        name = Cell(row.method, in_files=f"{row.method} (paper)")
        printed: Cells = {"source": "paper", "encoder": name, "ap": row.numbers["ap"], "runs": PAPER_RUNS}
        rows.append(printed | {"set": PAPER_SET, "schedule": STANDARD})
    images = ((result.set, result.data_checksum) for result in results)
    return section_of(
        Table("detection", "Detection", about + warning * others, COLUMNS, rows),
        [(f"{result.encoder} on {_where(result)}", result) for result in results],
        source,
        out,
        warnings=differing(images, "the detectors were not trained and tested on the same images"),
        data={"about": about, "other_schedules": others},
    )


def _where(result: DetectionResult) -> str:
    return result.set if result.schedule == STANDARD else f"{result.set}, {result.schedule} schedule"


def _row(result: DetectionResult) -> Cells:
    settings = "; ".join(f"{name} {value}" for name, value in result.settings.items())
    train = result.images.get("train")
    # The learning rates that the runs ended with, and how often and why they were halved.
    rates, halved = [run.lr for run in result.runs], [len(run.restarts) for run in result.runs]
    reasons = "; ".join(f"seed {run.seed}: {reason}" for run in result.runs for reason in run.restarts)
    times = f"halved {extent(halved, '–')}×" if reasons else ""
    cells: Cells = {
        "source": "ours",
        "encoder": result.encoder,
        "set": Cell(result.set, in_files=_where(result)),
        "schedule": Cell(result.schedule, hint=settings, badge=result.schedule != STANDARD),
    }
    for part in PARTS:
        cells |= _precision(result, part)
    return cells | {
        "runs": len(result.runs),
        "ap_runs": " ".join(exact(100 * run.precision.ap) for run in result.runs),
        "lr": Cell(" ".join(map("{:g}".format, rates)), extent(rates, "–", "{:g}".format), small=times, hint=reasons),
        "restarts": " ".join(map(str, halved)),
        "train_images": train,
        "test_images": Cell(result.images.get("test"), small=f"{train:,} to train" if train else ""),
        "classes": result.classes,
        "data_checksum": result.data_checksum,
    }


def _precision(result: DetectionResult, part: str) -> Cells:
    """The median, the lowest and the highest run, in percent; nothing where no object has that size."""
    names = (part, f"{part}_lowest_run", f"{part}_highest_run")
    if getattr(result.median, part) is None:
        return dict.fromkeys(names)
    runs = [100 * getattr(run.precision, part) for run in result.runs]
    between, each = extent(runs, "–", number), ", ".join(map(number, runs))
    hint = "one run" if len(runs) == 1 else f"runs: {each}; from {number(min(runs))} to {number(max(runs))}"
    small = between if part == "ap" and "–" in between else ""
    conditions = (result.set, result.data_checksum, result.schedule, result.settings)
    median = Cell(100 * getattr(result.median, part), rivals=conditions, small=small, hint=hint)
    return dict(zip(names, (median, min(runs), max(runs)), strict=True))
