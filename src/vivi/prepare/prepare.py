"""vivi prepare: from files and folders of videos to a corpus on disk.

    sources ──▶ engine: one piece per video, in any order ──▶ pack: shards, in the order of names ──▶ table, index

Nothing is kept in memory that a kill could lose. A finished piece stays in `corpus/work` until the shard that holds
it is in place, a shard carries the rows of its videos, and shards are packed in the order of the videos' names: the
same command after an interruption goes on where it was, and ends with the same corpus as if nothing had happened.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

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
from vivi.prepare.engines import Outcome, check_ray, run_locally, run_on_ray
from vivi.prepare.identity import FileIdentity, identify, identify_again, same_content
from vivi.prepare.index import build_index, write_index
from vivi.prepare.limits import Limits
from vivi.prepare.piece import (
    PreparedVideo,
    PrepareSettings,
    VideoTask,
    finish_piece,
    finished_piece,
    skipped_row,
)
from vivi.prepare.progress import PrepareProgress
from vivi.prepare.sources import Source, list_sources, name_apart, text
from vivi.runtime.console import SafeConsole
from vivi.runtime.errors import UserError, check_ranges
from vivi.runtime.machine import available_cores
from vivi.runtime.storage import StorageError, locked

# Telling whether files have changed waits for the disk far more than for a core.
IDENTIFYING_THREADS = 16


@dataclass(frozen=True)
class PrepareExecution:
    """Where and how to run; what a video becomes does not depend on it."""

    engine: Literal["local", "ray"] = "local"
    """A pool of local processes, or a Ray cluster."""
    workers: int = 0
    """Local processes; 0: one for each core."""
    ray_address: str = ""
    """Address of a running Ray cluster; without it, a local one is started."""
    shard_megabytes: float = 256.0
    """Size of a shard file. A video is never split over two."""
    retry_skipped: bool = False
    """Try the videos again that an earlier run skipped. Those whose file has changed are tried again in any case."""
    worker_memory: float = 2.0
    """Gigabytes that a worker may take for one video; one that needs more is skipped. Enforced on Linux."""
    video_minutes: float = 24 * 60.0
    """A video that takes longer is skipped."""

    def check(self) -> None:
        """Raises the one line a wrong argument deserves."""
        ranges = {
            "workers": (0, 4096),
            "shard_megabytes": (1e-3, 2**20),
            "worker_memory": (0.1, 2**20),
            "video_minutes": (1e-6, 1e6),
        }
        check_ranges(self, ranges)
        if self.engine == "ray":
            check_ray(self.ray_address)


def prepare(
    arguments: Sequence[Path],
    out: Path,
    settings: PrepareSettings | None = None,
    execution: PrepareExecution | None = None,
    console: Console | None = None,
) -> list[VideoRow]:
    """Prepares all videos the arguments name into the corpus `out`, goes on with one, or adds to it.

    Returns the rows of videos.parquet.
    """
    settings, execution = settings or PrepareSettings(), execution or PrepareExecution()
    console = console or SafeConsole()
    settings.check()
    execution.check()
    listing = list_sources(arguments)
    if listing.ignored:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in listing.ignored.most_common(5))
        console.print(f"ignored {listing.ignored.total()} files that are not videos by name ({kinds})", style="dim")
    for line in listing.notes:
        console.print(line, style="yellow", soft_wrap=True)
    if not listing.sources:
        raise UserError(f"no videos found in {', '.join(map(str, arguments))}")
    try:
        with _opened(out, settings):
            rows = _committed_rows(out)
            pending = _pending_sources(listing.sources, rows, execution, console)
            tasks = _tasks(pending, out, settings, execution)
            packer = _Packer(out, rows, tasks, round(execution.shard_megabytes * 2**20))
            try:
                _run(tasks, packer, execution, console)
            finally:
                # Also when interrupted: what is in the shards so far is a valid corpus.
                packer.write_table()
            shutil.rmtree(out / "work")
            _write_index(out, console)
            return list(packer.rows.values())
    except StorageError as error:
        raise UserError(
            f"cannot write {error}; what is in {out} stays valid: make room and run the same command again"
        ) from error
    except OSError as error:
        raise UserError(f"cannot work in {out}: {error}; fix that and run the same command again") from error


def _write_index(out: Path, console: Console) -> None:
    """So that training begins at once. It can do without: what prevents the index is only said."""
    try:
        write_index(out, build_index(Corpus(out)))
    except (UserError, OSError) as error:
        console.print(f"the index of {out} was not written: {error}", style="yellow", soft_wrap=True)


@contextmanager
def _opened(out: Path, settings: PrepareSettings) -> Iterator[None]:
    """Makes or opens the corpus, with these settings and for this process alone."""
    with locked(out, "vivi prepare"):
        if (out / "corpus.json").exists():
            _check_same_settings(out, settings)
        elif any(not path.match("corpus.json.*.tmp") for path in out.iterdir()):
            raise UserError(f"{out} holds other files and is no corpus; choose a new or empty folder for --out")
        else:
            write_settings(out, asdict(settings))
        for folder in ("shards", "work"):
            (out / folder).mkdir(exist_ok=True)
        for pattern in ("corpus.json.*.tmp", "videos.parquet.*.tmp", "work/*.tmp", "shards/*.tmp"):
            for leftover in out.glob(pattern):
                leftover.unlink(missing_ok=True)
        yield


def _check_same_settings(out: Path, settings: PrepareSettings) -> None:
    before = read_settings(out)
    for name, value in asdict(settings).items():
        if before.get(name) != value:
            flag = name.replace("_", "-")
            raise UserError(
                f"{out} was prepared with --{flag} {before.get(name)}, not {value}; "
                "use the same settings or another --out"
            )


def _committed_rows(out: Path) -> dict[str, VideoRow]:
    """The videos that are safely in the corpus, from the table and from shards it does not know yet."""
    table, numbers, known = read_videos(out), shard_numbers(out), known_shards(out)
    in_table = {row.shard for row in table}
    unknown = [number for number in numbers if (number not in in_table if known is None else number >= known)]
    there = {None, *numbers}
    rows = {row.video: row for row in table if row.shard in there}
    for number in unknown:
        for row in shard_videos(shard_path(out, number)):
            rows.pop(row.video, None)  # skipped before, or changed; its new row comes where an undisturbed run has it
            rows[row.video] = row
    return rows


def _pending_sources(
    sources: Sequence[Source], rows: dict[str, VideoRow], execution: PrepareExecution, console: Console
) -> list[Source]:
    """The videos still to prepare, in the order of their names, those among them whose files have changed; `rows`
    learns where files that were moved or copied are now."""
    named = name_apart(
        sources,
        {row.video: row.path for row in rows.values()},
        lambda video, path: not os.path.exists(rows[video].path) and same_content(rows[video].file, identify(path)),
    )
    known = [source for source in named if source.video in rows]
    with ThreadPoolExecutor(IDENTIFYING_THREADS) as threads:
        files = threads.map(lambda source: identify_again(source.path, rows[source.video].file), known)
        now = {source.video: file for source, file in zip(known, files, strict=True)}
    changed = {video for video, file in now.items() if _has_changed(rows[video], file)}
    pending = []
    for source in named:
        row = rows.get(source.video)
        if row is None or source.video in changed or (row.status == "skipped" and execution.retry_skipped):
            pending.append(source)
        elif same_content(row.file, now[source.video]):
            rows[source.video] = replace(row, path=text(source.path), **asdict(now[source.video]))
    unknown = sum(row.status == "ok" and not row.file_hash for row in (rows[video] for video in now))
    _tell(len(named) - len(pending), sorted(changed), unknown, console)
    return pending


def _has_changed(row: VideoRow, now: FileIdentity) -> bool:
    """Whether a file is known to be another than the one that a row was made from. One that was skipped before it
    could be read counts as changed once it can be."""
    if not now.file_hash or not (row.file_hash or row.status == "skipped"):
        return False
    return not same_content(row.file, now)


def _tell(kept: int, changed: Sequence[str], unknown: int, console: Console) -> None:
    if kept:
        console.print(f"in the corpus already: {kept} videos", style="dim")
    if changed:
        names = ", ".join(changed[:5]) + (", …" if len(changed) > 5 else "")
        console.print(f"changed since they were prepared, now prepared again: {len(changed)} videos ({names})")
    if unknown:
        console.print(
            f"prepared by an older vivi, which did not record the files: {unknown} videos; whether their files have "
            "changed since cannot be told, they stay as they are",
            style="yellow",
        )


def _tasks(
    sources: Sequence[Source], out: Path, settings: PrepareSettings, execution: PrepareExecution
) -> list[VideoTask]:
    workers = min(execution.workers or available_cores(), len(sources))
    decode_ahead = available_cores() >= 2 * workers
    folder = str((out / "work").absolute())
    limits = Limits(execution.worker_memory, execution.video_minutes)
    return [VideoTask(source, folder, settings, decode_ahead, limits) for source in sources]


def _run(tasks: list[VideoTask], packer: _Packer, execution: PrepareExecution, console: Console) -> None:
    """Prepares the tasks, in any order, and packs them in theirs."""
    began = time.time_ns()
    finished: dict[str, PreparedVideo] = {}
    for task in tasks:
        prepared = finished_piece(task)
        if prepared and (prepared.row.status == "ok" or not execution.retry_skipped):
            finished[task.source.video] = prepared
    todo = [task for task in tasks if task.source.video not in finished]
    with PrepareProgress(todo, console) as progress:
        packer.add(finished)
        for outcome in _engine(todo, execution, progress):
            done = outcome.prepared or finish_piece(
                outcome.task,
                PreparedVideo(skipped_row(outcome.task, outcome.reason, _file_since(began, outcome.task))),
            )
            progress.finished(outcome.task, done.row)
            packer.add({outcome.task.source.video: done})
        packer.finish()


def _file_since(began: int, task: VideoTask) -> FileIdentity:
    """The file that a worker died of; unknown if it has changed meanwhile, so that it is tried again."""
    file = identify(task.source.path)
    return file if file.file_changed < began else FileIdentity()


def _engine(todo: list[VideoTask], execution: PrepareExecution, progress: PrepareProgress) -> Iterator[Outcome]:
    if execution.engine == "ray":
        return run_on_ray(todo, execution.ray_address, progress.report)
    return run_locally(todo, execution.workers or available_cores(), progress.report)


class _Packer:
    """Moves finished pieces into shards, in the order of the videos' names, in a thread beside the engine."""

    def __init__(self, out: Path, rows: dict[str, VideoRow], tasks: list[VideoTask], shard_bytes: int) -> None:
        self.out = out
        self.shard_bytes = shard_bytes
        self.rows = rows  # of all videos in the corpus so far, by name
        self._order = iter(tasks)
        self._next = next(self._order, None)
        self._finished: dict[str, PreparedVideo] = {}
        self._group: list[tuple[VideoTask, PreparedVideo]] = []
        self._group_bytes = 0
        self._thread = ThreadPoolExecutor(1)
        self._packing: Future[list[VideoRow]] | None = None
        # Never a number that was in use: the table may still speak of a shard that was deleted.
        self._shard = max(max(shard_numbers(out), default=-1) + 1, known_shards(out) or 0)

    def add(self, finished: dict[str, PreparedVideo]) -> None:
        """Takes finished videos and packs every full shard that they complete."""
        self._finished.update(finished)
        while self._next is not None and self._next.source.video in self._finished:
            prepared = self._finished.pop(self._next.source.video)
            self._group.append((self._next, prepared))
            self._group_bytes += prepared.bytes
            self._next = next(self._order, None)
            if self._group_bytes >= self.shard_bytes:
                self._pack_group()

    def finish(self) -> None:
        """Packs what is left and waits for everything."""
        assert self._next is None, f"nothing came of {self._next}"
        self._pack_group()
        self._collect()

    def write_table(self) -> None:
        """Writes videos.parquet of all that is packed."""
        self._collect()
        self._thread.shutdown()
        if self.rows:
            write_videos(self.out, list(self.rows.values()), self._shard)

    def _pack_group(self) -> None:
        self._collect()  # one shard at a time: none may be in place before the one before it
        if self._group:
            self._packing = self._thread.submit(pack, self.out, self._shard, self._group)
            self._shard += any(prepared.row.status == "ok" for _, prepared in self._group)
        self._group, self._group_bytes = [], 0

    def _collect(self) -> None:
        """Waits for the shard that is being packed."""
        packing, self._packing = self._packing, None
        for row in packing.result() if packing is not None else []:
            self.rows.pop(row.video, None)  # skipped before, and tried again
            self.rows[row.video] = row


def pack(out: Path, shard: int, group: Sequence[tuple[VideoTask, PreparedVideo]]) -> list[VideoRow]:
    """Writes one shard from pieces and deletes them; returns the rows of its videos."""
    rows, first_row = [], 0
    for _, prepared in group:
        row = prepared.row
        if row.status == "ok":
            row = replace(row, shard=shard, first_row=first_row)
            first_row += row.shots
        rows.append(row)
    if first_row:
        with ShotWriter(shard_path(out, shard), rows) as writer:
            for (task, _), row in zip(group, rows, strict=True):
                if row.status == "ok":
                    piece = open_shard(task.piece)
                    for index in range(piece.num_record_batches):
                        writer.add_batch(piece.get_batch(index))
            writer.commit(sync=True)
        for task, _ in group:
            task.piece.unlink(missing_ok=True)
            task.piece.with_suffix(".json").unlink(missing_ok=True)
    return rows
