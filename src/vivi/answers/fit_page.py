"""The page about a classifier: how often it is right, class by class, what it confuses, and its worst mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vivi.answers.embeddings import Row
from vivi.answers.footage import ImageFootage
from vivi.answers.page import Frames, Section
from vivi.data.splits import LabelledSplit
from vivi.evaluate.results import wilson
from vivi.report.table import Cell, Cells, Table, write_table
from vivi.report.writing import check_free, unwritable_named, write_html

if TYPE_CHECKING:
    from vivi.answers.classify import Fitted

MISTAKES = 24
_MATRIX = 30  # classes at most, of which a matrix can be looked at
_PAIRS = 25


def write_fit_page(out: Path, fitted: Fitted, split: LabelledSplit, encoder: str) -> Path:
    """Writes index.html and tables/ into the classifier's folder."""
    index = check_free(out, "vivi classify")
    confusion = confusion_matrix(fitted.labels, fitted.probabilities.argmax(dim=1), len(fitted.classes))
    tables = [table for table in (_class_table(fitted, confusion), _pair_table(fitted, confusion)) if table.rows]
    with unwritable_named(out):
        mistakes = _mistakes(out, fitted, split)
        for table in tables:
            write_table(table, out / "tables")
        write_html(
            index,
            "classifier.html",
            command="vivi classify",
            title=f"{split.name}, by {encoder}",
            intro=f"{split.summary()}. {fitted.how[0].upper()}{fitted.how[1:]}.",
            fitted=fitted,
            tables=tables,
            matrix=confusion.tolist() if len(fitted.classes) <= _MATRIX else None,
            sections=[mistakes],
        )
    return index


def confusion_matrix(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """(classes, classes): how many images of each class (row) are taken for each class (column)."""
    return torch.bincount(classes * labels + predicted, minlength=classes**2).view(classes, classes)


def _class_table(fitted: Fitted, confusion: Tensor) -> Table:
    """Each class with its accuracy, the worst first."""
    counts, right = confusion.sum(dim=1).tolist(), confusion.diagonal().tolist()
    guesses = confusion.sum(dim=0).tolist()
    shares = [100 * hits / count if count else None for hits, count in zip(right, counts, strict=True)]
    rows: list[Cells] = []
    for label in sorted(range(len(counts)), key=lambda label: right[label] / max(counts[label], 1)):
        low, high = wilson(right[label] / counts[label], counts[label]) if counts[label] else (0.0, 1.0)
        row: Cells = {"class": fitted.classes[label], "accuracy": Cell(shares[label], rivals=None)}
        row |= {
            "interval": f"{100 * low:.0f} to {100 * high:.0f}",
            "images": counts[label],
            "guesses": guesses[label],
        }
        rows.append(row)
    columns = {
        "class": "Class",
        "accuracy": "Accuracy (%)",
        "interval": "95 % interval",
        "images": "Test images",
        "guesses": "Times guessed",
    }
    return Table("classes", "Classes", "Of the test images of each class, how many are recognised.", columns, rows)


def _pair_table(fitted: Fitted, confusion: Tensor) -> Table:
    """The pairs of classes that are confused most often."""
    wrong = confusion.clone().fill_diagonal_(0)
    counts, places = wrong.flatten().sort(descending=True, stable=True)
    pairs: list[Cells] = [
        {"class": fitted.classes[place // len(wrong)], "taken": fitted.classes[place % len(wrong)], "images": count}
        for count, place in zip(counts[:_PAIRS].tolist(), places[:_PAIRS].tolist(), strict=True)
        if count
    ]
    columns = {"class": "Class", "taken": "Taken for", "images": "Test images"}
    return Table("confused", "Confused most often", "Images of one class that are taken for another.", columns, pairs)


def _mistakes(out: Path, fitted: Fitted, split: LabelledSplit) -> Section:
    """The test images that are wrong with the most certainty."""
    certainty, predicted = fitted.probabilities.max(dim=1)
    wrong = torch.nonzero(predicted != fitted.labels).flatten().tolist()
    worst = sorted(wrong, key=lambda image: -float(certainty[image]))[:MISTAKES]
    footage = ImageFootage(split.test)
    frames = Frames(footage, out)
    shots = []
    for image in worst:
        name, path = footage.video(image)[0], str(split.test.path(image).resolve())
        true, taken = fitted.classes[int(fitted.labels[image])], fitted.classes[int(predicted[image])]
        note = f"{true}, taken for {taken} ({100 * float(certainty[image]):.0f} %)"
        shots.append(frames.show(Row(image, name, 0, 0, 0.0, path), note))
    intro = "Wrong with the most certainty: mistakes of the classifier, or of the labels."
    return Section("Worst mistakes", intro if shots else "There is none.", shots)
