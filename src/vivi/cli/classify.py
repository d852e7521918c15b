"""vivi classify fit and vivi classify run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from vivi.runtime.errors import UserError


@dataclass(frozen=True)
class Fit:
    """Make a classifier from labelled images, and a page that says how good it is."""

    images: Positional[Path]
    """A folder with a folder of images for each class, or with train/ and test/ of such; or a CSV of path,label."""
    encoder: str
    """A run or its encoder.safetensors, or timm:NAME (pretrained, or with --weights)."""
    out: Path = Path("classifier")
    """Folder for the classifier and its page."""
    finetune: bool = False
    """Train the whole network, which takes much longer, instead of a classifier on frozen features."""
    seed: int = 0
    """Decides which fifth of the images is to test on, where there is no test/."""
    weights: Path | None = None
    """A file of weights for timm:NAME."""
    size: int = 0
    """Side of the images in pixels; 0: the encoder's own."""
    device: str = "auto"
    """cpu, cuda, ...; auto: a GPU if there is one."""

    def run(self, console: Console) -> None:
        if not self.images.exists():
            raise UserError(f"there is no {self.images}; give a folder with a folder of images for each class")
        from vivi.answers.classify import fit_classifier

        fitted = fit_classifier(
            self.images,
            self.encoder,
            self.out,
            finetune=self.finetune,
            seed=self.seed,
            weights=self.weights,
            size=self.size,
            device=self.device,
            console=console,
        )
        low, high = (f"{100 * share:.1f}" for share in fitted.interval)
        console.print(
            f"accuracy {100 * fitted.accuracy:.1f} % ({low} to {high}, 95 % interval) of {len(fitted.labels):,} test "
            f"images; by chance {100 / len(fitted.classes):.1f} %",
            soft_wrap=True,
        )
        console.print(f"open {self.out / 'index.html'}", soft_wrap=True)
        console.print(f"use it: vivi classify run {shlex.quote(str(self.out))} CORPUS --out labels/", soft_wrap=True)


@dataclass(frozen=True)
class Run:
    """Label frames, shots and videos by a classifier. The same command goes on after a stop."""

    classifier: Positional[Path]
    """The folder of a classifier, the --out of vivi classify fit."""
    footage: Annotated[Positional[Path], arg(metavar="CORPUS|IMAGES|VIDEO")]
    """A corpus of vivi prepare, a folder of images, a video file or a folder of videos, or embeddings by the
    classifier's encoder."""
    out: Path = Path("labels")
    """Folder for the labels: frames.parquet, shots.csv, videos.csv and a page."""
    device: str = "auto"
    """cpu, cuda, ...; auto: a GPU if there is one."""

    def run(self, console: Console) -> None:
        for path in (self.classifier, self.footage):
            if not path.exists():
                raise UserError(f"there is no {path}")
        from vivi.answers.label import label_footage

        page = label_footage(self.classifier, self.footage, self.out, device=self.device, console=console)
        console.print(f"open {page}", soft_wrap=True)


CLASSIFY = "Make a classifier from labelled images, and label footage with it."
