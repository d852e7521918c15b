"""What do labels and videos add to each other? Trains with the same few labels alone, with the same videos alone, and
with both, and tests all three on held-out images of the synthesized world.

    vivi synthesize --out videos --videos 60
    vivi prepare videos --out corpus --rate 5 --short-side 96 --test-fraction 0.2
    python studies/images/cotrain.py --corpus corpus --task videos/tasks/place --out runs --json cotrain.json

All have the encoder of vivi-ex4-co100-tiny and take as many steps. Top-1 is the classifier's own where a method has
one. The linear probe is the same for all: ridge regression from the frozen features of the labelled images, of a
strength chosen on the validation images.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

import vivi
from vivi.data.images import LabelledImages, class_balanced, find_images
from vivi.evaluate.features import embed
from vivi.evaluate.probes import accuracy, linear_probe
from vivi.model.files import read_classifier
from vivi.recipes import RECIPES, Images, Recipe
from vivi.recipes.files import with_field
from vivi.train.settings import DataPaths, Execution
from vivi.train.train import train

Method = Literal["labels", "videos", "both"]


@dataclass(frozen=True)
class CoTrain:
    """Trains and compares."""

    corpus: Path
    task: Path
    """A folder in VTAB-1k layout: train800.txt has the labels, val200.txt chooses, test.txt tests."""
    out: Path
    """Folder for the runs; finished ones are not trained again."""
    size: str = "tiny"
    """Which of the recipes' sizes."""
    fraction: float = 0.1
    """Share of train800's labels that the methods see."""
    steps: int = 800
    videos: int = 8
    """Videos a step."""
    labels_lr: float = 0.3
    """Learning rates: each method has the one that did best on the validation images, with seed 100."""
    videos_lr: float = 0.1
    both_lr: float = 0.05
    set: tuple[str, ...] = ()
    """Fields of the co-training recipe to change, for example loss.supervised_weight=2."""
    methods: tuple[Method, ...] = ("labels", "videos", "both")
    seeds: tuple[int, ...] = (0, 1, 2)
    validation: bool = False
    """Test on the validation images, for choosing settings."""
    execution: Execution = field(default_factory=Execution)
    json: Path | None = None

    def run(self, console: Console) -> None:
        results: dict[str, list[dict[str, float]]] = {}
        for seed in self.seeds:
            for method in self.methods:
                scores = self.scores(method, seed, console)
                console.print(f"{method}, seed {seed}: {scores}")
                results.setdefault(method, []).append(scores)
        console.print(_table(results))
        if self.json:
            about = {name: getattr(self, name) for name in ("size", "fraction", "steps", "videos", "seeds", "set")}
            rates = {name: getattr(self, name) for name in ("labels_lr", "videos_lr", "both_lr")}
            self.json.write_text(json.dumps({**about, **rates, "results": results}, indent=1) + "\n")

    def recipe(self, method: Method, seed: int) -> Recipe:
        """The co-training recipe, and what is left of it without videos or without labels, with the same encoder."""
        both = RECIPES[f"vivi-ex4-co100-{self.size}"]
        both = replace(
            both,
            steps=self.steps,
            seed=seed,
            batch=replace(both.batch, videos=self.videos),
            images=replace(both.images, fraction=self.fraction),
            optimiser=replace(both.optimiser, lr=getattr(self, f"{method}_lr"), decay_at=(self.steps * 4 // 5,)),
        )
        for change in self.set:
            name, _, value = change.partition("=")
            both = with_field(both, name, value)
        if method == "videos":
            return replace(both, images=Images(), loss=replace(both.loss, supervised_weight=0.0))
        if method == "labels":
            loss = replace(both.loss, frame=None, video=None, video_weight=0.0)
            return replace(both, batch=replace(both.batch, videos=0), loss=loss)
        return both

    def scores(self, method: Method, seed: int, console: Console) -> dict[str, float]:
        """Accuracies of one run on held-out images, in percent."""
        run, images = self.out / f"{method}-seed{seed}", self.task / "train800.txt"
        paths = DataPaths(
            None if method == "labels" else self.corpus,
            None if method == "videos" else images,
            images_test=None if method == "videos" else self.task / "val200.txt",
        )
        recipe = self.recipe(method, seed)
        train(recipe, paths, run, self.execution, console)
        labelled = class_balanced(find_images(images), self.fraction, recipe.images.fraction_seed)
        parts = [labelled, *(find_images(self.task / f"{name}.txt") for name in ("val200", "test"))]
        features = [self.features(run, part) for part in parts]
        labels = [torch.from_numpy(part.labels) for part in parts]
        tested = 1 if self.validation else 2
        logits = linear_probe(features[0], labels[0], features[1:], len(labelled.classes))
        best = max(logits, key=lambda of_strength: accuracy(of_strength[0], labels[1]))
        scores = {"linear probe": 100 * accuracy(best[tested - 1], labels[tested])}
        if method == "videos":
            return scores
        classify = read_classifier(run).layer()
        with torch.no_grad():
            return {"top-1": 100 * accuracy(classify(features[tested]), labels[tested]), **scores}

    def features(self, run: Path, images: LabelledImages) -> torch.Tensor:
        encoder, _ = vivi.load_encoder(run)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        about = json.loads((run / "encoder.json").read_text())
        paths = [images.path(index) for index in range(len(images))]
        return embed(encoder.to(device), paths, about["input_size"], about["mean"], about["std"], device)


def _table(results: dict[str, list[dict[str, float]]]) -> Table:
    names = ("top-1", "linear probe")
    table = Table("learned from", *names)
    for method, scores in results.items():
        cells = []
        for name in names:
            values = [score[name] for score in scores if name in score]
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}" if values else "")
        table.add_row(method, *cells)
    return table


if __name__ == "__main__":
    tyro.cli(CoTrain).run(Console(width=160))
