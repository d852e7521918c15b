"""The loop over the steps of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from rich.console import Console
from torch import Tensor

from vivi.batches.augment import augment
from vivi.batches.loader import LoadedBatch, Loader
from vivi.errors import UserError
from vivi.model.encoder import write_encoder
from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.training.checkpoint import save
from vivi.training.curves import draw_curves
from vivi.training.distributed import World, said_once
from vivi.training.machine import Machine
from vivi.training.metrics import MetricsLog
from vivi.training.monitor import HeldOut, watch
from vivi.training.picture import grid, write_png
from vivi.training.progress import TrainProgress
from vivi.training.schedule import learning_rate
from vivi.training.state import state_tensors
from vivi.training.step import Metrics, MicroBatch, compute_gradients
from vivi.training.stop import StopRequest

SECONDS_BETWEEN_CURVES = 30  # a drawing takes one


class Training:
    """A run in work. `log` and `held_out` are the first process's alone."""

    def __init__(
        self,
        recipe: Recipe,
        machine: Machine,
        out: Path,
        world: World,
        model: Vivi,
        optimiser: torch.optim.SGD,
        at_once: int,
        log: MetricsLog | None,
        held_out: HeldOut | None,
        progress: TrainProgress,
        console: Console,
    ) -> None:
        self.recipe, self.machine, self.out, self.world = recipe, machine, out, world
        self.model, self.optimiser, self.at_once = model, optimiser, at_once
        self.log, self.held_out, self.progress, self.console = log, held_out, progress, console
        self.damaged: set[str] = set()
        self.drawn = -math.inf  # when the curves last were
        # Of the steps since the last check: looking at every step would make the host wait for the device.
        self.unchecked: list[tuple[int, Metrics]] = []

    def run(self, loader: Loader, start: int, stop: StopRequest) -> None:
        """Takes the steps from `start` on; raises KeyboardInterrupt, after saving, when asked to stop
        before the last."""
        if start == 0:
            self._write(0, self._watch())
        clock = Clock(self.recipe)
        for batch in loader:
            if batch.step == 0:
                self._show_augmented(batch)
            metrics = self.step(batch)
            step = batch.step + 1
            self.unchecked.append((step, metrics))
            self._name_damaged(loader)

            last = step == self.recipe.steps
            stopping = self.world.any(stop.requested)
            values: dict[str, float] = {}
            if last or step % self.machine.log_every == 0:
                self._check_finite()
                values = {name: float(value) for name, value in metrics.items()}
                values["learning_rate"] = learning_rate(batch.step, self.recipe.optimiser)
                values.update(clock.read(step))
            if last or step % self.machine.monitor_every == 0:
                values.update(self._watch())
            self._write(step, values)
            if last or stopping or step % self.machine.checkpoint_every == 0:
                self._check_finite()
                self._check_weights(step)
                self._save(step, draw=last or stopping)
            if stopping and not last:
                self.console.print(f"saved step {step} of {self.recipe.steps}")
                raise KeyboardInterrupt

    def step(self, batch: LoadedBatch) -> Metrics:
        """One step: gradients, their sum over processes, the update."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(batch.step, self.recipe.optimiser)
        self.optimiser.zero_grad(set_to_none=True)
        # For layers that draw lots, such as dropout: the same after resuming.
        torch.manual_seed(self.recipe.seed * 1_000_003 + batch.step)
        with _out_of_memory(self.at_once):
            metrics = compute_gradients(self.model, self._micro_batches(batch), self.recipe, self.world)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.world.add_up([*gradients, *self.model.encoder.collected_statistics()])
        clip = self.recipe.optimiser.clip or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimiser.step()
        self.model.encoder.update_statistics(self.recipe.batch.cores)
        return {**metrics, "gradient_norm": norm}

    def _micro_batches(self, batch: LoadedBatch) -> list[MicroBatch]:
        noise = batch.noise.to(self.world.device)
        firsts = range(0, len(batch.cores), self.at_once)
        return [MicroBatch(partial(self._frames, batch, i), noise[i : i + self.at_once]) for i in firsts]

    def _frames(self, batch: LoadedBatch, first: int) -> Tensor:
        """The augmented frames of some cores: (cores, shots, frames, 3, size, size)."""
        device, dtype = self.world.device, self.model.encoder.precision
        canvases = batch.cores[first : first + self.at_once]
        frames = torch.stack([augment(canvas, self.recipe.augment, device, dtype) for canvas in canvases])
        return frames.view(len(frames), -1, self.recipe.batch.frames, *frames.shape[2:])

    def _watch(self) -> dict[str, float]:
        if self.held_out is None:
            return {}
        # Not worth compiling once more: it runs seldom, and in other shapes.
        with torch.compiler.set_stance("force_eager"):
            return watch(self.model.encoder, self.held_out)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self.log is not None and values:
            self.log.log(step, values)
        self.progress.step(step, values)

    def _save(self, step: int, draw: bool) -> None:
        if self.log is not None:
            self.log.sync()
            save(self.out / "checkpoints", step, state_tensors(self.model, self.optimiser), self.machine.keep)
            write_encoder(self.out, self.model.encoder, self.recipe.name, step)
            if draw or time.monotonic() - self.drawn > SECONDS_BETWEEN_CURVES:
                draw_curves(self.out)
                self.drawn = time.monotonic()

    def _show_augmented(self, batch: LoadedBatch) -> None:
        """A picture of what the encoder sees: the first shots of the first core."""
        if self.log is not None:
            shots = self._frames(batch, 0)[0, :16]
            picture = grid(shots, self.recipe.batch.shots)
            write_png(self.out / "augmented.png", picture)
            self.log.picture("augmented", 0, picture)

    def _name_damaged(self, loader: Loader) -> None:
        for line in loader.damaged.keys() - self.damaged:
            self.damaged.add(line)
            # Each process says what it met itself; the console is the first one's alone.
            console = self.console if self.world.rank == 0 else Console(stderr=True, markup=False, highlight=False)
            console.print(f"damaged, its neighbour takes its place: {line}", style="yellow", soft_wrap=True)

    def _check_finite(self) -> None:
        """Raises where a loss or the gradient was not finite, before anything of it is saved."""
        for step, metrics in self.unchecked:
            for name, value in metrics.items():
                if name != "loss" and not torch.isfinite(value):
                    self._diverged(step, f"{name} is {float(value)}")
        self.unchecked.clear()

    def _check_weights(self, step: int) -> None:
        """The same of what would be saved: the last update may have broken what the losses do not show yet."""
        for name, tensor in self.model.state_dict().items():
            if not torch.isfinite(tensor).all():
                self._diverged(step, f"{name} is no longer finite")

    def _diverged(self, step: int, what: str) -> NoReturn:
        with said_once():
            raise UserError(
                f"step {step}: {what}; nothing of it was saved to {self.out}. Try a lower --optimiser.lr, a longer "
                "--optimiser.warmup, or --optimiser.clip, in a new --out"
            )


class Clock:
    """Seconds and frames a second since it was last read."""

    def __init__(self, recipe: Recipe) -> None:
        self.frames = recipe.batch.videos * recipe.batch.shots * recipe.batch.frames
        self.last: tuple[int, float] | None = None
        self.began = time.monotonic()

    def read(self, step: int) -> dict[str, float]:
        now = time.monotonic()
        before, at = self.last or (step - 1, self.began)
        self.last = step, now
        return {"frames_per_second": (step - before) * self.frames / max(now - at, 1e-9), "seconds": now - self.began}


@contextmanager
def _out_of_memory(at_once: int) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        less = "a smaller --micro-batch" if at_once > 1 else "a recipe with more --batch.cores, or a smaller encoder"
        raise UserError(
            f"the GPU has too little memory for {at_once} cores of the batch at once: try {less}"
        ) from None
