"""vivi evaluate knn and linear: tasks solved with frozen features, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor

from vivi.evaluate.features import embed
from vivi.evaluate.probes import STRENGTHS, accuracy, knn_accuracy, linear_probe
from vivi.evaluate.results import Protocol, Result, Score, write_result
from vivi.evaluate.settings import Neighbours, Subject
from vivi.evaluate.subject import open_session
from vivi.evaluate.tasks.examples import Examples, Task
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine

Embed = Callable[[Examples], Tensor]


def by_neighbours(task: Task, embedded: Embed, how: Neighbours) -> tuple[float, dict[str, Any]]:
    """Test accuracy of kNN among the task's 1000 images."""
    train, test = embedded(task.final), embedded(task.test)
    found = knn_accuracy(train, task.final.labels, test, task.test.labels, how.k, how.temperature)
    return found, {"k": how.k, "temperature": how.temperature}


def by_regression(task: Task, embedded: Embed) -> tuple[float, dict[str, Any]]:
    """Test accuracy of ridge regression, its strength chosen on the validation images, then fitted on all 1000."""
    sweep, validation = embedded(task.sweep), embedded(task.validation)
    trials = linear_probe(sweep, task.sweep.labels, [validation], task.classes)
    scores = [accuracy(logits[0], task.validation.labels) for logits in trials]
    strength = STRENGTHS[max(range(len(scores)), key=scores.__getitem__)]
    whole = torch.cat([sweep, validation]) if _is_both(task) else embedded(task.final)
    final = linear_probe(whole, task.final.labels, [embedded(task.test)], task.classes, [strength])
    return accuracy(final[0][0], task.test.labels), {"strength": strength, "validation": max(scores)}


def _is_both(task: Task) -> bool:
    """Whether the final images are those of sweep and validation, as in most lists: their features are known."""
    both = [*task.sweep.images, *task.validation.images]
    return len(both) == len(task.final) and all(
        isinstance(one, Path) and one == other for one, other in zip(task.final.images, both, strict=True)
    )


def evaluate_frozen(
    probe: Literal["knn", "linear"],
    subject: Subject,
    console: Console,
    protocol: Protocol = "v2",
    neighbours: Neighbours | None = None,
    device: str = "auto",
) -> list[Result]:
    """Evaluates an encoder's frozen features on the tasks in a folder."""
    how = neighbours or Neighbours()
    how.check()
    place = choose_device(device)
    results: list[Result] = []
    with open_session(subject, protocol, console) as session:
        model, tasks = session.model, session.usable()
        model.backbone.to(place)

        def embedded(examples: Examples) -> Tensor:
            return embed(model.backbone, examples.images, model.size, model.mean, model.std, place)

        with ProgressLine(probe, len(tasks), console) as progress:
            for done, task in enumerate(tasks, start=1):
                began = time.monotonic()
                try:
                    if probe == "knn":
                        solved, settings = by_neighbours(task, embedded, how)
                    else:
                        solved, settings = by_regression(task, embedded)
                except UserError as error:
                    session.fail(task.name, error)
                    continue
                settings["size"] = model.size
                seconds = round(time.monotonic() - began, 2)
                results.append(
                    Result(
                        **session.about(task),
                        benchmark=probe,
                        protocol=protocol,
                        score=Score((solved,)),
                        settings=settings,
                        seconds=seconds,
                    )
                )
                write_result(subject.out, results[-1])
                progress.show(done, f"{task.title} {100 * solved:.1f} %")
        session.finish(results)
    return results
