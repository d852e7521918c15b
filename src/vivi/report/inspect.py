"""vivi inspect: a page that shows a corpus, to be opened from the disk without a server or a network.

    corpus ──▶ numbers, sampled film strips ──▶ templates/inspect.html ──▶ out/index.html, out/frames/

A corpus may hold millions of videos, so numbers come from the columns of videos.parquet and from the shards' times;
frames are read only where they are shown. Thumbnails are named by their content, so a new page never changes a
picture that the old one shows: index.html is replaced in one step, then thumbnails are removed that only the old one
showed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from vivi.prepare.corpus import Corpus, shard_numbers, shard_path
from vivi.prepare.places import check_shards, videos_by_place
from vivi.prepare.statistics import MAX_SHARDS_READ, corpus_statistics, skipped_by_reason
from vivi.report.histograms import count_histogram, duration_histogram
from vivi.report.strips import damage_named, write_strips
from vivi.report.writing import check_free, unwritable_named, write_html
from vivi.runtime.errors import UserError, require

# The table of the paper's appendix: mean and standard deviation over its YouTube-8M subset.
PAPER = {"shots per video": (25.5, 30.3), "shot duration (s)": (9.0, 25.3), "video duration (s)": (230.7, 61.7)}
MAX_NAMES, MAX_REASONS = 200, 40


def write_page(corpus: Path, out: Path, videos: int = 24, seed: int = 0) -> Path:
    """Writes the page of a corpus into the folder `out` and returns its index.html.

    `videos` of its videos are shown as film strips; another `seed` shows others.
    """
    for flag, value in (("--videos", videos), ("--seed", seed)):
        require(value >= 0, f"{flag} is {value}; it must be 0 or more")
    opened = Corpus(corpus)
    index = check_free(out, "vivi inspect")
    with damage_named(opened):
        numbers = _numbers(opened)
    with unwritable_named(out):
        strips = write_strips(opened, opened.videos, videos, seed, out)
        limits = {"max_names": MAX_NAMES, "max_reasons": MAX_REASONS}
        write_html(index, "inspect.html", numbers=numbers, strips=strips, paper=PAPER, **limits)
    return index


def _numbers(corpus: Corpus) -> dict[str, Any]:
    """The corpus in numbers."""
    rate = corpus.settings.get("rate")
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise UserError(f"{corpus.path / 'corpus.json'} has no usable rate: {rate!r}")
    ok = videos_by_place(corpus)
    partly = ok.filter(pc.not_equal(ok["reason"], ""))
    examples = partly.slice(0, MAX_NAMES).select(["video", "reason"]).to_pylist()
    shards = shard_numbers(corpus.path)
    read = np.unique(ok["shard"].to_numpy())
    read = read[:: -(-len(read) // MAX_SHARDS_READ) or 1]  # as the statistics do
    check_shards(corpus.path, read.tolist())
    stored = [shard_path(corpus.path, number) for number in shards]
    stored += [corpus.path / "corpus.json", corpus.path / "videos.parquet"]
    statistics = corpus_statistics(corpus)
    return {
        "path": corpus.path.resolve(),
        "statistics": statistics,
        "shots_per_video": count_histogram(statistics.shots_per_video),
        "shot_seconds": duration_histogram(statistics.shot_seconds, 1 / rate),
        "video_seconds": duration_histogram(statistics.video_seconds, 1 / rate),
        "videos": ok.num_rows,
        "splits": dict(_counts(ok["split"])),
        "bytes": sum(path.stat().st_size for path in stored),
        "shards": len(shards),
        "shards_read": len(read),  # how many shards the shot durations are from
        "codecs": _counts(ok["codec"]),
        "skipped": skipped_by_reason(corpus),  # names by reason
        "partly_damaged": partly.num_rows,  # videos that were used although something was wrong with them
        "partly_damaged_examples": [f"{row['video']}: {row['reason']}" for row in examples],
        "settings": corpus.settings,
    }


def _counts(column: pa.ChunkedArray) -> list[tuple[str, int]]:
    """(value, how often), the most frequent first."""
    counted = pc.value_counts(column).to_pylist()
    return sorted(((row["values"], row["counts"]) for row in counted), key=lambda pair: (-pair[1], pair[0]))
