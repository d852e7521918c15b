"""vivi report: results as one page and as files, to be opened from the disk without a server or a network.

    results/*.json ──▶ boards and sections ──▶ out/tables/, out/figures/, out/pictures/ ──▶ out/index.html
    the paper's CSVs ──┘      runs, a corpus, encoders ──▶ out/runs/, out/frames/, out/neighbours/

index.html is replaced last and in one step; then the files of boards that are no more are removed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
from rich.console import Console

from vivi.evaluate.detection.result import DetectionResult
from vivi.evaluate.results import AnyResult, Result, plain, read_all
from vivi.evaluate.vid_robust.result import RobustResult
from vivi.prepare.corpus import Corpus
from vivi.report import detection, robust
from vivi.report.board_html import BoardView
from vivi.report.boards import Board, Row, leader, make_boards
from vivi.report.classifiers import pick_classifiers, write_classifiers
from vivi.report.figures import draw_differences, draw_groups
from vivi.report.folders import check_free, unwritable_named
from vivi.report.html import Content, ShownRun, render
from vivi.report.inspect.content import Strip, choose_videos, film_strip
from vivi.report.inspect.page import damaged_shards_named, remove_stale_thumbnails
from vivi.report.neighbours import NeighbourSheet, draw_neighbours
from vivi.report.options import ReportOptions
from vivi.report.paper import other_tables, paper_rows
from vivi.report.sections import PICTURES, Copied, whole_png
from vivi.report.tables import write_tables
from vivi.runtime.errors import UserError
from vivi.runtime.storage import locked, write_atomically

STRIPS = 4
PAPER_COMPARE = ("VIVI-Ex(4)", "Ex-ImageNet")
_PICTURES = {"curves.png": "Curves", "augmented.png": "Augmented frames"}
_OURS = re.compile(
    r"(vtab|knn|linear)-(v1|v2|full)(-quick)?-(summary|tasks|groups|differences)(-dark)?\.\w+"
    r"|(classifiers|robust|robust-curves|detection)\.(csv|md|tex)|robust-\d+[-a-z0-9]*\.png"
)
_COPIES = re.compile(r"(robust|detection)-\d+[-a-z0-9]*\.png")


def write_report(results: Path, out: Path, options: ReportOptions, console: Console) -> Path:
    """Writes the page of a folder of results into the folder `out` and returns its index.html."""
    found, problems = read_all(results)
    if not found:
        why = f" (of {len(problems)} files the first: {problems[0]})" if problems else ""
        raise UserError(f"there are no results in {results}{why}; give the --out of a vivi evaluate")
    picked = _pick(found)
    boards, doubles = make_boards(picked.transfers, options.paper, options.baseline)
    problems += [*picked.doubles, *doubles]
    _check(options, boards)
    index = check_free(out, "vivi report")
    with unwritable_named(out), locked(out, "vivi report"):
        frames, no_sheets = robust.write_robust(picked.robust, results, out, options.paper)
        boxes, no_boxes = detection.write_detection(picked.detection, results, out, options.paper)
        runs, no_pictures = _runs(options.runs, out)
        problems += [*no_sheets, *no_boxes, *no_pictures]
        for problem in problems:
            console.print(f"skipped: {problem}", soft_wrap=True, markup=False, highlight=False)
        views = [_view(board, options, out) for board in boards]
        elsewhere = ["vid_robust"] * bool(frames and frames.paper) + ["coco_ap"] * bool(boxes and boxes.paper)
        corpus = Corpus(options.corpus) if options.corpus else None
        strips = _strips(corpus, out / "frames") if corpus else []
        content = Content(
            results=results,
            views=views,
            classifiers=picked.classifiers,
            classifier_files=write_classifiers(picked.classifiers, out / "tables") if picked.classifiers else (),
            robust=frames,
            detection=boxes,
            problems=problems,
            others=other_tables(without=elsewhere) if options.paper else (),
            runs=runs,
            corpus=options.corpus,
            strips=strips,
            digits=_digits(corpus) if corpus else 0,
            neighbours=_neighbours(options, out / "neighbours"),
        )
        write_atomically(index, render(content).encode("utf-8", "replace"))
        _remove_stale(out, content)
        remove_stale_thumbnails(out / "frames", strips)
    return index


@dataclass(frozen=True)
class Picked:
    """The results by the section they belong to, and a line for each that is there twice."""

    transfers: list[Result]
    classifiers: list[Result]
    robust: list[RobustResult]
    detection: list[DetectionResult]
    doubles: list[str]


def _pick(found: Sequence[AnyResult]) -> Picked:
    accuracies = [result for result in found if isinstance(result, Result)]
    classifiers, twice = pick_classifiers(accuracies)
    frames, frames_twice = robust.pick_robust([result for result in found if isinstance(result, RobustResult)])
    boxes, boxes_twice = detection.pick_detection([r for r in found if isinstance(r, DetectionResult)])
    transfers = [result for result in accuracies if result.benchmark != "classifier"]
    return Picked(transfers, classifiers, frames, boxes, [*twice, *frames_twice, *boxes_twice])


def _check(options: ReportOptions, boards: Sequence[Board]) -> None:
    """Raises, before any work, for what cannot be shown."""
    if len(options.compare) not in (0, 2) or len({*options.compare}) < len(options.compare):
        raise UserError(f"--compare takes two different names, not {' '.join(options.compare)!r}")
    names = {row.name for board in boards for row in (*board.rows, *board.paper)}
    wanted = ([("--baseline", options.baseline)] if options.baseline else []) + [
        ("--compare", name) for name in options.compare
    ]
    for flag, name in wanted:
        if name not in names:
            raise UserError(f"{flag}: there is no '{name}'{_hint(name, names, options.paper)}")
    for run in (*options.runs, *options.encoders):
        if not run.exists():
            raise UserError(f"there is no run {run}")
    for run in options.runs:
        if not (run / "recipe.json").exists():
            raise UserError(f"--runs: {run} is no run, it has no recipe.json; give the --out of a vivi train")
    if options.encoders and options.corpus is None:
        raise UserError("--encoders shows nearest neighbours among the frames of a corpus: give --corpus as well")


def _hint(name: str, names: set[str], paper: bool) -> str:
    if not paper and any(name == row.method for table in ("v1", "v2") for row in paper_rows(table)):
        return " without the paper's rows: leave --no-paper away"
    close = difflib.get_close_matches(name.lower(), [known.lower() for known in names], n=1, cutoff=0.4)
    likely = [known for known in sorted(names) if known.lower() in close]
    return f"; did you mean '{likely[0]}'?" if likely else f"; there are {', '.join(sorted(names)[:8])}"


def _view(board: Board, options: ReportOptions, out: Path) -> BoardView:
    """Writes the files of a board."""
    figures = out / "figures"
    tables, groups = write_tables(board, out / "tables"), draw_groups(board, figures)
    first, second = _compared(board, options)
    if first and second:
        chart = draw_differences(board, first, second, figures)
        note = "" if chart else f"No chart of differences: {first.name} and {second.name} have no task in common."
    else:
        chart = None
        note = (
            "No chart of differences: not both of the rows to compare are on this board." if options.compare else ""
        )
    return BoardView(board, tables, groups, chart, note)


def _compared(board: Board, options: ReportOptions) -> tuple[Row | None, Row | None]:
    """The two rows of the chart of differences."""
    if options.compare:
        return board.find(options.compare[0]), board.find(options.compare[1])
    if not board.rows and not options.baseline:
        return board.find(PAPER_COMPARE[0]), board.find(PAPER_COMPARE[1])
    best = leader(board)
    return (best, board.baseline) if best is not board.baseline else (None, None)


def _runs(runs: Sequence[Path], out: Path) -> tuple[list[ShownRun], list[str]]:
    """Copies the pictures of runs; and a line for each that is none, as runs may come from others."""
    shown: list[ShownRun] = []
    problems: list[str] = []
    for number, run in enumerate(runs, start=1):
        name = run.resolve().name
        folder = out / "runs" / f"{number}-{plain(name)}"
        folder.mkdir(parents=True, exist_ok=True)
        pictures = []
        for file, what in _PICTURES.items():
            try:
                content = _picture(run, file)
            except (OSError, ValueError) as error:
                problems.append(f"{run / file}: {getattr(error, 'strerror', None) or error}")
                content = b""
            if content:
                write_atomically(folder / file, content, sync=False)
                pictures.append((f"runs/{folder.name}/{file}", what))
        shown.append(ShownRun(name, tuple(pictures)))
    return shown, problems


def _picture(run: Path, file: str) -> bytes:
    """A picture of a run, or nothing where there is none; a link might lead to anything of this machine's."""
    if (run / file).is_symlink():
        raise ValueError("it is a link, which is not followed")
    return whole_png(run, file) if (run / file).exists() else b""


def _strips(corpus: Corpus, frames: Path) -> list[Strip]:
    """Film strips of a few held-out videos."""
    frames.mkdir(parents=True, exist_ok=True)
    held_out = corpus.videos.filter(pc.equal(corpus.videos["split"], "test"))
    with damaged_shards_named(corpus):
        return [film_strip(corpus, row, frames) for row in choose_videos(held_out, STRIPS, seed=0)]


def _digits(corpus: Corpus) -> int:
    """Of the times of frames, so that neighbours differ."""
    rate = corpus.settings.get("rate", 1)
    return 0 if rate <= 1 else 1 if rate <= 10 else 2


def _neighbours(options: ReportOptions, folder: Path) -> list[NeighbourSheet]:
    sheets: list[NeighbourSheet] = []
    if not options.encoders or options.corpus is None:
        return sheets
    from vivi.model.encoder import load_encoder
    from vivi.model.files import read_encoder

    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(options.encoders, start=1):
        architecture, _ = read_encoder(run)
        encoder, _ = load_encoder(run)
        name = run.resolve().name if run.is_dir() else run.resolve().parent.name
        path = folder / f"{number}-{plain(name)}.png"
        about = (architecture.size, architecture.mean, architecture.std)
        sheets.append(draw_neighbours(encoder, *about, options.corpus, path, name))
    return sheets


def _remove_stale(out: Path, content: Content) -> None:
    """Removes tables, figures and pictures of an earlier page; what others put into the folders stays."""
    wanted = {path.name for view in content.views for paths in view.tables.values() for path in paths}
    wanted |= {path.name for path in content.classifier_files}
    drawn = [picture for view in content.views for picture in (view.groups, view.differences) if picture]
    copied: list[Copied] = []
    if content.robust:
        wanted |= {path.name for path in (*content.robust.tables, content.robust.curves)}
        drawn += content.robust.figures
        copied += content.robust.pictures
    if content.detection:
        wanted |= {path.name for path in content.detection.tables}
        copied += content.detection.pictures
    wanted |= {file for picture in drawn for file in (picture.file, picture.dark)}
    for folder in (out / "tables", out / "figures"):
        _keep(folder, _OURS, wanted)
    _keep(out / PICTURES, _COPIES, {Path(picture.path).name for picture in copied})


def _keep(folder: Path, ours: re.Pattern[str], wanted: set[str]) -> None:
    for path in folder.glob("*"):
        if ours.fullmatch(path.name) and path.name not in wanted:
            path.unlink(missing_ok=True)
