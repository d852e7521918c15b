"""results/*.json: one file for each encoder, benchmark, protocol and task. Reports read only these."""

from __future__ import annotations

import json
import platform
import statistics
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, get_args

from vivi.detection.result import DetectionResult, read_detection
from vivi.errors import UserError
from vivi.robust.result import RobustResult, read_robust
from vivi.storage import storage, write_atomically
from vivi.transfer.measured import Measured
from vivi.transfer.names import plain
from vivi.transfer.tasks import GROUPS, Group

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
    split: str = "lists"  # "own split": the images are not those of VTAB, or not all, or dealt by us
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
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; vivi evaluate writes results into its --out")
    results: list[AnyResult] = []
    problems = []
    for path in sorted(folder.glob("*.json")):
        try:
            results.append(read_result(path))
        except UserError as error:
            problems.append(str(error))
    return results, problems


def read_result(path: Path) -> AnyResult:
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, this version reads {FORMAT}")
        if content["benchmark"] == "vid-robust":
            return read_robust(content)
        return read_detection(content) if content["benchmark"] == "detection" else _result(content)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path} is no result of vivi evaluate ({reason})") from None


def _result(content: dict[str, Any]) -> Result:
    fields = {name: value for name, value in content.items() if name != "format"}
    fields["score"] = _score(content["score"])
    fields["score_per_task"] = _score(content["score_per_task"]) if content.get("score_per_task") else None
    trials = (Trial(_setting(trial["setting"]), float(trial["accuracy"])) for trial in content.get("sweep", ()))
    fields["sweep"] = tuple(trials)
    fields["notes"] = tuple(content.get("notes", ()))
    result = Result(**fields)
    names = (result.encoder, result.task, result.title)
    if not all(isinstance(name, str) and name for name in names) or result.group not in GROUPS:
        raise ValueError("encoder, task, title or group is impossible")
    scores = [score for score in (result.score, result.score_per_task) if score]
    texts = (result.split, result.data_checksum, result.encoder_checksum, *result.notes)
    texts += tuple(score.chosen_by for score in scores)
    counts = (result.classes, *result.images.values())
    if not all(isinstance(text, str) for text in texts) or not isinstance(result.quick, bool):
        raise ValueError("a field is of the wrong type")
    if not all(type(count) is int and count > 0 for count in counts):
        raise ValueError("classes and images must be counts")
    if type(result.unreadable) is not int or result.unreadable < 0:
        raise ValueError("unreadable must be a count")
    if result.top5 is not None and result.benchmark != "classifier":
        raise ValueError("top5 belongs to a classifier")
    if result.top5 is not None and not result.score.median <= result.top5 <= 1:
        raise ValueError("top5 must be between the accuracy and 1")
    if result.benchmark not in get_args(Benchmark) or result.protocol not in get_args(Protocol):
        raise ValueError("benchmark or protocol is unknown")
    return result


def _score(content: dict[str, Any]) -> Score:
    accuracies = tuple(map(float, content["accuracies"]))
    if not accuracies or not all(0 <= accuracy <= 1 for accuracy in accuracies):
        raise ValueError("accuracies must be between 0 and 1, one at least")
    setting = _setting(content["setting"]) if content.get("setting") else None
    return Score(accuracies, setting, content.get("chosen_by", ""))


def _setting(content: dict[str, Any]) -> Setting:
    return Setting(float(content["lr"]), int(content["steps"]))
