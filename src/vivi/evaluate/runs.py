"""Fine-tuning runs: what they depend on, and the finished ones, which are never repeated.

    results/runs/<encoder>/<key>.json     what a run was and its accuracy
    results/runs/<encoder>/<key>/         the checkpoint of one that was interrupted

The key is a checksum of what the accuracy depends on (see Model.checksum and Task.checksum), so that other weights,
tasks or settings never meet a run that is not theirs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vivi.evaluate.finetune import Tuning
from vivi.evaluate.settings import FinetuneExecution, Subject, Sweep
from vivi.runtime.storage import read_file, write_atomically


@dataclass(frozen=True)
class Job:
    """A run to be done: fine-tune on a task's sweep images and judge by validation, or on the final ones and test."""

    task: str
    phase: Literal["sweep", "final"]
    tuning: Tuning


@dataclass(frozen=True)
class Run:
    """A run that was done."""

    accuracy: float
    seconds: float


@dataclass(frozen=True)
class Work:
    """What all runs of one encoder have in common: enough for a process to find it and the images by itself."""

    subject: Subject
    sweep: Sweep
    machine: FinetuneExecution
    encoder: str  # its checksum
    size: int
    data: dict[str, str]  # the checksum of each task's data

    @property
    def folder(self) -> Path:
        return self.subject.out / "runs" / self.encoder[:16]

    def about(self, job: Job) -> dict[str, Any]:
        """All that the accuracy of a run depends on."""
        common = {"encoder": self.encoder, "size": self.size, "antialias": self.sweep.antialias}
        return {**common, "data": self.data[job.task], "phase": job.phase, **asdict(job.tuning)}

    def checkpoints(self, job: Job) -> Path:
        return self.folder / hashlib.sha256(json.dumps(self.about(job), sort_keys=True).encode()).hexdigest()[:32]

    def find(self, job: Job) -> Run | None:
        try:
            content = json.loads(read_file(self.checkpoints(job).with_suffix(".json")))
            return Run(float(content["accuracy"]), float(content["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # none, or damaged by other hands: it is done again

    def write(self, job: Job, run: Run) -> None:
        content = {"task": job.task, **self.about(job), **asdict(run)}
        path = self.checkpoints(job).with_suffix(".json")
        write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
