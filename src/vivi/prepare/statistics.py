"""What a corpus holds, in numbers: the paper's statistics table, and what was skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vivi.prepare.corpus import REMEDY, Corpus, open_shard, shard_path
from vivi.prepare.index import consecutive
from vivi.prepare.places import videos_by_place
from vivi.runtime.errors import UserError

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
    """Computes them from videos.parquet and the times in the shards."""
    ok = videos_by_place(corpus)
    return Statistics(
        shots_per_video=ok["shots"].to_numpy().astype(np.int64),
        shot_seconds=_shot_seconds(corpus.path, ok),
        video_seconds=ok["seconds"].to_numpy(),
        frames=pc.sum(ok["frames"]).as_py() or 0,
    )


def _shot_seconds(corpus: Path, videos: pa.Table) -> NDArray[np.float64]:
    """The duration of every shot. A boundary lies midway between two frames, so a video's shots fill the video."""
    numbers, offsets, counts = np.unique(videos["shard"].to_numpy(), return_index=True, return_counts=True)
    every = -(-len(numbers) // MAX_SHARDS_READ) or 1
    durations = [np.empty(0)]
    for number, offset, count in zip(numbers[::every], offsets[::every], counts[::every], strict=True):
        inside = videos.slice(offset, count)
        path = shard_path(corpus, int(number))
        first, last = _first_and_last(open_shard(path, ["times"]))
        first_rows, shots = inside["first_row"].to_numpy(), inside["shots"].to_numpy().astype(np.int64)
        if (first_rows + shots).max() > len(first):
            raise UserError(f"{path} holds fewer shots than videos.parquet says; {REMEDY}")
        rows = consecutive(first_rows, shots)
        first, last = first[rows], last[rows]
        begins = np.cumsum(shots) - shots  # the first shot of each video
        starts = first.copy()
        starts[1:] = (last[:-1] + first[1:]) / 2
        starts[begins] = first[begins]
        ends = np.append(starts[1:], 0.0)
        ends[np.append(begins[1:], len(first)) - 1] = first[begins] + inside["seconds"].to_numpy()
        durations.append(ends - starts)
    return np.concatenate(durations)


def _first_and_last(reader: pa.RecordBatchFileReader) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times of the first and the last frame of every shot in a shard."""
    first, last = [], []
    for index in range(reader.num_record_batches):
        times = reader.get_batch(index).column("times")
        offsets, values = times.offsets.to_numpy(), times.values.to_numpy()
        first.append(values[offsets[:-1]])
        last.append(values[offsets[1:] - 1])
    return np.concatenate(first), np.concatenate(last)


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
    """Prints the statistics of a corpus and its skipped videos, at the end of vivi prepare."""
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
