"""Classifiers side by side: top-1 and top-5 accuracy on the images they were tested on, as files and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from vivi.evaluate.results import Result
from vivi.report.board_html import file_links, table_cell
from vivi.report.sections import (
    first_of_each,
    is_best,
    row_html,
    table_html,
    unequal,
    warnings_html,
    write_sheet,
)
from vivi.report.tables import Entry, Sheet, comma_separated, exact, number

TITLE = "Classifiers"
HEAD = ("Model", "Test set", "Top-1", "Top-5", "Images")


def pick_classifiers(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """The results of classifiers, by test set, the best first; and a line for each that is there twice."""
    found, problems = first_of_each(
        [result for result in results if result.benchmark == "classifier"],
        lambda result: (result.encoder, result.task),
        lambda result: f"the classifier of {result.encoder} on {result.task}",
    )
    return sorted(found, key=lambda r: (r.title, r.task, -r.score.median, r.encoder)), problems


def write_classifiers(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes the table in every format."""
    return write_sheet("classifiers", classifiers_csv(results), classifiers_sheet(results), folder)


def classifiers_csv(results: Sequence[Result]) -> str:
    head = ["method", "test_set", "top1", "top5", "images", "unreadable", "classes", "data_checksum"]
    lines = [
        [
            *(result.encoder, result.title, *("" if top is None else exact(top) for top in _tops(result))),
            *(str(_images(result)), str(result.unreadable), str(result.classes), result.data_checksum),
        ]
        for result in results
    ]
    return comma_separated([head, *lines])


def classifiers_sheet(results: Sequence[Result]) -> Sheet:
    lines = [
        (
            Entry(result.encoder),
            Entry(result.title),
            *(Entry(_shown(top), "", best) for top, best in zip(_tops(result), _bests(result, results), strict=True)),
            Entry(f"{_images(result):,}"),
        )
        for result in results
    ]
    return Sheet(TITLE, f"{_about(results)}.", HEAD, tuple(lines), ())


def classifiers_html(results: Sequence[Result], files: Sequence[Path]) -> str:
    """Everything below the section's heading."""

    def line(result: Result) -> str:
        marked = zip(_tops(result), _bests(result, results), strict=True)
        tops = [table_cell(_shown(top), bold=best) for top, best in marked]
        unreadable = f"{result.unreadable:,} unreadable" if result.unreadable else ""
        cells = [
            table_cell(f"<bdi>{escape(result.title)}</bdi>"),
            *tops,
            table_cell(f"{_images(result):,}", unreadable, title="; ".join(result.notes)),
        ]
        return row_html(result.encoder, cells)

    table = table_html(TITLE, f"{_about(results)}. Best in bold.", HEAD, "".join(map(line, results)), "")
    return f"""<div class="board">{warnings_html(_warnings(results))}
<div class="card"><h3>Top-1 and top-5 {file_links(files)}</h3>{table}</div></div>"""


def _about(results: Sequence[Result]) -> str:
    said = "Test accuracy in percent: the label is the classifier’s first guess, or among its first five"
    return said + ("; images that cannot be read do not count" if any(r.unreadable for r in results) else "")


def _warnings(results: Sequence[Result]) -> list[str]:
    different = unequal((result.title, result.data_checksum) for result in results)
    return [f"On {title}, the classifiers were not tested on the same images." for title in different]


def _bests(result: Result, results: Sequence[Result]) -> list[bool]:
    """Whether its top-1 and its top-5 are the highest, as printed, of several on its test set."""
    rivals = [_tops(other) for other in results if other.task == result.task]
    return [is_best(top, column) for top, column in zip(_tops(result), zip(*rivals, strict=True), strict=True)]


def _tops(result: Result) -> tuple[float, float | None]:
    """Top-1 and top-5 in percent; of five classes all are among the first five guesses, and there is no top-5."""
    return 100 * result.score.median, None if result.top5 is None else 100 * result.top5


def _shown(top: float | None) -> str:
    return "" if top is None else number(top)


def _images(result: Result) -> int:
    return result.images.get("test", 0)
