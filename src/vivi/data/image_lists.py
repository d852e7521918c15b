"""Lists of images: with labels, `path label` a line (.txt) or columns path,label (.csv); or file names alone.

A .csv may have a column split as well, which says of each image whether it is to train, to validate or to test on.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, KeysView, Sequence
from pathlib import Path

from vivi.runtime.errors import UserError
from vivi.runtime.storage import LARGE, read_file

PARTS = {"train": "train", **dict.fromkeys(("val", "valid", "validation"), "validation"), "test": "test"}
"""What users call the parts of their images, in a column split or as folders; and what the parts are called here."""
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
LARGEST_LABEL = 1_000_000
MOST_EMPTY = 100
"""Numbered classes for each that has images, at most: a slip in one label would make a huge classifier."""
LAYOUT = "a folder with a folder of images for each class, or a list (.txt of lines `path label`, .csv of path,label)"
NAMES = 'a .txt with a file name and no label in each line, or a JSON object with the key "values", a list of names'


def note(what: str, why: str, which: Sequence[str]) -> list[str]:
    """The line that says what is left out, if something is."""
    if len(which) > 1:
        return [f"left out {len(which):,} {what}s {why}: the first is {which[0]}"]
    return [f"left out 1 {what} {why}: {which[0]}"] if which else []


def has_image_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def is_number(label: str) -> bool:
    return label.isascii() and label.isdecimal()


def relative(name: str, root: Path) -> str:
    """A path as images are named: from the root, if it lies below it."""
    return os.path.normpath(name).removeprefix(os.path.abspath(root) + os.sep)


def list_parts(path: Path) -> set[str]:
    """The parts that a list's column split names; none where it has no such column."""
    return {PARTS[split] for *_, split in _rows(path) if split in PARTS}


def read_list(path: Path, part: str = "") -> tuple[dict[str, str], list[str], list[str]]:
    """The class of each file in a list, or in one part of it; all classes, and notes about what was left out. Of a
    file with two different labels one is wrong, and nobody knows which: it is left out."""
    class_of: dict[str, str] = {}
    contradictory: set[str] = set()
    wrong: dict[str, list[str]] = {}  # the lines that are left out, by what is wrong with them
    for line, name, text, split in _rows(path):
        if part and PARTS.get(split, part) != part:
            continue
        file, label = relative(name, path.parent), _label(text)
        if part and split not in PARTS:
            why = f"whose split is none of {', '.join(PARTS)}"
        elif not name or not label:
            why = f"without a path and a label (a name, or a number from 0 to {LARGEST_LABEL:,})"
        elif not os.path.isfile(path.parent / file):
            why = f"whose file is not to be found below {path.parent}"
        elif class_of.setdefault(file, label) != label:
            why = "whose file has another label in a line before, and is not used at all"
            contradictory.add(file)
        else:
            continue
        wrong.setdefault(why, []).append(f"line {line}, {f'{name} {text}'.strip()[:200]!r}")
    for file in contradictory:
        del class_of[file]
    notes = [text for why, lines in wrong.items() for text in note("line", f"of {path} {why}", lines)]
    if not class_of:
        raise UserError(f"{path} names no image that can be used; " + "; ".join([*notes[:1], f"give {LAYOUT}"]))
    classes, more = _all_classes(path, dict.fromkeys(class_of.values()).keys())
    return class_of, classes, notes + (more if part in ("", "train") else [])


def _all_classes(path: Path, labels: KeysView[str]) -> tuple[list[str], list[str]]:
    """The classes in a list with these labels, and notes. Of numbers, all up to the largest are classes."""
    if names := [label for label in labels if not is_number(label)]:
        mixed = f"labels of {path} are taken as names, the numbers too: {names[0]!r} is no number"
        return sorted(labels), [mixed] if len(names) < len(labels) else []
    classes = [str(number) for number in range(1 + max(map(int, labels)))]
    if len(classes) > MOST_EMPTY * len(labels):
        raise UserError(
            f"{path} has {len(labels):,} different labels, the largest of them {classes[-1]}, which would be "
            f"{len(classes):,} classes; number them from 0 on, or give them names"
        )
    unused = [number for number in classes if number not in labels]
    if not unused:
        return classes, []
    return classes, [f"{len(unused):,} of the classes 0 to {classes[-1]} have no images in {path}: first {unused[0]}"]


def _rows(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Line, path, label and split, which are empty where there are none. Empty lines and comments are passed over."""
    text = _read_text(path, LAYOUT)
    if path.suffix.lower() != ".csv":
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.rsplit(maxsplit=1)
            if words and not line.startswith("#"):
                yield number, words[0].strip(), words[1] if len(words) == 2 else "", ""
        return
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", strict=True)
    try:
        if not {"path", "label"} <= set(reader.fieldnames or ()):
            raise UserError(f"{path} has no columns path and label; its first line must name them: path,label")
        for row in reader:
            split = row.get("split", "").strip().lower()
            yield reader.line_num, row["path"].strip(), row["label"].strip(), split
    except csv.Error as error:
        raise UserError(
            f"{path} line {reader.line_num + 1} is no CSV: {error}; correct it, the quotes first"
        ) from None


def _label(text: str) -> str:
    """A number without zeros before it, or a name; nothing where it can be neither."""
    if is_number(text.lstrip("+-")):
        return str(int(text)) if is_number(text) and len(text) < 20 and int(text) <= LARGEST_LABEL else ""
    return "" if has_image_name(text) else text  # the end of a path with spaces: there is no label


def _read_text(path: Path, needed: str) -> str:
    try:
        return read_file(path, LARGE).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{path} cannot be read ({reason}); give {needed}") from None


def read_names(path: Path) -> list[str]:
    """File names: lines, or the `values` of a JSON object, as in S4L's lists of labelled images."""
    text = _read_text(path, NAMES)
    if path.suffix.lower() != ".json" and not text.startswith("{"):
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        names = json.loads(text)["values"]
    except (ValueError, KeyError, TypeError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} holds no file names; give {NAMES}")
    return names
