"""How training is measured, as the command line is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vivi.errors import UserError, check_ranges


@dataclass(frozen=True)
class BenchOptions:
    """How long, and beside what."""

    measure: int = 20
    """Steps of each round."""
    rounds: int = 3
    """The step and its encoder alone are measured in turn, so many times."""
    warm_up: int = 3
    """Steps before the first round; the first compiles."""
    peers: bool = False
    """Also measure, with the same frames and encoder, a plain DataLoader loop, and lightly's if it is installed."""
    peer_batch: int = 256
    """Frames that the encoder of a peer sees at once."""
    peer_seconds: float = 20.0
    """How long to measure each peer."""
    lock: Path | None = None
    """Wait for this file's lock before measuring: benches that are started together compile side by side."""
    json: Path | None = None
    """Also write the figures to this file."""

    def check(self) -> None:
        whole = (1, 10**6)
        check_ranges(self, {"measure": whole, "rounds": whole, "warm_up": whole, "peer_batch": (2, 10**6)})
        check_ranges(self, {"peer_seconds": (0.1, 10**5)})
        check_file("--json", self.json)
        check_file("--lock", self.lock)


@dataclass(frozen=True)
class LoaderOptions:
    """How long."""

    measure: int = 20
    """Steps to measure."""
    json: Path | None = None
    """Also write the figures to this file."""

    def check(self) -> None:
        check_ranges(self, {"measure": (1, 10**6)})
        check_file("--json", self.json)


def check_file(flag: str, path: Path | None) -> None:
    """Raises, before anything is measured, where a file cannot be written."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UserError(
            f"{flag} {path} cannot be written: " + ("it is a folder" if path.is_dir() else "no such folder")
        )
