"""Where a run's data lies, as the command line is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
