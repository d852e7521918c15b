"""What is known about a classifier's robustness on one set: a file in results/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vivi.evaluate.fields import read_fields
from vivi.evaluate.measured import Measured
from vivi.evaluate.names import plain
from vivi.evaluate.vid_robust.scores import Curve, Reduction


@dataclass(frozen=True)
class RobustResult(Measured):
    """pm-0 ... pm-k of a classifier, and all that tells how they were measured. Its picture: the worst anchors."""

    encoder: str  # the name in tables
    set: str
    curve: Curve
    anchors: int
    frames: int  # anchors and neighbours, those without a prediction too
    classes: int
    reduction: Reduction | None  # from the classifier's outputs to the set's classes; None: they are the same
    benchmark: Literal["vid-robust"] = "vid-robust"
    classifier_checksum: str = ""  # of all its weights, or of the file of its predictions
    class_map_checksum: str = ""  # none: there is no class map

    @property
    def file_name(self) -> str:
        return f"{plain(self.encoder)}--{self.benchmark}--{plain(self.set)}.json"

    @property
    def farthest(self) -> int:
        """k of the farthest neighbours."""
        return len(self.curve.complete) - 1


def read_robust(content: dict[str, Any]) -> RobustResult:
    """From the JSON of a file; a ValueError says what is wrong with it."""
    result = read_fields(RobustResult, content)
    complete, strict = result.curve.complete, result.curve.strict
    if not complete or len(complete) != len(strict):
        raise ValueError("the curve is empty, or has two lengths")
    if not all(0 <= one.right <= one.n and 0 <= one.low <= one.high <= 1 for one in (*complete, *strict)):
        raise ValueError("an interval is impossible")
    if not result.encoder or not result.set:
        raise ValueError("encoder or set is empty")
    if not all(count > 0 for count in (result.anchors, result.frames, result.classes)):
        raise ValueError("anchors, frames and classes must be counts")
    return result
