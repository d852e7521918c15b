"""The loop over the steps of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from vivi.console import SafeConsole
from vivi.errors import UserError
from vivi.model.classifier import Classifier, write_classifier
from vivi.model.encoder import write_encoder
from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.training.checkpoint import save
from vivi.training.curves import draw_curves
from vivi.training.distributed import World, said_once
from vivi.training.feed import Feed, Step
from vivi.training.machine import Machine
from vivi.training.metrics import MetricsLog
from vivi.training.monitor import Watched
from vivi.training.picture import grid, write_png
from vivi.training.progress import TrainProgress
from vivi.training.schedule import learning_rate
from vivi.training.state import state_tensors
from vivi.training.step import Metrics, compute_gradients
from vivi.training.stop import StopRequest

SECONDS_BETWEEN_CURVES = 30  # a drawing takes one


class Training:
    """A run in work. `log` and `watched` are the first process's alone; `classes` are the labels' names."""

    def __init__(
        self,
        recipe: Recipe,
        machine: Machine,
        out: Path,
        world: World,
        model: Vivi,
        optimiser: torch.optim.SGD,
        feed: Feed,
        log: MetricsLog | None,
        watched: Watched | None,
        classes: tuple[str, ...],
        progress: TrainProgress,
        console: Console,
    ) -> None:
        self.recipe, self.machine, self.out, self.world = recipe, machine, out, world
        self.model, self.optimiser, self.feed, self.classes = model, optimiser, feed, classes
        self.log, self.watched, self.progress, self.console = log, watched, progress, console
        self.damaged: set[str] = set()
        self.drawn = -math.inf  # when the curves last were
        # Of the steps since the last check: looking at every step would make the host wait for the device.
        self.unchecked: list[tuple[int, Metrics]] = []

    def run(self, start: int, stop: StopRequest) -> None:
        """Takes the steps from `start` on; raises KeyboardInterrupt, after saving, when asked to stop
        before the last."""
        if start == 0:
            self._write(0, self._watch())
        clock = Clock(self.recipe, start)
        for batch in self.feed:
            metrics = self.step(self._showing(batch) if batch.number == 0 else batch)
            step = batch.number + 1
            self.unchecked.append((step, metrics))
            self._name_damaged()

            last = step == self.recipe.steps
            stopping = self.world.any(stop.requested)
            values: dict[str, float] = {}
            if last or step % self.machine.log_every == 0:
                self._check_finite()
                values = {name: float(value) for name, value in metrics.items()}
                values["learning_rate"] = learning_rate(batch.number, self.recipe.optimiser)
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

    def step(self, batch: Step) -> Metrics:
        """One step: gradients, their sum over processes, the update."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(batch.number, self.recipe.optimiser)
        self.optimiser.zero_grad(set_to_none=True)
        # For layers that draw lots, such as dropout: the same after resuming.
        torch.manual_seed(self.recipe.seed * 1_000_003 + batch.number)
        with _out_of_memory(self.feed.at_once.videos):
            metrics = compute_gradients(self.model, batch.videos, batch.images, self.recipe, self.world)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.world.add_up([*gradients, *self.model.encoder.collected_statistics()])
        clip = self.recipe.optimiser.clip or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimiser.step()
        passes = bool(batch.videos) + bool(batch.images)  # of each core, with statistics of its own
        self.model.encoder.update_statistics(passes * self.recipe.batch.cores)
        return {**metrics, "gradient_norm": norm}

    def _watch(self) -> dict[str, float]:
        if self.watched is None:
            return {}
        # Not worth compiling once more: it runs seldom, and in other shapes.
        with torch.compiler.set_stance("force_eager"):
            return self.watched.look(self.model)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self.log is not None and values:
            self.log.log(step, values)
        self.progress.step(step, values)

    def _save(self, step: int, draw: bool) -> None:
        if self.log is not None:
            self.log.sync()
            save(self.out / "checkpoints", step, state_tensors(self.model, self.optimiser), self.machine.keep)
            write_results(self.out, self.model, self.classes, self.recipe.name, step)
            if draw or time.monotonic() - self.drawn > SECONDS_BETWEEN_CURVES:
                draw_curves(self.out)
                self.drawn = time.monotonic()

    def _showing(self, step: Step) -> Step:
        """The step, but pictures of what the encoder sees of its first core are written when they are made."""
        if self.log is None:
            return step

        def shown(make: Callable[[], Tensor], show: Callable[[Tensor], None]) -> Tensor:
            pictures = make()
            show(pictures[0])
            return pictures

        videos, images = list(step.videos), list(step.images)
        if videos:
            videos[0] = replace(videos[0], frames=partial(shown, videos[0].frames, self._show_shots))
        if images:
            images[0] = replace(images[0], images=partial(shown, images[0].images, self._show_labelled))
        return Step(step.number, videos, images)

    def _show_shots(self, shots: Tensor) -> None:
        if shots.ndim == 6:  # patches (images, 1, 9, 3, size, size): an image's are a row
            shots = shots[:, 0] / 2  # standardised: two deviations are white
        self._show("augmented", grid(shots[:16], self.recipe.batch.shots))

    def _show_labelled(self, images: Tensor) -> None:
        images = images.flatten(0, 1)[:64]  # (images, 3, size, size)
        across = min(8, len(images))
        self._show("labelled", grid(images[: len(images) // across * across].unflatten(0, (-1, across))))

    def _show(self, name: str, picture: NDArray[np.uint8]) -> None:
        assert self.log is not None
        write_png(self.out / f"{name}.png", picture)
        self.log.picture(name, 0, picture)

    def _name_damaged(self) -> None:
        for line in sorted(self.feed.pictures.batches.damaged() - self.damaged):
            self.damaged.add(line)
            # Each process says what it met itself; the console is the first one's alone.
            console = self.console if self.world.rank == 0 else SafeConsole(stderr=True)
            console.print(line, style="yellow", soft_wrap=True)

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


def write_results(out: Path, model: Vivi, classes: tuple[str, ...], recipe: str, step: int) -> None:
    """The encoder, and the classifier where there is one."""
    write_encoder(out, model.encoder, recipe, step)
    if model.supervised_loss is not None:
        head = model.supervised_loss.head
        write_classifier(out, Classifier(head.weight, head.bias, classes), step)


class Clock:
    """Seconds and frames a second since it was last read."""

    def __init__(self, recipe: Recipe, start: int) -> None:
        batch, images = recipe.batch, recipe.images
        self.frames = batch.videos * batch.shots * batch.frames + images.count * images.copies
        self.began = time.monotonic()
        self.last = start, self.began

    def read(self, step: int) -> dict[str, float]:
        now = time.monotonic()
        before, at = self.last
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
