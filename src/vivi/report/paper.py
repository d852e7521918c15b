"""The paper's own numbers as typed data. Accuracies are in percent, as printed: rounded to one digit."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from vivi.transfer.tasks import VTAB

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


def other_tables() -> list[OtherTable]:
    """AutoAugment, object detection and robustness to neighbouring frames."""
    augmentation = _read("autoaugment")
    methods = [name for name in augmentation[0] if name != "augmentation"]
    names = {"inception": "Inception", "autoaugment": "AutoAugment"}
    robust = [
        (
            line["model"],
            f"{line['accuracy_original']} [{line['original_low']}, {line['original_high']}]",
            f"{line['accuracy_perturbed']} [{line['perturbed_low']}, {line['perturbed_high']}]",
            line["drop"],
        )
        for line in _read("vid_robust")
    ]
    return [
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
            tuple((line["backbone_pretraining"], line["ap"]) for line in _read("coco_ap")),
        ),
        OtherTable(
            "vid_robust",
            "ImageNet-Vid-Robust: accuracy on anchor frames, on the worst of the 20 frames around each, and how much "
            "is lost (less is better); in brackets Clopper–Pearson intervals",
            ("Model", "Original", "Perturbed", "Lost"),
            tuple(robust),
        ),
    ]


@cache
def _read(name: str) -> list[dict[str, str]]:
    text = (files("vivi") / "paper" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))
