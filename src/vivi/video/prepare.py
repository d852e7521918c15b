"""vivi prepare: from files and folders of videos to a corpus on disk.

    sources ──▶ engine: one piece per video, in any order ──▶ pack: shards, in the order of names ──▶ videos.parquet

Nothing is kept in memory that a kill could lose. A finished piece stays in `corpus/work` until the shard that holds
it is in place, a shard carries the rows of its videos, and shards are packed in the order of the videos' names: the
same command after an interruption goes on where it was, and ends with the same corpus as if nothing had happened.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import av
from rich.console import Console

from vivi.errors import UserError, check_ranges
from vivi.machine import available_cores
from vivi.storage import StorageError, locked
from vivi.video.container import UnusableVideo, open_video
from vivi.video.corpus import (
    ShotWriter,
    VideoRow,
    open_shard,
    read_settings,
    read_videos,
    shard_numbers,
    shard_path,
    shard_videos,
    write_settings,
    write_videos,
)
from vivi.video.engines import Outcome, check_ray, run_locally, run_on_ray
from vivi.video.piece import (
    PreparedVideo,
    PrepareSettings,
    VideoTask,
    finish_piece,
    finished_piece,
    split_by_hash,
)
from vivi.video.progress import PrepareProgress
from vivi.video.sources import Source, list_sources, name_apart, text


@dataclass(frozen=True)
class Machine:
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
    """Try the videos again that an earlier run skipped."""

    def check(self) -> None:
        """Raises the one line a wrong argument deserves."""
        check_ranges(self, {"workers": (0, 4096), "shard_megabytes": (1e-3, 2**20)})
        if self.engine == "ray":
            check_ray(self.ray_address)


def prepare(
    arguments: Sequence[Path],
    out: Path,
    settings: PrepareSettings | None = None,
    machine: Machine | None = None,
    console: Console | None = None,
) -> list[VideoRow]:
    """Prepares all videos the arguments name into the corpus `out`, goes on with one, or adds to it.

    Returns the rows of videos.parquet.
    """
    settings, machine = settings or PrepareSettings(), machine or Machine()
    console = console or Console()
    settings.check()
    machine.check()
    listing = list_sources(arguments)
    if listing.ignored:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in listing.ignored.most_common(5))
        console.print(f"ignored {listing.ignored.total()} files that are not videos by name ({kinds})", style="dim")
    if not listing.sources:
        raise UserError(f"no videos found in {', '.join(map(str, arguments))}")
    try:
        with _opened(out, settings):
            rows = _committed_rows(out)
            tasks = _pending_tasks(listing.sources, rows, out, settings, machine)
            if len(tasks) < len(listing.sources):
                console.print(f"in the corpus already: {len(listing.sources) - len(tasks)} videos", style="dim")
            packer = _Packer(out, rows, tasks, round(machine.shard_megabytes * 2**20))
            try:
                _run(tasks, packer, machine, console)
            finally:
                # Also when interrupted: what is in the shards so far is a valid corpus.
                packer.write_table()
            shutil.rmtree(out / "work")
            return list(packer.rows.values())
    except StorageError as error:
        raise UserError(
            f"cannot write {error}; what is in {out} stays valid: make room and run the same command again"
        ) from error
    except OSError as error:
        raise UserError(f"cannot work in {out}: {error}; see to it and run the same command again") from error


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
    table = read_videos(out)
    numbers = shard_numbers(out)
    unknown = set(numbers) - {row.shard for row in table}
    there = {None, *numbers}
    rows = {row.video: row for row in table if row.shard in there}
    for number in sorted(unknown):
        for row in shard_videos(shard_path(out, number)):
            rows.pop(row.video, None)  # skipped before; its new row comes where an undisturbed run has it
            rows[row.video] = row
    return rows


def _pending_tasks(
    sources: Sequence[Source], rows: dict[str, VideoRow], out: Path, settings: PrepareSettings, machine: Machine
) -> list[VideoTask]:
    """The videos still to prepare, in the order of their names; moved ones get their new path in `rows`."""
    named = name_apart(
        sources,
        {row.video: row.path for row in rows.values()},
        lambda video, path: not os.path.exists(rows[video].path) and _is_same_video(rows[video], path),
    )
    pending = []
    for source in named:
        row = rows.get(source.video)
        if row is None or (row.status == "skipped" and machine.retry_skipped):
            pending.append(source)
        elif row.path != text(source.path):
            rows[source.video] = replace(row, path=text(source.path))
    # A few long videos on many cores: let FFmpeg use what the pool leaves idle (and, as it does itself, one more).
    spare = available_cores() // max(1, min(machine.workers or available_cores(), len(pending)))
    threads = spare + 1 if spare > 1 else 1
    folder = str((out / "work").absolute())
    return [VideoTask(source, folder, settings, threads) for source in pending]


def _is_same_video(row: VideoRow, path: str) -> bool:
    """Whether a file looks like the one a row was made from, by what its header says."""
    try:
        with ExitStack() as opened:
            container, stream = open_video(path, opened)
            seconds = (container.duration or 0) / av.time_base
            codec = stream.codec_context.codec.canonical_name
    except UnusableVideo:
        return False
    return row.status == "ok" and row.codec == codec and abs(row.seconds - seconds) < 0.5


def _run(tasks: list[VideoTask], packer: _Packer, machine: Machine, console: Console) -> None:
    """Prepares the tasks, in any order, and packs them in theirs."""
    finished: dict[str, PreparedVideo] = {}
    for task in tasks:
        prepared = finished_piece(task)
        if prepared and (prepared.row.status == "ok" or not machine.retry_skipped):
            finished[task.source.video] = prepared
    todo = [task for task in tasks if task.source.video not in finished]
    with PrepareProgress(todo, console) as progress:
        packer.add(finished)
        for outcome in _engine(todo, machine, progress):
            done = outcome.prepared or _give_up(outcome)
            progress.finished(outcome.task, done.row)
            packer.add({outcome.task.source.video: done})
        packer.finish()


def _engine(todo: list[VideoTask], machine: Machine, progress: PrepareProgress) -> Iterator[Outcome]:
    if machine.engine == "ray":
        return run_on_ray(todo, machine.ray_address, progress.report)
    return run_locally(todo, machine.workers or available_cores(), progress.report)


def _give_up(outcome: Outcome) -> PreparedVideo:
    """A video that its worker did not survive."""
    source, settings = outcome.task.source, outcome.task.settings
    split = source.split or split_by_hash(source.video, settings.test_fraction)
    return finish_piece(outcome.task, VideoRow(source.video, text(source.path), "skipped", outcome.reason, split))


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
        self._shard = max(shard_numbers(out), default=-1) + 1

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
            write_videos(self.out, list(self.rows.values()))

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
