"""results/*.json: one file for each encoder, benchmark and task or set. Reports read only these.

The types below are the schema: each field with the values it may have. What a file holds is checked against them.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from vivi import __version__
from vivi.evaluate.tasks import Group
from vivi.evaluate.vid_robust.scores import Curve, Reduction
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import read_file, storage, write_atomically

FORMAT = 1
_MOST = 2**53  # larger numbers are damage, and no float holds them exactly

Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=_MOST)]
CountOrZero = Annotated[int, Meta(ge=0, le=_MOST)]
Amount = Annotated[float, Meta(ge=0, le=_MOST)]
Name = Annotated[str, Meta(min_length=1)]
Benchmark = Literal["vtab", "knn", "linear", "classifier"]
Protocol = Literal["v1", "v2", "full"]


def plain(name: str) -> str:
    """A name as a part of a file's name."""
    return re.sub(r"[^\w.()=+%-]+", "_", name) or "_"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What every result has: where it comes from."""

    notes: tuple[str, ...] = ()  # what else there is to know: what was left out, and why
    picture: str = ""  # a PNG beside the result's file
    encoder_from: str = ""  # as it was given
    encoder_checksum: str = ""
    architecture: str = ""  # of the encoder, in words; nothing in results of older versions
    data_checksum: str = ""
    seconds: Amount = 0.0
    versions: dict[str, str] = field(default_factory=dict)


# --- vtab, knn, linear, classifier ---


@dataclass(frozen=True)
class Setting:
    """One point of the sweep."""

    lr: Amount
    steps: Count


@dataclass(frozen=True)
class Trial:
    """The accuracy of a setting on validation images."""

    setting: Setting
    accuracy: Share


@dataclass(frozen=True)
class Score:
    """Test accuracies of the chosen setting: one for each seed."""

    accuracies: Annotated[tuple[Share, ...], Meta(min_length=1)]
    setting: Setting | None = None  # a probe has none
    chosen_by: str = ""  # in words: what made this setting the chosen one

    @property
    def median(self) -> float:
        return statistics.median(self.accuracies)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The interval that has the true share in 95 % of the cases, of a share that was seen among so many images."""
    z = 1.96
    centre, half = share + z**2 / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, (centre - half) / (1 + z**2 / count)), min(1.0, (centre + half) / (1 + z**2 / count))


@dataclass(frozen=True)
class Result(Measured):
    """An encoder's accuracy on a task, and all that tells how it was measured."""

    encoder: Name  # the name in tables
    benchmark: Benchmark
    protocol: Protocol
    task: Name
    title: Name
    group: Group
    classes: Count
    score: Score  # vtab: of the setting with the best mean over tasks, unless only the task's own was asked for
    score_per_task: Score | None = None  # vtab: of the setting that is best on this task, where it was asked for
    top5: Share | None = None  # classifier: the share of labels among its first five; `score` is of the first
    sweep: tuple[Trial, ...] = ()
    quick: bool = False  # shortened schedules: for small studies, not to be compared with the paper
    split: str = "lists"  # or "tfds"; "own split": the images are not those of VTAB, or not all, or dealt by us
    images: dict[str, Count] = field(default_factory=dict)  # of sweep, validation, final and test
    unreadable: CountOrZero = 0  # images that were left out
    settings: dict[str, Any] = field(default_factory=dict)  # batch, size, k, ...

    def __post_init__(self) -> None:
        if self.top5 is not None and self.benchmark != "classifier":
            raise ValueError("top5 belongs to a classifier")
        if self.top5 is not None and self.top5 < self.score.median:
            raise ValueError("top5 is less than the accuracy")

    @property
    def interval(self) -> tuple[float, float] | None:
        """How far so few test images leave the accuracy uncertain."""
        return wilson(self.score.median, self.images["test"]) if "test" in self.images else None

    @property
    def file_name(self) -> str:
        quick = "-quick" if self.quick else ""
        return f"{plain(self.encoder)}--{self.benchmark}-{self.protocol}{quick}--{plain(self.task)}.json"


# --- vid-robust ---


@dataclass(frozen=True)
class RobustResult(Measured):
    """pm-0 ... pm-k of a classifier, and all that tells how they were measured. Its picture: the worst anchors."""

    encoder: Name  # the name in tables
    set: Name
    curve: Curve
    anchors: Count
    frames: Count  # anchors and neighbours, those without a prediction too
    classes: Count
    reduction: Reduction | None  # from the classifier's outputs to the set's classes; None: they are the same
    benchmark: Literal["vid-robust"] = "vid-robust"
    classifier_checksum: str = ""  # of all its weights, or of the file of its predictions
    class_map_checksum: str = ""  # none: there is no class map

    def __post_init__(self) -> None:
        complete, strict = self.curve.complete, self.curve.strict
        if not complete or len(complete) != len(strict):
            raise ValueError("curve is empty, or has two lengths")
        for interval in (*complete, *strict):
            if not (0 <= interval.right <= interval.n <= _MOST and 0 <= interval.low <= interval.high <= 1):
                raise ValueError("curve has an impossible interval")

    @property
    def file_name(self) -> str:
        return f"{plain(self.encoder)}--{self.benchmark}--{plain(self.set)}.json"

    @property
    def farthest(self) -> int:
        """k of the farthest neighbours."""
        return len(self.curve.complete) - 1


# --- detection ---


@dataclass(frozen=True)
class Precision:
    """COCO's average precisions; None where no object has that size."""

    ap: Share
    ap50: Share
    ap75: Share
    small: Share | None
    medium: Share | None
    large: Share | None


@dataclass(frozen=True)
class DetectorRun:
    """One seed."""

    seed: CountOrZero
    precision: Precision
    lr: Amount  # that it ended with
    restarts: tuple[str, ...] = ()  # why the learning rate was halved, each time
    notes: tuple[str, ...] = ()  # images of which nothing could be seen
    seconds: Amount = 0.0


@dataclass(frozen=True)
class DetectionResult(Measured):
    """The precision of detectors on an encoder, and all that tells how it was measured. Its picture: what the middle
    run finds on test images."""

    encoder: Name  # the name in tables
    set: Name
    runs: Annotated[tuple[DetectorRun, ...], Meta(min_length=1)]
    classes: Count
    images: dict[str, Count]  # train, test
    schedule: Name  # standard, short, or own: other settings than those of either
    benchmark: Literal["detection"] = "detection"
    settings: dict[str, Any] = field(default_factory=dict)  # steps, batch, sizes, norms, ...

    @property
    def file_name(self) -> str:
        return f"{plain(self.encoder)}--{self.benchmark}-{plain(self.schedule)}--{plain(self.set)}.json"

    @property
    def median(self) -> Precision:
        """Over the runs, each number by itself, as the paper reports AP."""
        columns = [[getattr(run.precision, part.name) for run in self.runs] for part in fields(Precision)]
        middle: list[Any] = [None if None in column else statistics.median(column) for column in columns]
        return Precision(*middle)


# --- files ---

AnyResult = Result | RobustResult | DetectionResult
Kind = TypeVar("Kind", RobustResult, DetectionResult)


def versions() -> dict[str, str]:
    """The versions of what an accuracy may depend on."""
    packages = {package: version(package) for package in ("torch", "torchvision", "timm")}
    return {"python": platform.python_version(), "vivi": __version__, **packages}


def write_result(folder: Path, result: AnyResult) -> Path:
    """Writes, or replaces, the file of a result."""
    path = folder / result.file_name
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"format": FORMAT, **asdict(result)}, indent=1).encode() + b"\n")
    return path


def write_with_picture(folder: Path, result: Kind, picture: bytes) -> Kind:
    """Writes a result and a PNG beside it; returns the result, which names the PNG. Without a picture, that of an
    earlier result is removed."""
    path = (folder / result.file_name).with_suffix(".png")
    result = replace(result, picture=path.name if picture else "")
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if picture:
        write_atomically(path, picture)
    write_result(folder, result)
    if not picture:
        with storage(path):
            path.unlink(missing_ok=True)
    return result


def check_replaces(folder: Path, result: Kind, difference: Callable[[Kind], str]) -> None:
    """Raises where this result would replace one that was measured otherwise, which must not be lost. `difference`
    says of an earlier result what was different, or nothing."""
    for earlier in read_all(folder)[0] if folder.is_dir() else ():
        if isinstance(earlier, type(result)) and earlier.file_name == result.file_name and difference(earlier):
            raise UserError(
                f"{folder} has a result of {earlier.encoder} {difference(earlier)}: give --name or another --out"
            )


def read_results(folder: Path) -> tuple[list[Result], list[str]]:
    """The accuracies in a folder, by file name, and a line for each file that is no result."""
    results, problems = read_all(folder)
    return [result for result in results if isinstance(result, Result)], problems


def read_all(folder: Path) -> tuple[list[AnyResult], list[str]]:
    """The results of all kinds in a folder, by file name, and a line for each file that is none."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".json")]
    except FileNotFoundError:
        raise UserError(f"there is no folder {folder}; vivi evaluate writes results into its --out") from None
    except OSError as error:
        raise UserError(f"the results in {folder} cannot be read: {error.strerror}; give another folder") from None
    results: list[AnyResult] = []
    problems = []
    for name in sorted(names):
        try:
            results.append(read_result(folder / name))
        except UserError as error:
            problems.append(str(error))
    return results, problems


def read_result(path: Path) -> AnyResult:
    """The result in a file, of whichever kind."""
    try:
        content = json.loads(read_file(path))
        given = content.pop("format")
        if given != FORMAT:
            raise ValueError(f"its format is {given}, this version reads {FORMAT}")
        kinds: dict[str, type[AnyResult]] = {"vid-robust": RobustResult, "detection": DetectionResult}
        kind = kinds.get(content["benchmark"], Result)
        if unknown := content.keys() - {part.name for part in fields(kind)}:  # which msgspec would leave out
            raise ValueError(f"unknown field `{min(unknown)[:40]}`")
        return msgspec.convert(content, kind)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else first_line(error).replace("$.", "")
        raise UserError(f"{path} is no result of vivi evaluate ({reason})") from None


def read_run(content: dict[str, Any]) -> DetectorRun:
    """One seed of a detector; what else is in its file is left aside."""
    return msgspec.convert(content, DetectorRun)
