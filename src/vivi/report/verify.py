"""vivi inspect --verify: reads every frame of a corpus once and says which are not as they were written.

Shards are read in threads, one record batch each at a time, and with plain reads: where a disk fails, a mapped file
would end the process. Frames without a checksum, of older corpora, are decoded to see that they can be.
"""

from __future__ import annotations

import csv
import io
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from rich.console import Console
from rich.table import Table

from vivi.prepare.corpus import SHOT_SCHEMA, Corpus, open_shard, shard_path
from vivi.prepare.jpeg import is_intact
from vivi.prepare.places import videos_by_place
from vivi.report.writing import check_free, unwritable_named
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.progress import ProgressLine
from vivi.runtime.read_ahead import map_ahead
from vivi.runtime.storage import fsync, storage

LIST = "damaged.csv"
# Reading waits for the disk, and neither it nor summing up nor decoding holds Python's lock.
_THREADS = 8
_SHOWN = 20  # videos on the screen
_NAMED = 4  # shards in the line that says what to do
_START = 64  # bytes: of a file that has a checksum these are not intact without the rest


@dataclass(frozen=True)
class Damage:
    """What is wrong, and where: in a frame, a shot, a video, or a whole shard, whatever of it is not given."""

    video: str
    shot: int | None
    frame: int | None
    problem: str


@dataclass
class Checked:
    """What was found in a shard."""

    shard: int
    videos: int  # that videos.parquet says it holds
    frames: int = 0
    decoded: int = 0  # of them without a checksum
    damage: list[Damage] = field(default_factory=list)
    unreadable: bool = False


@dataclass(frozen=True)
class Verified:
    """What is wrong with a corpus, if anything."""

    unreadable: bool  # some shard, so that there is no page of it
    what_to_do: str  # nothing if all is well


def verify(path: Path, out: Path, console: Console) -> Verified:
    """Reads all of a corpus, prints what is damaged, and writes the list of it into the folder `out`."""
    corpus = Corpus(path)
    check_free(out, "vivi inspect")
    videos = videos_by_place(corpus).select(["video", "shots", "frames", "shard", "first_row"])
    shown: dict[tuple[int, str], tuple[int, Damage]] = {}  # by shard and video: how much, and the first of it
    shards: dict[int, int] = {}  # the damaged ones, and their videos
    totals: Counter[str] = Counter()
    unreadable = False
    with unwritable_named(out):
        out.mkdir(parents=True, exist_ok=True)
        with _List(out / LIST) as whole:
            for checked in _checked(corpus.path, videos, console):
                totals.update(shards=1, videos=checked.videos, frames=checked.frames, decoded=checked.decoded)
                totals["damaged"] += len(checked.damage)
                unreadable |= checked.unreadable
                whole.add(checked)
                for damage in checked.damage:
                    shards[checked.shard] = checked.videos
                    count, first = shown.get((checked.shard, damage.video), (0, damage))
                    shown[checked.shard, damage.video] = count + 1, first
    _show(shown, totals, out / LIST, console)
    return Verified(unreadable, what_to_do(corpus.path, shards, out / LIST) if shards else "")


def what_to_do(corpus: Path, shards: dict[int, int], damaged: Path) -> str:
    """The one line at the end."""
    paths = [shard_path(corpus, number) for number in sorted(shards)]
    there = [str(path) for path in paths if path.exists()]
    which = ", ".join(there) if len(there) <= _NAMED else f"the {len(there):,} shards that {damaged} names"
    delete = f"delete {which} and " if there else ""
    videos = sum(shards.values())
    anew = f"{'its' if len(paths) == 1 else 'their'} {videos:,} video{'s are' if videos != 1 else ' is'} made anew"
    return f"{corpus} is damaged; {delete}run the same vivi prepare again: {anew}"


def _checked(corpus: Path, videos: pa.Table, console: Console) -> Iterator[Checked]:
    """The shards in order, checked in threads."""
    shard = videos["shard"].to_numpy()
    numbers, starts, counts = np.unique(shard, return_index=True, return_counts=True)
    total = int(videos["frames"].to_numpy().sum(dtype=np.int64))
    shards = zip(numbers.tolist(), starts.tolist(), counts.tolist(), strict=True)
    with ProgressLine("verify", total, console) as line:
        progress = _Progress(line, total)

        def check(shard: tuple[int, int, int]) -> Checked:
            number, start, count = shard
            return check_shard(shard_path(corpus, number), number, videos.slice(start, count), progress)

        with closing(map_ahead(check, shards, _THREADS, 2 * _THREADS)) as checked:
            yield from checked


class _Progress:
    """Counts the frames that all threads have read."""

    def __init__(self, line: ProgressLine, total: int) -> None:
        self.line, self.total, self.done = line, total, 0
        self.lock = threading.Lock()

    def add(self, frames: int) -> None:
        with self.lock:
            self.done += frames
            self.line.show(self.done, f"{self.done:,} of {self.total:,} frames read")


def check_shard(path: Path, number: int, videos: pa.Table, progress: _Progress) -> Checked:
    """Reads a shard; `videos` are those that it should hold, in their order."""
    checked = Checked(number, len(videos))
    rows = _Rows(videos)
    try:
        for batch in _batches(path):
            before = checked.frames
            for row in range(batch.num_rows):
                if not rows.is_claimed():
                    rows.row += 1
                    continue
                shot = {name: batch.column(name)[row] for name in SHOT_SCHEMA.names}
                rows.check(shot["video"].as_py(), shot["shot"].as_py(), _check_shot(shot, checked, rows), checked)
            progress.add(checked.frames - before)
        rows.finish(checked)
    except UserError as error:
        checked.unreadable = True
        checked.damage.append(Damage("", None, None, str(error)))
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        checked.unreadable = True
        checked.damage.append(Damage("", None, None, f"cannot be read to its end: {first_line(error)}"))
    return checked


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    open_shard(path)  # for its errors
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        if not reader.schema.equals(SHOT_SCHEMA):
            raise ValueError("its columns are not those of a shard")
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            yield batch


def _check_shot(shot: dict[str, pa.Scalar], checked: Checked, rows: _Rows) -> int:
    """Checks the frames and times of one row; how many frames it has."""
    video, number = shot["video"].as_py() or "", shot["shot"].as_py()
    jpegs = [memoryview(one.as_buffer() or b"") for one in shot["frames"].values or ()]
    problem = rows.wrong_times(video, shot["times"].as_py(), len(jpegs))
    if problem:
        checked.damage.append(Damage(video, number, None, problem))
    summed = [not is_intact(jpeg[:_START]) for jpeg in jpegs]
    for frame, (jpeg, has_checksum) in enumerate(zip(jpegs, summed, strict=True)):
        problem = _wrong_frame(jpeg, has_checksum, any(summed))
        if problem:
            checked.damage.append(Damage(video, number, frame, problem))
    checked.frames += len(jpegs)
    checked.decoded += 0 if any(summed) else len(jpegs)
    return len(jpegs)


def _wrong_frame(jpeg: memoryview, has_checksum: bool, others_have: bool) -> str:
    """What is wrong with a frame; a shot is written at once, so either all its frames have checksums or none."""
    if has_checksum:
        return "" if is_intact(jpeg) else "its checksum is wrong"
    return "its checksum is lost" if others_have else _undecodable(jpeg)


def _undecodable(jpeg: memoryview) -> str:
    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
            image.load()
    except Exception as error:  # Pillow raises nearly everything for damaged files, SyntaxError among them
        return f"cannot be decoded: {first_line(error)}"
    return ""


class _Rows:
    """Follows the rows of a shard: they must be the shots of its videos, in order, and time must go on."""

    def __init__(self, videos: pa.Table) -> None:
        self.names = videos["video"].to_pylist()
        self.starts = videos["first_row"].to_pylist()
        self.shots = videos["shots"].to_pylist()
        self.frames = videos["frames"].to_pylist()
        self.video = self.shot = self.found = self.row = 0
        self.right = True  # so far; after one wrong row, the others say nothing new
        self.last = ("", -np.inf)  # video and time

    def is_claimed(self) -> bool:
        """Whether some video says that it has the next row. Others are of files that changed and were prepared
        again; nobody reads them."""
        return not self.right or (self.video < len(self.names) and self.row >= self.starts[self.video])

    def check(self, video: str | None, shot: int | None, frames: int, checked: Checked) -> None:
        """The next row, a claimed one, says that it is this shot, and has so many frames."""
        if self.right:
            expected = self.names[self.video], self.shot
            if (video, shot) != expected:
                self.right = False
                said = f"shot {expected[1]} of {expected[0]!r}"
                problem = f"row {self.row} is shot {shot} of {video!r}, but videos.parquet says {said}"
                checked.damage.append(Damage(video or "", shot, None, problem))
                return
            self.found += frames
            self.shot += 1
            if self.shot == self.shots[self.video]:
                self._end_video(checked)
        self.row += 1

    def _end_video(self, checked: Checked) -> None:
        name, expected = self.names[self.video], self.frames[self.video]
        if self.found != expected:
            problem = f"has {self.found:,} frames, but videos.parquet says {expected:,}"
            checked.damage.append(Damage(name, None, None, problem))
        self.video, self.shot, self.found = self.video + 1, 0, 0

    def finish(self, checked: Checked) -> None:
        """There are no more rows."""
        if self.right and self.video < len(self.names):
            problem = f"ends after {self.row:,} rows, but videos.parquet says that more follow"
            checked.damage.append(Damage(self.names[self.video], None, None, problem))

    def wrong_times(self, video: str, times: Sequence[float | None] | None, frames: int) -> str:
        """What is wrong with the times of the next shot."""
        if frames == 0:
            return "has no frames"
        values = np.array(times or [], np.float64)  # None becomes NaN
        if len(values) != frames:
            return f"has {frames:,} frames and {len(values):,} times"
        before = self.last[1] if self.last[0] == video else -np.inf
        if not np.isfinite(values).all():
            return "its times are not finite"
        self.last = (video, float(values[-1]))
        return "" if (np.diff(values, prepend=before) > 0).all() else "its times do not increase"


class _List:
    """The list of all damage, which appears when it is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")

    def add(self, checked: Checked) -> None:
        with storage(self.path):
            for one in checked.damage:
                where = (one.video, "" if one.shot is None else one.shot, "" if one.frame is None else one.frame)
                self.writer.writerow((*where, f"{checked.shard:05d}.arrow", one.problem))

    def __enter__(self) -> _List:
        with storage(self.path):
            self.file = open(self.temporary, "w", newline="", encoding="utf-8", errors="replace")
            self.writer = csv.writer(self.file)
            self.writer.writerow(("video", "shot", "frame", "shard", "problem"))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with storage(self.path), self.file:
                if kind is None:
                    self.file.flush()
                    fsync(self.temporary)
                    os.replace(self.temporary, self.path)
        finally:
            with suppress(OSError):
                self.temporary.unlink(missing_ok=True)


def _show(
    shown: dict[tuple[int, str], tuple[int, Damage]], totals: Counter[str], damaged: Path, console: Console
) -> None:
    """What was found, in brief."""
    read = f"read: {totals['frames']:,} frames, videos: {totals['videos']:,}, shards: {totals['shards']:,}"
    console.print(read if shown else f"{read}; nothing is damaged", soft_wrap=True)
    if totals["decoded"]:
        console.print(
            f"{totals['decoded']:,} of them are from an older vivi and have no checksum: that they can be decoded is "
            "all that can be told of them",
            soft_wrap=True,
        )
    if not shown:
        return
    table = Table(title=f"{totals['damaged']:,} times damaged, in {len(shown):,} videos", title_justify="left")
    for column in ("video", "damaged", "first: shot", "frame", "shard", "what is wrong"):
        table.add_column(column, overflow="fold", justify="left" if column in ("video", "what is wrong") else "right")
    for (shard, video), (count, first) in list(shown.items())[:_SHOWN]:
        place = ["" if value is None else str(value) for value in (first.shot, first.frame)]
        table.add_row(video or "(all)", f"{count:,}", *place, f"{shard:05d}", first.problem)
    console.print(table)
    more = f"; {len(shown) - _SHOWN:,} more videos" if len(shown) > _SHOWN else ""
    console.print(f"all of it{more}: {damaged}", soft_wrap=True)
