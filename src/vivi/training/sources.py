"""Where a run's data lies, as the command line is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vivi.errors import UserError
from vivi.recipes import Recipe
from vivi.video.corpus import Corpus


@dataclass(frozen=True)
class Sources:
    """Where the data lies."""

    corpus: Path | None = None
    """A corpus made by vivi prepare, for recipes that learn from videos."""
    images: Path | None = None
    """Images, for recipes that learn from them: a folder with a folder per class; one with train/ and val/ (or
    validation/, test/); or a list (.txt of lines 'path label', .csv with columns path, label)."""
    images_list: Path | None = None
    """Use only the labels of the images named in this file (.txt, one a line, or S4L's .json), in place of
    --images-fraction."""
    images_test: Path | None = None
    """Labelled images to watch top-1 and top-5 accuracy on, laid out like --images; default: those beside train/."""


def check_sources(recipe: Recipe, sources: Sources) -> None:
    """Raises where what the recipe learns from is missing or not wanted. It needs no torch, and answers at once."""
    videos = wants_videos(recipe)
    images = recipe.images.count > 0 or (recipe.batch.videos > 0 and recipe.batch.source == "image")
    for flag, given, wanted, what in (
        ("--corpus", sources.corpus, videos, "videos"),
        ("--images", sources.images, images, "images"),
    ):
        if wanted and given is None:
            raise UserError(f"{recipe.name} learns from {what}: say where they are, {flag} {what}/")
        if given is not None and not wanted:
            raise UserError(f"{recipe.name} learns from no {what}: leave {flag} out, or choose another recipe")
    if not images and (sources.images_list or sources.images_test):
        raise UserError(f"{recipe.name} learns from no images: leave --images-list and --images-test out")
    if sources.corpus is not None:
        Corpus(sources.corpus)


def wants_videos(recipe: Recipe) -> bool:
    return recipe.batch.videos > 0 and recipe.batch.source != "image"
