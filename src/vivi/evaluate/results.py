"""results/*.json: one file for each encoder, benchmark, protocol and task. Reports read only these."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from vivi.evaluate.detection.result import DetectionResult, read_detection
from vivi.evaluate.fields import read_fields
from vivi.evaluate.measured import Measured
from vivi.evaluate.names import plain
from vivi.evaluate.tasks import Group
from vivi.evaluate.vid_robust.result import RobustResult, read_robust
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import read_file, storage, write_atomically

FORMAT = 1
_PACKAGES = ("vivi", "torch", "torchvision", "timm")
Benchmark = Literal["vtab", "knn", "linear", "classifier"]
Protocol = Literal["v1", "v2", "full"]


@dataclass(frozen=True)
class Setting:
    """One point of the sweep."""

    lr: float
    steps: int


@dataclass(frozen=True)
class Trial:
    """What a setting was worth: the accuracy on validation images, between 0 and 1."""

    setting: Setting
    accuracy: float


@dataclass(frozen=True)
class Score:
    """Test accuracies, between 0 and 1, of the chosen setting: one for each seed."""

    accuracies: tuple[float, ...]
    setting: Setting | None = None  # a probe has none
    chosen_by: str = ""  # in words: what made this setting the chosen one

    @property
    def median(self) -> float:
        return statistics.median(self.accuracies)


@dataclass(frozen=True)
class Result(Measured):
    """An encoder's accuracy on a task, and all that tells how it was measured."""

    encoder: str  # the name in tables
    benchmark: Benchmark
    protocol: Protocol
    task: str
    title: str
    group: Group
    classes: int
    score: Score  # vtab: of the setting with the best mean over tasks, unless only the task's own was asked for
    score_per_task: Score | None = None  # vtab: of the setting that is best on this task, where it was asked for
    top5: float | None = None  # classifier: the share of labels among its first five; `score` is of the first
    sweep: tuple[Trial, ...] = ()
    quick: bool = False  # shortened schedules: for small studies, not to be compared with the paper
    split: str = "lists"  # or "tfds"; "own split": the images are not those of VTAB, or not all, or dealt by us
    images: dict[str, int] = field(default_factory=dict)  # of sweep, validation, final and test
    unreadable: int = 0  # images that were left out
    settings: dict[str, Any] = field(default_factory=dict)  # batch, size, k, ...

    @property
    def file_name(self) -> str:
        quick = "-quick" if self.quick else ""
        return f"{plain(self.encoder)}--{self.benchmark}-{self.protocol}{quick}--{plain(self.task)}.json"


def versions() -> dict[str, str]:
    """Of what an accuracy may depend on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"  # run from its source


AnyResult = Result | RobustResult | DetectionResult


def write_result(folder: Path, result: AnyResult) -> Path:
    """Writes, or replaces, the file of a result."""
    path = folder / result.file_name
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"format": FORMAT, **asdict(result)}, indent=1).encode() + b"\n")
    return path


def read_results(folder: Path) -> tuple[list[Result], list[str]]:
    """The accuracies in a folder, by file name, and a line for each file that is no result."""
    results, problems = read_all(folder)
    return [result for result in results if isinstance(result, Result)], problems


def read_all(folder: Path) -> tuple[list[AnyResult], list[str]]:
    """The results of all kinds in a folder, by file name, and a line for each file that is none."""
    results: list[AnyResult] = []
    problems = []
    for name in sorted(_names(folder)):
        try:
            results.append(read_result(folder / name))
        except UserError as error:
            problems.append(str(error))
    return results, problems


def _names(folder: Path) -> list[str]:
    """Of the files that may be results."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(".json")]
    except FileNotFoundError:
        raise UserError(f"there is no folder {folder}; vivi evaluate writes results into its --out") from None
    except OSError as error:
        raise UserError(f"the results in {folder} cannot be read: {error.strerror}; give another folder") from None


def read_result(path: Path) -> AnyResult:
    try:
        content = json.loads(read_file(path))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, this version reads {FORMAT}")
        fields = {name: value for name, value in content.items() if name != "format"}
        if content["benchmark"] == "vid-robust":
            return read_robust(fields)
        return read_detection(fields) if content["benchmark"] == "detection" else _read(fields)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
        raise UserError(f"{path} is no result of vivi evaluate ({reason})") from None


def _read(content: dict[str, Any]) -> Result:
    """From the JSON of a file; a ValueError says what is wrong with it."""
    result = read_fields(Result, content)
    if not (result.encoder and result.task and result.title):
        raise ValueError("encoder, task or title is empty")
    if not all(count > 0 for count in (result.classes, *result.images.values())) or result.unreadable < 0:
        raise ValueError("classes, images and unreadable must be counts")
    accuracies = [score.accuracies for score in (result.score, result.score_per_task) if score]
    if not all(some and all(0 <= accuracy <= 1 for accuracy in some) for some in accuracies):
        raise ValueError("accuracies must be between 0 and 1, one at least")
    if result.top5 is not None and result.benchmark != "classifier":
        raise ValueError("top5 belongs to a classifier")
    if result.top5 is not None and not result.score.median <= result.top5 <= 1:
        raise ValueError("top5 must be between the accuracy and 1")
    return result
