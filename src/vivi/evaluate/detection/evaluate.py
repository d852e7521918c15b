"""vivi evaluate detection: RetinaNet on an encoder, trained and tested on images with boxes, a few times over.

    results/runs/<encoder>/detection-<key>/     one seed: its attempts, and run.json once it is done

The key is a checksum of what the precision depends on, so that a run is done once, and never taken for another.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
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
from vivi.evaluate.detection.score import Detections, average_precision, in_words
from vivi.evaluate.detection.sets import open_sets
from vivi.evaluate.detection.settings import Detected, DetectionExecution, Tuned
from vivi.evaluate.detection.train import Job, train_detector
from vivi.evaluate.encoders import Model, load_model
from vivi.evaluate.results import (
    DetectionResult,
    DetectorRun,
    check_replaces,
    plain,
    read_run,
    versions,
    write_with_picture,
)
from vivi.evaluate.subject import check_name
from vivi.runtime.console import warn
from vivi.runtime.distributed import World, join_world, only_rank_0_explains
from vivi.runtime.errors import UserError, require
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
        self.out, self.machine, self.world, self.console = subject.out, machine, world, console
        with only_rank_0_explains():
            tuned.check()
            machine.check()
            self.tuned = tuned.resolved()
            self.model = load_model(subject.encoder, subject.weights, name=subject.name)
            check_name(self.model.name, self.model.checksum, self.out)
            check_machine(self.model, tuned, machine, world)
            self.train, self.test = sets = open_sets(subject.data, subject.train, subject.test)
            self.result = DetectionResult(  # but for its runs
                encoder=self.model.name,
                set=self.train.name,
                runs=(),
                classes=len(self.train.classes),
                images={"train": len(self.train.images), "test": len(self.test.images)},
                schedule=self.tuned.label,
                settings={n: value for n, value in asdict(self.tuned).items() if n not in ("schedule", "seeds")},
                notes=tuple(dict.fromkeys(note for data in sets for note in data.notes)),
                encoder_from=self.model.source,
                encoder_checksum=self.model.checksum,
                data_checksum=hashlib.sha256("".join(data.fingerprint() for data in sets).encode()).hexdigest(),
                versions=versions(),
            )
            check_replaces(self.out, self.result, self._difference)
            self._build()  # says so before any work where this encoder has no maps to detect on

    def _difference(self, earlier: DetectionResult) -> str:
        """What is different about an earlier result: settings, or the images."""
        before, now = ({"images": one.data_checksum, **one.settings} for one in (earlier, self.result))
        changed = ", ".join(name for name in now if before.get(name) != now[name])
        return f"on {earlier.set} that differs in {changed}" if changed else ""

    def run(self) -> DetectionResult:
        began, steps = time.monotonic(), self.tuned.seeds * self.tuned.steps
        with ExitStack() as stack:
            # All calls with these settings begin with this seed, so its folder stands for those of the others. Other
            # settings and encoders may be evaluated into the same --out at the same time.
            folder = self._folder(0)
            self.world.on_rank_0(lambda: stack.enter_context(locked(folder, "vivi evaluate detection")))
            self._describe()
            with StopRequest() as stop, ProgressLine("detection", steps, self.console) as progress:
                runs = [self._run(seed, stop, progress) for seed in range(self.tuned.seeds)]
            while more := self._find(len(runs)):  # of an earlier call that asked for more seeds
                runs.append(more)
            notes = tuple(dict.fromkeys([*self.result.notes, *(note for run in runs for note in run.notes)]))
            result = replace(self.result, runs=tuple(runs), notes=notes, seconds=round(time.monotonic() - began, 2))
            if self.world.rank == 0:
                middle = sorted(runs, key=lambda run: run.precision.ap)[(len(runs) - 1) // 2]
                picture = self._folder(middle.seed) / "detections.png"
                result = write_with_picture(self.out, result, picture.read_bytes() if picture.exists() else b"")
        of = f"median of {len(runs)} runs" if len(runs) > 1 else "one run"
        said = f"{result.encoder}: {in_words(result.median)} on {result.set} ({of})"
        self.console.print(said, soft_wrap=True)
        return result

    def _describe(self) -> None:
        counts = f"{len(self.train.images):,} images to train on, {len(self.test.images):,} to test on"
        work = f"{self.tuned.steps:,} steps of {self.tuned.batch} images, {self.tuned.seeds} ×"
        where = f"{self.world.device}" + (f" in {self.world.size} processes" if self.world.size > 1 else "")
        line = f"{self.model.name}: RetinaNet, {counts}, {self.result.classes:,} classes; {work}, on {where}"
        self.console.print(line, soft_wrap=True)
        for note in self.result.notes:
            warn(self.console, note)

    # --- one seed ---

    def _run(self, seed: int, stop: StopRequest, progress: ProgressLine) -> DetectorRun:
        """Trains and tests a detector; one that was finished before is not repeated."""
        began, steps = time.monotonic(), self.tuned.steps

        def show(done: int, line: str) -> None:
            progress.show(seed * steps + done, f"run {seed + 1} of {self.tuned.seeds}: {line}")

        if found := self._find(seed):
            show(steps, _said(found))
            return found
        about = (self.machine, self.world, self.console, show, stop)
        trained = train_detector(Job(self._build, self.train, self.tuned, seed, self._folder(seed), *about))
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
                    for index, one in zip(some.indices, found, strict=True):
                        mine[index] = Detections(*(one[n].cpu().numpy() for n in ("boxes", "scores", "labels")))
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
        result = self.result
        return {"encoder": result.encoder_checksum, "data": result.data_checksum, "seed": seed, **result.settings}

    def _folder(self, seed: int) -> Path:
        key = hashlib.sha256(json.dumps(self._about(seed), sort_keys=True).encode()).hexdigest()[:32]
        return self.out / "runs" / plain(self.model.name) / f"detection-{key}"

    def _find(self, seed: int) -> DetectorRun | None:
        """A finished run, as the first process finds it."""

        def read() -> DetectorRun | None:
            try:
                return read_run(json.loads(read_file(self._folder(seed) / "run.json")))
            except (OSError, ValueError, KeyError, TypeError):
                return None  # none, or damaged by other hands: it is done again

        return self.world.broadcast_object(self.world.on_rank_0(read))


def check_machine(model: Model, tuned: Tuned, machine: DetectionExecution, world: World) -> None:
    """Raises for what the processes cannot share, or cannot compute piece by piece."""
    share, rest = divmod(tuned.batch, world.size)
    require(
        not rest, f"{world.size} processes cannot share {tuned.batch} images evenly: set --batch, or start others"
    )
    if tuned.norm == "synchronised" and any(isinstance(module, _BatchNorm) for module in model.backbone.modules()):
        alone = world.size == 1 or world.device.type == "cuda"
        require(alone, "batch norm can be synchronised on GPUs only: add --norm frozen, or start one process")
        few = "--micro-batch would take batch statistics over fewer images: leave it away, or add --norm frozen"
        require(machine.micro_batch == 0 or machine.micro_batch >= share, few)


def _said(run: DetectorRun) -> str:
    halved = f", {len(run.restarts)} × halved" if run.restarts else ""
    return f"{in_words(run.precision)}, learning rate {run.lr:g}{halved}"
