"""vivi demo: the whole flow on synthesized videos."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vivi.demo.synthesize import SynthesizeSettings, synthesize
from vivi.evaluate.probes import evaluate_frozen
from vivi.evaluate.results import read_results
from vivi.evaluate.settings import Subject
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import prepare
from vivi.prepare.statistics import print_summary
from vivi.recipes import RECIPES, Recipe
from vivi.recipes.losses import Exemplar
from vivi.report.boards import Board, difference, make_boards, mean
from vivi.report.options import ReportOptions
from vivi.report.page import write_report
from vivi.report.table import number, signed
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine
from vivi.train.metrics import read_metrics
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import train

# What is trained, by the names of the runs: the paper's two baselines and its method.
TRAINED = {"frames": "ex-yt-f-tiny", "shots": "ex-yt-s-tiny", "vivi": "vivi-ex4-tiny"}
SHOTS = 32  # in a batch, half of what the recipes have: there are few videos
WORLD = SynthesizeSettings(videos=60, task_train=400, task_val=100)


def demo(out: Path, world: SynthesizeSettings, steps: int, console: Console) -> None:
    """Synthesizes videos and tasks, prepares the videos, trains on frames, on shots and on videos, evaluates each
    encoder, and shows it all on a page; what is there is reused."""
    if world.videos < 40:
        raise UserError(f"--videos is {world.videos}; a batch takes {SHOTS} training videos, so ask for 40 at least")
    console.rule(f"1  synthesize {world.videos} videos, and labelled images for four tasks")
    synthesize(out / "videos", world, console)
    console.rule("2  prepare: decode, find shots, write the corpus")
    settings = PrepareSettings(rate=2.0, short_side=96, test_fraction=0.2)
    prepare([out / "videos"], out / "corpus", settings, console=console)
    print_summary(out / "corpus", console)
    for stage, (name, recipe) in enumerate(TRAINED.items(), start=3):
        console.rule(f"{stage}  train: learn from {'frames, shots and videos' if name == 'vivi' else name}")
        execution = Execution(monitor_every=max(1, steps // 6))
        train(demo_recipe(recipe, steps, world.seed), DataPaths(out / "corpus"), out / name, execution, console)
    console.print(retrieval_line(out / "vivi"), soft_wrap=True)
    console.rule("6  evaluate: solve the tasks with each encoder")
    encoders = {"untrained": f"untrained:{out / 'vivi'}", **{name: str(out / name) for name in TRAINED}}
    with ProgressLine("evaluate", len(encoders), console) as progress:
        for done, (name, encoder) in enumerate(encoders.items(), start=1):
            subject = Subject(encoder, out / "videos" / "tasks", out / "results", name=name)
            evaluate_frozen("linear", subject, Console(quiet=True))
            evaluate_frozen("knn", subject, Console(quiet=True))
            progress.show(done, name)
    print_gains(out / "results", console)
    console.rule("7  report: a page of it all")
    runs = tuple(out / name for name in TRAINED)
    options = ReportOptions(runs=runs, encoders=(out / "vivi",), corpus=out / "corpus")
    page = write_report(out / "results", out / "page", options, console).resolve()
    console.print(f"open {page}", soft_wrap=True)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(page.as_uri())


def demo_recipe(name: str, steps: int, seed: int) -> Recipe:
    """A -tiny recipe for few videos and few steps. Half of all frames lose their colours, so that no loss can be
    solved by colour alone."""
    recipe = RECIPES[name]
    batch = replace(recipe.batch, videos=SHOTS // recipe.batch.shots)
    augment = replace(recipe.augment, grey_frames=0.5)
    loss = recipe.loss
    if loss.video:  # which puts the shots of a video together, so the exemplar loss does not push them apart
        loss = replace(loss, frame=Exemplar(negatives="videos"))
    optimiser = replace(recipe.optimiser, schedule="cosine", warmup=steps // 36, decay_at=())
    return replace(recipe, steps=steps, seed=seed, batch=batch, augment=augment, loss=loss, optimiser=optimiser)


def retrieval_line(run: Path) -> str:
    """How often a held-out frame finds another shot of its video, before training and after."""
    measured = [line for line in read_metrics(run) if "retrieval" in line]
    frames, chance = round(measured[-1]["retrieval_queries"]), measured[-1]["retrieval_chance"]
    before, after = (round(line["retrieval"] * frames) for line in (measured[0], measured[-1]))
    counts = f"{before} of {frames} frames before training, {after} of {frames} after"
    return f"a held-out frame's nearest neighbour is another shot of its video: {counts}; chance {chance:.1%}"


def print_gains(results: Path, console: Console) -> None:
    """Mean accuracies, and what each encoder gains over the untrained one."""
    boards = make_boards(read_results(results)[0], paper=False, baseline="untrained")
    table = Table("mean accuracy on 4 tasks, %", *(board.title.split(",")[0] for board in boards))
    table.add_row("chance", *(number(board.chance) for board in boards))
    for name in ("untrained", *TRAINED):
        table.add_row(name, *(_score(board, name) for board in boards))
    console.print(table)
    console.print("±: half of the 95 % interval, as far as it comes from the number of test images", soft_wrap=True)


def _score(board: Board, name: str) -> Text:
    row, baseline = board.find(name), board.baseline
    assert row and baseline
    score, gain = Text(number(mean(row, board.counted).value)), difference(row, baseline, board.counted)
    if row is baseline or gain.value is None:
        return score
    words, style = {"up": ("", "green"), "down": ("", "red")}.get(gain.verdict, (", within error", "dim"))
    return score.append(f"  {signed(gain.value)} ± {number(gain.error)}{words}", style)
