"""The progress line of vivi train: step, losses, frames/s, time left."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from vivi.progress import ProgressLine

# What stands in the line, of all that is logged, and under which shorter name.
SHOWN = {
    "loss": "loss",
    "exemplar": "exemplar",
    "rotation": "rotation",
    "contrastive": "contrastive",
    "infonce": "infonce",
    "order": "order",
    "shuffle": "shuffle",
    "jigsaw": "jigsaw",
    "location": "location",
    "supervised": "labels",
    "rotation_accuracy": "rotation accuracy",
    "infonce_accuracy": "next shot",
    "order_accuracy": "order accuracy",
    "jigsaw_accuracy": "jigsaw accuracy",
    "location_accuracy": "location accuracy",
    "supervised_accuracy": "label accuracy",
    "retrieval": "retrieval",
    "top1": "top-1",
}


class TrainProgress(ProgressLine):
    """Shows the steps done, and what was logged last."""

    def __init__(self, start: int, steps: int, console: Console) -> None:
        super().__init__("train", steps, console, start)
        self.steps = steps
        self.values: dict[str, float] = {}

    def step(self, step: int, values: Mapping[str, float] | None = None) -> None:
        """A step is done; values, when some were logged."""
        self.values.update(values or {})
        parts = [f"step {step}/{self.steps}"]
        parts += [f"{short} {self.values[name]:.3f}" for name, short in SHOWN.items() if name in self.values]
        if "frames_per_second" in self.values:
            parts.append(f"{self.values['frames_per_second']:,.0f} frames/s")
        self.show(step, " · ".join(parts))
