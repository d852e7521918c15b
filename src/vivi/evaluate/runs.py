"""Finished fine-tuning runs, which are never repeated.

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


class Runs:
    """The runs in a folder, of one encoder."""

    def __init__(self, folder: Path, encoder: str, size: int, antialias: bool, data: dict[str, str]) -> None:
        """`encoder` and `data`, of each task, are checksums."""
        self.folder, self.data = folder, data
        self.common = {"encoder": encoder, "size": size, "antialias": antialias}

    def about(self, job: Job) -> dict[str, Any]:
        return {**self.common, "data": self.data[job.task], "phase": job.phase, **asdict(job.tuning)}

    def key(self, job: Job) -> str:
        return hashlib.sha256(json.dumps(self.about(job), sort_keys=True).encode()).hexdigest()[:32]

    def find(self, job: Job) -> Run | None:
        try:
            content = json.loads(read_file(self.folder / f"{self.key(job)}.json"))
            return Run(float(content["accuracy"]), float(content["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # none, or damaged by other hands: it is done again

    def checkpoints(self, job: Job) -> Path:
        return self.folder / self.key(job)

    def write(self, job: Job, run: Run) -> None:
        content = {"task": job.task, **self.about(job), **asdict(run)}
        write_atomically(self.folder / f"{self.key(job)}.json", json.dumps(content, indent=1).encode() + b"\n")
