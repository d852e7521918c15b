"""What is known about an encoder as the backbone of a detector, on one set: a file in results/."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from vivi.evaluate.fields import read_fields
from vivi.evaluate.measured import Measured
from vivi.evaluate.names import plain


@dataclass(frozen=True)
class Precision:
    """COCO's average precisions, between 0 and 1; None where no object has that size."""

    ap: float
    ap50: float
    ap75: float
    small: float | None
    medium: float | None
    large: float | None


@dataclass(frozen=True)
class DetectorRun:
    """One seed."""

    seed: int
    precision: Precision
    lr: float  # that it ended with
    restarts: tuple[str, ...] = ()  # why the learning rate was halved, each time
    notes: tuple[str, ...] = ()  # images of which nothing could be seen
    seconds: float = 0.0


@dataclass(frozen=True)
class DetectionResult(Measured):
    """The precision of detectors on an encoder, and all that tells how it was measured. Its picture: what the middle
    run finds on test images."""

    encoder: str  # the name in tables
    set: str
    runs: tuple[DetectorRun, ...]
    classes: int
    images: dict[str, int]  # train, test
    schedule: str  # standard, short, or own: other settings than those of either
    benchmark: Literal["detection"] = "detection"
    settings: dict[str, Any] = field(default_factory=dict)  # steps, batch, sizes, norms, ...

    @property
    def file_name(self) -> str:
        return f"{plain(self.encoder)}--{self.benchmark}-{plain(self.schedule)}--{plain(self.set)}.json"

    @property
    def median(self) -> Precision:
        """Over the runs, each number by itself, as the paper reports AP."""
        middle: dict[str, Any] = {}
        for part in fields(Precision):
            values = [getattr(run.precision, part.name) for run in self.runs]
            middle[part.name] = None if None in values else statistics.median(values)
        return Precision(**middle)


def read_detection(content: dict[str, Any]) -> DetectionResult:
    """From the JSON of a file; a ValueError says what is wrong with it."""
    result = read_fields(DetectionResult, content)
    if not (result.runs and result.encoder and result.set and result.schedule):
        raise ValueError("there are no runs, or a name is empty")
    for run in result.runs:
        _check(run)
    if not all(count > 0 for count in (result.classes, *result.images.values())):
        raise ValueError("classes and images must be counts")
    return result


def read_run(content: dict[str, Any]) -> DetectorRun:
    """The same of one run; what else is in the file is left aside."""
    run = read_fields(DetectorRun, {part.name: content[part.name] for part in fields(DetectorRun)})
    _check(run)
    return run


def _check(run: DetectorRun) -> None:
    values = [getattr(run.precision, part.name) for part in fields(Precision)]
    if not all(value is None or 0 <= value <= 1 for value in values):
        raise ValueError("average precisions must be between 0 and 1")
