"""The runs of the study, in the order in which they are done: search, then seeds, then fine-tuning.

A run trains one encoder and measures it. Its name is that of its result file, results/NAME.json; what is there is not
done again. All methods have the same encoder, the same videos, and equally many steps and encoder passes.

The search: every method has the same number of tries. Try 0 is the -small recipe as it is, the others draw each field
from SPACE by a generator with a fixed seed; try number n of two methods has the same draws in the fields that both
have. A try is scored by the linear probe, fitted on the 800 training images and scored on the 200 validation images
of each task, mean over tasks. The best try of a method is its setting in the table. Test images are not looked at.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Measure = Literal["validation", "test", "finetune"]
RESULTS = Path(__file__).parent / "results"
TRIES = 12
SEEDS = 3
PASSES = 2048  # of the encoder a step: videos × shots × frames × copies
COMMON: dict[str, Any] = {
    "encoder.name": "resnetv2_18",
    "augment.size": 64,
    "steps": 1200,
    "optimiser.warmup": 120,
    "optimiser.decay_at": [900, 1080],
}
SHOT_SECONDS = 1.6  # takes are cut into shots of this length, at 5 frames a second


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    recipe: str
    shots: int = 1  # K
    copies: int = 1  # of each frame, for rotation
    fixed: dict[str, Any] = field(default_factory=dict)

    @property
    def exemplar(self) -> bool:
        return self.copies == 1

    @property
    def has_video_loss(self) -> bool:
        return self.shots > 1


METHODS = {
    "Ex-F": Method("ex-yt-f-small"),
    "Ex-F-resampled": Method("ex-yt-f-small", fixed={"batch.resample": True}),
    "Ex-S": Method("ex-yt-s-small"),
    "VIVI-Ex2": Method("vivi-ex2-small", shots=2),
    "VIVI-Ex2-Ord": Method("vivi-ex2-ord-small", shots=2),
    "VIVI-Ex4": Method("vivi-ex4-small", shots=4),
    "Rot-F": Method("rot-yt-f-small", copies=4),
    "VIVI-Rot4": Method("vivi-rot4-small", shots=4, copies=4),
}

COLOURS: dict[str, dict[str, Any]] = {
    "paper": {},
    "medium": {"augment.hue": 0.1, "augment.contrast": 0.5},
    "strong": {
        "augment.brightness": 0.4,
        "augment.saturation": 0.8,
        "augment.hue": 0.2,
        "augment.contrast": 0.6,
        "augment.grey_frames": 0.2,
    },
}
SPACE: dict[str, list[Any]] = {
    "optimiser.lr": [0.05, 0.1, 0.2, 0.4],
    "optimiser.schedule": ["steps", "cosine"],
    "augment.crop_area": [[0.1, 1.0], [0.2, 1.0], [0.4, 1.0]],
    "colour": list(COLOURS),
    "batch.cores": [1, 8],
    "batch.frames": [2, 4, 8],
    "shot_seconds": [1.6, 3.2],
    "loss.frame.negatives": ["shots", "videos"],  # of the exemplar loss
    "video_weight": [0.5, 1.0, 4.0, 16.0],  # times the recipe's own
}


@dataclass(frozen=True)
class Run:
    """One encoder: how it is trained, and what is measured."""

    name: str
    method: str
    recipe: str
    fields: dict[str, Any]  # of the recipe, by their dotted names
    measure: Measure
    video_weight: float = 1.0  # times the recipe's own
    shot_seconds: float = SHOT_SECONDS

    @property
    def result(self) -> Path:
        return RESULTS / f"{self.name}.json"


def all_runs() -> Iterator[Run]:
    """Those of a later stage appear once the search of their method is complete."""
    yield from search()
    best = [run for run in map(best_try, METHODS) if run is not None]
    measures: tuple[Measure, ...] = ("test", "finetune")
    for measure in measures:
        for run in best:
            for seed in range(SEEDS):
                name, fields = f"{measure}-{run.method}-{seed}", {**run.fields, "seed": seed}
                yield replace(run, name=name, fields=fields, measure=measure)


def search() -> Iterator[Run]:
    """Try by try, so that methods can be compared before all tries are done."""
    for number in range(TRIES):
        for name in METHODS:
            yield one_try(name, number)


def one_try(name: str, number: int) -> Run:
    method = METHODS[name]
    drawn = draw(number)
    frames = drawn.pop("batch.frames", 4 if method.copies > 1 else 8)
    colour, shot_seconds = drawn.pop("colour", "paper"), drawn.pop("shot_seconds", SHOT_SECONDS)
    negatives, weight = drawn.pop("loss.frame.negatives", "shots"), drawn.pop("video_weight", 1.0)
    video_weight = weight if method.has_video_loss else 1.0
    if method.has_video_loss and method.exemplar:  # without several shots of a video there is no choice
        drawn["loss.frame.negatives"] = negatives
    videos = PASSES // (method.shots * frames * method.copies)
    fields = {**COMMON, **method.fixed, "batch.videos": videos, "batch.frames": frames, **drawn, **COLOURS[colour]}
    return Run(f"search-{name}-{number:02d}", name, method.recipe, fields, "validation", video_weight, shot_seconds)


def draw(number: int) -> dict[str, Any]:
    """A value of every field, or none for try 0."""
    if number == 0:
        return {}
    return {field: random.Random(f"{number} {field}").choice(values) for field, values in SPACE.items()}


def best_try(name: str) -> Run | None:
    """The try with the highest mean validation accuracy, once all are done; of equal ones the first."""
    tries = [one_try(name, number) for number in range(TRIES)]
    if not all(run.result.exists() for run in tries):
        return None
    return max(tries, key=lambda run: mean_accuracy(run, "validation"))


def mean_accuracy(run: Run, part: str) -> float:
    """Over tasks, in percent; minus one for a run that failed, such as one whose loss was not finite."""
    accuracies = json.loads(run.result.read_text()).get(part)
    return sum(accuracies.values()) / len(accuracies) if accuracies else -1.0
