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
    """The encoder that is evaluated, and the images it is trained and tested on."""

    encoder: str
    """A run or its encoder.safetensors, timm:NAME (pretrained, or with --weights), ms:FILE, mt-ssl:FILE, ti:FILE, or
    untrained:NAME (a timm model or a recipe)."""
    data: Path
    """A folder with images and COCO annotations: instances_train.json and instances_val.json, or as COCO 2017 or
    Roboflow have them."""
    out: Path = Path("results")
    """Folder for the results."""
    train: Path | None = None
    """Annotations of the images to train on; default: found in DATA."""
    test: Path | None = None
    """Annotations of the images to test on; default: found in DATA."""
    weights: Path | None = None
    """A file of weights for timm:NAME."""
    name: str = ""
    """The encoder's name in results; default: that of its run or model."""


@dataclass(frozen=True)
class Tuned:
    """How detectors are trained: the standard protocol of RetinaNet. All of it is written into the result."""

    schedule: Literal["standard", "short"] = "standard"
    """standard: 90000 steps, twelve epochs of COCO; short: 1500 steps, for sets of some hundred images."""
    steps: int = 0
    """Steps to train; 0: as the schedule says. The learning rate falls to a tenth after 2/3 and 8/9 of them."""
    warmup: int = -1
    """Steps in which the learning rate rises; -1: as the schedule says, 1000 or 100."""
    batch: int = 16
    """Images a step, over all processes."""
    lr: float = 0.01
    """Learning rate to begin with; where the loss does not fall, it is halved and training begins anew."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 1e-4
    """L2 penalty on kernels, not on biases or norms."""
    clip: float = -1.0
    """Clip the gradient to this norm; 0: never; -1: as the schedule says, 0 or 10."""
    norm: Norm = "synchronised"
    """Batch norm of the encoder: with statistics of the batch, over all processes, or frozen at the encoder's own."""
    min_size: int = 800
    """The short side of images in pixels."""
    max_size: int = 1333
    """The longest that the long side may be; longer images are made smaller."""
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
    """How it is carried out; the result changes by rounding at most."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one. torchrun starts a process for each of several."""
    threads: int = 0
    """Threads that read images; 0: one for each core."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the network's arithmetic; auto: bfloat16 on a GPU."""
    micro_batch: int = 0
    """Images at once, for GPUs with less memory; 0: all of this process. Not with synchronised batch norm."""
    checkpoint_seconds: float = 120.0
    """Seconds between two checkpoints of a run; finished runs are kept in any case."""

    def check(self) -> None:
        check_ranges(self, {"threads": (0, 1024), "micro_batch": (0, 10**5), "checkpoint_seconds": (0, 10**9)})
