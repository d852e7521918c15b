"""What the page of `vivi inspect` shows: the numbers of a corpus, and film strips of sampled videos.

A corpus may hold millions of videos, so numbers come from the columns of videos.parquet and from the shards' times;
frames are read only where they are shown.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from vivi.prepare.corpus import REMEDY, Corpus, VideoRow, shard_numbers, shard_path
from vivi.prepare.jpeg import is_intact
from vivi.prepare.places import check_shards, videos_by_place
from vivi.prepare.statistics import MAX_SHARDS_READ, Statistics, corpus_statistics, skipped_by_reason
from vivi.runtime.errors import UserError
from vivi.runtime.storage import write_atomically

THUMBNAIL_PREFIX = "vivi-"
THUMBNAIL_HEIGHT = 144
THUMBNAIL_QUALITY = 70
# Panoramas would otherwise fill the screen with a single frame.
THUMBNAIL_WIDTH = 3 * THUMBNAIL_HEIGHT
# Of a long video, runs of this many neighbouring shots are shown from its start, middle and end: boundaries can only
# be judged between neighbours.
RUN_SHOTS = 4
# Few frames of each shot, so that its boundaries lie on one screen; a video without any has room for more.
SHOT_FRAMES = (3, 5)
STRIP_FRAMES = 36
UNCUT_FRAMES = 10
SHARE_WITH_CUTS = 0.75
"""Videos with several shots show whether shots are found well; the others are there for a fair picture."""
MAX_NAMES = 200


@dataclass(frozen=True)
class Overview:
    """The corpus in numbers."""

    path: Path
    settings: dict[str, Any]
    statistics: Statistics
    videos: int
    train: int
    test: int
    bytes: int
    shards: int
    shards_read: int
    """How many shards the shot durations are from."""
    codecs: list[tuple[str, int]]
    """The most frequent first."""
    skipped: dict[str, list[str]]
    """Names by reason."""
    partly_damaged: int
    """Videos that were used although something was wrong with them."""
    partly_damaged_examples: list[tuple[str, str]]
    """(name, reason)"""

    @property
    def rate(self) -> float:
        return float(self.settings["rate"])


def overview(corpus: Corpus) -> Overview:
    rate = corpus.settings.get("rate")
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise UserError(f"{corpus.path / 'corpus.json'} has no usable rate: {rate!r}")
    ok = videos_by_place(corpus)
    partly = ok.filter(pc.not_equal(ok["reason"], ""))
    examples = partly.slice(0, MAX_NAMES).select(["video", "reason"]).to_pylist()
    shards = shard_numbers(corpus.path)
    used = np.unique(ok["shard"].to_numpy())
    used = used[:: -(-len(used) // MAX_SHARDS_READ) or 1]  # as the statistics do
    check_shards(corpus.path, used.tolist())
    stored = [shard_path(corpus.path, number) for number in shards]
    stored += [corpus.path / "corpus.json", corpus.path / "videos.parquet"]
    splits = dict(_counts(ok["split"]))
    return Overview(
        path=corpus.path,
        settings=corpus.settings,
        statistics=corpus_statistics(corpus),
        videos=ok.num_rows,
        train=splits.get("train", 0),
        test=splits.get("test", 0),
        bytes=sum(path.stat().st_size for path in stored),
        shards=len(shards),
        shards_read=len(used),
        codecs=_counts(ok["codec"]),
        skipped=skipped_by_reason(corpus),
        partly_damaged=partly.num_rows,
        partly_damaged_examples=[(row["video"], row["reason"]) for row in examples],
    )


def _counts(column: pa.ChunkedArray) -> list[tuple[str, int]]:
    """(value, how often), the most frequent first."""
    counted = pc.value_counts(column).to_pylist()
    return sorted(((row["values"], row["counts"]) for row in counted), key=lambda pair: (-pair[1], pair[0]))


@dataclass(frozen=True)
class Thumbnail:
    """A small JPEG in the page's folder of frames."""

    file: str
    width: int
    height: int


@dataclass(frozen=True)
class ShownFrame:
    """One picture of a film strip."""

    time: float
    thumbnail: Thumbnail | None
    """None: the corpus holds a damaged JPEG there."""


@dataclass(frozen=True)
class ShownShot:
    """One shot of a film strip; of a long one, some frames from the first to the last."""

    index: int
    start: float
    seconds: float
    total_frames: int
    frames: tuple[ShownFrame, ...]


@dataclass(frozen=True)
class Strip:
    """A sampled video."""

    video: VideoRow
    spans: tuple[tuple[float, float], ...]
    """(start, seconds) of all its shots."""
    shots: tuple[ShownShot, ...]
    """Those shown, in order."""

    def frames(self) -> Iterator[ShownFrame]:
        for shot in self.shots:
            yield from shot.frames


def choose_videos(videos: pa.Table, count: int, seed: int) -> list[VideoRow]:
    """A sample for the eye, in the order of names: mostly videos with several shots, from few shots to many."""
    usable = videos.filter(pc.and_(pc.equal(videos["status"], "ok"), pc.greater(videos["shots"], 0)))
    # Sorted by content, so that the choice does not depend on the order in which videos were added.
    order = pc.sort_indices(usable, sort_keys=[("shots", "ascending"), ("video", "ascending")]).to_numpy()
    shots = usable["shots"].to_numpy()[order]
    single, several = order[shots == 1], order[shots > 1]
    count = min(count, len(order))
    with_cuts = min(len(several), max(round(SHARE_WITH_CUTS * count), count - len(single)))
    generator = np.random.default_rng(seed)
    chosen = np.concatenate([_spread(several, with_cuts, generator), _spread(single, count - with_cuts, generator)])
    names = [field.name for field in fields(VideoRow)]
    rows = usable.select(names).take(pa.array(chosen, pa.int64())).to_pylist()
    return sorted((VideoRow(**row) for row in rows), key=lambda row: row.video)


def _spread(items: NDArray[np.uint64], count: int, generator: np.random.Generator) -> NDArray[np.uint64]:
    """One item at random from each of `count` equal slices."""
    bounds = np.arange(count + 1) * len(items) // max(count, 1)
    return items[generator.integers(bounds[:-1], bounds[1:])] if count else items[:0]


def film_strip(corpus: Corpus, video: VideoRow, folder: Path) -> Strip:
    """Reads the shots of a video that are to be shown and writes their thumbnails into `folder`."""
    check_shards(corpus.path, [video.shard] if video.shard is not None else [])
    times = corpus.times(asdict(video))
    _check_same(corpus, video, len(times) == video.shots)
    spans = _spans(times, video.seconds)
    runs = shown_runs(len(spans))
    limit = frames_per_shot(sum(map(len, runs)))
    shots: list[ShownShot] = []
    for run in runs:
        part = {"shard": video.shard, "first_row": (video.first_row or 0) + run.start, "shots": len(run)}
        for index, shot in zip(run, corpus.shots(part), strict=True):
            _check_same(corpus, video, shot.video == video.video)
            frames = tuple(
                ShownFrame(shot.times[i], write_thumbnail(shot.frames[i], folder))
                for i in evenly(len(shot.frames), limit)
            )
            shots.append(ShownShot(index, *spans[index], len(shot.frames), frames))
    return Strip(video, spans, tuple(shots))


def _check_same(corpus: Corpus, video: VideoRow, same: bool) -> None:
    if not same:
        path = shard_path(corpus.path, video.shard or 0)
        raise UserError(f"{path} holds other videos than videos.parquet says; {REMEDY}")


def _spans(shots: Sequence[Sequence[float]], seconds: float) -> tuple[tuple[float, float], ...]:
    """(start, seconds) of shots, given the times of their frames: a boundary lies midway between two frames."""
    if not shots:
        return ()
    middles = [(before[-1] + after[0]) / 2 for before, after in pairwise(shots)]
    limits = [shots[0][0], *middles, max(shots[0][0] + seconds, shots[-1][-1])]
    return tuple((start, end - start) for start, end in pairwise(limits))


def shown_runs(shots: int) -> list[range]:
    """Which shots of a video are shown: all of them, or runs from its start, middle and end."""
    if shots <= 3 * RUN_SHOTS:
        return [range(shots)]
    middle = (shots - RUN_SHOTS) // 2
    return [range(start, start + RUN_SHOTS) for start in (0, middle, shots - RUN_SHOTS)]


def frames_per_shot(shown: int) -> int:
    """The most frames shown of each shot, where so many shots are shown."""
    fewest, most = SHOT_FRAMES
    return UNCUT_FRAMES if shown == 1 else min(max(STRIP_FRAMES // max(shown, 1), fewest), most)


def evenly(count: int, limit: int) -> list[int]:
    """About `limit` of `count` indices, from the first to the last; leaving out a single one is not worth it."""
    shown = count if count <= limit + 1 else limit
    return [int(i) for i in np.linspace(0, count - 1, shown).round()]


def write_thumbnail(jpeg: bytes, folder: Path) -> Thumbnail | None:
    """Writes a small version of a frame, named by its content; None if the frame is damaged."""
    if not is_intact(jpeg):
        return None
    try:
        with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as image:
            size = (THUMBNAIL_WIDTH, THUMBNAIL_HEIGHT)
            scale = max(image.width / size[0], image.height / size[1], 1.0)
            # The decoder itself scales down by 2, 4 or 8, which is several times faster.
            image.draft("RGB", (round(image.width / scale), round(image.height / scale)))
            small = image.convert("RGB")
            small.thumbnail(size, Image.Resampling.HAMMING)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=THUMBNAIL_QUALITY, optimize=True)
    content = buffer.getvalue()
    path = folder / f"{THUMBNAIL_PREFIX}{hashlib.sha256(content).hexdigest()[:20]}.jpg"
    if not path.exists():
        write_atomically(path, content, sync=False)
    return Thumbnail(path.name, small.width, small.height)
