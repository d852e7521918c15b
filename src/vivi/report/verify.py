"""vivi inspect --verify: reads every frame of a corpus once and says which are not as they were written.

Shards are read in threads, one record batch each at a time, and with plain reads: where a disk fails, a mapped file
would end the process. Frames without a checksum, of older corpora, are decoded to see that they can be.
"""

from __future__ import annotations

import csv
import io
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from vivi.prepare.corpus import SHOT_SCHEMA, Corpus, open_shard, shard_path
from vivi.prepare.jpeg import is_intact
from vivi.prepare.places import videos_by_place
from vivi.report.writing import check_free, unwritable_named
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.image_files import open_image
from vivi.runtime.progress import ProgressLine
from vivi.runtime.read_ahead import map_ahead
from vivi.runtime.storage import write_atomically

LIST = "damaged.csv"
# Reading waits for the disk, and neither it nor summing up nor decoding holds Python's lock.
_THREADS = 8
_SHOWN = 20  # videos on the screen
_NAMED = 4  # shards in the line that says what to do
_START = 64  # bytes: of a file that has a checksum these are not intact without the rest


class Damage(NamedTuple):
    """What is wrong, and where: in a frame, a shot, a video, or a whole shard, whatever of it is not given."""

    video: str
    shot: int | None
    frame: int | None
    shard: str
    problem: str


@dataclass
class Checked:
    """What was found in a shard."""

    path: Path
    videos: int  # that videos.parquet says it holds
    frames: int = 0
    decoded: int = 0  # of them without a checksum
    damage: list[Damage] = field(default_factory=list)
    unreadable: bool = False

    def add(self, problem: str, video: str | None = "", shot: int | None = None, frame: int | None = None) -> None:
        if problem:
            self.damage.append(Damage(video or "", shot, frame, self.path.name, problem))


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
    with unwritable_named(out):
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()  # before hours of reading
        shards = [*_checked(path, videos, console)]
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(Damage._fields)
        writer.writerows(damage for shard in shards for damage in shard.damage)
        write_atomically(out / LIST, text.getvalue().encode("utf-8", "replace"))
    _show(shards, out / LIST, console)
    return Verified(any(shard.unreadable for shard in shards), what_to_do(path, shards, out / LIST))


def what_to_do(corpus: Path, shards: Sequence[Checked], damaged: Path) -> str:
    """The one line at the end."""
    bad = [shard for shard in shards if shard.damage]
    there = [str(shard.path) for shard in bad if shard.path.exists()]
    which = ", ".join(there) if len(there) <= _NAMED else f"the {len(there):,} shards that {damaged} names"
    delete = f"delete {which} and " if there else ""
    videos = sum(shard.videos for shard in bad)
    anew = f"{'its' if len(bad) == 1 else 'their'} {videos:,} video{'s are' if videos != 1 else ' is'} made anew"
    return f"{corpus} is damaged; {delete}run the same vivi prepare again: {anew}" if bad else ""


def _checked(corpus: Path, videos: pa.Table, console: Console) -> Iterator[Checked]:
    """The shards in order, checked in threads."""
    numbers, starts, counts = np.unique(videos["shard"].to_numpy(), return_index=True, return_counts=True)
    total = int(videos["frames"].to_numpy().sum(dtype=np.int64))

    def check(shard: tuple[int, int, int]) -> Checked:
        number, start, count = shard
        checked = Checked(shard_path(corpus, number), count)
        try:
            _check_rows(_rows(checked.path), videos.slice(start, count), checked)
        except (UserError, OSError, ValueError, MemoryError, pa.ArrowException) as error:
            checked.unreadable = True
            why = "" if isinstance(error, UserError) else "cannot be read to its end: "
            checked.add(f"{why}{first_line(error)}")
        return checked

    shards = zip(numbers.tolist(), starts.tolist(), counts.tolist(), strict=True)
    checking, read = map_ahead(check, shards, _THREADS, 2 * _THREADS), 0
    with ProgressLine("verify", total, console) as line, closing(checking):
        for checked in checking:
            read += checked.frames
            line.show(read, f"{read:,} of {total:,} frames read")
            yield checked


def _rows(path: Path) -> Iterator[tuple[pa.Scalar, ...]]:
    """Video, shot, times and frames of each row."""
    open_shard(path)  # for its errors
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        if not reader.schema.equals(SHOT_SCHEMA):
            raise ValueError("its columns are not those of a shard")
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            yield from zip(*batch.columns, strict=True)


def _check_rows(rows: Iterator[tuple[pa.Scalar, ...]], videos: pa.Table, checked: Checked) -> None:
    """The rows must be the shots of the videos, in order, and time must go on in each."""
    expected = ((video, shot) for video in videos.to_pylist() for shot in range(video["shots"]))
    number, claim = -1, next(expected, None)
    right = True  # so far; after one wrong row, the others say nothing new
    found, last = 0, ("", -np.inf)  # frames of a video so far; the name of a video and the time of its last frame
    for number, scalars in enumerate(rows):
        if right and (claim is None or number < claim[0]["first_row"]):
            continue  # of a file that changed and was prepared again: nobody reads it
        name, shot, times = (scalar.as_py() for scalar in scalars[:3])
        jpegs = [memoryview(one.as_buffer() or b"") for one in scalars[3].values or ()]
        after = last[1] if last[0] == name else -np.inf
        problem = _wrong_times(times, len(jpegs), after)
        last = (name, after if problem else times[-1])
        checked.add(problem, name, shot)
        _check_frames(jpegs, name, shot, checked)
        if right and claim and (name, shot) != (claim[0]["video"], claim[1]):
            right = False
            said = f"shot {claim[1]} of {claim[0]['video']!r}"
            checked.add(f"row {number} is shot {shot} of {name!r}, but videos.parquet says {said}", name, shot)
        elif right and claim:
            found += len(jpegs)
            if shot + 1 == claim[0]["shots"]:
                if found != claim[0]["frames"]:
                    checked.add(f"has {found:,} frames, but videos.parquet says {claim[0]['frames']:,}", name)
                found = 0
            claim = next(expected, None)
    if right and claim:
        problem = f"ends after {number + 1:,} rows, but videos.parquet says that more follow"
        checked.add(problem, claim[0]["video"])


def _wrong_times(times: Sequence[float | None] | None, frames: int, after: float) -> str:
    """What is wrong with the times of a shot, which must come after a time."""
    values = np.array(times or [], np.float64)  # None becomes NaN
    if frames == 0:
        return "has no frames"
    if len(values) != frames:
        return f"has {frames:,} frames and {len(values):,} times"
    if not np.isfinite(values).all():
        return "its times are not finite"
    return "" if (np.diff(values, prepend=after) > 0).all() else "its times do not increase"


def _check_frames(jpegs: Sequence[memoryview], video: str | None, shot: int | None, checked: Checked) -> None:
    """A shot is written at once, so either all its frames have checksums or none."""
    summed = [not is_intact(jpeg[:_START]) for jpeg in jpegs]
    for frame, jpeg in enumerate(jpegs):
        if summed[frame]:
            problem = "" if is_intact(jpeg) else "its checksum is wrong"
        else:
            problem = "its checksum is lost" if any(summed) else _undecodable(jpeg)
        checked.add(problem, video, shot, frame)
    checked.frames += len(jpegs)
    checked.decoded += 0 if any(summed) else len(jpegs)


def _undecodable(jpeg: memoryview) -> str:
    try:
        with open_image(io.BytesIO(jpeg), formats=("JPEG",)) as image:
            image.load()
    except (OSError, ValueError) as error:
        return f"cannot be decoded: {first_line(error)}"
    return ""


def _show(shards: Sequence[Checked], whole: Path, console: Console) -> None:
    """What was found, in brief: of each damaged video how much, and the first of it."""
    damage = [one for shard in shards for one in shard.damage]
    counts = Counter((one.shard, one.video) for one in damage)
    frames, decoded = (sum(getattr(shard, name) for shard in shards) for name in ("frames", "decoded"))
    read = f"read: {frames:,} frames, videos: {sum(shard.videos for shard in shards):,}, shards: {len(shards):,}"
    console.print(read if damage else f"{read}; nothing is damaged", soft_wrap=True)
    if decoded:
        old = f"{decoded:,} of them are from an older vivi and have no checksum: that they can be decoded is all that"
        console.print(f"{old} can be told of them", soft_wrap=True)
    if not damage:
        return
    first = {(one.shard, one.video): one for one in reversed(damage)}
    table = Table(title=f"{len(damage):,} times damaged, in {len(counts):,} videos", title_justify="left")
    for column in ("video", "damaged", "first: shot", "frame", "shard", "what is wrong"):
        table.add_column(column, overflow="fold", justify="left" if column in ("video", "what is wrong") else "right")
    for place, count in [*counts.items()][:_SHOWN]:
        video, *numbers, shard, problem = ("" if value is None else str(value) for value in first[place])
        table.add_row(video or "(all)", f"{count:,}", *numbers, shard.removesuffix(".arrow"), problem)
    console.print(table)
    more = f"; {len(counts) - _SHOWN:,} more videos" if len(counts) > _SHOWN else ""
    console.print(f"all of it{more}: {whole}", soft_wrap=True)
