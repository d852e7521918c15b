"""The section of classifiers: top-1 and top-5 accuracy on the images they were tested on."""

from __future__ import annotations

from collections.abc import Sequence

from vivi.evaluate.results import Result
from vivi.report.sections import Section, differing
from vivi.report.table import Cell, Cells, Table

COLUMNS = {"method": "Model", "test_set": "Test set", "top1": "Top-1", "top5": "Top-5", "images": "Images"}


def classifiers_section(results: Sequence[Result]) -> Section:
    """A table, by test set, the best first."""
    about = "Test accuracy in percent: the label is the classifier’s first guess, or among its first five"
    if any(result.unreadable for result in results):
        about += "; images that cannot be read do not count"
    ordered = sorted(results, key=lambda result: (result.title, result.task, -result.score.median, result.encoder))
    table = Table("classifiers", "Classifiers", f"{about}.", COLUMNS, [*map(_row, ordered)])
    images = ((result.title, result.data_checksum) for result in ordered)
    warnings = differing(images, "the classifiers were not tested on the same images")
    return Section("classifiers", table.title, "classifiers.html", tables=[table], warnings=warnings)


def _row(result: Result) -> Cells:
    # Of five classes all are among the first five guesses, and there is no top-5.
    top5 = None if result.top5 is None else 100 * result.top5
    unreadable = f"{result.unreadable:,} unreadable" if result.unreadable else ""
    return {
        "method": result.encoder,
        "test_set": result.title,
        "top1": Cell(100 * result.score.median, rivals=result.task),
        "top5": Cell(top5, rivals=result.task),
        "images": Cell(result.images.get("test", 0), small=unreadable, hint="; ".join(result.notes)),
        "unreadable": result.unreadable,
        "classes": result.classes,
        "data_checksum": result.data_checksum,
    }
