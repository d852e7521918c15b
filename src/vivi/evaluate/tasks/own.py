"""The task of users' own labelled images: a folder of images for each class, or a list of paths and labels."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from vivi.data.image_lists import LAYOUT
from vivi.data.images import LabelledImages
from vivi.data.splits import find_split
from vivi.evaluate.tasks.examples import Examples, Task
from vivi.evaluate.tasks.lists import LISTS
from vivi.runtime.errors import UserError

_OR_TASKS = (
    f"; or a folder of tasks in VTAB-1k layout (TASK/{'.txt, '.join(LISTS.values())}.txt), or of VTAB's data sets "
    "(vivi evaluate vtab --check says which)"
)


def read_own_task(data: Path, seed: int = 0, console: Console | None = None) -> Task:
    """All images count, whatever their number: a fifth of those to train on, as VTAB's 200 of 1000, validates."""
    try:
        split = find_split(data, seed, console)
    except UserError as error:
        raise UserError(f"{error}{_OR_TASKS * str(error).endswith(LAYOUT)}") from None
    sweep, validation = _examples(split.train), _examples(split.validation)
    return Task(
        name=split.name,
        title=split.name,
        group="own",
        classes=len(split.classes),
        split="own split",
        sweep=sweep,
        validation=validation if len(validation) else sweep,
        final=sweep.and_then(validation),
        test=_examples(split.test),
        notes=(split.summary(), *split.notes),
    )


def _examples(images: LabelledImages) -> Examples:
    return Examples(images.paths(), torch.from_numpy(images.labels))
