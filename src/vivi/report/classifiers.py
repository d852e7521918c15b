"""Classifiers side by side: top-1 and top-5 accuracy on the images they were tested on, as files and as HTML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

from vivi.report.board_html import file_links, scroll, table_cell
from vivi.report.boards import one_digit
from vivi.report.tables import FORMATS, Entry, Sheet, comma_separated, exact, latex, markdown, number
from vivi.storage import write_atomically
from vivi.transfer.results import Result

TITLE = "Classifiers"
HEAD = ("Model", "Test set", "Top-1", "Top-5", "Images")
FILES = tuple(f"classifiers.{suffix}" for suffix in FORMATS)


def pick_classifiers(results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """The results of classifiers, by test set, the best first; and a line for each that is there twice."""
    found: dict[tuple[str, str], Result] = {}
    problems = []
    for result in results:
        if result.benchmark != "classifier":
            continue
        if (result.encoder, result.task) in found:
            problems.append(
                f"the classifier of {result.encoder} on {result.task} is there twice; the first file by name counts"
            )
        found.setdefault((result.encoder, result.task), result)
    return sorted(found.values(), key=lambda r: (r.title, r.task, -r.score.median, r.encoder)), problems


def write_classifiers(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes the table in every format."""
    folder.mkdir(parents=True, exist_ok=True)
    sheet = classifiers_sheet(results)
    paths = [folder / file for file in FILES]
    for path, content in zip(paths, (classifiers_csv(results), markdown(sheet), latex(sheet)), strict=True):
        write_atomically(path, content.encode("utf-8", "replace"), sync=False)
    return paths


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
        return f'<tr><th scope="row"><bdi>{escape(result.encoder)}</bdi></th>{"".join(cells)}</tr>'

    head = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
    table = (
        f'<table class="results means"><caption><span>{_about(results)}. Best in bold.</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(map(line, results))}</tbody></table>"
    )
    said = "".join(f'<p class="warning">{escape(warning)}</p>' for warning in _warnings(results))
    return f"""<div class="board">{said}
<div class="card"><h3>Top-1 and top-5 {file_links(files)}</h3>{scroll(TITLE, table)}</div></div>"""


def _about(results: Sequence[Result]) -> str:
    said = "Test accuracy in percent: the label is the classifier’s first guess, or among its first five"
    return said + ("; images that cannot be read do not count" if any(r.unreadable for r in results) else "")


def _warnings(results: Sequence[Result]) -> list[str]:
    checksums: dict[str, set[str]] = defaultdict(set)
    for result in results:
        checksums[result.title].add(result.data_checksum)
    different = [title for title, found in checksums.items() if len(found) > 1]
    return [f"On {title}, the classifiers were not tested on the same images." for title in different]


def _bests(result: Result, results: Sequence[Result]) -> list[bool]:
    """Whether its top-1 and its top-5 are the highest, as printed, of several on its test set."""
    rivals = [_tops(other) for other in results if other.task == result.task]
    printed = [[one_digit(top) for top in column if top is not None] for column in zip(*rivals, strict=True)]
    return [
        top is not None and len(column) > 1 and one_digit(top) == max(column)
        for top, column in zip(_tops(result), printed, strict=True)
    ]


def _tops(result: Result) -> tuple[float, float | None]:
    """Top-1 and top-5 in percent; of five classes all are among the first five guesses, and there is no top-5."""
    return 100 * result.score.median, None if result.top5 is None else 100 * result.top5


def _shown(top: float | None) -> str:
    return "" if top is None else number(top)


def _images(result: Result) -> int:
    return result.images.get("test", 0)
