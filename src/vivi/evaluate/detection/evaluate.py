"""vivi evaluate detection: RetinaNet on an encoder, trained and tested on images with boxes, a few times over.

    results/runs/<encoder>/detection-<key>/     one seed: its attempts, and run.json once it is done

The key is a checksum of what the precision depends on, so that a run is done once, and never taken for another.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from shutil import rmtree

import torch
from rich.console import Console
from torch.nn.modules.batchnorm import _BatchNorm

from vivi.evaluate.detection.batches import test_batches
from vivi.evaluate.detection.network import Detector
from vivi.evaluate.detection.pictures import draw_detections
from vivi.evaluate.detection.score import Detections, average_precision
from vivi.evaluate.detection.sets import open_sets
from vivi.evaluate.detection.settings import Detected, DetectionExecution, Tuned
from vivi.evaluate.detection.train import Job, train_detector
from vivi.evaluate.encoders import Model, load_model
from vivi.evaluate.results import (
    DetectionResult,
    DetectorRun,
    Precision,
    plain,
    read_all,
    read_run,
    versions,
    write_result,
)
from vivi.evaluate.subject import check_name
from vivi.runtime.distributed import World, join_world, only_rank_0_explains
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine
from vivi.runtime.signals import StopRequest
from vivi.runtime.storage import StorageError, locked, read_file, write_atomically


def evaluate_detection(
    subject: Detected, tuned: Tuned, machine: DetectionExecution, console: Console
) -> DetectionResult:
    """Trains and tests detectors, and writes the result; the same call goes on after a stop."""
    try:
        with join_world(machine.device) as world:
            quiet = Console(quiet=True)
            return _Evaluation(subject, tuned, machine, world, console if world.rank == 0 else quiet).run()
    except StorageError as error:
        raise UserError(f"results cannot be written: {error}; the same command goes on") from None
    except torch.OutOfMemoryError:
        raise UserError(
            "the GPU has too little memory for this batch: try a smaller --micro-batch (with --norm frozen, "
            "where the encoder has batch norm), or a smaller --min-size and --max-size"
        ) from None


class _Evaluation:
    """All that the runs have in common."""

    def __init__(
        self, subject: Detected, tuned: Tuned, machine: DetectionExecution, world: World, console: Console
    ) -> None:
        self.subject, self.machine, self.world, self.console = subject, machine, world, console
        with only_rank_0_explains():
            tuned.check()
            machine.check()
            self.tuned = tuned.resolved()
            self.model = load_model(subject.encoder, subject.weights, name=subject.name)
            check_name(self.model.name, self.model.checksum, subject.out)
            check_machine(self.model, tuned, machine, world)
            self.train, self.test = open_sets(subject.data, subject.train, subject.test)
            self.settings = {n: value for n, value in asdict(self.tuned).items() if n not in ("schedule", "seeds")}
            checksums = (self.train.fingerprint() + self.test.fingerprint()).encode()
            self.data_checksum = hashlib.sha256(checksums).hexdigest()
            self._check_result()
            self._build()  # says so before any work where this encoder has no maps to detect on

    def run(self) -> DetectionResult:
        with ExitStack() as stack:
            # All calls with these settings begin with this seed, so its folder stands for those of the others. Other
            # settings and encoders may be evaluated into the same --out at the same time.
            folder = self._folder(0)
            self.world.on_rank_0(lambda: stack.enter_context(locked(folder, "vivi evaluate detection")))
            return self._evaluate()

    def _evaluate(self) -> DetectionResult:
        began = time.monotonic()
        self._describe()
        steps = self.tuned.seeds * self.tuned.steps
        with StopRequest() as stop, ProgressLine("detection", steps, self.console) as progress:
            runs = [self._run(seed, stop, progress) for seed in range(self.tuned.seeds)]
        while more := self._find(len(runs)):  # of an earlier call that asked for more seeds
            runs.append(more)
        result = self._result(runs, time.monotonic() - began)
        if self.world.rank == 0:
            middle = sorted(runs, key=lambda run: run.precision.ap)[(len(runs) - 1) // 2]
            picture = self._folder(middle.seed) / "detections.png"
            if picture.exists():
                result = replace(result, picture=Path(result.file_name).with_suffix(".png").name)
                write_atomically(self.subject.out / result.picture, picture.read_bytes())
            write_result(self.subject.out, result)
        of = f"median of {len(runs)} runs" if len(runs) > 1 else "one run"
        line = f"{result.encoder}: {_numbers(result.median)} on {result.set} ({of})"
        self.console.print(line, soft_wrap=True)
        return result

    # --- one seed ---

    def _run(self, seed: int, stop: StopRequest, progress: ProgressLine) -> DetectorRun:
        """Trains and tests a detector; one that was finished before is not repeated."""
        began, steps = time.monotonic(), self.tuned.steps

        def show(done: int, line: str) -> None:
            progress.show(seed * steps + done, f"run {seed + 1} of {self.tuned.seeds}: {line}")

        if found := self._find(seed):
            show(steps, _said(found))
            return found
        about = (self.machine, self.world, self.console, show)
        trained = train_detector(Job(self._build, self.train, self.tuned, seed, self._folder(seed), *about), stop)
        show(steps, "testing")
        detections, unreadable = self._detect(trained.detector, stop)
        notes = tuple(f"nothing was seen of {line}" for line in (*sorted(trained.unreadable), *unreadable))

        def finish() -> DetectorRun:
            """Scores the detector, and keeps what is known about it."""
            precision, folder = average_precision(self.test, detections), self._folder(seed)
            seconds = round(time.monotonic() - began, 2)
            run = DetectorRun(seed, precision, trained.lr, trained.restarts, notes, seconds)
            content = {**self._about(seed), **asdict(run)}
            write_atomically(folder / "detections.png", draw_detections(self.test, detections))
            write_atomically(folder / "run.json", json.dumps(content, indent=1).encode() + b"\n")
            for checkpoints in folder.glob("attempt-*/checkpoints"):
                rmtree(checkpoints, ignore_errors=True)
            return run

        run = self.world.broadcast_object(self.world.on_rank_0(finish))
        assert run is not None  # rank 0 has it
        self.console.print(f"run {seed + 1}: {_said(run)}", soft_wrap=True)
        return run

    def _detect(self, detector: Detector, stop: StopRequest) -> tuple[list[Detections], list[str]]:
        """What is found on each test image, and a line for each that cannot be read."""
        world, batch = self.world, self.tuned.batch
        mine: dict[int, Detections] = {}
        unreadable: list[str] = []
        as_often_everywhere = range(0, len(self.test.images), batch * world.size)
        with closing(test_batches(self.test, batch, self.machine.threads, world)) as batches:
            for _, some in itertools.zip_longest(as_often_everywhere, batches):
                if world.any(stop.requested):
                    raise KeyboardInterrupt
                if some is not None:
                    pieces = some.pieces(self.machine.micro_batch, world.device)
                    found = (one for images, _ in pieces for one in detector.detect(images, some.shapes))
                    mine.update(zip(some.indices, map(Detections.of, found), strict=True))
                    unreadable += some.unreadable
        parts = world.all_gather_object((mine, unreadable))
        everywhere = {index: one for found, _ in parts for index, one in found.items()}
        return [everywhere[index] for index in sorted(everywhere)], [line for _, lines in parts for line in lines]

    def _build(self) -> Detector:
        detector = Detector(self.model, len(self.train.classes), self.tuned, self.world.size)
        on_gpu, precision = self.world.device.type == "cuda", self.machine.precision
        half = precision == "bfloat16" or (precision == "auto" and on_gpu)
        detector.precision = torch.bfloat16 if half else torch.float32
        return detector.to(self.world.device)

    # --- what was done before ---

    def _about(self, seed: int) -> dict[str, object]:
        """All that a run's precision depends on."""
        return {"encoder": self.model.checksum, "data": self.data_checksum, "seed": seed, **self.settings}

    def _folder(self, seed: int) -> Path:
        key = hashlib.sha256(json.dumps(self._about(seed), sort_keys=True).encode()).hexdigest()[:32]
        return self.subject.out / "runs" / plain(self.model.name) / f"detection-{key}"

    def _find(self, seed: int) -> DetectorRun | None:
        """A finished run, as the first process finds it."""

        def read() -> DetectorRun | None:
            try:
                return read_run(json.loads(read_file(self._folder(seed) / "run.json")))
            except (OSError, ValueError, KeyError, TypeError):
                return None  # none, or damaged by other hands: it is done again

        return self.world.broadcast_object(self.world.on_rank_0(read))

    def _check_result(self) -> None:
        """A result of other settings or images is not to be lost."""
        out, wanted = self.subject.out, self._result([], 0.0)
        for other in read_all(out)[0] if out.is_dir() else ():
            if not isinstance(other, DetectionResult) or other.file_name != wanted.file_name:
                continue
            before = {**other.settings, "other images": other.data_checksum}
            now = {"other images": self.data_checksum, **self.settings}
            for name in now:
                if before.get(name) != now[name]:
                    differs = f"--{name.replace('_', '-')} {before.get(name)}" if name in self.settings else name
                    has = f"{out} has a result of {other.encoder} on {other.set} with {differs}"
                    raise UserError(f"{has}: give another --name or --out")

    # --- what is said ---

    def _describe(self) -> None:
        tuned, sets = self.tuned, (self.train, self.test)
        processes = f" in {self.world.size} processes" if self.world.size > 1 else ""
        self.console.print(
            f"{self.model.name}: RetinaNet, {len(self.train.images):,} images to train on, "
            f"{len(self.test.images):,} to test on, {len(self.train.classes):,} classes; "
            f"{tuned.steps:,} steps of {tuned.batch} images, {tuned.seeds} ×, on "
            f"{self.world.device}{processes}",
            soft_wrap=True,
        )
        for note in dict.fromkeys(note for data in sets for note in data.notes):
            self.console.print(note, style="yellow", soft_wrap=True)

    def _result(self, runs: Sequence[DetectorRun], seconds: float) -> DetectionResult:
        notes = [note for data in (self.train, self.test) for note in data.notes]
        return DetectionResult(
            encoder=self.model.name,
            set=self.train.name,
            runs=tuple(runs),
            classes=len(self.train.classes),
            images={"train": len(self.train.images), "test": len(self.test.images)},
            schedule=self.tuned.label,
            settings=self.settings,
            notes=tuple(dict.fromkeys([*notes, *(note for run in runs for note in run.notes)])),
            encoder_from=self.model.source,
            encoder_checksum=self.model.checksum,
            data_checksum=self.data_checksum,
            seconds=round(seconds, 2),
            versions=versions(),
        )


def check_machine(model: Model, tuned: Tuned, machine: DetectionExecution, world: World) -> None:
    """Raises for what the processes cannot share, or cannot compute piece by piece."""
    if tuned.batch % world.size:
        raise UserError(
            f"{world.size} processes cannot share {tuned.batch} images evenly: start a number of processes that "
            f"divides {tuned.batch}, or set --batch"
        )
    if tuned.norm == "frozen" or not any(isinstance(module, _BatchNorm) for module in model.backbone.modules()):
        return
    if world.size > 1 and world.device.type != "cuda":
        raise UserError("batch norm can be synchronised on GPUs only: add --norm frozen, or start one process")
    if 0 < machine.micro_batch < tuned.batch // world.size:
        raise UserError(
            "--micro-batch would take batch statistics over fewer images: leave it away, or add --norm frozen"
        )


def _said(run: DetectorRun) -> str:
    halved = f", {len(run.restarts)} × halved" if run.restarts else ""
    return f"{_numbers(run.precision)}, learning rate {run.lr:g}{halved}"


def _numbers(precision: Precision) -> str:
    """AP 33.6, AP50 51.2, AP75 36.0"""
    return f"AP {100 * precision.ap:.1f}, AP50 {100 * precision.ap50:.1f}, AP75 {100 * precision.ap75:.1f}"
