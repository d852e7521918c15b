"""The commands that begin with vivi evaluate."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import OmitArgPrefixes, arg, subcommand

from vivi.evaluate.detection.settings import Detected, DetectionExecution, Tuned
from vivi.evaluate.results import Protocol
from vivi.evaluate.settings import Classified, FinetuneExecution, Neighbours, Subject, Sweep
from vivi.evaluate.vid_robust.settings import Robustness

Device = Annotated[str, arg(help="cpu, cuda, ...; auto: a GPU if there is one.")]


@dataclass(frozen=True)
class Vtab:
    """Fine-tune an encoder on the tasks of VTAB, or on your own, and test it. The same command goes on after a stop.
    With --check DIR alone: say for every task what is there, what is missing, and where to get it."""

    subject: OmitArgPrefixes[Subject]
    sweep: OmitArgPrefixes[Sweep] = field(default_factory=Sweep)
    machine: OmitArgPrefixes[FinetuneExecution] = field(default_factory=FinetuneExecution)

    def run(self, console: Console) -> None:
        self.subject.check()
        from vivi.evaluate.vtab import evaluate_vtab

        evaluate_vtab(self.subject, self.sweep, self.machine, console)
        _say_report(self.subject.out, console)


@dataclass(frozen=True)
class Check:
    """Say for every task of VTAB what is there, what is missing, and where to get it."""

    check: Path
    """A folder of tasks in VTAB-1k layout, of folders prepared by TensorFlow Datasets, or of original data sets; or
    your own labelled images."""

    def run(self, console: Console) -> None:
        from vivi.evaluate.tasks.check import print_check

        print_check(self.check, console)


@dataclass(frozen=True)
class Knn:
    """Solve tasks by the nearest neighbours of an encoder's frozen features."""

    subject: OmitArgPrefixes[Subject]
    neighbours: OmitArgPrefixes[Neighbours] = field(default_factory=Neighbours)
    protocol: Protocol = "v2"
    """Which training and test images: v2, v1 or full, as in vivi evaluate vtab."""
    device: Device = "auto"

    def run(self, console: Console) -> None:
        self.subject.check()
        from vivi.evaluate.probes import evaluate_frozen

        evaluate_frozen("knn", self.subject, console, self.protocol, self.neighbours, self.device)
        _say_report(self.subject.out, console)


@dataclass(frozen=True)
class Linear:
    """Solve tasks by a linear classifier, in closed form, on an encoder's frozen features."""

    subject: OmitArgPrefixes[Subject]
    protocol: Protocol = "v2"
    """Which training and test images: v2, v1 or full, as in vivi evaluate vtab."""
    device: Device = "auto"

    def run(self, console: Console) -> None:
        self.subject.check()
        from vivi.evaluate.probes import evaluate_frozen

        evaluate_frozen("linear", self.subject, console, self.protocol, device=self.device)
        _say_report(self.subject.out, console)


@dataclass(frozen=True)
class Classifier:
    """Test the classifier of a run that was trained with labels, or of a timm model: top-1 and top-5."""

    subject: OmitArgPrefixes[Classified]
    device: Device = "auto"

    def run(self, console: Console) -> None:
        from vivi.evaluate.classifiers import evaluate_classifier

        evaluate_classifier(self.subject, console, self.device)
        _say_report(self.subject.out, console)


@dataclass(frozen=True)
class VidRobust:
    """Measure how robust a classifier is to what changes between the frames of a video: the accuracy on anchors, and
    where all their neighbours must be right too, as in ImageNet-Vid-Robust."""

    subject: OmitArgPrefixes[Robustness] = field(default_factory=Robustness)
    device: Device = "auto"

    def run(self, console: Console) -> None:
        from vivi.evaluate.vid_robust.evaluate import evaluate_robustness

        evaluate_robustness(self.subject, console, self.device)
        _say_report(self.subject.out, console)


@dataclass(frozen=True)
class Detection:
    """Train RetinaNet on an encoder to detect objects, and test it: COCO's AP. The same command goes on after a
    stop."""

    subject: OmitArgPrefixes[Detected]
    tuned: OmitArgPrefixes[Tuned] = field(default_factory=Tuned)
    machine: OmitArgPrefixes[DetectionExecution] = field(default_factory=DetectionExecution)

    def run(self, console: Console) -> None:
        from vivi.evaluate.detection.evaluate import evaluate_detection

        evaluate_detection(self.subject, self.tuned, self.machine, console)
        _say_report(self.subject.out, console)


def _say_report(out: Path, console: Console) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        console.print(f"see them: vivi report {shlex.quote(str(out))} --out page/", soft_wrap=True)


EVALUATE = "Measure how good an encoder is, by transfer to labelled tasks."


def evaluate_commands(arguments: Sequence[str]) -> Any:
    """What can be evaluated; with --check nothing is, so no encoder is asked for."""
    vtab = Check if any(word.split("=")[0] == "--check" for word in arguments) else Vtab
    return (
        Annotated[vtab, subcommand("vtab")]
        | Annotated[Knn, subcommand("knn")]
        | Annotated[Linear, subcommand("linear")]
        | Annotated[Classifier, subcommand("classifier")]
        | Annotated[VidRobust, subcommand("vid-robust")]
        | Annotated[Detection, subcommand("detection")]
    )
