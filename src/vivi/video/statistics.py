"""What a corpus holds, in numbers: the paper's statistics table, and what was skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vivi.video.corpus import SHOT_SCHEMA, Corpus, shard_numbers, shard_path

# Shot durations are read from the shards; beyond this many, evenly spread ones stand for all.
MAX_SHARDS_READ = 500


@dataclass(frozen=True)
class Statistics:
    """The quantities of the paper's Table of shot statistics; one value per video or shot."""

    shots_per_video: NDArray[np.int64]
    shot_seconds: NDArray[np.float64]
    video_seconds: NDArray[np.float64]
    frames: int

    def rows(self) -> list[tuple[str, float, float]]:
        """(quantity, mean, standard deviation)"""
        return [
            ("shots per video", *_mean_std(self.shots_per_video)),
            ("shot duration (s)", *_mean_std(self.shot_seconds)),
            ("video duration (s)", *_mean_std(self.video_seconds)),
        ]


def corpus_statistics(corpus: Corpus) -> Statistics:
    ok = corpus.videos.filter(pc.equal(corpus.videos["status"], "ok"))
    return Statistics(
        shots_per_video=ok["shots"].to_numpy().astype(np.int64),
        shot_seconds=_shot_seconds(corpus.path, corpus.settings["rate"]),
        video_seconds=ok["seconds"].to_numpy(),
        frames=pc.sum(ok["frames"]).as_py() or 0,
    )


def _shot_seconds(corpus: Path, rate: float) -> NDArray[np.float64]:
    """From the first to the last frame of each shot, and one step of the grid: a boundary lies between two."""
    numbers = shard_numbers(corpus)
    numbers = numbers[:: -(-len(numbers) // MAX_SHARDS_READ) or 1]
    durations = [_durations(times) for number in numbers for times in _times(shard_path(corpus, number))]
    return np.concatenate([*durations, np.empty(0)]) + 1 / rate


def _times(shard: Path) -> Iterator[pa.ListArray]:
    options = pa.ipc.IpcReadOptions(included_fields=[SHOT_SCHEMA.get_field_index("times")])
    reader = pa.ipc.open_file(pa.memory_map(str(shard)), options=options)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index).column("times")


def _durations(times: pa.ListArray) -> NDArray[np.float64]:
    offsets = times.offsets.to_numpy()
    values = times.values.to_numpy()
    first, last = offsets[:-1], offsets[1:] - 1
    return np.asarray(values[last] - values[first], dtype=np.float64)


def _mean_std(values: NDArray[np.float64] | NDArray[np.int64]) -> tuple[float, float]:
    return (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)


def skipped_by_reason(corpus: Corpus) -> dict[str, list[str]]:
    """Skipped videos by their reason, the most frequent first."""
    skipped = corpus.videos.filter(pc.equal(corpus.videos["status"], "skipped"))
    groups: dict[str, list[str]] = {}
    for reason, video in zip(skipped["reason"].to_pylist(), skipped["video"].to_pylist(), strict=True):
        groups.setdefault(reason, []).append(video)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def print_summary(path: Path, console: Console) -> None:
    """What prepare says at its end."""
    corpus = Corpus(path)
    statistics = corpus_statistics(corpus)
    splits = corpus.videos.filter(pc.equal(corpus.videos["status"], "ok"))["split"].to_pylist()
    table = Table(title=f"corpus {path}", title_justify="left")
    for column in ("", "mean", "std"):
        table.add_column(column, justify="left" if not column else "right")
    for quantity, mean, std in statistics.rows():
        table.add_row(quantity, f"{mean:.1f}", f"{std:.1f}")
    console.print(table)
    console.print(
        f"{len(splits)} videos ({splits.count('train')} train, {splits.count('test')} test), "
        f"{statistics.shots_per_video.sum():,} shots, {statistics.frames:,} frames, "
        f"{statistics.video_seconds.sum() / 3600:.2f} hours"
    )
    skipped = skipped_by_reason(corpus)
    if skipped:
        table = Table(title=f"{sum(map(len, skipped.values()))} skipped", title_justify="left")
        table.add_column("videos", justify="right")
        table.add_column("reason")
        table.add_column("for example", overflow="fold")
        for reason, videos in skipped.items():
            table.add_row(str(len(videos)), reason, videos[0])
        console.print(table)
