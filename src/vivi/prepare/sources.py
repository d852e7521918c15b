"""Which videos to prepare: files, folders and manifests turned into a list of named sources."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vivi.prepare.corpus import Split
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import LARGE, read_file

_SUFFIXES = """
    264 265 3g2 3gp amv asf av1 avi divx dv f4v flv gif h264 h265 hevc insv ivf lrv m1v m2ts m2v m4v mjpeg mjpg mkv
    mod mov mp4 mpe mpeg mpg mpv mts mxf nut obu ogm ogv qt rm rmvb tod ts vob webm wmv wtv y4m
"""
VIDEO_SUFFIXES = frozenset(f".{suffix}" for suffix in _SUFFIXES.split())
SPLITS: dict[str | None, Split | None] = {None: None, "train": "train", "test": "test"}
MANIFEST_SUFFIXES = (".txt", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Source:
    """A video to prepare."""

    video: str  # its name in the corpus: unique, relative to the argument it was found under
    path: str
    split: Split | None = None  # from a manifest; None: decided by a hash of the name
    problem: str = ""  # why it cannot even be tried, where that is known already


def list_sources(arguments: Sequence[Path]) -> tuple[list[Source], list[str]]:
    """Every video named by the arguments, once; and what they hold that is left out, and why, a line each."""
    found: list[Source] = []
    ignored: Counter[str] = Counter()
    for argument in arguments:
        if not os.path.exists(argument):
            raise UserError(f"{argument} does not exist; give video files, folders or a manifest")
        if argument.is_dir():
            found += _in_folder(argument, ignored)
        elif argument.suffix.lower() in MANIFEST_SUFFIXES:
            found += _in_manifest(argument)
        else:
            found.append(Source(text(argument.name), os.path.abspath(argument)))
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in ignored.most_common(5))
    notes = [f"ignored {ignored.total()} files that are not videos by name ({kinds})"] if ignored else []
    # The same file under several arguments counts once, as it was first named. So do two files whose names read the
    # same once bytes that are no text are spelled out: nothing could tell them apart later.
    first: dict[str, Source] = {}
    alike, twice = [], []
    for source in found:
        other = first.setdefault(text(source.path), source)
        if other.path != source.path:
            alike.append(text(source.path))
        elif (other.video, other.split) != (source.video, source.split):
            twice.append(f"{other.video} and {source.video}")
    if alike:
        notes.append(f"left out, as their names read like other files': {len(alike)} ({alike[0]}); rename them")
    if twice:
        notes.append(f"named more than once: {len(twice)} files ({twice[0]}); the first name counts")
    return list(first.values()), notes


def name_apart(
    sources: Iterable[Source], taken: dict[str, str], moved: Callable[[str, str], bool] = lambda video, path: False
) -> list[Source]:
    """Gives every source a name of its own, sorted by name.

    `taken` maps the names in the corpus to their paths. A name that another file has is lengthened by the folders
    above it, as many as it takes. A video keeps its name where `moved(name, new path)` says that it is the same.
    """
    names = {path: name for name, path in taken.items()}
    named: dict[str, Source] = {}
    for source in sorted(sources, key=lambda source: (source.video, source.path)):
        path = text(source.path)
        video = names.get(path) or source.video
        folders = list(Path(path).parent.parts)[: -len(Path(source.video).parent.parts) or None]
        while video in named or (taken.get(video, path) != path and not moved(video, source.path)):
            video = f"{folders.pop().strip(os.sep)}/{video}" if folders else f"{video}'"
        named[video] = replace(source, video=video)
    return [source for _, source in sorted(named.items())]


def _in_folder(folder: Path, ignored: Counter[str]) -> Iterator[Source]:
    """Videos below a folder, through links, each folder once."""

    def source(path: str, problem: str = "") -> Source:
        return Source(text(os.path.relpath(path, folder)), os.path.abspath(path), problem=problem)

    visited: set[tuple[int, int]] = set()
    unreadable: list[OSError] = []
    for root, folders, files in os.walk(folder, followlinks=True, onerror=unreadable.append):
        here = os.stat(root)
        if (here.st_dev, here.st_ino) in visited:
            folders.clear()
            continue
        visited.add((here.st_dev, here.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.startswith(".") or not _has_video_name(name):
                ignored[Path(name).suffix.lower() or "without suffix"] += 1
            else:
                yield source(os.path.join(root, name))
        if _has_video_name(root) and Path(root) != folder and not folders and not any(map(_has_video_name, files)):
            yield source(root, "is a directory")
    for error in unreadable:
        yield source(error.filename, f"folder cannot be read: {error.strerror}")


def _has_video_name(path: str) -> bool:
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def _in_manifest(manifest: Path) -> Iterator[Source]:
    """Rows of a manifest; relative paths start at its folder. A bad row is a source with a problem."""
    folder = os.path.abspath(manifest.parent)
    for line, row in _manifest_rows(manifest):
        path, split, problem = row.get("path", ""), row.get("split"), ""
        if not path or "\0" in path:
            problem = "its path holds a zero byte" if path else "no path in the manifest"
            path, row = f"{manifest.name}, row {line}", {}
        elif split not in SPLITS:
            problem = f"split {split!r} in the manifest is neither train nor test"
        path = os.path.abspath(os.path.join(folder, path))
        inside = os.path.relpath(path, folder)
        name = Path(path).name if inside.startswith("..") else inside
        yield Source(text(row.get("video", name)), path, None if problem else SPLITS[split], problem)


def _manifest_rows(manifest: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Each row with its number; values that are missing or empty are left out."""
    kind = manifest.suffix.lower()
    rows: Iterable[tuple[int, dict[str, Any]]]
    try:
        if kind == ".parquet":
            table = pq.read_table(manifest)
            columns, rows = table.column_names, enumerate(table.to_pylist(), start=1)
        else:
            content = read_file(manifest, LARGE).decode("utf-8-sig", "surrogateescape")
        if kind == ".csv":
            # A path of any length is one bad row, not the end of the file.
            csv.field_size_limit(max(csv.field_size_limit(), len(content) + 1))
            reader = csv.DictReader(io.StringIO(content, newline=""), strict=True)
            columns, rows = list(reader.fieldnames or []), ((reader.line_num, row) for row in reader)
        if kind == ".txt":
            lines = ((n, line.strip()) for n, line in enumerate(content.split("\n"), 1) if not line.startswith("#"))
            columns, rows = ["path"], ((n, {"path": line}) for n, line in lines if line)
        if "path" not in columns:
            raise UserError(f"manifest {manifest} has no column 'path' (it has: {', '.join(columns) or 'none'})")
        for line, row in rows:
            yield line, {key: _as_text(value) for key, value in row.items() if key and value not in (None, b"", "")}
    except (OSError, csv.Error, pa.ArrowException) as error:
        raise UserError(f"manifest {manifest} cannot be read: {first_line(error)}") from None


def _as_text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, bytes) else str(value)


def text(path: str) -> str:
    """A file name as valid Unicode: undecodable bytes are spelled out."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
