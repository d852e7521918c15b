"""What a corpus holds, in numbers: the paper's statistics table, and what was skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table

from vivi.prepare.corpus import Corpus, open_shard, reading, shard_path
from vivi.prepare.index import consecutive
from vivi.prepare.places import by_shard, integers, videos_by_place

MAX_SHARDS_READ = 500  # for the durations of shots; beyond this many, evenly spread shards stand for all


@dataclass(frozen=True)
class Statistics:
    """The quantities of the paper's Table of shot statistics; one value per video or shot."""

    shots_per_video: NDArray[np.int64]
    shot_seconds: NDArray[np.float64]
    video_seconds: NDArray[np.float64]
    frames: int

    def rows(self) -> list[tuple[str, float, float]]:
        """(quantity, mean, standard deviation)"""
        names = ("shots per video", "shot duration (s)", "video duration (s)")
        columns: list[NDArray[Any]] = [self.shots_per_video, self.shot_seconds, self.video_seconds]
        known = [values if len(values) else np.zeros(1) for values in columns]
        return [(name, float(values.mean()), float(values.std())) for name, values in zip(names, known, strict=True)]


def corpus_statistics(corpus: Corpus) -> Statistics:
    """Computes them from videos.parquet and the times in the shards."""
    videos = videos_by_place(corpus)
    shards = by_shard(videos)
    every = -(-len(shards) // MAX_SHARDS_READ) or 1
    seconds = [_shot_seconds(shard_path(corpus.path, number), shards[number]) for number in list(shards)[::every]]
    return Statistics(
        shots_per_video=integers(videos, "shots"),
        shot_seconds=np.concatenate([np.empty(0), *seconds]),
        video_seconds=videos["seconds"].to_numpy(),
        frames=pc.sum(videos["frames"]).as_py() or 0,
    )


def _shot_seconds(path: Path, videos: pa.Table) -> NDArray[np.float64]:
    """The durations of a shard's shots. A boundary lies midway between two frames, so a video's shots fill it."""
    first_rows, shots = integers(videos, "first_row"), integers(videos, "shots")
    with reading(path):
        times = open_shard(path, ["times"]).read_all()["times"].combine_chunks()
        if (first_rows + shots).max() > len(times):
            raise ValueError("it holds fewer shots than videos.parquet says")
        rows = consecutive(first_rows, shots)
        offsets, values = times.offsets.to_numpy(), times.values.to_numpy()
        first, last = values[offsets[rows]], values[offsets[rows + 1] - 1]
    begins = np.cumsum(shots) - shots  # the first shot of each video
    starts = first.copy()
    starts[1:] = (last[:-1] + first[1:]) / 2
    starts[begins] = first[begins]
    durations: NDArray[np.float64] = np.diff(starts, append=0.0)
    ends = begins + shots - 1
    durations[ends] = first[begins] + videos["seconds"].to_numpy() - starts[ends]
    return durations


def skipped_by_reason(corpus: Corpus) -> dict[str, list[str]]:
    """Skipped videos by their reason, the most frequent first."""
    skipped = corpus.videos.filter(pc.equal(corpus.videos["status"], "skipped"))
    groups = skipped.group_by("reason", use_threads=False).aggregate([("video", "list")]).to_pylist()
    return {group["reason"]: group["video_list"] for group in sorted(groups, key=lambda one: -len(one["video_list"]))}


def print_summary(path: Path, console: Console) -> dict[str, Any]:
    """Prints the statistics of a corpus and its skipped videos; returns the same numbers by name."""
    corpus = Corpus(path)
    statistics = corpus_statistics(corpus)
    splits = corpus.videos.filter(pc.equal(corpus.videos["status"], "ok"))["split"].to_pylist()
    counts = {
        "videos": len(splits),
        "train": splits.count("train"),
        "test": splits.count("test"),
        "shots": int(statistics.shots_per_video.sum()),
        "frames": statistics.frames,
        "hours": float(statistics.video_seconds.sum() / 3600),
    }
    numbers = Column("mean", justify="right"), Column("std", justify="right")
    table = Table("", *numbers, title=f"corpus {path}", title_justify="left")
    for quantity, mean, std in statistics.rows():
        table.add_row(quantity, f"{mean:.1f}", f"{std:.1f}")
    console.print(table)
    skipped = skipped_by_reason(corpus)
    if skipped:
        columns = Column("videos", justify="right"), "reason", Column("for example", overflow="fold")
        table = Table(*columns, title=f"{sum(map(len, skipped.values()))} skipped", title_justify="left")
        for reason, videos in skipped.items():
            table.add_row(str(len(videos)), reason, videos[0])
        console.print(table)
    console.print(
        f"{counts['videos']} videos ({counts['train']} train, {counts['test']} test), {counts['shots']:,} shots, "
        f"{counts['frames']:,} frames, {counts['hours']:.2f} hours",
        soft_wrap=True,
    )
    names = "shots_per_video", "shot_seconds", "video_seconds"
    rows = {name: {"mean": mean, "std": std} for name, (_, mean, std) in zip(names, statistics.rows(), strict=True)}
    return {"corpus": str(path), **counts, **rows, "skipped": skipped}
