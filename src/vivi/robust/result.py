"""What is known about a classifier's robustness on one set: a file in results/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vivi.robust.scores import Curve, Interval, Reduction
from vivi.transfer.measured import Measured
from vivi.transfer.names import plain


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
    """From the JSON of a file; a ValueError, KeyError or TypeError says what is wrong with it."""
    fields = {name: value for name, value in content.items() if name != "format"}
    curve = content["curve"]
    complete, strict = (tuple(map(_interval, curve[part])) for part in ("complete", "strict"))
    if not complete or len(complete) != len(strict):
        raise ValueError("the curve is empty, or has two lengths")
    missing = tuple(map(str, curve["missing"]))
    result = RobustResult(**{**fields, "curve": Curve(complete, strict, missing), "notes": tuple(content["notes"])})
    texts = (result.encoder, result.set, result.picture, result.encoder_checksum, result.data_checksum, *result.notes)
    texts += (result.classifier_checksum, result.class_map_checksum)
    if not all(isinstance(text, str) for text in texts) or not result.encoder or not result.set:
        raise ValueError("a name or a note is impossible")
    if not all(type(count) is int and count > 0 for count in (result.anchors, result.frames, result.classes)):
        raise ValueError("anchors, frames and classes must be counts")
    return result


def _interval(content: dict[str, Any]) -> Interval:
    right, n, low, high = (content[name] for name in ("right", "n", "low", "high"))
    if not (type(right) is int and type(n) is int and 0 <= right <= n and 0 <= low <= high <= 1):
        raise ValueError("an interval is impossible")
    return Interval(right, n, float(low), float(high))
