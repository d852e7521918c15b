"""Film strips of sampled videos: which videos, shots and frames are shown, and their thumbnails."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from vivi.prepare.corpus import REMEDY, Corpus, VideoRow, shard_path
from vivi.prepare.jpeg import is_intact
from vivi.prepare.places import check_shards
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.image_files import open_image
from vivi.runtime.storage import write_atomically

THUMBNAIL_SIZE = (432, 144)  # panoramas would otherwise fill the screen with a single frame
THUMBNAIL_QUALITY = 70
# Of a long video, runs of this many neighbouring shots are shown from its start, middle and end: boundaries can only
# be judged between neighbours.
RUN_SHOTS = 4
# Few frames of each shot, so that its boundaries lie on one screen; a video without any has room for more.
SHOT_FRAMES = (3, 5)
STRIP_FRAMES = 36
UNCUT_FRAMES = 10
# Videos with several shots show whether shots are found well; the others are there for a fair picture.
SHARE_WITH_CUTS = 0.75


@dataclass(frozen=True)
class ShownFrame:
    """One picture of a film strip; without a file, the corpus holds a damaged JPEG there."""

    time: float
    file: str = ""
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class ShownShot:
    """One shot of a film strip; of a long one, some frames from the first to the last."""

    index: int
    total_frames: int
    frames: list[ShownFrame]


@dataclass(frozen=True)
class Strip:
    """A sampled video: where its shots begin, and the last one ends, in seconds; and those shown, in order."""

    video: VideoRow
    limits: list[float]
    shots: list[ShownShot]
    digits: int  # of times, so that neighbouring frames differ

    @property
    def marks(self) -> list[int]:
        """The limits on a line of length 1000."""
        first, last = self.limits[0], self.limits[-1]
        scale = 1000 / (last - first) if last > first else 0.0
        return [round((time - first) * scale) for time in self.limits]


def write_strips(corpus: Corpus, videos: pa.Table, count: int, seed: int, out: Path) -> list[Strip]:
    """Film strips of a sample of the videos; their thumbnails are written below `out`."""
    (out / "frames").mkdir(parents=True, exist_ok=True)
    with damage_named(corpus):
        return [film_strip(corpus, row, out / "frames") for row in choose_videos(videos, count, seed)]


@contextmanager
def damage_named(corpus: Corpus) -> Iterator[None]:
    """Turns what damage leads to that was not noticed before into one line."""
    try:
        yield
    except (pa.ArrowException, LookupError, ValueError, TypeError, ArithmeticError, StopIteration) as error:
        what = first_line(error)
        raise UserError(
            f"{corpus.path} cannot be shown ({what}); vivi inspect {corpus.path} --verify says what is wrong with it"
        ) from None


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
    rows = usable.take(pa.array(chosen, pa.int64())).to_pylist()
    return sorted((VideoRow(**row) for row in rows), key=lambda row: row.video)


def _spread(items: NDArray[np.uint64], count: int, generator: np.random.Generator) -> NDArray[np.uint64]:
    """One item at random from each of `count` equal slices."""
    bounds = np.arange(count + 1) * len(items) // max(count, 1)
    return items[generator.integers(bounds[:-1], bounds[1:])] if count else items[:0]


def film_strip(corpus: Corpus, video: VideoRow, folder: Path) -> Strip:
    """Reads the shots of a video that are to be shown and writes their thumbnails into `folder`."""
    check_shards(corpus.path, [video.shard or 0])
    path = shard_path(corpus.path, video.shard or 0)
    other = UserError(f"{path} holds other videos than videos.parquet says; {REMEDY}")
    times = corpus.times(asdict(video))
    if len(times) != video.shots:
        raise other
    middles = [(before[-1] + after[0]) / 2 for before, after in pairwise(times)]
    limits = [times[0][0], *middles, max(times[0][0] + video.seconds, times[-1][-1])]
    runs = shown_runs(len(times))
    fewest, most = SHOT_FRAMES
    limit = UNCUT_FRAMES if len(times) == 1 else min(max(STRIP_FRAMES // sum(map(len, runs)), fewest), most)
    shots = []
    for run in runs:
        part = asdict(video) | {"first_row": (video.first_row or 0) + run.start, "shots": len(run)}
        for index, shot in zip(run, corpus.shots(part), strict=True):
            if shot.video != video.video:
                raise other
            frames = [write_thumbnail(shot.times[i], shot.frames[i], folder) for i in evenly(len(shot.frames), limit)]
            shots.append(ShownShot(index, len(shot.frames), frames))
    rate = corpus.settings.get("rate", 1)
    return Strip(video, limits, shots, 0 if rate <= 1 else 1 if rate <= 10 else 2)


def shown_runs(shots: int) -> list[range]:
    """Which shots of a video are shown: all of them, or runs from its start, middle and end."""
    if shots <= 3 * RUN_SHOTS:
        return [range(shots)]
    middle = (shots - RUN_SHOTS) // 2
    return [range(start, start + RUN_SHOTS) for start in (0, middle, shots - RUN_SHOTS)]


def evenly(count: int, limit: int) -> list[int]:
    """About `limit` of `count` indices, from the first to the last; leaving out a single one is not worth it."""
    shown = count if count <= limit + 1 else limit
    return [int(i) for i in np.linspace(0, count - 1, shown).round()]


def write_thumbnail(time: float, jpeg: bytes, folder: Path) -> ShownFrame:
    """The thumbnail of a frame; none of one that is damaged."""
    if not is_intact(jpeg):
        return ShownFrame(time)
    try:
        with open_image(io.BytesIO(jpeg), formats=("JPEG",)) as image:
            scale = max(image.width / THUMBNAIL_SIZE[0], image.height / THUMBNAIL_SIZE[1], 1.0)
            # The decoder itself scales down by 2, 4 or 8, which is several times faster.
            image.draft("RGB", (round(image.width / scale), round(image.height / scale)))
            small = image.convert("RGB")
    except (OSError, ValueError):
        return ShownFrame(time)
    return keep_thumbnail(time, small, folder)


def keep_thumbnail(time: float, image: Image.Image, folder: Path) -> ShownFrame:
    """Writes a small version of an image, named by its content."""
    small = image.copy()
    small.thumbnail(THUMBNAIL_SIZE, Image.Resampling.HAMMING)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=THUMBNAIL_QUALITY, optimize=True)
    content = buffer.getvalue()
    path = folder / f"vivi-{hashlib.sha256(content).hexdigest()[:20]}.jpg"
    if not path.exists():
        write_atomically(path, content, sync=False)
    return ShownFrame(time, path.name, small.width, small.height)
