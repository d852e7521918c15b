"""vivi demo: the whole flow on synthesized videos."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vivi.errors import UserError
from vivi.recipes import RECIPES
from vivi.report.options import ReportOptions
from vivi.report.page import write_report
from vivi.synthetic.synthesize import SynthesizeSettings, synthesize
from vivi.training.machine import Machine
from vivi.training.metrics import read_metrics
from vivi.training.train import train
from vivi.transfer.frozen import evaluate_frozen
from vivi.transfer.settings import Subject
from vivi.video.piece import PrepareSettings
from vivi.video.prepare import prepare
from vivi.video.statistics import print_summary

# What is trained, by the names of its runs: the paper's two baselines and its method.
TRAINED = {"frames": "ex-yt-f-tiny", "shots": "ex-yt-s-tiny", "vivi": "vivi-ex4-tiny"}
TASK_IMAGES = {"task_train": 400, "task_val": 100, "task_test": 300}


def demo(out: Path, videos: int, steps: int, console: Console) -> None:
    """Synthesizes videos and tasks, prepares the videos, trains on frames, shots and videos, evaluates each encoder and
    shows it all on a page; what is there is reused."""
    if videos < 24:
        raise UserError(f"--videos is {videos}; a batch takes 16 of the training videos, so ask for 24 at least")
    console.rule(f"1  synthesize {videos} videos, and labelled images for five tasks")
    synthesize(out / "videos", SynthesizeSettings(videos=videos, **TASK_IMAGES))
    console.rule("2  prepare: decode, find shots, write the corpus")
    settings = PrepareSettings(rate=5.0, short_side=96, test_fraction=0.2)
    prepare([out / "videos"], out / "corpus", settings, console=console)
    print_summary(out / "corpus", console)
    for number, (name, recipe) in enumerate(TRAINED.items(), start=3):
        console.rule(f"{number}  train: learn from {'frames, shots and videos' if name == 'vivi' else name}")
        train(replace(RECIPES[recipe], steps=steps), out / "corpus", out / name, Machine(monitor_every=20), console)
    _show_retrieval(out / "vivi", console)
    console.rule("6  evaluate: solve the tasks with each encoder")
    encoders = {"untrained": "untrained:vivi-ex4-tiny", **{name: str(out / name) for name in TRAINED}}
    for name, encoder in encoders.items():
        subject = Subject(encoder, out / "videos" / "tasks", out / "results", name=name)
        evaluate_frozen("knn", subject, Console(quiet=True))
        evaluate_frozen("linear", subject, console)
    console.rule("7  report: a page of it all")
    runs = tuple(out / name for name in TRAINED)
    options = ReportOptions(runs=runs, encoders=(out / "vivi",), corpus=out / "corpus")
    page = write_report(out / "results", out / "page", options, console).resolve()
    console.print(f"open {page}", soft_wrap=True)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(page.as_uri())


def _show_retrieval(run: Path, console: Console) -> None:
    """What changed from the untrained encoder to the trained one."""
    found = [line["retrieval"] for line in read_metrics(run) if "retrieval" in line]
    console.print(
        f"a held-out frame finds another shot of its video: {found[0]:.0%} of the time before training, "
        f"{found[-1]:.0%} after",
        soft_wrap=True,
    )
