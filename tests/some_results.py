"""Results of a few encoders, with hostile names, unequal tasks and own splits; the boards and pages made of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from browser import Page
from PIL import Image
from rich.console import Console

from vivi.evaluate.results import (
    Benchmark,
    DetectionResult,
    DetectorRun,
    Precision,
    Result,
    RobustResult,
    Score,
    Setting,
    write_result,
)
from vivi.evaluate.tasks import VTAB, Group
from vivi.evaluate.vid_robust.scores import Anchor, curve
from vivi.report.boards import Board, make_boards
from vivi.report.options import ReportOptions
from vivi.report.page import write_report

HOSTILE = "<script>alert(1)</script> | a_b & 50% $x^2$ {#1} \\end \"'`*~[0]"
ENCODERS = ("untrained net", HOSTILE, "vivi")
# Of each group some, and one that nobody knows.
TASKS = ("caltech101", "dtd", "svhn", "eurosat", "clevr_count", "dsprites_location")
SEEDS = 3


def a_result(
    encoder: str,
    task: str,
    accuracies: Sequence[float],
    benchmark: Benchmark = "vtab",
    title: str = "",
    **others: Any,
) -> Result:
    known = next((each for each in VTAB if each.name == task), None)
    group: Group = known.group if known else "own"
    setting = Setting(0.01, 2500) if benchmark == "vtab" else None
    score = Score(tuple(accuracies), setting, "best mean over tasks" if setting else "")
    title = title or (known.title if known else task)
    return Result(encoder, benchmark, "v1", task, title, group, 10, score, **others)


def some_results() -> list[Result]:
    """Three encoders; the last one has not yet all tasks. Numbers are from a generator, rounded as nothing is."""
    random = np.random.default_rng(0)
    results = []
    for strength, encoder in enumerate(ENCODERS):
        for task in (*TASKS, "own <b>&_%"):
            if encoder == "vivi" and task in ("svhn", "clevr_count"):
                continue
            seeds = 0.3 + 0.1 * strength + 0.2 * random.random() + 0.05 * random.random(SEEDS)
            split = "own split" if task == "dtd" else "lists"
            results.append(a_result(encoder, task, seeds.tolist(), split=split))
            if task in TASKS[:2]:
                results.append(a_result(encoder, task, (seeds - 0.1).tolist(), quick=True))
        results.append(a_result(encoder, "shapes", [0.5 + strength / 10], "knn", split="own split"))
    return results


def boards_of(results: Sequence[Result], paper: bool = False, baseline: str = "") -> list[Board]:
    return make_boards(results, paper, baseline)


def a_robust_result(
    encoder: str,
    accuracy: float,
    name: str = "frames",
    anchors: int = 40,
    farthest: int = 10,
    missing: int = 0,
    **others: Any,
) -> RobustResult:
    """Of an encoder that is right on each frame by chance; the last neighbours of the first anchors are missing."""
    random = np.random.default_rng(len(encoder))
    offsets = range(1, farthest + 1)
    found = [
        Anchor(f"{video:04}/00.jpg", tuple((f"{video:04}/{offset:02}.jpg", offset) for offset in offsets))
        for video in range(anchors)
    ]
    right: dict[str, bool] = {}
    for anchor in found:
        good = random.random() < accuracy
        right |= {frame: good and random.random() > 0.03 for frame in anchor.within(farthest)}
    for anchor in found[:missing]:
        del right[anchor.within(farthest)[-1]]
    given = {"classes": 30, "reduction": "max", "data_checksum": "a", **others}
    frames = anchors * (farthest + 1)
    return RobustResult(encoder, name, curve(found, right, farthest), anchors, frames, **given)


def a_detection_result(
    encoder: str, aps: Sequence[float], name: str = "cells", test: int = 64, **others: Any
) -> DetectionResult:
    """A run for each AP; no object is small."""
    runs = tuple(
        DetectorRun(seed, Precision(ap, min(1.0, 1.6 * ap), 0.9 * ap, None, 0.7 * ap, 1.1 * ap), 0.01)
        for seed, ap in enumerate(aps)
    )
    given = {"runs": runs, "schedule": "standard", "data_checksum": "a", **others}
    return DetectionResult(encoder, name, classes=3, images={"train": 205, "test": test}, **given)


# --- pages ---


def written(folder: Path, results: Sequence[Result]) -> Path:
    """The folder, with a file for each result."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        write_result(folder, result)
    return folder


def report(results: Path | None, out: Path, **options: Any) -> tuple[Page, str]:
    """The page, and what was printed."""
    console = Console(file=io.StringIO(), width=1000)
    index = write_report(results, out, ReportOptions(**options), console)
    assert isinstance(console.file, io.StringIO)
    return Page(index), console.file.getvalue()


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def a_picture(path: Path) -> None:
    Image.fromarray(np.arange(90 * 160 * 3, dtype=np.uint32).astype(np.uint8).reshape(90, 160, 3)).save(path)
