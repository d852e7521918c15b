"""What do shots and videos add? Trains the frame baseline, the shot baseline and VIVI, and compares them, and the
untrained encoder, by retrieval on held-out videos and by kNN on tasks.

    vivi prepare CLIPS --out corpus --rate 5 --max-shot-seconds 1.6
    python studies/upstream/compare.py --corpus corpus --tasks TASKS --out runs --seeds 0 --json real.json
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.table import Table

import vivi
from vivi.evaluate.features import embed
from vivi.evaluate.probes import knn_accuracy
from vivi.evaluate.tasks.lists import read_task
from vivi.model.files import write_encoder
from vivi.model.vivi import build_model
from vivi.recipes.files import find_recipe
from vivi.train.metrics import read_metrics
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import train

METHODS = ("untrained", "ex-yt-f", "ex-yt-s", "vivi-ex4")


@dataclass(frozen=True)
class Compare:
    """Trains and compares."""

    corpus: Path
    tasks: Path
    out: Path
    """Folder for the runs; finished ones are not trained again."""
    size: str = "tiny"
    """Which of the recipes' sizes."""
    methods: tuple[str, ...] = METHODS
    seeds: tuple[int, ...] = (0, 1, 2)
    validation: bool = False
    """Score on validation images (800 train, 200 test), for choosing settings, instead of test images."""
    execution: Execution = field(default_factory=Execution)
    json: Path | None = None

    def run(self, console: Console) -> None:
        results: dict[str, list[dict[str, float]]] = {}
        for method in self.methods:
            for seed in self.seeds:
                results.setdefault(method, []).append(self.scores(method, seed, console))
        console.print(_table(results))
        if self.json:
            about = {"size": self.size, "seeds": self.seeds, "threads": torch.get_num_threads()}
            self.json.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")

    def scores(self, method: str, seed: int, console: Console) -> dict[str, float]:
        """Retrieval and kNN accuracies of one run, in percent."""
        run = self.out / f"{method}-{self.size}-seed{seed}"
        recipe = replace(find_recipe(f"{METHODS[-1] if method == 'untrained' else method}-{self.size}"), seed=seed)
        if method == "untrained":
            # The line of step 0 is about the untrained encoder.
            recipe = replace(recipe, steps=1, optimiser=replace(recipe.optimiser, lr=0.0))
        train(recipe, DataPaths(self.corpus), run, self.execution, console)
        if method == "untrained":
            write_encoder(run, build_model(recipe).encoder, recipe.name, 0)
        lines = [line for line in read_metrics(run) if "retrieval" in line]
        last = lines[0 if method == "untrained" else -1]
        return {"retrieval": 100 * last["retrieval"], **self.knn(run), "seconds": last.get("seconds", 0.0)}

    def knn(self, run: Path) -> dict[str, float]:
        encoder, _ = vivi.load_encoder(run)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        encoder.to(device)
        about = json.loads((run / "encoder.json").read_text())
        accuracies = {}
        for folder in sorted(path for path in self.tasks.iterdir() if path.is_dir()):
            task = read_task(folder)
            parts = (task.sweep, task.validation) if self.validation else (task.final, task.test)
            features = [
                embed(encoder, part.images, about["input_size"], about["mean"], about["std"], device)
                for part in parts
            ]
            accuracies[task.name] = 100 * knn_accuracy(features[0], parts[0].labels, features[1], parts[1].labels)
        return {**accuracies, "mean": statistics.mean(accuracies.values())}


def _table(results: dict[str, list[dict[str, float]]]) -> Table:
    names = list(next(iter(results.values()))[0])
    table = Table("method", *names)
    for method, scores in results.items():
        cells = []
        for name in names:
            values = [score[name] for score in scores]
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}")
        table.add_row(method, *cells)
    return table


if __name__ == "__main__":
    tyro.cli(Compare).run(Console(width=160))
