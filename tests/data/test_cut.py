"""Shots and videos that are cut for training, beside a corpus prepared that way and beside slow and obvious ways."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from corpora import assert_same_plan, index_of, make_corpus, random_videos
from rich.console import Console

from vivi.data.cut import cut
from vivi.data.index import Index, open_index, read_frames
from vivi.data.plan import eligible_videos, plan_videos
from vivi.prepare.corpus import Corpus
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.recipes import Batch

PLAIN = Batch(videos=4, shots=2, frames=2, cores=1)


def frames_of(index: Index) -> dict[str, list[list[bytes]]]:
    """The JPEG files of every shot of every video."""
    return {
        index.video_name(video): [
            [bytes(frame) for frame in read_frames(index, video, shot, range(index.frames[shot]))]
            for shot in range(index.first_shot[video], index.first_shot[video + 1])
        ]
        for video in range(len(index))
    }


def evenly(frames: list[bytes], parts: int) -> list[list[bytes]]:
    ends = [part * len(frames) // parts for part in range(parts + 1)]
    return [frames[begin:end] for begin, end in itertools.pairwise(ends)]


def test_shots_cut_for_training_are_those_of_a_corpus_prepared_that_way(corpus: Path, tmp_path: Path) -> None:
    """That holds for takes of up to two such shots: prepare cuts longer ones while they come, and only the last two
    shots of them evenly."""
    settings = PrepareSettings(rate=5, short_side=48, min_shot_seconds=0.3, test_fraction=0.45, max_shot_seconds=1.6)
    execution = PrepareExecution(workers=1, shard_megabytes=0.05)
    prepare([corpus.parent / "videos"], tmp_path / "corpus", settings, execution, Console(quiet=True))
    whole, prepared = open_index(Corpus(corpus)), open_index(Corpus(tmp_path / "corpus"))
    batch = replace(PLAIN, max_shot_seconds=1.6)
    found = cut(whole, Corpus(corpus).settings, batch)
    assert frames_of(found) == frames_of(prepared)
    assert (found.test == prepared.test).all() and (found.first_frame == prepared.first_frame).all()
    assert len(found.frames) > len(whole.frames)
    for step in range(3):
        plans = [plan_videos(index, eligible_videos(index, batch), batch, 0, step) for index in (found, prepared)]
        assert_same_plan(*plans)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_shots_are_cut_evenly(seed: int, most: int, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(seed))
    whole = frames_of(open_index(corpus))
    found = cut(open_index(corpus), {"rate": 2.0}, replace(PLAIN, max_shot_seconds=most / 2))
    expected = {
        name: [piece for shot in shots for piece in evenly(shot, -(-len(shot) // most))]
        for name, shots in whole.items()
    }
    assert frames_of(found) == expected
    assert max(found.frames) <= most


def numbered(videos: list[list[int]], test: list[bool] | None = None) -> Index:
    """An index whose frames can be told by their numbers, counted through all videos."""
    index = index_of(videos, test)
    return replace(index, offsets_at=4 * np.cumsum([0, *index.frames])[:-1])


def numbers_of(index: Index) -> dict[str, list[list[int]]]:
    """The numbers of the frames of every shot of every video."""
    starts = index.offsets_at // 4
    shots = [list(range(start, start + count)) for start, count in zip(starts, index.frames, strict=True)]
    first = index.first_shot
    return {index.video_name(video): shots[first[video] : first[video + 1]] for video in range(len(index))}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [4, 10, 30])
def test_long_videos_become_segments_with_a_gap_between_them(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    index = numbered([rng.integers(1, 40, rng.integers(1, 6)).tolist() for _ in range(8)])
    found = cut(index, {"rate": 2.0}, replace(PLAIN, segment_minutes=most / 120))
    expected = {}
    for name, shots in numbers_of(index).items():
        frames = [number for shot in shots for number in shot]
        parts = -(-len(frames) // most)
        length = Fraction(len(frames), parts)
        for part in range(parts):
            begin = part * length + (length / 10 if part else 0)
            inside = [number for at, number in enumerate(frames) if begin <= at < (part + 1) * length]
            pieces = [[number for number in shot if number in inside] for shot in shots]
            title = f"{name} part {part + 1} of {parts}" if parts > 1 else name
            expected[title] = [piece for piece in pieces if piece]
    assert numbers_of(found) == expected
    assert np.diff(found.first_frame).tolist() == [sum(map(len, shots)) for shots in expected.values()]
    assert max(np.diff(found.first_frame)) <= most


def test_segments_are_held_out_where_their_videos_are() -> None:
    index = numbered([[100], [40, 40], [3]], test=[False, True, False])
    found = cut(index, {"rate": 1.0, "test_fraction": 0.1}, replace(PLAIN, segment_minutes=0.5))
    held_out = {found.video_name(video)[:6] for video in np.flatnonzero(found.test).tolist()}
    assert held_out == {"v00001"} and found.test.sum() == 3


@pytest.mark.parametrize("test", [False, True])
def test_of_one_long_video_a_tenth_of_the_segments_is_held_out(test: bool) -> None:
    batch = replace(PLAIN, segment_minutes=2.0, max_shot_seconds=10.0)
    settings = {"rate": 1.0, "test_fraction": 0.1}
    found = cut(numbered([[500] * 14 + [200]], [test]), settings, batch)
    assert len(found) == 60 and found.test.sum() == 6
    eligible = eligible_videos(found, batch)
    assert len(eligible) == 54 and max(found.frames) <= 10 and min(found.shots_of(eligible)) >= 11
    trained = {number for name, shots in numbers_of(found).items() for shot in shots for number in shot if name}
    assert len(trained) > 0.9 * 7200 - 60
    # Without a share to hold out nothing is.
    assert not cut(numbered([[7200]]), {"rate": 1.0, "test_fraction": 0.0}, batch).test.any()
