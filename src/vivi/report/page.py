"""vivi report: results as one page and as files, to be opened from the disk without a server or a network.

    results/*.json ──▶ sections ──▶ out/tables/, out/figures/, out/pictures/ ──▶ out/index.html
    the paper's CSVs ──┘      runs, a corpus, encoders ──▶ out/runs/, out/frames/, out/neighbours/

index.html is replaced last and in one step; then the files of sections that are no more are removed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console

from vivi.evaluate.detection.result import DetectionResult
from vivi.evaluate.results import Result, plain, read_all
from vivi.evaluate.tasks import VTAB
from vivi.evaluate.vid_robust.result import RobustResult
from vivi.prepare.corpus import Corpus
from vivi.report.boards import Board, comparable, difference, leader, make_boards, mean, shared_tasks
from vivi.report.classifiers import classifiers_section, pick_classifiers
from vivi.report.detection import detection_section, pick_detection
from vivi.report.neighbours import draw_neighbours
from vivi.report.options import ReportOptions
from vivi.report.paper import other_tables, paper_rows
from vivi.report.robust import CURVES, percent, pick_robust, robust_section
from vivi.report.sections import PICTURES, Picture, Section, whole_png
from vivi.report.strips import Strip, remove_stale_thumbnails, write_strips
from vivi.report.table import write_table
from vivi.report.transfer import board_section
from vivi.report.writing import check_free, unwritable_named, write_html
from vivi.runtime.errors import UserError
from vivi.runtime.storage import locked, write_atomically

STRIPS = 4
_RUN_PICTURES = {"curves.png": "Curves", "augmented.png": "Augmented frames"}
_OURS = re.compile(
    r"(vtab|knn|linear)-(v1|v2|full)(-quick)?-(summary|tasks|groups|differences)(-dark)?\.\w+"
    r"|(classifiers|robust|robust-curves|detection)\.(csv|md|tex)|robust-\d+[-a-z0-9]*\.(png|svg)"
)
_COPIES = re.compile(r"(robust|detection)-\d+[-a-z0-9]*\.png")
_KINDS = {"vtab": "fine-tuning", "knn": "a kNN probe", "linear": "a linear probe"}
_SHORT_KINDS = {"vtab": "VTAB", "knn": "kNN", "linear": "linear"}


@dataclass(frozen=True)
class Picked:
    """The results by the section they belong to, and a line for each that is there twice."""

    boards: list[Board]
    classifiers: list[Result]
    robust: list[RobustResult]
    detection: list[DetectionResult]
    problems: list[str]


def write_report(results: Path, out: Path, options: ReportOptions, console: Console) -> Path:
    """Writes the page of a folder of results into the folder `out` and returns its index.html."""
    picked = _pick(results, options)
    _check(options, picked.boards)
    index = check_free(out, "vivi report")
    with unwritable_named(out), locked(out, "vivi report"):
        sections, problems = _result_sections(picked, results, out, options)
        more, strips, no_pictures = _other_sections(options, out)
        problems = [*picked.problems, *problems, *no_pictures]
        for problem in problems:
            console.print(f"skipped: {problem}", soft_wrap=True, markup=False, highlight=False)
        sections = [*sections, *more, *_papers_other_tables(sections, options)]
        for section in _with_parts(sections):
            for table in section.tables:
                write_table(table, out / "tables")
        write_html(
            index,
            "report.html",
            name=results.resolve().name or str(results),
            path=results.resolve(),
            problems=problems,
            sections=sections,
            links=[(section.key, section.label or section.title) for section in sections],
            has_strips=bool(strips),
            **_headline(picked),
        )
        _remove_stale(out, sections)
        remove_stale_thumbnails(out, strips)
    return index


def _pick(folder: Path, options: ReportOptions) -> Picked:
    results, problems = read_all(folder)
    if not results:
        why = f" (of {len(problems)} files the first: {problems[0]})" if problems else ""
        raise UserError(f"there are no results in {folder}{why}; give the --out of a vivi evaluate")
    accuracies = [result for result in results if isinstance(result, Result)]
    classifiers, classifiers_twice = pick_classifiers(accuracies)
    robust, robust_twice = pick_robust([result for result in results if isinstance(result, RobustResult)])
    detection, detection_twice = pick_detection([r for r in results if isinstance(r, DetectionResult)])
    transfers = [result for result in accuracies if result.benchmark != "classifier"]
    boards, boards_twice = make_boards(transfers, options.paper, options.baseline)
    problems += [*classifiers_twice, *robust_twice, *detection_twice, *boards_twice]
    return Picked(boards, classifiers, robust, detection, problems)


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


# --- sections ---


def _result_sections(
    picked: Picked, source: Path, out: Path, options: ReportOptions
) -> tuple[list[Section], list[str]]:
    """The sections of results, and a line for each picture that cannot be shown."""
    sections, problems = [], []
    boards = [board_section(board, options.compare, options.baseline, out) for board in picked.boards]
    sections += [section for section, board in zip(boards, picked.boards, strict=True) if board.rows]
    if picked.classifiers:
        sections.append(classifiers_section(picked.classifiers))
    if picked.robust:
        section, no_pictures = robust_section(picked.robust, source, out, options.paper)
        sections.append(section)
        problems += no_pictures
    if picked.detection:
        section, no_pictures = detection_section(picked.detection, source, out, options.paper)
        sections.append(section)
        problems += no_pictures
    paper_only = [section for section, board in zip(boards, picked.boards, strict=True) if not board.rows]
    if paper_only:
        sections.append(Section("paper", "The paper’s results", "folded.html", parts=tuple(paper_only)))
    return sections, problems


def _other_sections(options: ReportOptions, out: Path) -> tuple[list[Section], list[Strip], list[str]]:
    """Training curves, film strips and nearest neighbours, where they are asked for."""
    sections: list[Section] = []
    strips: list[Strip] = []
    runs, problems = _copy_runs(options.runs, out)
    if runs:
        sections.append(Section("training", "Training", "training.html", data=runs))
    if options.corpus:
        corpus = Corpus(options.corpus)
        held_out = corpus.videos.filter(pc.equal(corpus.videos["split"], "test"))
        strips = write_strips(corpus, held_out, STRIPS, 0, out)
        data = {"strips": strips, "corpus": options.corpus}
        sections.append(Section("strips", "Film strips", "strips.html", data=data))
    if options.corpus and options.encoders:
        sheets = tuple(_neighbours(options.encoders, options.corpus, out))
        sections.append(Section("neighbours", "Nearest neighbours", "neighbours.html", pictures=sheets))
    return sections, strips, problems


def _papers_other_tables(sections: Sequence[Section], options: ReportOptions) -> list[Section]:
    """The paper's tables that are not about VTAB, but those whose rows stand beside ours."""
    files = {"robust": "vid_robust", "detection": "coco_ap"}
    elsewhere = [files[section.key] for section in sections if section.key in files and section.tables[0].paper]
    tables = other_tables(without=elsewhere) if options.paper else []
    if not tables:
        return []
    folded = Section("", "The paper’s other tables", "other.html", data=tables)
    return [Section("other", "Beyond VTAB", "folded.html", parts=(folded,))]


def _copy_runs(runs: Sequence[Path], out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Copies the pictures of runs; and a line for each that is none, as runs may come from others."""
    shown, problems = [], []
    for number, run in enumerate(runs, start=1):
        name = run.resolve().name
        folder = out / "runs" / f"{number}-{plain(name)}"
        folder.mkdir(parents=True, exist_ok=True)
        pictures = []
        for file, what in _RUN_PICTURES.items():
            try:
                if (run / file).is_symlink():  # it might lead to anything of this machine's
                    raise ValueError("it is a link, which is not followed")
                if (run / file).exists():
                    write_atomically(folder / file, whole_png(run, file), sync=False)
                    pictures.append((f"runs/{folder.name}/{file}", what))
            except (OSError, ValueError) as error:
                problems.append(f"{run / file}: {getattr(error, 'strerror', None) or error}")
        shown.append({"name": name, "pictures": pictures})
    return shown, problems


def _neighbours(encoders: Sequence[Path], corpus: Path, out: Path) -> Iterator[Picture]:
    from vivi.model.encoder import load_encoder
    from vivi.model.files import read_encoder

    (out / "neighbours").mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(encoders, start=1):
        architecture, _ = read_encoder(run)
        encoder, _ = load_encoder(run)
        name = run.resolve().name if run.is_dir() else run.resolve().parent.name
        path = f"neighbours/{number}-{plain(name)}.png"
        about = (architecture.size, architecture.mean, architecture.std)
        yield Picture(name, path, draw_neighbours(encoder, *about, corpus, out / path))


# --- the head of the page ---


def _headline(picked: Picked) -> dict[str, Any]:
    """What the head of the page says, in numbers."""
    ours = [board for board in picked.boards if board.rows]
    robust, detection = picked.robust, picked.detection
    return {
        "boards": _boards_headline(ours) if ours else None,
        "classifiers": len({result.encoder for result in picked.classifiers}),
        "robust": _best_of(robust, percent(robust[0].curve.strict[-1])) if robust else None,
        "detection": _best_of(detection, 100 * detection[0].median.ap) if detection else None,
    }


def _best_of(results: Sequence[RobustResult] | Sequence[DetectionResult], accuracy: float | None) -> dict[str, Any]:
    """The first is the best of the first set."""
    models, sets = len({result.encoder for result in results}), len({result.set for result in results})
    return {"best": results[0], "accuracy": accuracy, "models": models, "sets": sets}


def _boards_headline(boards: Sequence[Board]) -> dict[str, Any]:
    """The best of the first board, and how many of everything there are."""
    board = boards[0]
    best, winner = leader(board, with_baseline=True), leader(board)
    shared = shared_tasks(comparable(board.shown, board.counted), board.counted)
    whole = mean(best, shared) if best else None
    gain = difference(winner, board.baseline, shared) if winner and board.baseline else None
    tasks = {column.task for each in boards for column in each.columns}
    rows = [row for each in boards for row in each.rows]
    return {
        "best": {"name": best.name, "mean": whole, "where": board.label, "total": board.total}
        if best and whole
        else None,
        "gain": {"name": winner.name, "baseline": board.baseline.name, "difference": gain, "shared": len(shared)}
        if winner and board.baseline and gain
        else None,
        "encoders": len({row.name for row in rows}),
        "tasks": len(tasks),
        "own": len(tasks - {task.name for task in VTAB}),
        "seeds": sorted({len(accuracy.seeds) for row in rows for accuracy in row.cells.values()}),
        "boards": len(boards),
        "kinds": [*dict.fromkeys(_KINDS[each.benchmark] for each in boards)],
        "benchmarks": sorted({_SHORT_KINDS[each.benchmark] for each in boards}),
        "baselines": sorted({each.baseline.name for each in boards if each.baseline}),
    }


# --- files of earlier pages ---


def _with_parts(sections: Sequence[Section]) -> Iterator[Section]:
    for section in sections:
        yield section
        yield from section.parts


def _remove_stale(out: Path, sections: Sequence[Section]) -> None:
    """Removes tables, figures and pictures of an earlier page; what others put into the folders stays."""
    shown = [*_with_parts(sections)]
    wanted = {file for section in shown for table in section.tables for file in table.files.values()}
    wanted |= {file for section in shown for figure in section.figures for file in figure.files}
    wanted |= {CURVES for section in shown if section.key == "robust"}
    wanted |= {Path(picture.path).name for section in shown for picture in section.pictures}
    for folder, ours in (("tables", _OURS), ("figures", _OURS), (PICTURES, _COPIES)):
        for path in (out / folder).glob("*"):
            if ours.fullmatch(path.name) and path.name not in wanted:
                path.unlink(missing_ok=True)
