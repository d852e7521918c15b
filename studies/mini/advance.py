"""Does the next runs of the study, as many as fit into the minutes given, and writes a result file for each.

    python studies/mini/advance.py --videos VIDEOS --tasks VTAB-MINI --minutes 25

First it prepares the videos, once for each length of shots. Then several processes work side by side on the GPU. A
run that is not done when the time is up is lost, and is done again the next time.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import tyro
from mini_runs import SPACE, Run, all_runs
from rich.console import Console
from torch import Tensor

from vivi.evaluate.features import square
from vivi.evaluate.probes import STRENGTHS, accuracy, linear_probe
from vivi.evaluate.settings import FinetuneExecution, Subject, Sweep
from vivi.evaluate.tasks.examples import Examples
from vivi.evaluate.tasks.lists import read_task
from vivi.evaluate.vtab import evaluate_vtab
from vivi.model.encoder import load_encoder
from vivi.model.features import encode
from vivi.model.files import read_encoder
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.recipes import Recipe
from vivi.recipes.files import find_recipe, with_field
from vivi.runtime.errors import UserError
from vivi.runtime.process_pool import Died, Done, ProcessPool
from vivi.runtime.storage import write_atomically
from vivi.train.metrics import read_metrics
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import train


@dataclass(frozen=True)
class Options:
    """What is done, and with what."""

    videos: Path
    """The clips."""
    tasks: Path
    """A folder of tasks in VTAB-1k layout."""
    minutes: float = 25.0
    """When this time is up, what is not done is given up."""
    processes: int = 4
    """Runs side by side on the GPU."""
    work: Path = Path(tempfile.gettempdir()) / "mini"
    """Folder for corpora and runs."""
    steps: int = 0
    """Train so many steps instead of the study's, to try the script; results are then written below --work."""
    only: str = ""
    """Only runs with this in their name."""


def main(options: Options) -> None:
    ends, console = time.monotonic() + 60 * options.minutes, Console()
    for seconds in SPACE["shot_seconds"]:
        corpus = corpus_of(options, seconds)
        if not (corpus / "videos.parquet").exists():
            settings = PrepareSettings(rate=5, max_shot_seconds=seconds, min_shot_seconds=0.4)
            prepare([options.videos], corpus, settings, PrepareExecution(), Console(quiet=True))
            console.print(f"prepared {corpus}")
    tasks = deque(run for run in all_runs() if options.only in run.name and not result_of(run, options).exists())
    console.print(f"{len(tasks)} runs to do, {60 * options.minutes - (ends - time.monotonic()):.0f} s gone")

    def check() -> None:
        if time.monotonic() > ends:
            raise TimeoutError

    done = 0
    pool: ProcessPool[Run] = ProcessPool(serve, [(options,)] * options.processes)
    with pool:
        try:
            for run, message in pool.run(tasks, check):
                if isinstance(message, Done):
                    done += 1
                    console.print(
                        f"{run.name}: {message.value} ({done} done, {(ends - time.monotonic()) / 60:.1f} min left)"
                    )
                elif isinstance(message, Died):
                    console.print(f"{run.name}: its process died ({message.exit_code})")
        except TimeoutError:
            console.print(f"time is up: {done} runs done, {len(tasks)} left and those under way")


def corpus_of(options: Options, shot_seconds: float) -> Path:
    return options.work / f"corpus-{shot_seconds:g}"


def result_of(run: Run, options: Options) -> Path:
    return options.work / "trial" / run.result.name if options.steps else run.result


def serve(connection: Connection, options: Options) -> None:
    """A process: does one run after the other."""
    while True:
        try:
            run: Run = connection.recv()
        except EOFError:
            return
        connection.send(Done(do(run, options)))


def do(run: Run, options: Options) -> str:
    """Trains and measures; writes the result, and returns it in words."""
    began, folder = time.monotonic(), options.work / "runs" / run.name
    shutil.rmtree(folder, ignore_errors=True)
    result: dict[str, Any] = asdict(run)
    try:
        recipe = recipe_of(run, options.steps)
        train(recipe, DataPaths(corpus_of(options, run.shot_seconds)), folder, EXECUTION, Console(quiet=True))
        last = read_metrics(folder)[-1]
        result |= {"metrics": last, "train_seconds": round(time.monotonic() - began, 1)}
        result |= finetuned(folder, options) if run.measure == "finetune" else probed(folder, run.measure, options)
        words = ", ".join(f"{part} {_mean(result[part]):.2f}" for part in ("validation", "test") if part in result)
    except UserError as error:  # a loss that is not finite
        result["error"] = words = str(error)
    result["seconds"] = round(time.monotonic() - began, 1)
    path = result_of(run, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result, indent=1).encode() + b"\n")
    shutil.rmtree(folder, ignore_errors=True)
    return f"{words}, {result['seconds']:.0f} s"


EXECUTION = Execution(resident="on", log_every=100, monitor_every=10**6, checkpoint_every=10**6)


def recipe_of(run: Run, steps: int) -> Recipe:
    recipe = find_recipe(run.recipe)
    for name, value in run.fields.items():
        recipe = with_field(recipe, name, json.dumps(value))
    weight = run.video_weight * recipe.loss.video_weight
    recipe = replace(recipe, loss=replace(recipe.loss, video_weight=weight))
    return replace(recipe, steps=steps) if steps else recipe


def _mean(accuracies: dict[str, float]) -> float:
    return sum(accuracies.values()) / max(len(accuracies), 1)


# --- the linear probe ---


def probed(folder: Path, measure: str, options: Options) -> dict[str, Any]:
    """Accuracies of the linear probe by task, in percent: on validation images; for `test`, on test images too, by a
    probe whose strength was chosen on the validation images and that is fitted on all 1000."""
    architecture, _ = read_encoder(folder)
    encoder, _ = load_encoder(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder.to(device)

    def features(examples: Examples) -> Tensor:
        batches = squares(tuple(examples.images), architecture.size).split(512)
        return encode(encoder, batches, architecture.mean, architecture.std, device).to(device)

    scores: dict[str, dict[str, float]] = {"validation": {}}
    for place in sorted(options.tasks.iterdir()):
        if not (place / "test.txt").exists():
            continue
        task = read_task(place)
        train_features, validation = features(task.sweep), features(task.validation)
        trials = linear_probe(train_features, task.sweep.labels, [validation], task.classes)
        found = [accuracy(logits[0], task.validation.labels) for logits in trials]
        best = max(range(len(found)), key=found.__getitem__)
        scores["validation"][task.name] = round(100 * found[best], 3)
        if measure == "test":
            final = [STRENGTHS[best]]
            logits = linear_probe(features(task.final), task.final.labels, [features(task.test)], task.classes, final)
            scores.setdefault("test", {})[task.name] = round(100 * accuracy(logits[0][0], task.test.labels), 3)
    return scores


@cache
def squares(images: tuple[Path, ...], size: int) -> Tensor:
    """Images as uint8 (n, 3, size, size): the same for every run, so they are read once."""
    return torch.stack([square(image, size) for image in images])


# --- fine-tuning ---


def finetuned(folder: Path, options: Options) -> dict[str, Any]:
    """Test accuracies by task after fine-tuning, in percent: the quick sweep, one seed."""
    subject = Subject(str(folder), options.tasks, folder / "results")
    results = evaluate_vtab(subject, Sweep(quick=True, seeds=1), FinetuneExecution(processes=1), Console(quiet=True))
    return {"test": {result.task: round(100 * result.score.median, 3) for result in results}}


if __name__ == "__main__":
    main(tyro.cli(Options))
