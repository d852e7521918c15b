"""What vivi train is told besides the recipe: where the data lies, and how to execute the run."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from vivi.prepare.corpus import Corpus
from vivi.recipes import Recipe
from vivi.recipes.check import check_numbers
from vivi.recipes.schema import Count, CountOrNone
from vivi.runtime.errors import require

Steps = Annotated[int, (1, 10**9)]  # an interval


@dataclass(frozen=True)
class DataPaths:
    """What to learn from."""

    corpus: Path | None = None
    """A corpus made by vivi prepare, for recipes that learn from videos."""
    images: Path | None = None
    """Images, for recipes that learn from them: a folder with a folder per class; one with train/ and val/ (or
    validation/, test/); or a list (.txt of lines 'path label', .csv with columns path, label)."""
    images_list: Path | None = None
    """Use only the labels of images named in this file (.txt, or S4L's .json), instead of --images.fraction."""
    images_test: Path | None = None
    """Labelled images on which accuracy is measured while training, like --images; default: those beside train/."""

    def check(self, recipe: Recipe) -> None:
        """Raises where what the recipe learns from is missing or not wanted. It needs no torch, and answers at
        once."""
        for flag, path, wanted, what, needed in (
            ("--corpus", self.corpus, recipe.learns_from_videos, "videos", "a corpus made by vivi prepare"),
            ("--images", self.images, recipe.learns_from_images, "images", "a folder or list of images"),
            ("--images-list", self.images_list, recipe.learns_from_labels, "labels", ""),
            ("--images-test", self.images_test, recipe.learns_from_images, "images", ""),
        ):
            if path is None:
                require(not wanted or not needed, f"{recipe.name} learns from {what}: give {needed}, {flag} PATH")
            else:
                require(wanted, f"{recipe.name} learns from no {what}: remove {flag}, or choose another recipe")
                require(path == self.corpus or path.exists(), f"{flag} {path} does not exist")
        if self.corpus is not None:
            Corpus(self.corpus)


@dataclass(frozen=True)
class Execution:
    """How a run is executed: all of it may differ when resuming, and changes the result by rounding alone."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
    threads: Annotated[int, (0, 1024)] = 0
    """Threads that read and decode frames; 0: one for each core, up to 4."""
    resident: Literal["auto", "on", "off"] = "auto"
    """Keep all frames decoded in the memory of the GPU or the host; auto: where they fit and that saves work."""
    micro_batch: CountOrNone = 0
    """How many of the recipe's cores to compute at once; 0: as many as fit into memory."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the encoder's arithmetic; auto: bfloat16 on a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the encoder with torch.compile; auto: on a GPU."""
    log_every: Steps = 10
    """Steps between two lines of metrics.jsonl."""
    monitor_every: Steps = 200
    """Steps between two measurements on held-out videos (retrieval, collapse)."""
    checkpoint_every: Steps = 500
    """Steps between two checkpoints."""
    log: Literal["none", "wandb", "mlflow", "wandb,mlflow"] = "none"
    """Also send the numbers of metrics.jsonl to a tracking server: Weights & Biases, MLflow, or both."""
    keep: Count = 3
    """How many checkpoints to keep."""

    def compiles(self, on_gpu: bool) -> bool:
        return self.compile == "on" or (self.compile == "auto" and on_gpu)

    def check(self, recipe: Recipe) -> None:
        """Raises where a value is out of its range, or does not go with the recipe."""
        check_numbers(self)
        at_once, cores = self.micro_batch or 1, recipe.batch.cores
        require(cores % at_once == 0, f"--micro-batch {at_once} does not divide --batch.cores {cores} evenly")
        videos = recipe.learns_from_videos or self.resident != "on"
        require(videos, f"{recipe.name} learns from no videos: remove --resident")
        for package in self.log.split(",") if self.log != "none" else ():
            installed = importlib.util.find_spec(package) is not None
            require(installed, f"--log {package} needs a package: pip install 'vivi-video[{package}]'")
