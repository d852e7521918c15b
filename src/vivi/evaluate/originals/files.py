"""Image files: which of them lie in a folder, and whether those that a list names are there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from vivi.evaluate.examples import Examples
from vivi.runtime.errors import UserError

_EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".webp"}


def image_names(folder: Path) -> list[str]:
    """The image files in a folder, sorted."""
    return images_among(os.listdir(folder))


def images_among(names: Iterable[str]) -> list[str]:
    """Those of these files that are images, sorted; others (.DS_Store) are passed over."""
    return sorted(name for name in names if Path(name).suffix.lower() in _EXTENSIONS and not name.startswith("."))


def examples(paths: Sequence[Path], labels: Sequence[int]) -> Examples:
    """Image files and their labels, once it is sure that the files are there."""
    return Examples(tuple(existing(paths)), torch.tensor(labels, dtype=torch.int64))


def existing(paths: Iterable[Path]) -> list[Path]:
    """These files as they are spelt on disk (.JPG for .jpg); raises for the first that is missing.

    Each folder is listed once, which is quick where a look at every file is not.
    """
    folders: dict[Path, dict[str, str]] = {}
    found = []
    for path in paths:
        if path.parent not in folders:
            names = os.listdir(path.parent) if path.parent.is_dir() else []
            folders[path.parent] = {name.lower(): name for name in names} | {name: name for name in names}
        names_there = folders[path.parent]
        name = names_there.get(path.name) or names_there.get(path.name.lower())
        if name is None:
            raise UserError(f"image {path} is listed but missing; unpack the data set's archive again")
        found.append(path.parent / name)
    return found
