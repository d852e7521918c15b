"""The flags of vivi report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReportOptions:
    """What the page shows, and what it compares with."""

    baseline: str = ""
    """Differences are to this encoder, or to this row of the paper; none: an untrained one if there is one, else the
    first."""
    compare: tuple[str, ...] = ()
    """Two encoders, or rows of the paper such as 'VIVI-Ex(4)', for the chart of differences, the first minus the
    second; none: the best against the baseline."""
    paper: bool = True
    """Offer the paper's rows as a reference."""
    runs: tuple[Path, ...] = ()
    """Training runs whose curves are shown."""
    encoders: tuple[Path, ...] = ()
    """Runs whose encoders show their nearest neighbours; needs --corpus."""
    corpus: Path | None = None
    """A corpus whose held-out videos are shown as film strips and nearest neighbours."""
