"""Diabetic retinopathy, from Kaggle: two folders of images and a CSV file of grades for each."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.files import image_names
from vivi.evaluate.originals.source import Source, by_reading, damaged, read_text
from vivi.runtime.errors import UserError


@dataclass(frozen=True)
class Grade:
    image: str
    level: int
    usage: str
    """Kaggle's two parts of its test images: Public is VTAB's validation split, Private its test split."""


def read(folder: Path) -> Original:
    solution = read_grades(folder / "retinopathy_solution.csv", usage=True)
    train, test = _images(folder / "train"), _images(folder / "test")
    return Original(
        _examples(read_grades(folder / "trainLabels.csv", usage=False), train, folder / "train"),
        _examples([grade for grade in solution if grade.usage == "Public"], test, folder / "test"),
        _examples([grade for grade in solution if grade.usage == "Private"], test, folder / "test"),
    )


def read_grades(path: Path, usage: bool) -> list[Grade]:
    """The rows of a CSV file with the columns image, level and, where `usage` is asked for, Usage."""
    columns = ["image", "level", *(["Usage"] if usage else [])]
    rows = csv.DictReader(read_text(path).splitlines())
    for column in columns:
        if column not in (rows.fieldnames or []):
            raise damaged(path, f"it has no column {column}")
    grades = []
    for number, row in enumerate(rows, start=2):
        values = [(row[column] or "").strip() for column in columns]
        if values[1] not in ("0", "1", "2", "3", "4") or (usage and values[2] not in ("Public", "Private")):
            reason = f"line {number} has {', '.join(values)}; the level must be 0 to 4, Usage Public or Private"
            raise damaged(path, reason)
        grades.append(Grade(values[0], int(values[1]), values[2] if usage else ""))
    if not grades:
        raise damaged(path, "it has no rows")
    return grades


def _images(folder: Path) -> dict[str, Path]:
    """The images of a folder by name without extension, which is .jpeg until someone makes them smaller."""
    return {Path(name).stem: folder / name for name in image_names(folder)}


def _examples(grades: list[Grade], images: Mapping[str, Path], folder: Path) -> Examples:
    absent = next((grade.image for grade in grades if grade.image not in images), None)
    if absent is not None:
        raise UserError(f"image {folder / absent}.jpeg is listed but missing; unpack the data set's archives again")
    paths = tuple(images[grade.image] for grade in grades)
    return Examples(paths, torch.tensor([grade.level for grade in grades], dtype=torch.int64))


RETINOPATHY = Source(
    folders=("diabetic-retinopathy-detection", "diabetic_retinopathy_detection", "diabetic_retinopathy"),
    needs=("trainLabels.csv", "retinopathy_solution.csv", "train", "test"),
    where=(
        "https://www.kaggle.com/c/diabetic-retinopathy-detection/data: trainLabels.csv, train.zip.*, test.zip.*; and "
        "https://storage.googleapis.com/kaggle-forum-message-attachments/90528/2877/retinopathy_solution.csv"
    ),
    read=read,
    count=by_reading(read),
)
