"""vivi prepare: from files and folders of videos to a corpus on disk.

    sources ──▶ engine: one piece per video, in any order ──▶ pack: shards, in the order of names ──▶ table, index

Nothing is kept in memory that a kill could lose. A finished piece stays in `corpus/work` until the shard that holds
it is in place, a shard carries the rows of its videos, and shards are packed in the order of the videos' names: the
same command after an interruption goes on where it was, and ends with the same corpus as if nothing had happened.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from vivi.prepare.corpus import (
    Corpus,
    ShotWriter,
    VideoRow,
    known_shards,
    open_shard,
    read_settings,
    read_videos,
    shard_numbers,
    shard_path,
    shard_videos,
    write_settings,
    write_videos,
)
from vivi.prepare.engines import Prepared, PrepareExecution, run
from vivi.prepare.identity import UNKNOWN, identify, same_content
from vivi.prepare.index import build_index, write_index
from vivi.prepare.piece import PreparedVideo, PrepareSettings, VideoTask, finished_piece, piece_path
from vivi.prepare.sources import Source, list_sources, name_apart, text
from vivi.runtime.console import SafeConsole, warn
from vivi.runtime.errors import UserError
from vivi.runtime.machine import available_cores
from vivi.runtime.storage import StorageError, locked

Rows = dict[str, VideoRow]  # of videos.parquet, by name
IDENTIFYING_THREADS = 16  # telling whether files have changed waits for the disk far more than for a core


def prepare(
    arguments: Sequence[Path],
    out: Path,
    settings: PrepareSettings | None = None,
    execution: PrepareExecution | None = None,
    console: Console | None = None,
) -> list[VideoRow]:
    """Prepares all videos that the arguments name into the corpus `out`: a new one, an interrupted one, or one to add
    to. Returns the rows of videos.parquet."""
    settings, execution = settings or PrepareSettings(), execution or PrepareExecution()
    console = console or SafeConsole()
    settings.check()
    execution.check()
    sources, notes = list_sources(arguments)
    for note in notes:
        warn(console, note)
    if not sources:
        raise UserError(f"no videos found in {', '.join(map(str, arguments))}; give videos or folders of them")
    try:
        with locked(out, "vivi prepare"):
            _set_up(out, settings)
            rows, next_shard = _committed(out)
            pending = _pending(sources, rows, execution.retry_skipped, console)
            idle_cores = available_cores() >= 2 * min(execution.workers or available_cores(), len(pending))
            how = settings, idle_cores, execution.worker_memory, execution.video_minutes
            tasks = [VideoTask(source, str((out / "work").absolute()), *how) for source in pending]
            with closing(_prepared(tasks, execution, console)) as videos:
                _pack_all(videos, out, rows, next_shard, round(execution.shard_megabytes * 2**20))
            shutil.rmtree(out / "work")
            _write_index(out, console)
            return list(rows.values())
    except (StorageError, OSError) as error:
        advice = "what is there stays valid: make room, or mend that, and run the same command again"
        raise UserError(f"cannot write to {out}: {error}; {advice}") from error


def _set_up(out: Path, settings: PrepareSettings) -> None:
    """Makes the corpus, or checks that the one that is there has these settings and removes unfinished files."""
    if (out / "corpus.json").exists():
        before = read_settings(out)
        for name, value in asdict(settings).items():
            if before.get(name) != value:
                flag, remedy = f"--{name.replace('_', '-')}", "use the same settings or another --out"
                raise UserError(f"{out} was prepared with {flag} {before.get(name)}, not {value}; {remedy}")
    elif any(not path.match("corpus.json.*.tmp") for path in out.iterdir()):
        raise UserError(f"{out} holds other files and is no corpus; choose a new or empty folder for --out")
    else:
        write_settings(out, asdict(settings))
    for folder in ("shards", "work"):
        (out / folder).mkdir(exist_ok=True)
    patterns = ("corpus.json.*.tmp", "videos.parquet.*.tmp", "work/*.tmp", "shards/*.tmp")
    for leftover in itertools.chain.from_iterable(map(out.glob, patterns)):
        leftover.unlink(missing_ok=True)


def _committed(out: Path) -> tuple[Rows, int]:
    """The videos that are safely in the corpus, by name: those in the table, and those in shards that were put in
    place after it was written. And the number of the next shard: never one that was in use, as the table may still
    name a shard that was deleted."""
    table, numbers = read_videos(out), shard_numbers(out)
    known, present = known_shards(out, table), {None, *numbers}
    rows = {row.video: row for row in table if row.shard in present}
    for number in numbers:
        if number >= known:
            _enter(rows, shard_videos(shard_path(out, number)))
    return rows, max([known, *(number + 1 for number in numbers)])


def _enter(rows: Rows, new: Iterable[VideoRow]) -> None:
    """Adds rows at the end, also those of videos that had one: they were skipped before, or their files changed."""
    for row in new:
        rows.pop(row.video, None)
        rows[row.video] = row


def _pending(sources: list[Source], rows: Rows, retry_skipped: bool, console: Console) -> list[Source]:
    """The videos still to prepare, in the order of their names, among them those whose files have changed. Of the
    others, `rows` gets the present path and time of the file."""
    named = name_apart(
        sources,
        {row.video: row.path for row in rows.values()},
        lambda video, path: not os.path.exists(rows[video].path) and same_content(rows[video].file, identify(path)),
    )
    known = [rows.get(source.video) for source in named]
    with ThreadPoolExecutor(IDENTIFYING_THREADS) as threads:
        now = threads.map(lambda source, row: identify(source.path, row.file) if row else UNKNOWN, named, known)
    pending, changed, unknown = [], [], 0
    for source, row, file in zip(named, known, now, strict=True):
        if row is None:
            pending.append(source)
            continue
        # A video that was skipped before its file could be read counts as changed once it can be.
        comparable = file.file_hash and (row.file_hash or row.status == "skipped")
        if comparable and not same_content(row.file, file):
            changed.append(source.video)
            pending.append(source)
        elif row.status == "skipped" and retry_skipped:
            pending.append(source)
        elif comparable:
            rows[source.video] = replace(row, path=text(source.path), **asdict(file))
        unknown += row.status == "ok" and not row.file_hash
    if len(pending) < len(named):
        console.print(f"in the corpus already: {len(named) - len(pending)} videos", style="dim")
    if changed:
        names = ", ".join(changed[:5]) + (", …" if len(changed) > 5 else "")
        console.print(f"changed since they were prepared, now prepared again: {len(changed)} videos ({names})")
    if unknown:
        warn(
            console,
            f"prepared by an older vivi, which did not record the files: {unknown} videos; whether their files have "
            "changed since cannot be told, they stay as they are",
        )
    return pending


def _prepared(tasks: Sequence[VideoTask], execution: PrepareExecution, console: Console) -> Prepared:
    """The videos of the tasks, in any order prepared, but in their order given: each as soon as it and all before it
    are there. What an earlier run that was interrupted had finished is used."""
    there: dict[str, PreparedVideo] = {}
    for task in tasks:
        video = finished_piece(task)
        if video and (video.row.status == "ok" or not execution.retry_skipped):
            there[task.source.video] = video
    todo = [task for task in tasks if task.source.video not in there]
    with closing(run(todo, execution, console)) as videos:
        for task in tasks:
            while task.source.video not in there:
                video = next(videos)
                there[video.row.video] = video
            yield there.pop(task.source.video)


def _pack_all(videos: Prepared, out: Path, rows: Rows, next_shard: int, shard_bytes: int) -> None:
    """Packs the videos in their order, enters their rows, and writes the table of videos."""
    try:
        with ThreadPoolExecutor(1) as thread:
            # One group is packed while the next one is prepared, after the one before it is in place.
            packing = thread.submit(pack, out, next_shard, [])
            for group in itertools.chain(_groups(videos, shard_bytes), [[]]):
                packed = packing.result()
                _enter(rows, packed)
                next_shard += any(row.status == "ok" for row in packed)
                packing = thread.submit(pack, out, next_shard, group)
    finally:
        # Also when interrupted: what is in the shards so far is a valid corpus.
        if rows:
            write_videos(out, list(rows.values()), next_shard)


def _groups(videos: Iterable[PreparedVideo], shard_bytes: int) -> Iterator[list[PreparedVideo]]:
    """The videos of one shard after the other."""
    group: list[PreparedVideo] = []
    size = 0
    for video in videos:
        group.append(video)
        size += video.bytes
        if size >= shard_bytes:
            yield group
            group, size = [], 0
    yield group


def pack(out: Path, shard: int, group: Sequence[PreparedVideo]) -> list[VideoRow]:
    """Writes one shard from pieces, if any are of usable videos, and deletes them; returns the rows of its videos."""
    rows, first_row = [], 0
    for row in (video.row for video in group):
        if row.status == "ok":
            row = replace(row, shard=shard, first_row=first_row)
            first_row += row.shots
        rows.append(row)
    if first_row:
        pieces = [piece_path(out / "work", row.video) for row in rows]
        with ShotWriter(shard_path(out, shard), rows) as writer:
            for row, path in zip(rows, pieces, strict=True):
                if row.status == "ok":
                    for batch in open_shard(path).read_all().to_batches():
                        writer.add_batch(batch)
            writer.commit(sync=True)
        for path in pieces:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)
    return rows


def _write_index(out: Path, console: Console) -> None:
    """Training can build the index itself, so that a failure here is only reported."""
    try:
        write_index(out, build_index(Corpus(out)))
    except (UserError, OSError) as error:
        warn(console, f"the index of {out} was not written: {error}")
