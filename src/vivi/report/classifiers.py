"""The section of classifiers: top-1 and top-5 accuracy on the images they were tested on."""

from __future__ import annotations

from collections.abc import Sequence

from vivi.evaluate.results import Result
from vivi.report.sections import Section, first_of_each, is_best, unequal
from vivi.report.table import Cell, Column, Record, Row, Table, exact, number

TITLE = "Classifiers"


def pick_classifiers(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """The results of classifiers, by test set, the best first; and a line for each that is there twice."""
    first, problems = first_of_each(
        [result for result in results if result.benchmark == "classifier"],
        lambda result: (result.encoder, result.task),
        lambda result: f"the classifier of {result.encoder} on {result.task}",
    )
    return sorted(first, key=lambda r: (r.title, r.task, -r.score.median, r.encoder)), problems


def classifiers_section(results: Sequence[Result]) -> Section:
    about = "Test accuracy in percent: the label is the classifier’s first guess, or among its first five"
    if any(result.unreadable for result in results):
        about += "; images that cannot be read do not count"
    columns = tuple(map(Column, ("Model", "Test set", "Top-1", "Top-5", "Images")))
    rows = tuple(_row(result, results) for result in results)
    table = Table(
        "classifiers", TITLE, f"{about}.", f"{about}. Best in bold.", columns, rows, [*map(_record, results)]
    )
    different = unequal((result.title, result.data_checksum) for result in results)
    warnings = tuple(f"On {title}, the classifiers were not tested on the same images." for title in different)
    return Section("classifiers", TITLE, "classifiers.html", tables=(table,), warnings=warnings)


def _row(result: Result, results: Sequence[Result]) -> Row:
    rivals = [_tops(other) for other in results if other.task == result.task]
    columns = zip(_tops(result), zip(*rivals, strict=True), strict=True)
    unreadable = f"{result.unreadable:,} unreadable" if result.unreadable else ""
    return Row(
        (
            Cell(result.encoder),
            Cell(result.title),
            *(Cell(number(top), bold=is_best(top, column)) for top, column in columns),
            Cell(f"{result.images.get('test', 0):,}", small=unreadable, hint="; ".join(result.notes)),
        )
    )


def _record(result: Result) -> Record:
    top1, top5 = map(exact, _tops(result))
    return {
        "method": result.encoder,
        "test_set": result.title,
        "top1": top1,
        "top5": top5,
        "images": str(result.images.get("test", 0)),
        "unreadable": str(result.unreadable),
        "classes": str(result.classes),
        "data_checksum": result.data_checksum,
    }


def _tops(result: Result) -> tuple[float, float | None]:
    """Top-1 and top-5 in percent; of five classes all are among the first five guesses, and there is no top-5."""
    return 100 * result.score.median, None if result.top5 is None else 100 * result.top5
