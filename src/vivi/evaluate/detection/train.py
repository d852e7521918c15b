"""Trains one detector: steps of SGD, and the learning rate halved until the loss decays.

    folder/attempts.json         why each attempt but the present one was given up
    folder/attempt-N/            metrics.jsonl, tensorboard/ and checkpoints/ of one

A batch, its flips and the learning rate are functions of the seed and the step, so a run that was killed goes on to
the same end. Gradients are sums over processes of each one's part of the mean over the batch.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from statistics import fmean

import msgspec
import torch
from rich.console import Console
from torch import Tensor

from vivi.evaluate.detection.batches import Batch, train_batches
from vivi.evaluate.detection.network import Detector
from vivi.evaluate.detection.sets import DetectionSet
from vivi.evaluate.detection.settings import DetectionExecution, Tuned
from vivi.recipes import Optimiser
from vivi.runtime.console import warn
from vivi.runtime.distributed import World
from vivi.runtime.errors import UserError
from vivi.runtime.signals import StopRequest
from vivi.runtime.storage import read_file, write_atomically
from vivi.train.checkpoint import NothingToRestore, broadcast_state, load_state, restore, save, state_tensors
from vivi.train.metrics import MetricsLog
from vivi.train.optimiser import build_optimiser, learning_rate

DECAY_AT = (2 / 3, 8 / 9)  # where the learning rate falls to a tenth: 60,000 and 80,000 of 90,000
LOOK_EVERY = 20  # steps between two looks at the loss, which make the host wait for the device
# The loss decays if its mean over WINDOW steps is, at LATE, no more than it was at EARLY.
WINDOW, EARLY, LATE = 100, 100, 500
MOST_HALVINGS = 12


def optimiser_settings(tuned: Tuned, lr: float) -> Optimiser:
    """SGD, with the learning rate as a function of the step."""
    decay_at = tuple(int(share * tuned.steps) for share in DECAY_AT)
    momentum, weight_decay, warmup = tuned.momentum, tuned.weight_decay, tuned.warmup
    return Optimiser(lr, momentum=momentum, weight_decay=weight_decay, warmup=warmup, decay_at=decay_at)


def trouble(losses: Sequence[float], looked: int) -> str:
    """Why the learning rate is too high, seen from the losses of all steps of which `looked` were fine; "" if it is
    not."""
    for step, loss in enumerate(losses[looked:], start=looked + 1):
        if not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
    if looked < LATE <= len(losses):
        early, late = fmean(losses[EARLY - WINDOW : EARLY]), fmean(losses[LATE - WINDOW : LATE])
        if late > early:
            return f"the loss rose from {early:.3g} over the first {EARLY} steps to {late:.3g} at step {LATE}"
    return ""


@dataclass(frozen=True)
class Job:
    """A detector to be trained."""

    build: Callable[[], Detector]  # with weights that depend on torch's seed
    data: DetectionSet
    tuned: Tuned  # resolved
    seed: int
    folder: Path
    machine: DetectionExecution
    world: World
    console: Console
    show: Callable[[int, str], None]  # so many steps are done, and what is going on
    stop: StopRequest

    def warn(self, line: str) -> None:
        warn(self.console, line)


def train_detector(job: Job) -> Attempt:
    """Trains a detector, or goes on with one; raises KeyboardInterrupt, after saving, when asked to stop."""
    restarts = job.world.broadcast_object(job.world.on_rank_0(lambda: _read_restarts(job.folder))) or []
    unreadable: set[str] = set()
    while len(restarts) <= MOST_HALVINGS:
        attempt = Attempt(job, tuple(restarts), unreadable)
        reason = attempt.run()
        if not reason:
            return attempt
        restarts.append(f"{reason}: from {attempt.lr:g} to {attempt.lr / 2:g}")
        job.warn(f"the learning rate is halved, as {restarts[-1]}")
        if job.world.rank == 0:
            write_atomically(job.folder / "attempts.json", json.dumps(restarts, indent=1).encode() + b"\n")
            rmtree(attempt.folder / "checkpoints", ignore_errors=True)
    raise UserError(
        f"the loss does not decay at any learning rate down to {job.tuned.lr / 2 ** (len(restarts) - 1):g} "
        f"({restarts[-1]}): add --clip 10, or look whether the boxes are right"
    )


def _read_restarts(folder: Path) -> list[str]:
    try:
        return msgspec.json.decode(read_file(folder / "attempts.json"), type=list[str])
    except (OSError, msgspec.MsgspecError):
        return []  # none, or damaged by other hands: it is found out again


class Attempt:
    """Training at one learning rate: half of it for each restart before."""

    def __init__(self, job: Job, restarts: tuple[str, ...], unreadable: set[str]) -> None:
        self.job, self.restarts = job, restarts
        self.unreadable = unreadable  # a line for each image of which nothing could be seen
        self.lr = job.tuned.lr / 2 ** len(restarts)
        self.folder = job.folder / f"attempt-{len(restarts)}"
        torch.manual_seed(job.seed)
        self.detector = job.build()
        self.settings = optimiser_settings(job.tuned, self.lr)
        self.optimiser = build_optimiser(self.detector, self.settings)
        self.losses: list[float] = []  # of the steps that were looked at

    def run(self) -> str:
        """Takes the steps that are missing; returns why it was given up, or "" at the end."""
        job, world, steps = self.job, self.job.world, self.job.tuned.steps
        start = self._restore()
        self.detector.train()
        waiting: list[Tensor] = []  # losses of the steps since the last look
        unreadable: set[str] = set()  # what this process met in them
        saved = time.monotonic()
        with ExitStack() as stack:
            log = stack.enter_context(MetricsLog(self.folder, start or -1)) if world.rank == 0 else None
            batches = train_batches(job.data, job.tuned.batch, job.seed, start, steps, job.machine.threads, world)
            for done, batch in enumerate(stack.enter_context(closing(batches)), start + 1):
                values = self._step(done - 1, batch)
                waiting.append(values["loss"])
                unreadable.update(batch.unreadable)
                last, stopping = done == steps, world.any(job.stop.requested)
                if done % LOOK_EVERY and not last and not stopping:
                    continue
                looked = len(self.losses)
                self.losses += torch.stack(waiting).tolist()
                waiting.clear()
                for line in sorted(set().union(*world.all_gather_object(unreadable)) - self.unreadable):
                    job.warn(f"nothing is seen of {line}")
                    self.unreadable.add(line)
                job.show(done, f"step {done:,} of {steps:,}, loss {fmean(self.losses[-LOOK_EVERY:]):.3f}")
                if log is not None and (done % LOOK_EVERY == 0 or last):
                    rate = learning_rate(done - 1, steps, self.settings)
                    log.log(done, {**{name: float(value) for name, value in values.items()}, "learning_rate": rate})
                reason = trouble(self.losses, looked) or (self._broken_weights() if last else "")
                if reason:
                    return reason
                due = time.monotonic() - saved > job.machine.checkpoint_seconds
                if log is not None and (stopping or due or last):
                    log.sync()
                    save(self.folder / "checkpoints", done, self._tensors(), keep=1)
                    saved = time.monotonic()
                if stopping and not last:
                    job.console.print(f"saved step {done} of {steps}")
                    raise KeyboardInterrupt
        return ""

    def _step(self, step: int, batch: Batch) -> dict[str, Tensor]:
        """One step; the loss and its parts, means over the whole batch, and the norm of the gradient."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(step, self.job.tuned.steps, self.settings)
        self.optimiser.zero_grad(set_to_none=True)
        torch.manual_seed(1_000_003 * self.job.seed + step)  # for layers that draw lots
        losses = self._gradients(batch)
        gradients = [p.grad for p in self.detector.parameters() if p.grad is not None]
        self.job.world.all_reduce([*gradients, *losses.values()])
        norm = torch.nn.utils.clip_grad_norm_(self.detector.parameters(), self.job.tuned.clip or math.inf)
        self.optimiser.step()
        return {"loss": torch.stack(list(losses.values())).sum(), **losses, "gradient_norm": norm}

    def _gradients(self, batch: Batch) -> dict[str, Tensor]:
        """Adds up the gradients of this process's images; their parts of the losses."""
        sums: dict[str, Tensor] = {}
        for images, targets in batch.pieces(self.job.machine.micro_batch, self.job.world.device):
            share = len(images) / self.job.tuned.batch
            losses = {name: loss * share for name, loss in self.detector(images, targets, batch.shapes).items()}
            torch.stack(list(losses.values())).sum().backward()
            sums = {name: sums[name] + loss.detach() if sums else loss.detach() for name, loss in losses.items()}
        return sums

    def _broken_weights(self) -> str:
        """The last update may have broken what no loss shows any more."""
        finite = torch.stack([torch.isfinite(tensor).all() for tensor in self.detector.state_dict().values()]).all()
        return "" if finite else f"the weights after step {len(self.losses)} are not finite"

    def _tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds."""
        lines = torch.tensor(list(json.dumps(sorted(self.unreadable)).encode()), dtype=torch.uint8)
        losses = torch.tensor(self.losses, dtype=torch.float64)
        return {**state_tensors(self.detector, self.optimiser), "losses": losses, "unreadable": lines}

    def _restore(self) -> int:
        """Puts the checkpoint of an interrupted attempt in place; returns its step. The first process reads it and
        gives it to the others: they may see another folder, or none."""
        world = self.job.world
        start, self.losses, unreadable = world.broadcast_object(world.on_rank_0(self._read)) or (0, [], [])
        self.unreadable.update(unreadable)
        broadcast_state(self.detector, self.optimiser, world)
        return start

    def _read(self) -> tuple[int, list[float], list[str]] | None:
        """The step, losses and unreadable images of the checkpoint; its tensors go where they belong."""
        folder, restored = self.folder / "checkpoints", None
        try:
            restored = restore(folder, self.job.warn)
        except NothingToRestore as error:
            self.job.warn(f"{error}; this run begins anew")
            rmtree(folder, ignore_errors=True)
        if restored is None:
            return None
        step, tensors = restored
        losses, unreadable = tensors.pop("losses").tolist(), json.loads(bytes(tensors.pop("unreadable").tolist()))
        load_state(self.detector, self.optimiser, tensors)
        return step, losses, unreadable
