"""The flags of vivi report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReportOptions:
    """What the page shows, and what it compares with."""

    baseline: str = ""
    """Differences are to this encoder, or row of the paper; default: an untrained encoder of the best one's
    architecture, or else the first by name."""
    compare: tuple[str, ...] = ()
    """Two encoders, or rows of the paper, for the chart of differences; default: the best and the baseline."""
    paper: bool = True
    """Offer the paper's rows as a reference."""
    runs: tuple[Path, ...] = ()
    """Training runs whose curves are shown, over each other."""
    encoders: tuple[Path, ...] = ()
    """Runs whose encoders' nearest neighbours and map of frames are shown; needs --corpus."""
    corpus: Path | None = None
    """A corpus whose held-out videos are shown as film strips and nearest neighbours."""
