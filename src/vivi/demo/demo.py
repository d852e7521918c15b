"""vivi demo: the whole flow on synthesized videos."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vivi.demo.synthesize import SynthesizeSettings, synthesize
from vivi.evaluate.probes import evaluate_frozen
from vivi.evaluate.settings import Subject
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import prepare
from vivi.prepare.statistics import print_summary
from vivi.recipes import RECIPES, Recipe
from vivi.report.options import ReportOptions
from vivi.report.page import write_report
from vivi.runtime.errors import UserError
from vivi.train.metrics import read_metrics
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import train

# What is trained, by the names of the runs: the paper's two baselines and its method.
TRAINED = {"frames": "ex-yt-f-tiny", "shots": "ex-yt-s-tiny", "vivi": "vivi-ex4-tiny"}
SHOTS = 32  # in a batch, half of what the recipes have: so few videos are soon known by heart
WORLD = SynthesizeSettings(videos=40, task_train=400, task_val=100, task_test=300)


def demo(out: Path, world: SynthesizeSettings, steps: int, console: Console) -> None:
    """Synthesizes videos and tasks, prepares the videos, trains on frames, on shots and on videos, evaluates each
    encoder, and shows it all on a page; what is there is reused."""
    if world.videos < 40:
        raise UserError(f"--videos is {world.videos}; a batch takes {SHOTS} training videos, so ask for 40 at least")
    console.rule(f"1  synthesize {world.videos} videos, and labelled images for five tasks")
    synthesize(out / "videos", world, console)
    console.rule("2  prepare: decode, find shots, write the corpus")
    settings = PrepareSettings(rate=5.0, short_side=96, test_fraction=0.2)
    prepare([out / "videos"], out / "corpus", settings, console=console)
    print_summary(out / "corpus", console)
    for number, (name, recipe) in enumerate(TRAINED.items(), start=3):
        console.rule(f"{number}  train: learn from {'frames, shots and videos' if name == 'vivi' else name}")
        execution = Execution(monitor_every=max(1, steps // 6))
        train(_shortened(RECIPES[recipe], steps), DataPaths(out / "corpus"), out / name, execution, console)
    found = [line["retrieval"] for line in read_metrics(out / "vivi") if "retrieval" in line]
    before, after = f"{found[0]:.0%} of the time before training", f"{found[-1]:.0%} after"
    console.print(f"a held-out frame finds another shot of its video: {before}, {after}", soft_wrap=True)
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


def _shortened(recipe: Recipe, steps: int) -> Recipe:
    batch = replace(recipe.batch, videos=SHOTS // recipe.batch.shots)
    optimiser = replace(recipe.optimiser, warmup=steps // 12, decay_at=(steps * 4 // 5,))
    return replace(recipe, steps=steps, batch=batch, optimiser=optimiser)
