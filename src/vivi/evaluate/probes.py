"""Probes: how far frozen features alone solve a task. vivi evaluate knn and linear."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from vivi.evaluate.features import embed
from vivi.evaluate.results import Protocol, Result, Score
from vivi.evaluate.settings import Neighbours, Subject
from vivi.evaluate.subject import open_session
from vivi.evaluate.tasks.examples import Examples, Task
from vivi.runtime.console import explain
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine

_CHUNK = 1024  # test features compared with all training features at once


def knn_accuracy(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, k: int = 20, temperature: float = 0.07
) -> float:
    """The share of test features whose nearest neighbours in training vote for their label.

    The `k` neighbours with the highest cosine similarity (all, if there are fewer) vote with weight
    exp(similarity / temperature); of labels with equal votes the smallest wins.
    """
    if len(train) != len(train_labels) or len(test) != len(test_labels) or not len(train) or not len(test):
        raise ValueError("there must be one label for each feature, and features to train and to test on")
    train = F.normalize(train.float(), dim=1)
    train_labels, test_labels = train_labels.to(train.device), test_labels.to(train.device)
    classes = int(train_labels.max()) + 1
    hits = 0
    for part, labels in zip(test.split(_CHUNK), test_labels.split(_CHUNK), strict=True):
        similarity = F.normalize(part.to(train.device).float(), dim=1) @ train.T  # (part, train)
        nearest, neighbours = similarity.topk(min(k, len(train)), dim=1)  # (part, k)
        # Relative to the nearest, which changes no vote's rank and keeps exp in range at any temperature.
        weights = ((nearest - nearest[:, :1]) / temperature).exp()
        votes = weights.new_zeros(len(part), classes).scatter_add_(1, train_labels[neighbours], weights)
        hits += int((votes.argmax(dim=1) == labels).sum())
    return hits / len(test)


# Strengths of the regularisation that are tried, relative to the mean square of a feature.
STRENGTHS = tuple(10.0**power for power in range(-6, 3))


def linear_probe(
    train: Tensor, labels: Tensor, tests: Sequence[Tensor], classes: int, strengths: Sequence[float] = STRENGTHS
) -> list[list[Tensor]]:
    """Logits of ridge regression from features (n, d) to one-hot labels, in closed form: for each strength, those of
    each test set.

    Weights W minimise |X W − Y|² / n + strength · |W|² · s, where X and Y have their mean over the training images
    taken away, and s is the mean square of the entries of X. All strengths share one decomposition.
    """
    mean = train.double().mean(dim=0)
    x = train.double() - mean
    targets = F.one_hot(labels.to(x.device), classes).double()
    y = targets - targets.mean(dim=0)
    scale = len(x) * x.square().mean().clamp_min(1e-30)
    left, singular, right = torch.linalg.svd(x, full_matrices=False)  # x = left · singular · right
    projected = left.T @ y  # (rank, classes)
    turned = [(test.double().to(x.device) - mean) @ right.T for test in tests]  # (m, rank)
    logits = []
    for strength in strengths:
        shrunk = (singular / (singular.square() + strength * scale))[:, None] * projected
        logits.append([part @ shrunk + targets.mean(dim=0) for part in turned])
    return logits


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) == labels.to(logits.device)).double().mean())


Embed = Callable[[Examples], Tensor]
Solved = tuple[float, dict[str, Any]]
"""An accuracy on the test images, and with which settings."""


def by_neighbours(task: Task, embedded: Embed, how: Neighbours) -> Solved:
    """kNN among the task's 1000 images."""
    train, test = embedded(task.final), embedded(task.test)
    share = knn_accuracy(train, task.final.labels, test, task.test.labels, how.k, how.temperature)
    return share, {"k": how.k, "temperature": how.temperature}


def by_regression(task: Task, embedded: Embed) -> Solved:
    """Ridge regression, its strength chosen on the validation images, then fitted on all 1000."""
    sweep, validation = embedded(task.sweep), embedded(task.validation)
    trials = linear_probe(sweep, task.sweep.labels, [validation], task.classes)
    scores = [accuracy(logits[0], task.validation.labels) for logits in trials]
    strength = STRENGTHS[scores.index(max(scores))]
    found = f"right on {max(scores):.1%} of {len(task.validation.labels)} validation images"
    explain(f"{task.name}: strength {strength:g} is the best of {len(STRENGTHS)}, {found}")
    whole = torch.cat([sweep, validation]) if _is_final(task) else embedded(task.final)
    final = linear_probe(whole, task.final.labels, [embedded(task.test)], task.classes, [strength])
    return accuracy(final[0][0], task.test.labels), {"strength": strength, "validation": max(scores)}


def _is_final(task: Task) -> bool:
    """Whether the images to sweep on and those to validate on are, one after the other, the final ones."""
    both = [*task.sweep.images, *task.validation.images]
    return isinstance(both[0], Path) and both == [*task.final.images]  # as in most lists


def _images_to_embed(probe: str, task: Task) -> int:
    tuned = len(task.sweep) + len(task.validation) if probe == "linear" else 0
    return tuned + (0 if tuned and _is_final(task) else len(task.final)) + len(task.test)


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
    with open_session(subject, protocol, console) as session:
        model, tasks = session.model, session.usable()
        model.backbone.to(place)

        done, total = 0, sum(_images_to_embed(probe, task) for task in tasks)
        with ProgressLine(probe, total, console) as progress:

            def report(images: int) -> None:
                nonlocal done
                done += images
                progress.show(done, f"{done:,} of {total:,} images")

            def embedded(examples: Examples) -> Tensor:
                mean, std = model.mean, model.std
                return embed(model.backbone, examples.images, model.size, mean, std, place, report=report)

            for task in tasks:
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
                session.write(task, benchmark=probe, score=Score((solved,)), settings=settings, seconds=seconds)
                progress.show(done, f"{task.title} {100 * solved + 1e-9:.1f} %")
    return session.results
