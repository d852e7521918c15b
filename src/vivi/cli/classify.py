"""vivi classify fit and vivi classify run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import Positional, arg

from vivi.cli.command import Command, Group
from vivi.runtime.console import hint
from vivi.runtime.errors import UserError


@dataclass(frozen=True)
class Fit(Command):
    """Make a classifier from labelled images, and a page that says how good it is."""

    examples: ClassVar = (
        "vivi classify fit labelled/ --encoder run/ --out classifier/",
        "vivi classify fit labels.csv --encoder timm:resnet50 --out classifier/ --finetune",
    )

    images: Annotated[Positional[Path], arg(metavar="IMAGES")]
    """A folder with a folder of images for each class, or with train/ and test/ of such; or a CSV of path,label."""
    encoder: str
    """A run or its encoder.safetensors, or timm:NAME (pretrained, or with --weights)."""
    out: Path = Path("classifier")
    """Folder for the classifier and its page."""
    finetune: bool = False
    """Train the whole network, which takes much longer, instead of a classifier on frozen features."""
    seed: int = 0
    """Random seed of the fifth of the images that is held out to test on, where there is no test/."""
    weights: Path | None = None
    """A file of weights for timm:NAME."""
    size: int = 0
    """Side of the images in pixels; 0: the encoder's own."""
    device: str = "auto"
    """cpu, cuda, ...; auto: a GPU if there is one."""

    def run(self, console: Console) -> dict[str, Any]:
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
        hint(console, f"use it: vivi classify run {shlex.quote(str(self.out))} CORPUS --out labels/")
        return {
            "classifier": self.out,
            "page": self.out / "index.html",
            "accuracy": fitted.accuracy,
            "interval": fitted.interval,
            "test_images": len(fitted.labels),
            "classes": fitted.classes,
            "how": fitted.how,
        }


@dataclass(frozen=True)
class Run(Command):
    """Label frames, shots and videos by a classifier. The same command goes on after a stop."""

    examples: ClassVar = (
        "vivi classify run classifier/ corpus/ --out labels/",
        "vivi classify run classifier/ clip.mp4",
    )
    goes_on: ClassVar = True

    classifier: Annotated[Positional[Path], arg(metavar="CLASSIFIER")]
    """The folder of a classifier, the --out of vivi classify fit."""
    footage: Annotated[Positional[Path], arg(metavar="CORPUS|IMAGES|VIDEO")]
    """A corpus of vivi prepare, a folder of images, a video file or a folder of videos, or embeddings by the
    classifier's encoder."""
    out: Path = Path("labels")
    """Folder for the labels: frames.parquet, shots.csv, videos.csv and a page."""
    device: str = "auto"
    """cpu, cuda, ...; auto: a GPU if there is one."""

    def run(self, console: Console) -> dict[str, Any]:
        for path in (self.classifier, self.footage):
            if not path.exists():
                raise UserError(f"there is no {path}")
        from vivi.answers.label import label_footage

        page = label_footage(self.classifier, self.footage, self.out, device=self.device, console=console)
        console.print(f"open {page}", soft_wrap=True)
        return {"labels": self.out, "page": page}


CLASSIFY = Group(
    "Make a classifier from labelled images, and label footage with it.",
    (Fit.examples[0], Run.examples[0]),
    {"fit": Fit, "run": Run},
)
