"""The commands that begin with vivi evaluate."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import OmitArgPrefixes, arg

from vivi.cli.command import Command, Group
from vivi.evaluate.detection.settings import Detected, DetectionExecution, Tuned
from vivi.evaluate.results import AnyResult, Protocol
from vivi.evaluate.settings import Classified, FinetuneExecution, Neighbours, Subject, Sweep
from vivi.evaluate.vid_robust.settings import Robustness
from vivi.runtime.console import hint

Device = Annotated[str, arg(help="cpu, cuda, ...; auto: a GPU if there is one.")]
ON_LABELS = (
    "vivi evaluate {} --encoder run/ --data labelled/",
    "vivi evaluate {} --encoder timm:resnet50 --data vtab-1k/",
)


@dataclass(frozen=True)
class Vtab(Command):
    """Fine-tune an encoder on the tasks of VTAB, or on your own, and test it. The same command goes on after a stop.
    With --check alone: say for every task what is there, what is missing, and where to get it."""

    examples: ClassVar = (*(one.format("vtab") for one in ON_LABELS), "vivi evaluate vtab --check vtab-1k/")
    goes_on: ClassVar = True

    subject: OmitArgPrefixes[Subject]
    sweep: OmitArgPrefixes[Sweep] = field(default_factory=Sweep)
    machine: OmitArgPrefixes[FinetuneExecution] = field(default_factory=FinetuneExecution)
    check: Path | None = None
    """Evaluate nothing, and check this folder of tasks."""

    @property
    def only_prints(self) -> bool:
        return self.check is not None

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Any:
        """With --check no encoder is needed."""
        checks = any(word.partition("=")[0] == "--check" for word in words)
        return cls(Subject("", Path())) if checks else None

    def run(self, console: Console) -> Any:
        if self.check is not None:
            from vivi.evaluate.tasks.check import print_check

            return print_check(self.check, console)
        self.subject.check()
        from vivi.evaluate.vtab import evaluate_vtab

        results = evaluate_vtab(self.subject, self.sweep, self.machine, console)
        return _facts(results, self.subject.out, console)


@dataclass(frozen=True)
class Knn(Command):
    """Solve tasks by the nearest neighbours of an encoder's frozen features."""

    examples: ClassVar = tuple(one.format("knn") for one in ON_LABELS)

    subject: OmitArgPrefixes[Subject]
    neighbours: OmitArgPrefixes[Neighbours] = field(default_factory=Neighbours)
    protocol: Protocol = "v2"
    """Which training and test images: v2, v1 or full, as in vivi evaluate vtab."""
    device: Device = "auto"

    def run(self, console: Console) -> Any:
        self.subject.check()
        from vivi.evaluate.probes import evaluate_frozen

        results = evaluate_frozen("knn", self.subject, console, self.protocol, self.neighbours, self.device)
        return _facts(results, self.subject.out, console)


@dataclass(frozen=True)
class Linear(Command):
    """Solve tasks by a linear classifier, in closed form, on an encoder's frozen features."""

    examples: ClassVar = tuple(one.format("linear") for one in ON_LABELS)

    subject: OmitArgPrefixes[Subject]
    protocol: Protocol = "v2"
    """Which training and test images: v2, v1 or full, as in vivi evaluate vtab."""
    device: Device = "auto"

    def run(self, console: Console) -> Any:
        self.subject.check()
        from vivi.evaluate.probes import evaluate_frozen

        results = evaluate_frozen("linear", self.subject, console, self.protocol, device=self.device)
        return _facts(results, self.subject.out, console)


@dataclass(frozen=True)
class Classifier(Command):
    """Test the classifier of a run that was trained with labels, or of a timm model: top-1 and top-5."""

    examples: ClassVar = (
        "vivi evaluate classifier --encoder run/ --data labelled/",
        "vivi evaluate classifier --encoder timm:resnet50 --data imagenet/",
    )

    subject: OmitArgPrefixes[Classified]
    device: Device = "auto"

    def run(self, console: Console) -> Any:
        from vivi.evaluate.classifiers import evaluate_classifier

        result = evaluate_classifier(self.subject, console, self.device)
        return _facts([result], self.subject.out, console)


@dataclass(frozen=True)
class VidRobust(Command):
    """Measure how robust a classifier is to what changes between the frames of a video: the accuracy on anchors, and
    where all their neighbours must be right too, as in ImageNet-Vid-Robust."""

    examples: ClassVar = (
        "vivi evaluate vid-robust --encoder run/ --frames imagenet-vid-robust/",
        "vivi evaluate vid-robust --predictions predictions.json --metadata metadata/",
    )

    subject: OmitArgPrefixes[Robustness] = field(default_factory=Robustness)
    device: Device = "auto"

    def run(self, console: Console) -> Any:
        from vivi.evaluate.vid_robust.evaluate import evaluate_robustness

        result = evaluate_robustness(self.subject, console, self.device)
        return _facts([result], self.subject.out, console)


@dataclass(frozen=True)
class Detection(Command):
    """Train RetinaNet on an encoder to detect objects, and test it: COCO's AP. The same command goes on after a
    stop."""

    examples: ClassVar = (
        "vivi evaluate detection --encoder run/ --data coco/",
        "vivi evaluate detection --encoder run/ --data boxes/ --schedule short   # some hundred images",
    )
    goes_on: ClassVar = True

    subject: OmitArgPrefixes[Detected]
    tuned: OmitArgPrefixes[Tuned] = field(default_factory=Tuned)
    machine: OmitArgPrefixes[DetectionExecution] = field(default_factory=DetectionExecution)

    def run(self, console: Console) -> Any:
        from vivi.evaluate.detection.evaluate import evaluate_detection

        result = evaluate_detection(self.subject, self.tuned, self.machine, console)
        return _facts([result], self.subject.out, console)


def _facts(results: Sequence[AnyResult], out: Path, console: Console) -> dict[str, Any]:
    """What --json prints; and where people see it."""
    if int(os.environ.get("RANK", "0")) == 0:
        hint(console, f"see them: vivi report {shlex.quote(str(out))}")
    return {"folder": out, "results": [asdict(result) for result in results]}


EVALUATE = Group(
    "Measure how good an encoder is, by transfer to labelled tasks.",
    ("vivi evaluate linear --encoder run/ --data labelled/", "vivi evaluate vtab --encoder run/ --data vtab-1k/"),
    {
        "linear": Linear,
        "knn": Knn,
        "vtab": Vtab,
        "classifier": Classifier,
        "vid-robust": VidRobust,
        "detection": Detection,
    },
)
