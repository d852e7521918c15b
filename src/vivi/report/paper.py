"""The paper's own numbers as typed data. Accuracies are in percent, as printed: rounded to one digit."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from vivi.evaluate.tasks import VTAB

Table = Literal["v1", "v2", "full"]
_FILES: dict[Table, str] = {"v1": "vtab_v1_1000", "v2": "vtab_v2_1000", "full": "vtab_v1_full"}


@dataclass(frozen=True)
class PaperRow:
    """A method's accuracy on each of the 19 tasks, and the mean that the paper prints: of numbers not yet rounded."""

    method: str
    accuracies: dict[str, float]
    printed_mean: float


@dataclass(frozen=True)
class Summary:
    """A row of the paper's summaries: the mean, what it gains over its section's baseline, the groups' means."""

    method: str
    mean: float
    groups: dict[str, float]
    difference: float | None = None


@dataclass(frozen=True)
class PaperShare:
    """An accuracy and its interval."""

    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class PaperRobust:
    """A row of the paper's table of ImageNet-Vid-Robust: on anchors, on the worst of the frames around, the drop."""

    model: str
    anchors: PaperShare
    perturbed: PaperShare
    drop: float


@dataclass(frozen=True)
class OtherTable:
    """A table of the paper that is not about VTAB's tasks: shown as it is."""

    name: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def paper_rows(table: Table) -> list[PaperRow]:
    """The rows of a table in the paper's order, by its mean from low to high."""
    return [
        PaperRow(line["method"], {task.name: float(line[task.name]) for task in VTAB}, float(line["mean"]))
        for line in _read(_FILES[table])
    ]


def summary_rows(name: Literal["table1", "table1_v2", "groups_v2"]) -> list[Summary]:
    """Table 1 (Version 1), the same of Version 2, or the means of all methods of Version 2, as printed."""
    return [
        Summary(
            line["method"],
            float(line["mean"]),
            {group: float(line[group]) for group in ("natural", "specialized", "structured")},
            float(line["difference"]) if line.get("difference") else None,
        )
        for line in _read(name)
    ]


def robust_rows() -> list[PaperRobust]:
    """Robustness on ImageNet-Vid-Robust, as printed."""

    def share(line: dict[str, str], kind: str) -> PaperShare:
        names = (f"accuracy_{kind}", f"{kind}_low", f"{kind}_high")
        return PaperShare(*(float(line[name]) for name in names))

    return [
        PaperRobust(line["model"], share(line, "original"), share(line, "perturbed"), float(line["drop"]))
        for line in _read("vid_robust")
    ]


def detection_rows() -> list[tuple[str, float]]:
    """The pre-training of RetinaNet's backbone, and AP on COCO 2017, as printed."""
    return [(line["backbone_pretraining"], float(line["ap"])) for line in _read("coco_ap")]


def other_tables(without: Collection[str] = ()) -> list[OtherTable]:
    """AutoAugment, object detection and robustness to neighbouring frames; `without` those shown elsewhere."""
    augmentation = _read("autoaugment")
    methods = [name for name in augmentation[0] if name != "augmentation"]
    names = {"inception": "Inception", "autoaugment": "AutoAugment"}

    def bracketed(share: PaperShare) -> str:
        return f"{share.accuracy:.1f} [{share.low:.1f}, {share.high:.1f}]"

    tables = [
        OtherTable(
            "autoaugment",
            "Frames augmented as for Inception, or by AutoAugment: VTAB Version 1 mean with 1000 examples",
            ("Method", *(names.get(line["augmentation"], line["augmentation"]) for line in augmentation)),
            tuple((method, *(line[method] for line in augmentation)) for method in methods),
        ),
        OtherTable(
            "coco_ap",
            "Object detection: RetinaNet on COCO 2017, by the pre-training of its backbone; median of 3 runs",
            ("Backbone", "AP"),
            tuple((backbone, f"{ap:.1f}") for backbone, ap in detection_rows()),
        ),
        OtherTable(
            "vid_robust",
            "ImageNet-Vid-Robust: accuracy on anchor frames, on the worst of the 20 frames around each, and how much "
            "is lost (less is better); in brackets Clopper–Pearson intervals",
            ("Model", "Original", "Perturbed", "Lost"),
            tuple(
                (row.model, bracketed(row.anchors), bracketed(row.perturbed), f"{row.drop:.1f}")
                for row in robust_rows()
            ),
        ),
    ]
    return [table for table in tables if table.name not in without]


@cache
def _read(name: str) -> list[dict[str, str]]:
    text = (files("vivi") / "paper" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))
