"""vivi inspect: a page that shows a corpus, to be opened from the disk without a server or a network.

    corpus ──▶ numbers, sampled film strips ──▶ templates/inspect.html ──▶ out/index.html, out/frames/

A corpus may hold millions of videos, so numbers come from the columns of videos.parquet and from the shards' times;
frames are read only where they are shown. Thumbnails are named by their content, so a new page never changes a
picture that the old one shows: index.html is replaced in one step, then thumbnails it does not refer to are removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vivi.prepare.corpus import Corpus, shard_numbers, shard_path
from vivi.prepare.places import check_shards, videos_by_place
from vivi.prepare.statistics import MAX_SHARDS_READ, Statistics, corpus_statistics, skipped_by_reason
from vivi.report.histograms import Histogram, count_histogram, duration_histogram
from vivi.report.strips import damage_named, remove_stale_thumbnails, write_strips
from vivi.report.writing import check_free, in_words, unwritable_named, write_html
from vivi.runtime.errors import UserError

# The table of the paper's appendix: mean and standard deviation over its YouTube-8M subset.
PAPER = {"shots per video": (25.5, 30.3), "shot duration (s)": (9.0, 25.3), "video duration (s)": (230.7, 61.7)}
MAX_NAMES, MAX_REASONS = 200, 40
SETTING_LABELS = {
    "format_version": ("Format version", ""),
    "rate": ("Sampling rate", " frames/s"),
    "short_side": ("Short side", " px"),
    "jpeg_quality": ("JPEG quality", ""),
    "exact": ("Exact frame times", ""),
    "shot_threshold": ("Shot threshold", ""),
    "min_shot_seconds": ("Shortest shot", " s"),
    "max_shot_seconds": ("Longest shot", " s"),
    "max_shot_frames": ("Most frames in a shot", ""),
    "test_fraction": ("Test fraction", ""),
}


@dataclass(frozen=True)
class Chart:
    """A histogram, what its axes count, and its quantiles in words."""

    title: str
    histogram: Histogram
    x_title: str
    y_title: str
    caption: str


@dataclass(frozen=True)
class Overview:
    """The corpus in numbers."""

    path: Path
    statistics: Statistics
    rate: float
    videos: int
    train: int
    test: int
    bytes: int
    shards: int
    shards_read: int  # how many shards the shot durations are from
    codecs: list[tuple[str, int]]  # the most frequent first
    skipped: dict[str, list[str]]  # names by reason
    partly_damaged: int  # videos that were used although something was wrong with them
    partly_damaged_examples: list[str]
    settings: list[tuple[str, str]]  # label, value

    @property
    def with_shots(self) -> list[tuple[int, int, float]]:
        """(K, videos with K or more shots, their share): the video loss predicts across K shots of one video."""
        counts = [(wanted, int((self.statistics.shots_per_video >= wanted).sum())) for wanted in (2, 4)]
        return [(wanted, count, count / self.videos if self.videos else 0.0) for wanted, count in counts]

    @property
    def charts(self) -> list[Chart]:
        statistics, step = self.statistics, 1 / self.rate
        shots, lengths, videos = statistics.shots_per_video, statistics.shot_seconds, statistics.video_seconds
        charts = [
            (
                "Shots per video",
                count_histogram(shots),
                "shots in a video",
                "videos",
                _quantiles(shots, "{:.0f}".format),
            ),
            ("Shot duration", duration_histogram(lengths, step), "duration of a shot", "shots", _quantiles(lengths)),
            ("Video duration", duration_histogram(videos, step), "duration of a video", "videos", _quantiles(videos)),
        ]
        return [Chart(title, histogram, *words) for title, histogram, *words in charts if histogram and self.videos]


def write_page(corpus: Path, out: Path, videos: int = 24, seed: int = 0) -> Path:
    """Writes the page of a corpus into the folder `out` and returns its index.html.

    `videos` of its videos are shown as film strips; another `seed` shows others.
    """
    for flag, value in (("--videos", videos), ("--seed", seed)):
        if value < 0:
            raise UserError(f"{flag} is {value}; it must be 0 or more")
    opened = Corpus(corpus)
    index = check_free(out, "vivi inspect")
    with damage_named(opened):
        numbers = overview(opened)
    with unwritable_named(out):
        strips = write_strips(opened, opened.videos, videos, seed, out)
        name = corpus.resolve().name or str(corpus)
        limits = {"max_names": MAX_NAMES, "max_reasons": MAX_REASONS}
        write_html(index, "inspect.html", name=name, numbers=numbers, strips=strips, paper=PAPER, **limits)
        remove_stale_thumbnails(out, strips)
    return index


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
        path=corpus.path.resolve(),
        statistics=corpus_statistics(corpus),
        rate=float(rate),
        videos=ok.num_rows,
        train=splits.get("train", 0),
        test=splits.get("test", 0),
        bytes=sum(path.stat().st_size for path in stored),
        shards=len(shards),
        shards_read=len(used),
        codecs=_counts(ok["codec"]),
        skipped=skipped_by_reason(corpus),
        partly_damaged=partly.num_rows,
        partly_damaged_examples=[f"{row['video']}: {row['reason']}" for row in examples],
        settings=[_setting(key, value) for key, value in corpus.settings.items()],
    )


def _counts(column: pa.ChunkedArray) -> list[tuple[str, int]]:
    """(value, how often), the most frequent first."""
    counted = pc.value_counts(column).to_pylist()
    return sorted(((row["values"], row["counts"]) for row in counted), key=lambda pair: (-pair[1], pair[0]))


def _setting(key: str, value: Any) -> tuple[str, str]:
    label, unit = SETTING_LABELS.get(key, (key.replace("_", " "), ""))
    if key == "max_shot_seconds" and not value:
        return label, "no limit"
    return label, ({True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)) + unit


def _quantiles(values: NDArray[Any], form: Callable[[float], str] = in_words) -> str:
    if not len(values):
        return ""
    median, most, largest = (form(float(q)) for q in np.quantile(values, [0.5, 0.9, 1.0], method="higher"))
    return f"Median {median} · 90 % up to {most} · largest {largest}"
