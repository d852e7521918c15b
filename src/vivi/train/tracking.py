"""Tracking servers that a team looks at: vivi train --log wandb,mlflow.

Training never waits for a server: each has a thread that sends. Where one cannot be reached, a line says so, and
training goes on; metrics.jsonl and TensorBoard have every number. A run that is resumed goes on in its old place on
the server, which run/tracking.json remembers.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

from rich.console import Console

from vivi.recipes import Recipe
from vivi.recipes.files import flat
from vivi.runtime.console import warn
from vivi.runtime.errors import first_line
from vivi.runtime.storage import read_json, write_atomically

_HELD = 10_000  # steps that wait to be sent; what comes on top is left out
_LAST_SECONDS = 20.0  # for what is not sent yet when training ends


class Tracker(Protocol):
    """A run's place on a server."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Wandb:
    """Weights & Biases. WANDB_PROJECT, WANDB_MODE and its other variables have their usual meaning."""

    def __init__(self, out: Path, recipe: Recipe) -> None:
        import wandb

        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.login(prompt=False):
            raise ConnectionError("it has no key: wandb login, or WANDB_MODE=offline")
        settings = wandb.Settings(silent=True, console="off")
        identity = remembered(out, "wandb", lambda: uuid.uuid4().hex[:12])
        project = os.environ.get("WANDB_PROJECT", "vivi")
        about = {"project": project, "name": out.name, "config": flat(recipe), "dir": str(out)}
        self.run = wandb.init(id=identity, resume="allow", settings=settings, **about)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class Mlflow:
    """MLflow. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."""

    def __init__(self, out: Path, recipe: Recipe) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "vivi")
        experiment = self.client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self.client.create_experiment(name)
        self.run = remembered(out, "mlflow", lambda: self._create(place, out, recipe))
        self.client.update_run(self.run, status="RUNNING")

    def _create(self, place: str, out: Path, recipe: Recipe) -> str:
        from mlflow.entities import Param

        run: str = self.client.create_run(place, run_name=out.name).info.run_id
        self.client.log_batch(run, params=[Param(name, str(value)) for name, value in flat(recipe).items()])
        return run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self.client.log_batch(self.run, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        self.client.set_terminated(self.run)


TRACKERS: dict[str, Callable[[Path, Recipe], Tracker]] = {"wandb": Wandb, "mlflow": Mlflow}


def remembered(out: Path, name: str, make: Callable[[], str]) -> str:
    """The name that a run has on a server; where it has none yet, a new one."""
    path = out / "tracking.json"
    known = read_json(path, dict[str, str], "delete it") if path.exists() else {}
    if name not in known:
        known[name] = make()
        write_atomically(path, json.dumps(known, indent=1).encode() + b"\n")
    return known[name]


class Sender:
    """The thread that sends to one tracker."""

    def __init__(self, name: str, out: Path, recipe: Recipe, console: Console) -> None:
        self.name, self.console = name, console
        self.waiting: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(_HELD)
        self.thread = threading.Thread(target=self._send, args=(out, recipe), daemon=True)
        self.thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of a step; they are sent when the server takes them."""
        with suppress(queue.Full):
            self.waiting.put_nowait((step, dict(values)))

    def _send(self, out: Path, recipe: Recipe) -> None:
        try:
            tracker = TRACKERS[self.name](out, recipe)
            while (item := self.waiting.get()) is not None:
                tracker.log(*item)
            tracker.close()
        except Exception as error:  # whatever a server or its library does
            why = first_line(error)[:200]
            warn(self.console, f"--log {self.name} has stopped ({why}); training goes on, metrics.jsonl has it all")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(queue.Full):
            self.waiting.put_nowait(None)
        self.thread.join(_LAST_SECONDS)
        if self.thread.is_alive():
            warn(self.console, f"--log {self.name} does not answer; metrics.jsonl has what was not sent")
