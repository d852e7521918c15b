"""The flags of vivi evaluate detection: what is measured, and how it is carried out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vivi.runtime.errors import UserError, check_ranges

Norm = Literal["synchronised", "frozen"]
_SCHEDULES = {"standard": (90_000, 1_000, 0.0), "short": (1_500, 100, 10.0)}  # steps, warm-up, clip


@dataclass(frozen=True)
class Detected:
    """Which encoder is evaluated, on which images."""

    encoder: str
    """A run, an encoder.safetensors, timm:NAME (pretrained, or with --weights), untrained:NAME (a timm model or a
    recipe), ms:FILE, mt-ssl:FILE or ti:FILE."""
    data: Path
    """A folder with images and COCO annotations: instances_train.json and instances_val.json, or as COCO 2017 or
    Roboflow have them."""
    out: Path = Path("results")
    """Folder for the results."""
    train: Path | None = None
    """Annotations of the images to train on; none: found in DATA."""
    test: Path | None = None
    """Annotations of the images to test on; none: found in DATA."""
    weights: Path | None = None
    """A file of weights for timm:NAME."""
    name: str = ""
    """The encoder's name in results; none: that of its run or model."""


@dataclass(frozen=True)
class Tuned:
    """How detectors are trained: the standard protocol of RetinaNet. All of it is written into the result."""

    schedule: Literal["standard", "short"] = "standard"
    """standard: 90,000 steps, twelve epochs of COCO; short: 1,500, for sets of some hundred images."""
    steps: int = 0
    """Instead of the schedule's; the learning rate falls to a tenth after 2/3 and 8/9 of them; 0: the schedule's."""
    warmup: int = -1
    """Steps in which the learning rate rises; -1: the schedule's, 1,000 or 100."""
    batch: int = 16
    """Images a step, over all processes."""
    lr: float = 0.01
    """To begin with: it is halved, and training begins anew, until the loss decays."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    """L2 on kernels only: no biases, no norms."""
    clip: float = -1.0
    """Largest norm of the gradient, 0: any; -1: the schedule's, 0 or 10."""
    norm: Norm = "synchronised"
    """Batch norm of the encoder: statistics of the whole batch, over all processes; or frozen ones, its own. Encoders
    with group norm have neither."""
    min_size: int = 800
    """The short side of images."""
    max_size: int = 1333
    """The most that the long side may have; the short one is then shorter."""
    seeds: int = 3
    """How often it is trained and tested; the median counts."""

    def check(self) -> None:
        sgd = {"batch": (1, 10**5), "lr": (1e-9, 10**3), "momentum": (0, 0.9999), "weight_decay": (0, 1)}
        check_ranges(self, {"steps": (0, 10**8), "warmup": (-1, 10**8), **sgd, "clip": (-1, 10**6)})
        check_ranges(self, {"min_size": (32, 10**4), "max_size": (32, 10**4), "seeds": (1, 100)})
        if self.max_size < self.min_size:
            raise UserError(f"--max-size is {self.max_size}, less than --min-size, {self.min_size}")

    def resolved(self) -> Tuned:
        """With the schedule's values where the choice is left to it."""
        steps, warmup, clip = _SCHEDULES[self.schedule]
        return replace(
            self,
            steps=self.steps or steps,
            warmup=warmup if self.warmup < 0 else self.warmup,
            clip=clip if self.clip < 0 else self.clip,
        )

    @property
    def label(self) -> str:
        """The schedule's name, if nothing but the norm and the number of seeds was changed."""
        as_it_is = Tuned(schedule=self.schedule, norm=self.norm, seeds=self.seeds)
        return self.schedule if self.resolved() == as_it_is.resolved() else "own"


@dataclass(frozen=True)
class DetectionExecution:
    """How it is carried out: none of it changes the result but by rounding."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one. torchrun starts a process for each of several."""
    threads: int = 0
    """Threads that read images; 0: one for each core."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the network's arithmetic; auto: bfloat16 on a GPU."""
    micro_batch: int = 0
    """Images at once, for GPUs with less memory; 0: all of this process. Not with synchronised batch norm."""
    checkpoint_seconds: float = 120.0
    """Between two checkpoints inside a run; finished runs are kept in any case."""

    def check(self) -> None:
        check_ranges(self, {"threads": (0, 1024), "micro_batch": (0, 10**5), "checkpoint_seconds": (0, 10**9)})
