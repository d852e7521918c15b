"""The corpus on disk: written atomically, read back whole, and counted right."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vivi.prepare.corpus import (
    BATCH_BYTES,
    Corpus,
    ShotWriter,
    VideoRow,
    open_shard,
    shard_path,
    shard_videos,
    write_settings,
    write_videos,
)
from vivi.prepare.statistics import corpus_statistics, skipped_by_reason
from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError, write_atomically


def make_corpus(folder: Path, videos: list[list[list[float]]], rate: float = 1.0) -> Corpus:
    """A corpus of videos given as the times of the frames of their shots, a few videos to a shard."""
    (folder / "shards").mkdir(parents=True)
    rows = []
    for start in range(0, len(videos), 3):
        number, first_row = start // 3, 0
        with ShotWriter(shard_path(folder, number)) as writer:
            for index, shots in enumerate(videos[start : start + 3], start):
                for shot, times in enumerate(shots):
                    writer.add(f"v{index}", shot, times, [b"jpeg %d" % round(time * 1000) for time in times])
                seconds = shots[-1][-1] - shots[0][0] + 1 / rate
                frames = sum(map(len, shots))
                facts = (seconds, 9, 9, "h264", frames, len(shots), number, first_row)
                rows.append(VideoRow(f"v{index}", "/v", "ok", "", "train", *facts))
                first_row += len(shots)
            writer.commit()
    write_videos(folder, rows)
    write_settings(folder, {"rate": rate})
    return Corpus(folder)


def random_videos(seed: int) -> list[list[list[float]]]:
    rng = random.Random(seed)
    videos = []
    for _ in range(rng.randint(1, 10)):
        time, shots = rng.uniform(0, 100), []
        for _ in range(rng.randint(1, 6)):
            shots.append([time := time + rng.uniform(0.5, 1.5) for _ in range(rng.randint(1, 5))])
        videos.append(shots)
    return videos


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_is_read_back(tmp_path: Path, seed: int) -> None:
    videos = random_videos(seed)
    corpus = make_corpus(tmp_path, videos)
    for row, shots in zip(corpus.videos.to_pylist(), videos, strict=True):
        read = list(corpus.shots(row))
        assert [shot.video for shot in read] == [row["video"]] * len(shots)
        assert [shot.times for shot in read] == shots
        assert [shot.frames for shot in read] == [[b"jpeg %d" % round(t * 1000) for t in times] for times in shots]


@pytest.mark.parametrize("seed", range(5))
def test_statistics_agree_with_counting_shot_by_shot(tmp_path: Path, seed: int) -> None:
    videos = random_videos(seed)
    corpus = make_corpus(tmp_path, videos)
    expected = []
    for row, shots in zip(corpus.videos.to_pylist(), videos, strict=True):
        start = shots[0][0]
        for shot, after in zip(shots, [*shots[1:], None], strict=True):
            end = (shot[-1] + after[0]) / 2 if after else shots[0][0] + row["seconds"]
            expected.append(end - start)
            start = end
    statistics = corpus_statistics(corpus)
    assert statistics.shot_seconds == pytest.approx(expected)
    assert statistics.shots_per_video.tolist() == [len(shots) for shots in videos]
    assert statistics.frames == sum(len(shot) for shots in videos for shot in shots)
    (_, mean, std), _, _ = statistics.rows()
    assert (mean, std) == pytest.approx((np.mean(statistics.shots_per_video), np.std(statistics.shots_per_video)))


def test_shards_hold_several_record_batches_of_bounded_size(tmp_path: Path) -> None:
    frame = bytes(BATCH_BYTES // 10)
    with ShotWriter(tmp_path / "shard.arrow") as writer:
        for shot in range(35):
            writer.add("v", shot, [float(shot)], [frame])
        writer.commit()
    reader = open_shard(tmp_path / "shard.arrow")
    assert [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)] == [10, 10, 10, 5]


def test_a_writer_that_is_not_committed_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ShotWriter(tmp_path / "shard.arrow") as writer:
        writer.add("v", 0, [0.0], [b"jpeg"])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_shard_carries_the_rows_of_its_videos(tmp_path: Path) -> None:
    rows = [
        VideoRow("ä", "/p", "ok", "", "test", shots=1, shard=0, first_row=0),
        VideoRow("b", "/q", "skipped", "r", "train"),
    ]
    with ShotWriter(tmp_path / "shard.arrow", rows) as writer:
        writer.add("ä", 0, [0.0], [b"jpeg"])
        writer.commit(sync=True)
    assert shard_videos(tmp_path / "shard.arrow") == rows


def test_writing_where_one_cannot_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        ShotWriter(tmp_path / "nowhere" / "shard.arrow")
    with pytest.raises(StorageError, match="No such file"):
        write_atomically(tmp_path / "nowhere" / "file", b"")


def test_skipped_videos_are_grouped_by_reason(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    rows = [VideoRow(name, "/p", "skipped", reason, "train") for name, reason in [("a", "x"), ("b", "y"), ("c", "y")]]
    write_videos(tmp_path, rows)
    write_settings(tmp_path, {"rate": 1.0})
    corpus = Corpus(tmp_path)
    assert list(skipped_by_reason(corpus).items()) == [("y", ["b", "c"]), ("x", ["a"])]
    assert corpus_statistics(corpus).rows()[0] == ("shots per video", 0.0, 0.0)


def test_what_is_no_corpus_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no corpus"):
        Corpus(tmp_path)
    (tmp_path / "corpus.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        Corpus(tmp_path)
    (tmp_path / "corpus.json").write_text('{"format_version": 99}')
    with pytest.raises(UserError, match="format version 99"):
        Corpus(tmp_path)
    write_settings(tmp_path, {"rate": 1.0})
    with pytest.raises(UserError, match="was not finished"):
        Corpus(tmp_path)
    (tmp_path / "videos.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="damaged or not ours"):
        _ = Corpus(tmp_path).videos
    pq.write_table(pa.table({"other": [1]}), tmp_path / "videos.parquet")
    with pytest.raises(UserError, match="damaged or not ours"):
        _ = Corpus(tmp_path).videos


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "shard.arrow").write_bytes(b"ARROW1 but not really")
    with pytest.raises(UserError, match=r"shard\.arrow is damaged"):
        open_shard(tmp_path / "shard.arrow")


def test_other_tools_read_the_shards(tmp_path: Path) -> None:
    make_corpus(tmp_path, [[[0.0, 1.0], [2.0]]])
    with pa.memory_map(str(tmp_path / "shards" / "00000.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.column("times").to_pylist() == [[0.0, 1.0], [2.0]]
