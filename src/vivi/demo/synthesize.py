"""`vivi synthesize`: videos with known shot boundaries, and small labelled tasks of the same world.

Every file is a pure function of (settings, index), so any number of processes writes the same bytes, and a
run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import operator
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from vivi.demo.tasks import SPLITS, TASKS, task_labels, write_task_images
from vivi.demo.videos import plan_video, write_video
from vivi.runtime.errors import UserError, check_ranges
from vivi.runtime.machine import available_cores, children_ignore_ctrl_c
from vivi.runtime.progress import ProgressLine
from vivi.runtime.storage import StorageError, write_atomically

FORMAT = 3  # goes up whenever the same settings give other pictures
IMAGES_PER_JOB = 50  # so many that handing out jobs costs nothing
Job = Callable[[], None]


@dataclass(frozen=True)
class SynthesizeSettings:
    """What to synthesize. The same settings give the same files, byte for byte."""

    videos: int = 100
    """Number of videos."""
    seconds: float = 20.0
    """Length of each video."""
    seed: int = 0
    """Another seed gives another set of videos and task images."""
    size: int = 144
    """Short side of the videos in pixels; most are 16:9, some 4:3, square or portrait."""
    rate: int = 10
    """Frames per second."""
    tasks: bool = True
    """Also write labelled images of the same world, as downstream tasks."""
    task_size: int = 96
    """Side of the task images in pixels."""
    task_train: int = 800
    """Training images of each task (its list keeps the name train800)."""
    task_val: int = 200
    """Validation images of each task (its list keeps the name val200)."""
    task_test: int = 500
    """Test images of each task."""
    workers: int = 0
    """Processes to use; 0: one for each core. Changes nothing in the files."""

    def check(self) -> None:
        """Fail before any work when a setting makes no sense."""
        images = (1, 1_000_000)
        ranges = {"videos": (0, 10_000_000), "seconds": (1, 86_400), "seed": (0, 2**63), "size": (32, 2160)}
        ranges |= {"rate": (2, 240), "task_size": (32, 2160), "workers": (0, 4096)}
        ranges |= {"task_train": images, "task_val": images, "task_test": images}
        check_ranges(self, ranges)

    @property
    def splits(self) -> dict[str, int]:
        """The numbers of images of the parts of a task."""
        return dict(zip(SPLITS, (self.task_train, self.task_val, self.task_test), strict=True))


def synthesize(out: Path, settings: SynthesizeSettings, console: Console | None = None) -> None:
    """Write videos, true shot boundaries and tasks into `out`; keep what an earlier run finished."""
    settings.check()
    try:
        claim_folder(out, settings)
        jobs = list(unfinished(out, settings))
        workers = min(settings.workers or available_cores(), len(jobs))
        with ProgressLine("synthesize", len(jobs), console or Console(quiet=True)) as progress:
            for done, _ in enumerate(run(jobs, workers), start=1):
                progress.show(done, f"{done}/{len(jobs)} videos and blocks of {IMAGES_PER_JOB} task images")
        write_truth(out, settings)
        if settings.tasks:
            write_task_lists(out, settings)
    except (StorageError, OSError) as error:
        advice = "finished files are kept: make room, or choose another --out, and run the same command again"
        raise UserError(f"synthesize: cannot write {error}; {advice}.") from error
    except BrokenProcessPool as error:
        advice = "run the same command again with fewer --workers; finished files are kept"
        raise UserError(f"synthesize: a worker process was killed (out of memory?); {advice}.") from error


def claim_folder(out: Path, settings: SynthesizeSettings) -> None:
    """Make `out` ours: new, empty, or begun with the same settings, perhaps with fewer videos."""
    record = out / "synthesize.json"
    asked = {"format": FORMAT, **asdict(settings)}
    del asked["workers"]  # changes nothing in the files
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give a folder to write to.")
    if record.exists():
        try:
            before = dict(json.loads(record.read_text()))
            before["videos"] = max(before["videos"], settings.videos)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{record} cannot be read; remove {out} or choose another --out.") from error
        names = sorted(name for name in asked.keys() | before.keys() if before.get(name) != asked.get(name))
        if names:
            differences = "; ".join(f"{name} {before.get(name)} there, {asked.get(name)} asked" for name in names)
            raise UserError(f"{out} was made with other settings ({differences}); choose another --out.")
    elif out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise UserError(f"{out} holds other files; give --out a new or empty folder.")
    out.mkdir(parents=True, exist_ok=True)
    write_text(record, json.dumps(asked, indent=1) + "\n")


def video_name(index: int) -> str:
    return f"video-{index:05d}.mp4"


def unfinished(out: Path, settings: SynthesizeSettings) -> Iterator[Job]:
    """A job for each video that is not there yet, and for each block of task images, which keeps those that are."""
    for index in range(settings.videos):
        path = out / video_name(index)
        if not path.exists():
            yield partial(write_video, path, settings.seed, index, settings.seconds, settings.rate, settings.size)
    for task, (split, images) in itertools.product(TASKS if settings.tasks else (), settings.splits.items()):
        folder = out / "tasks" / task / "images" / split
        folder.mkdir(parents=True, exist_ok=True)
        for start in range(0, images, IMAGES_PER_JOB):
            block = range(start, min(images, start + IMAGES_PER_JOB))
            yield partial(write_task_images, folder, task, split, images, block, settings.seed, settings.task_size)


def run(jobs: list[Job], workers: int) -> Iterator[None]:
    """Run all jobs, in this process or in several; yields whenever one is done."""
    if workers <= 1:
        yield from map(operator.call, jobs)
        return
    # Spawned, not forked: the caller may hold threads (torch, rich) that do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        with children_ignore_ctrl_c():  # the pool starts its processes when it is given work
            results = pool.map(operator.call, jobs)
        yield from results


def write_truth(out: Path, settings: SynthesizeSettings) -> None:
    """Write the true shot boundaries of every video, from the plans alone."""
    truth = {}
    for index in range(settings.videos):
        plan = plan_video(settings.seed, index, settings.seconds, settings.rate)
        seconds, boundaries = round(plan.frames / settings.rate, 6), plan.boundaries(settings.rate)
        truth[video_name(index)] = {"kind": plan.kind, "seconds": seconds, "boundaries": boundaries}
    write_text(out / "truth.json", json.dumps(truth, indent=1) + "\n")


def write_task_lists(out: Path, settings: SynthesizeSettings) -> None:
    """Write each task's lists in the layout of VTAB-1k, and the names of its classes."""
    for task, classes in TASKS.items():
        lists = {}
        for split, images in settings.splits.items():
            labels = enumerate(task_labels(task, split, images, settings.seed))
            lists[split] = "".join(f"images/{split}/{k:06d}.jpg {label}\n" for k, label in labels)
        lists["train800val200"] = lists["train800"] + lists["val200"]
        lists["classes"] = "".join(f"{name}\n" for name in classes)
        for name, text in lists.items():
            write_text(out / "tasks" / task / f"{name}.txt", text)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, text.encode(), sync=False)
