"""vivi report: results as one page and as files, to be opened from the disk without a server or a network.

    results/*.json ──▶ sections ──▶ out/tables/, out/figures/, out/pictures/ ──▶ out/index.html
    the paper's CSVs ──┘                  runs, a corpus, encoders ──▶ out/runs/, out/frames/

index.html is replaced last and in one step; then the files are removed that only the one before referred to.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console

from vivi.evaluate.results import AnyResult, DetectionResult, Result, RobustResult, plain, read_all
from vivi.prepare.corpus import Corpus
from vivi.report import detection, robust
from vivi.report.boards import Board, comparable, difference, leader, make_boards, mean, shared_tasks
from vivi.report.classifiers import classifiers_section
from vivi.report.curves import curves, run_names
from vivi.report.neighbours import look
from vivi.report.options import ReportOptions
from vivi.report.paper import paper_rows
from vivi.report.sections import Section, copy_png
from vivi.report.strips import write_strips
from vivi.report.table import write_table
from vivi.report.transfer import board_section
from vivi.report.writing import check_free, unwritable_named, write_html
from vivi.runtime.errors import UserError, require
from vivi.runtime.storage import locked

STRIPS = 4
_RUN_PICTURES = ("curves.png", "augmented.png")


@dataclass(frozen=True)
class Found:
    """The results by the sections they belong to."""

    boards: list[Board]
    classifiers: list[Result]
    robust: list[RobustResult]
    detection: list[DetectionResult]


def write_report(results: Path | None, out: Path, options: ReportOptions, console: Console) -> Path:
    """Writes the page of a folder of results, or of training runs alone, into the folder `out` and returns its
    index.html."""
    if results is None and not options.runs:
        raise UserError("there is nothing to show; give the --out of a vivi evaluate, or runs")
    found, problems = _read(results, options) if results else (Found([], [], [], []), [])
    _check(options, found.boards)
    index = check_free(out, "vivi report")
    with unwritable_named(out), locked(out, "vivi report"):
        sections = _sections(found, results or Path(), out, options)
        problems += [problem for section in sections for problem in section.problems]
        for problem in problems:
            console.print(f"skipped: {problem}", soft_wrap=True, markup=False, highlight=False)
        for each in (part for section in sections for part in (section, *section.parts)):
            for table in each.tables:
                write_table(table, out / "tables")
        links = [(section.key, section.label or section.title) for section in sections]
        paths = [results.resolve()] if results else [run.resolve() for run in options.runs]
        data = {"paths": paths, "problems": problems, "links": links, "sections": sections}
        headline = _headline(found.boards[0]) if found.boards and found.boards[0].rows else None
        write_html(index, "report.html", **data, found=found, headline=headline)
    return index


def _read(folder: Path, options: ReportOptions) -> tuple[Found, list[str]]:
    """The results in a folder, each once, and a line for each file that is no result, or another's again."""
    results, problems = read_all(folder)
    if not results and (folder / "corpus.json").exists():
        raise UserError(f"{folder} is a corpus: vivi inspect {folder} shows it; give the --out of a vivi evaluate")
    if not results:
        why = f" (of {len(problems)} files the first: {problems[0]})" if problems else ""
        raise UserError(f"there are no results in {folder}{why}; give the --out of a vivi evaluate")
    first: dict[tuple[str, str, str], AnyResult] = {}
    for result in results:
        of = result.task if isinstance(result, Result) else result.set
        how = [str(getattr(result, name, "")) for name in ("benchmark", "protocol", "schedule")]
        kind = " ".join(filter(None, [*how, "quick" * getattr(result, "quick", False)]))
        if first.setdefault((result.encoder, of, kind), result) is not result:
            problems.append(f"{result.encoder} on {of} ({kind}) is there twice; the first file by name counts")
    accuracies = [result for result in first.values() if isinstance(result, Result)]
    transfers = [result for result in accuracies if result.benchmark != "classifier"]
    found = Found(
        make_boards(transfers, options.paper, options.baseline),
        [result for result in accuracies if result.benchmark == "classifier"],
        robust.in_order([result for result in first.values() if isinstance(result, RobustResult)]),
        sorted((result for result in first.values() if isinstance(result, DetectionResult)), key=detection.place),
    )
    return found, problems


def _check(options: ReportOptions, boards: Sequence[Board]) -> None:
    """Raises, before any work, for what cannot be shown."""
    if len(options.compare) not in (0, 2) or len({*options.compare}) < len(options.compare):
        raise UserError(f"--compare takes two different names, not {' '.join(options.compare)!r}")
    names = {row.name for board in boards for row in (*board.rows, *board.paper)}
    for flag, name in (("--baseline", options.baseline), *(("--compare", name) for name in options.compare)):
        if name and name not in names:
            raise UserError(f"{flag}: there is no '{name}'{_hint(name, names, options.paper)}")
    for run in (*options.encoders, *(run / "recipe.json" for run in options.runs)):
        require(run.exists(), f"there is no {run}; give the --out of a vivi train")
    if options.encoders and options.corpus is None:
        raise UserError("--encoders shows nearest neighbours among the frames of a corpus: give --corpus as well")


def _hint(name: str, names: set[str], paper: bool) -> str:
    if not paper and any(name == row.method for table in ("v1", "v2") for row in paper_rows(table)):
        return " without the paper's rows: leave --no-paper away"
    close = difflib.get_close_matches(name.lower(), [known.lower() for known in names], n=1, cutoff=0.4)
    likely = [known for known in sorted(names) if known.lower() in close]
    return f"; did you mean '{likely[0]}'?" if likely else f"; there are {', '.join(sorted(names)[:8])}"


def _sections(found: Found, source: Path, out: Path, options: ReportOptions) -> list[Section]:
    """Those of results, then what is asked for, then the paper's other tables, where there are results."""
    boards = [(board, board_section(board, options.compare, options.baseline, out)) for board in found.boards]
    sections = [section for board, section in boards if board.rows]
    if found.classifiers:
        sections.append(classifiers_section(found.classifiers))
    if found.robust:
        sections.append(robust.robust_section(found.robust, source, out, options.paper))
    if found.detection:
        sections.append(detection.detection_section(found.detection, source, out, options.paper))
    shown = [section.key for section in sections for table in section.tables if table.view("page")[2]]
    if parts := [section for board, section in boards if not board.rows]:
        sections.append(Section("paper", "The paper’s results", "folded.html", parts=parts))
    if options.runs:
        sections.append(_training(options.runs, out))
    if options.corpus:
        corpus = Corpus(options.corpus)
        held_out = corpus.videos.filter(pc.equal(corpus.videos["split"], "test"))
        strips = {"strips": write_strips(corpus, held_out, STRIPS, 0, out), "corpus": options.corpus}
        sections.append(Section("strips", "Film strips", "strips.html", data=strips))
    if options.corpus and options.encoders:
        seen = [*look(options.encoders, options.corpus, out)]
        sections.append(Section("neighbours", "Nearest neighbours", "neighbours.html", data=seen))
        sections.append(Section("map", "Map of frames", "map.html", data=seen))
    if found.boards and options.paper:
        elsewhere = {"robust": "vid_robust", "detection": "coco_ap"}
        others = {"autoaugment", "coco_ap", "vid_robust"} - {elsewhere.get(key) for key in shown}
        tables = {name: paper_rows(name) for name in others}
        folded = Section("", "The paper’s other tables", "other.html", data=tables)
        sections.append(Section("other", "Beyond VTAB", "folded.html", parts=[folded]))
    return sections


def _training(runs: Sequence[Path], out: Path) -> Section:
    """Copies the pictures of runs, which may come from others: links might lead to anything of this machine's."""
    names, shown, problems = run_names(runs), [], []
    for number, (name, run) in enumerate(zip(names, runs, strict=True), start=1):
        pictures = {}
        folder = f"runs/{number}-{plain(name)}"
        for file in _RUN_PICTURES:
            is_link = (run / file).is_symlink()
            if not is_link and not (run / file).exists():
                continue
            link = "it is a link, which is not followed"
            if problem := link if is_link else copy_png(run, file, out / folder / file):
                problems.append(f"{run / file}: {problem}")
            else:
                pictures[file] = f"{folder}/{file}"
        shown.append({"name": name, "pictures": pictures})
    data = {"pictures": shown, "curves": {"runs": names, "panels": curves(runs)}}
    return Section("training", "Training", "training.html", problems=problems, data=data)


def _headline(board: Board) -> dict[str, Any]:
    """The best on a board, and how much the best but the baseline gains over it."""
    shared = shared_tasks(comparable(board.rows, board.counted), board.counted)
    best, winner, baseline = leader(board, with_baseline=True), leader(board), board.baseline
    return {
        "board": board,
        "best": best,
        "mean": mean(best, shared) if best else None,
        "winner": winner,
        "gain": difference(winner, baseline, shared) if winner and baseline and winner is not baseline else None,
    }
