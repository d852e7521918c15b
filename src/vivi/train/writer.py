"""What rank 0 writes to the folder of a run while it trains."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from torch import Tensor

from vivi.model.files import Classifier, write_classifier, write_encoder
from vivi.runtime.console import warn
from vivi.runtime.progress import ProgressLine
from vivi.train.checkpoint import save, state_tensors
from vivi.train.memorising import warning
from vivi.train.metrics import MetricsLog, read_metrics
from vivi.train.monitor import Monitor
from vivi.train.pictures import draw_curves, picture_of_images, picture_of_shots, write_png
from vivi.train.settings import Execution
from vivi.train.tracking import TRACKERS, Sender

if TYPE_CHECKING:
    from vivi.train.loop import Trainer

_SECONDS_BETWEEN_CURVES = 30  # drawing them takes a second


def write_results(out: Path, trainer: Trainer, classes: tuple[str, ...], step: int, draw: bool = True) -> None:
    """The encoder, the classifier where there is one, and the curves."""
    model, recipe = trainer.model, trainer.recipe
    write_encoder(out, model.encoder, recipe.name, step)
    if model.supervised_loss is not None:
        head = model.supervised_loss.head
        write_classifier(out, Classifier(head.weight, head.bias, classes), step)
    if draw:
        draw_curves(out, [loss for loss, _ in model.weighted_losses(recipe.loss)])


@dataclass
class RunWriter:
    """Writes a run while it trains, from step `start` on; rank 0 has one. Use it as a context manager."""

    out: Path
    trainer: Trainer
    classes: tuple[str, ...]
    monitor: Monitor
    start: int
    execution: Execution
    console: Console

    def __post_init__(self) -> None:
        model, recipe = self.trainer.model, self.trainer.recipe
        self._open = ExitStack()
        self._log = self._open.enter_context(MetricsLog(self.out, self.start or -1))
        trackers = [name for name in self.execution.log.split(",") if name in TRACKERS]
        senders = [Sender(name, self.out, recipe, self.console) for name in trackers]
        self._senders = [self._open.enter_context(sender) for sender in senders]
        self._progress = self._open.enter_context(ProgressLine("train", recipe.steps, self.console, self.start))
        # Which of the logged numbers the progress line shows, and under which names.
        losses = [loss for loss, _ in model.weighted_losses(recipe.loss)]
        self._shown = {"loss": "loss", **{loss.name: loss.label or loss.name for loss in losses}}
        self._shown |= {name: label for loss in losses for name, label in loss.metrics.items() if label}
        self._shown |= {"retrieval": "retrieval", "top1": "top-1"}
        self._latest: dict[str, float] = {}
        self._lines: list[Mapping[str, float | None]] = [*read_metrics(self.out)] if self.start else []
        self.warning = ""  # that it memorises, once that shows
        self._pictures = set[str]() if self.start == 0 else {"augmented", "labelled"}  # already written
        self._drawn = -math.inf  # when the curves last were

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Shows that a step is done, and logs its values, if there are any."""
        if values:
            self._log.log(step, values)
            for sender in self._senders:
                sender.log(step, values)
            self._lines.append(values)
        if values and not self.warning:
            self.warning = warning(self._lines, auto=self.trainer.recipe.name.endswith("-auto"))
            if self.warning:
                warn(self.console, f"step {step}: {self.warning}")
        self._latest.update(values)
        parts = [f"step {step}/{self.trainer.recipe.steps}"]
        parts += [f"{label} {self._latest[name]:.3f}" for name, label in self._shown.items() if name in self._latest]
        if "frames_per_second" in self._latest:
            parts.append(f"{self._latest['frames_per_second']:,.0f} frames/s")
        self._progress.show(step, " · ".join(parts))

    def write_picture_once(self, name: str, frames: Tensor) -> None:
        """What the encoder sees of a core, (shots, frames, 3, size, size), in the first step of a run."""
        if name not in self._pictures:
            self._pictures.add(name)
            shots = self.trainer.recipe.batch.shots
            picture = picture_of_shots(frames, shots) if name == "augmented" else picture_of_images(frames)
            write_png(self.out / f"{name}.png", picture)
            self._log.picture(name, 0, picture)

    def save(self, step: int, draw: bool) -> None:
        """A checkpoint, the encoder as it is, and now and then the curves."""
        self._log.sync()
        tensors = state_tensors(self.trainer.model, self.trainer.optimiser)
        save(self.out / "checkpoints", step, tensors, self.execution.keep)
        draw = draw or time.monotonic() - self._drawn > _SECONDS_BETWEEN_CURVES
        write_results(self.out, self.trainer, self.classes, step, draw)
        if draw:
            self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
