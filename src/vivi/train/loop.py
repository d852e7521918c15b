"""The loop over the steps of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import NoReturn

import torch

from vivi.data.loader import MicroBatch, Prefetch, StepInput
from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.runtime.console import SafeConsole, warn
from vivi.runtime.distributed import World, only_rank_0_explains
from vivi.runtime.errors import UserError
from vivi.runtime.signals import StopRequest
from vivi.train.optimiser import build_optimiser, learning_rate
from vivi.train.settings import Execution
from vivi.train.step import Metrics, compute_gradients
from vivi.train.writer import RunWriter


class Trainer:
    """Takes steps: gradients, their all-reduce, the update."""

    def __init__(self, model: Vivi, recipe: Recipe, world: World) -> None:
        self.model, self.recipe, self.world = model, recipe, world
        self.optimiser = build_optimiser(model, recipe.optimiser)

    def step(self, batch: StepInput) -> Metrics:
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(batch.number, self.recipe.steps, self.recipe.optimiser)
        self.optimiser.zero_grad(set_to_none=True)
        # For layers that need random numbers, such as dropout: the same after resuming.
        torch.manual_seed(self.recipe.seed * 1_000_003 + batch.number)
        metrics = compute_gradients(self.model, batch.videos, batch.images, self.recipe, self.world)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.world.all_reduce([*gradients, *self.model.encoder.collected_statistics()])
        clip = self.recipe.optimiser.clip or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimiser.step()
        passes = (self.recipe.batch.videos > 0) + self.recipe.learns_from_labels  # of each core through the encoder
        self.model.encoder.update_statistics(passes * self.recipe.batch.cores)
        return {**metrics, "gradient_norm": norm}


class Loop:
    """A run in progress. Rank 0 has a writer, the other processes have none."""

    def __init__(self, trainer: Trainer, execution: Execution, writer: RunWriter | None) -> None:
        self.trainer, self.execution, self.writer = trainer, execution, writer
        # Each process reports the damaged frames that it reads itself.
        self.console = writer.console if writer is not None else SafeConsole(stderr=True)
        self.damaged: set[str] = set()
        # Of the steps since the last check: looking at every step would make the host wait for the device.
        self.unchecked: list[tuple[int, Metrics]] = []

    def run(self, steps: Prefetch, stop: StopRequest) -> None:
        """Takes all steps; raises KeyboardInterrupt, after saving, when asked to stop before the last."""
        recipe, execution, writer = self.trainer.recipe, self.execution, self.writer
        if steps.steps.start == 0 and writer is not None:
            writer.log(0, writer.monitor.measure(self.trainer.model))
        clock = Clock(recipe, steps.steps.start)
        for batch in steps:
            videos, images = self._watched("augmented", batch.videos), self._watched("labelled", batch.images)
            metrics = self.trainer.step(StepInput(batch.number, videos, images))
            step = batch.number + 1
            self.unchecked.append((step, metrics))
            last, stopping = step == recipe.steps, self.trainer.world.any(stop.requested)
            saving = last or stopping or step % execution.checkpoint_every == 0
            values: dict[str, float] = {}
            if last or step % execution.log_every == 0:
                values = self._checked_metrics()
                values["learning_rate"] = learning_rate(batch.number, recipe.steps, recipe.optimiser)
                values.update(clock.read(step))
            if saving:
                self._checked_metrics()
                self._check_weights(step)
            if writer is not None:
                if last or step % execution.monitor_every == 0:
                    values.update(writer.monitor.measure(self.trainer.model))
                writer.log(step, values)
                if saving:
                    writer.save(step, draw=last or stopping)
            if stopping and not last:
                if writer is not None:
                    writer.console.print(f"saved step {step} of {recipe.steps}")
                raise KeyboardInterrupt

    def _watched(self, name: str, micro_batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """The micro-batches, as they come; the first is also drawn as a picture, and damaged frames are reported."""
        for micro_batch in micro_batches:
            if self.writer is not None:
                self.writer.write_picture_once(name, micro_batch.frames[0])
            for line in sorted({*micro_batch.damaged} - self.damaged):
                self.damaged.add(line)
                warn(self.console, line)
            yield micro_batch

    def _checked_metrics(self) -> dict[str, float]:
        """The metrics of the last step, none if they were asked for before. Raises where a loss or the gradient of a
        step since then was not finite, before anything of it is saved."""
        values: dict[str, float] = {}
        for step, metrics in self.unchecked:
            values = dict(zip(metrics, torch.stack([*metrics.values()]).tolist(), strict=True))
            for name, value in values.items():
                if name != "loss" and not math.isfinite(value):
                    self._diverged(step, f"{name} is {value}")
        self.unchecked.clear()
        return values

    def _check_weights(self, step: int) -> None:
        """Raises where a weight is not finite: the losses do not show yet what the last update has broken."""
        for name, tensor in self.trainer.model.state_dict().items():
            if not torch.isfinite(tensor).all():
                self._diverged(step, f"{name} is no longer finite")

    def _diverged(self, step: int, what: str) -> NoReturn:
        with only_rank_0_explains():
            raise UserError(
                f"step {step}: {what}; nothing of it was saved. Try a lower --optimiser.lr, a longer "
                "--optimiser.warmup, or --optimiser.clip, in a new --out"
            )


class Clock:
    """Seconds and frames a second since it was last read."""

    def __init__(self, recipe: Recipe, start: int) -> None:
        batch, images = recipe.batch, recipe.images
        self.frames = batch.videos * batch.shots * batch.frames + images.count * images.copies
        self.began = time.monotonic()
        self.last = start, self.began

    def read(self, step: int) -> dict[str, float]:
        now = time.monotonic()
        last_step, last_time = self.last
        self.last = step, now
        rate = (step - last_step) * self.frames / max(now - last_time, 1e-9)
        return {"frames_per_second": rate, "seconds": now - self.began}
