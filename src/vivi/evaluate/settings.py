"""The flags of vivi evaluate: what is measured, and how it is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vivi.data.image_lists import LAYOUT
from vivi.evaluate.results import Protocol, Setting
from vivi.runtime.errors import UserError, check_ranges

SCHEDULES, QUICK_SCHEDULES = (2500, 10000), (125, 500)
BATCH, QUICK_BATCH = 512, 128
SEEDS = 3


@dataclass(frozen=True)
class Subject:
    """The encoder that is evaluated, and the data it is evaluated on."""

    encoder: str
    """A run or its encoder.safetensors, timm:NAME (pretrained, or with --weights), ms:FILE, mt-ssl:FILE, ti:FILE, or
    untrained:NAME (a timm model or a recipe)."""
    data: Path
    """Your labelled images: a folder with a folder of images for each class, which may have train/ and test/ above
    the classes, or a CSV file of path,label. Or a folder of tasks in VTAB-1k layout, of folders prepared by
    TensorFlow Datasets, or of original data sets."""
    out: Path = Path("results")
    """Folder for the results."""
    tasks: tuple[str, ...] = ()
    """Which tasks; default: all that are there."""
    split_seed: int = 0
    """Random seed of the split of your images, where they do not come with one."""
    groups: tuple[str, ...] = ()
    """Groups of your own tasks, for example natural=cifar10,sun28 structured=coil; default: a group 'own'."""
    weights: Path | None = None
    """A file of weights for timm:NAME."""
    size: int = 0
    """Side of the images in pixels; 0: the encoder's own."""
    name: str = ""
    """The encoder's name in results; default: that of its run or model."""

    def check(self) -> None:
        """Raises where the data is missing; called before torch is imported, which takes seconds."""
        if not self.data.is_dir() and (not self.data.is_file() or self.data.suffix.lower() not in (".csv", ".txt")):
            raise UserError(f"there is no folder or list {self.data}; give {LAYOUT}")


@dataclass(frozen=True)
class Classified:
    """The classifier that is evaluated, and the images it is tested on."""

    encoder: str
    """A run that was trained with labels, or timm:NAME with the classifier it has (pretrained, or with --weights)."""
    data: Annotated[Path, arg(aliases=("--images",))]
    """A folder with a folder of test images for each class; one with train/ and val/, of which val/ is tested; or a
    list of images and classes."""
    out: Path = Path("results")
    """Folder for the results."""
    weights: Path | None = None
    """A file of weights for timm:NAME."""
    name: str = ""
    """The classifier's name in results; default: that of its run or model."""


@dataclass(frozen=True)
class Neighbours:
    """How kNN votes."""

    k: int = 20
    """Neighbours that vote."""
    temperature: float = 0.07
    """A vote's weight is exp(cosine similarity / temperature)."""

    def check(self) -> None:
        check_ranges(self, {"k": (1, 10**6), "temperature": (1e-6, 10**6)})


@dataclass(frozen=True)
class Sweep:
    """VTAB's protocol: settings are chosen on validation images, and the chosen one is tested with several seeds."""

    protocol: Protocol = "v2"
    """v2: 800 images to tune on, 200 to choose by, then the 1000; v1: 1000 and the whole validation set, then 1000 of
    both; full: all images. v1 and full need TFDS folders or the original data."""
    quick: bool = False
    """A twentieth of the steps and a quarter of the batch, for small studies; the result is marked as quick."""
    learning_rates: tuple[float, ...] = ()
    """Learning rates to try; default: 0.1 and 0.01, lower ones for TI."""
    schedules: tuple[int, ...] = ()
    """Numbers of steps to try; default: 2500 and 10000. With other settings the result is marked as quick."""
    batch: int = 0
    """Images a step, or all there are if they are fewer; 0: 512, or 128 with --quick."""
    seeds: int = SEEDS
    """How often the chosen setting is trained and tested; the median counts."""
    choose: Literal["mean", "task", "both"] = "mean"
    """Choose settings by the mean validation accuracy over tasks, as in the paper; by each task's own; or both."""
    antialias: bool = False
    """Resize with a filter against aliasing; TensorFlow's resize, which VTAB uses, has none."""
    micro_batch: int = 0
    """Images at once, for GPUs with less memory: batch statistics are taken over so many; 0: the whole batch."""

    def check(self) -> None:
        check_ranges(self, {"batch": (0, 10**6), "seeds": (1, 1000), "micro_batch": (0, 10**6)})
        for flag, values in (("--learning-rates", self.learning_rates), ("--schedules", self.schedules)):
            if not all(0 < value < 1e9 for value in values):
                raise UserError(f"{flag} is {' '.join(map(str, values))}; each must be more than 0")

    @property
    def is_quick(self) -> bool:
        """Whether it is less than the protocol's sweep, or another one."""
        steps = set(self.schedules) in (set(), set(SCHEDULES))
        same = steps and self.batch in (0, BATCH) and not self.learning_rates and self.seeds >= SEEDS
        return self.quick or not same

    @property
    def images_a_step(self) -> int:
        return self.batch or (QUICK_BATCH if self.quick else BATCH)

    def settings(self, rates: tuple[float, ...]) -> list[Setting]:
        """The grid; `rates` are those of the encoder."""
        schedules = self.schedules or (QUICK_SCHEDULES if self.quick else SCHEDULES)
        return [
            Setting(lr, steps)
            for lr in dict.fromkeys(self.learning_rates or rates)
            for steps in dict.fromkeys(schedules)
        ]


@dataclass(frozen=True)
class FinetuneExecution:
    """How an evaluation is carried out; the result changes by rounding at most."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: all GPUs if there are any."""
    processes: int = 0
    """How many runs at once, each in a process of its own; 0: one for each GPU."""
    threads: int = 0
    """Threads that read images; 0: one for each core."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the encoder's arithmetic; auto: bfloat16 on a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the encoder with torch.compile; auto: on a GPU, if the schedules are long."""
    checkpoint_seconds: float = 120.0
    """Seconds between two checkpoints of a run; finished runs are kept in any case."""

    def check(self) -> None:
        check_ranges(self, {"processes": (0, 1024), "threads": (0, 1024), "checkpoint_seconds": (0, 10**9)})
