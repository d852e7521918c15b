"""The index: finds every frame Arrow finds, is made once, notices what changed, and names what is broken."""

from __future__ import annotations

import io
import os
import random
import shutil
import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import assert_finds_everything, index_folders, make_corpus, random_videos

from vivi.data import index as index_module
from vivi.data.index import Index, open_index, read_frames
from vivi.prepare.corpus import (
    BATCH_BYTES,
    SHOT_SCHEMA,
    Corpus,
    ShotWriter,
    VideoRow,
    shard_path,
    write_settings,
    write_videos,
)
from vivi.prepare.index import IndexTables, build_index, consecutive, index_key, write_index
from vivi.runtime.errors import UserError


def test_a_prepared_corpus_is_found_frame_by_frame(corpus: Path) -> None:
    opened = Corpus(corpus)
    assert_finds_everything(open_index(opened), opened)


@pytest.mark.parametrize("seed", range(6))
def test_frames_are_found_wherever_they_are_packed(tmp_path: Path, seed: int) -> None:
    corpus = make_corpus(tmp_path, random_videos(seed), per_shard=1 + seed, seed=seed)
    assert_finds_everything(open_index(corpus), corpus)


def test_frames_are_found_in_shards_of_several_record_batches(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(3, largest=BATCH_BYTES // 12), per_shard=6)
    with pa.memory_map(str(shard_path(tmp_path, 0))) as source:
        assert pa.ipc.open_file(source).num_record_batches > 2
    assert_finds_everything(open_index(corpus), corpus)


def test_sliced_batches_are_found_too(tmp_path: Path) -> None:
    """Arrow may write a slice with its offsets as they are, not starting at 0."""
    rows = [
        {"video": "v", "shot": n, "times": [0.0] * 3, "frames": [b"%d %d" % (n, i) for i in range(3)]}
        for n in range(9)
    ]
    batch = pa.RecordBatch.from_pylist(rows, SHOT_SCHEMA)
    (tmp_path / "shards").mkdir()
    with pa.OSFile(str(shard_path(tmp_path, 0)), "wb") as sink, pa.ipc.new_file(sink, SHOT_SCHEMA) as writer:
        writer.write_batch(batch.slice(2, 3))
        writer.write_batch(batch.slice(5, 4))
    write_videos(tmp_path, [VideoRow("v", "/p", "ok", "", "train", 1.0, 9, 9, "h264", 21, 7, 0, 0)])
    write_settings(tmp_path, {"rate": 1.0})
    corpus = Corpus(tmp_path)
    assert_finds_everything(open_index(corpus), corpus)


def no_index_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, an index that is built is an error."""

    def build(corpus: Corpus) -> IndexTables:
        raise AssertionError("the index is built anew")

    monkeypatch.setattr(index_module, "build_index", build)


def test_a_known_corpus_is_opened_without_reading_its_table(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    first, table = open_index(corpus), tmp_path / "videos.parquet"
    good = table.read_bytes()
    damaged = b"PAR1" + b"?" * 100 + good[104:]  # its values cannot be read, its metadata can
    table.write_bytes(damaged)
    again = open_index(Corpus(tmp_path))
    assert again.fingerprint == first.fingerprint
    table.write_bytes(good)
    assert_finds_everything(again, Corpus(tmp_path))
    shutil.rmtree(tmp_path / "index")
    table.write_bytes(damaged)
    with pytest.raises(UserError, match=r"videos.parquet"):
        open_index(Corpus(tmp_path))


def test_a_table_that_cannot_be_read_at_all_is_named(tmp_path: Path) -> None:
    open_index(make_corpus(tmp_path, random_videos(1)))
    table = tmp_path / "videos.parquet"
    for content in (b"", b"?" * 5000, table.read_bytes()[:-9]):
        table.write_bytes(content)
        with pytest.raises(UserError, match=r"videos.parquet is damaged or not ours") as caught:
            open_index(Corpus(tmp_path))
        assert "\n" not in str(caught.value)


def test_a_copied_corpus_keeps_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied to another place, with other times of its files."""
    open_index(make_corpus(tmp_path / "a", random_videos(1), per_shard=1))
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    for path in (tmp_path / "b").rglob("*"):
        os.utime(path, (1e9, 1e9))
    shutil.rmtree(tmp_path / "a")
    no_index_is_built(monkeypatch)
    corpus = Corpus(tmp_path / "b")
    index = open_index(corpus)
    assert_finds_everything(index, corpus)
    assert index.note == ""


def test_a_corpus_of_an_older_vivi_is_known_by_the_time_of_its_table(tmp_path: Path) -> None:
    """Its table carries no checksum."""
    corpus = make_corpus(tmp_path, random_videos(1))
    table = tmp_path / "videos.parquet"
    pq.write_table(corpus.videos.replace_schema_metadata({}), table)
    assert_finds_everything(open_index(Corpus(tmp_path)), corpus)
    before = index_key(Corpus(tmp_path))
    assert [folder.name for folder in index_folders(tmp_path)] == [before]
    os.utime(table, (1e9, 1e9))
    assert index_key(Corpus(tmp_path)) != before
    assert_finds_everything(open_index(Corpus(tmp_path)), corpus)


def test_a_table_that_is_replaced_while_it_is_indexed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = random_videos(1)
    whole = make_corpus(tmp_path / "whole", {**videos, "zz": [[b"frame"]]})
    make_corpus(tmp_path / "corpus", videos)

    def while_prepare_finishes(corpus: Corpus) -> IndexTables:
        tables = build_index(corpus)
        shutil.rmtree(corpus.path / "shards")
        shutil.copytree(whole.path / "shards", corpus.path / "shards")
        shutil.copy(whole.path / "videos.parquet", corpus.path / "videos.parquet")
        return tables

    monkeypatch.setattr(index_module, "build_index", while_prepare_finishes)
    assert len(open_index(Corpus(tmp_path / "corpus"))) == len(videos)
    assert not (tmp_path / "corpus" / "index").exists()
    monkeypatch.undo()
    again = Corpus(tmp_path / "corpus")
    assert_finds_everything(open_index(again), again)


def test_a_table_that_is_replaced_after_it_was_read_is_noticed(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1), per_shard=1)
    rows = [VideoRow(**row) for row in corpus.videos.to_pylist()]
    number = 1 + max(row.shard for row in rows if row.shard is not None)
    with ShotWriter(shard_path(tmp_path, number)) as writer:
        writer.add("zz", 0, [0.0], [b"frame"])
        writer.commit()
    write_videos(tmp_path, [*rows, VideoRow("zz", "/p", "ok", "", "train", 1.0, 9, 9, "h264", 1, 1, number, 0)])
    for opened in (corpus, Corpus(tmp_path)):
        assert_finds_everything(open_index(opened), Corpus(tmp_path))


def test_the_index_is_made_once_and_then_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    first = open_index(corpus)
    (folder,) = index_folders(tmp_path)
    assert folder.name == index_key(corpus) and {path.name for path in folder.iterdir()} == {
        "videos.arrow",
        "shots.arrow",
    }
    no_index_is_built(monkeypatch)
    used = pa.total_allocated_bytes()
    again = open_index(Corpus(tmp_path))
    assert pa.total_allocated_bytes() == used  # Arrow keeps nothing in memory
    assert again.names.equals(first.names) and isinstance(again.names, pa.LargeStringArray)
    for name in ("shard", "test", "first_shot", "first_frame", "frames", "offsets_at", "data_at"):
        assert np.array_equal(getattr(again, name), getattr(first, name))
        assert getattr(again, name).dtype == getattr(first, name).dtype


def test_the_index_that_prepare_writes_is_the_one_that_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    write_index(tmp_path, build_index(corpus))
    no_index_is_built(monkeypatch)
    assert_finds_everything(open_index(corpus), corpus)


def test_processes_that_make_it_at_once_agree(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    found: list[Index] = []
    threads = [threading.Thread(target=lambda: found.append(open_index(corpus))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for index in found:
        assert_finds_everything(index, corpus)
    assert len(index_folders(tmp_path)) == 1


def test_a_corpus_that_cannot_be_written_to_is_indexed_in_memory(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    (tmp_path / "index").write_bytes(b"no folder can be made here, not even by root")
    assert_finds_everything(open_index(corpus), corpus)


def test_a_corpus_that_grew_is_indexed_anew(tmp_path: Path) -> None:
    videos = random_videos(2)
    before = open_index(make_corpus(tmp_path / "a", videos))
    shutil.copytree(tmp_path / "a" / "index", tmp_path / "b" / "index")
    grown = make_corpus(tmp_path / "b", {**videos, "new": [[b"frame"]]})
    after = open_index(grown)
    assert len(after) == len(before) + 1
    assert after.fingerprint != before.fingerprint
    assert_finds_everything(after, grown)


def test_a_shard_made_anew_is_indexed_anew(tmp_path: Path) -> None:
    """Same videos, same names, other bytes: the frames lie elsewhere."""
    videos = random_videos(2)
    open_index(make_corpus(tmp_path / "a", videos))
    longer = {name: [[frame + b"longer" for frame in shot] for shot in shots] for name, shots in videos.items()}
    shutil.copytree(tmp_path / "a" / "index", tmp_path / "b" / "index")
    corpus = make_corpus(tmp_path / "b", longer)
    assert_finds_everything(open_index(corpus), corpus)


def corpus_fingerprint(corpus: Corpus) -> str:
    return str(build_index(corpus).about["fingerprint"])


def test_the_fingerprint_knows_the_videos_and_not_how_they_are_packed(tmp_path: Path) -> None:
    videos = random_videos(4)
    name = sorted(videos)[0]
    same = corpus_fingerprint(make_corpus(tmp_path / "a", videos))
    assert corpus_fingerprint(make_corpus(tmp_path / "b", videos, per_shard=1, seed=5)) == same
    others = [
        {f"{key}!" if key == name else key: value for key, value in videos.items()},
        {**videos, name: [*videos[name], [b"frame"]]},
        {**videos, name: [[*videos[name][0], b"frame"], *videos[name][1:]]},
        {key: value for key, value in videos.items() if key != name},
    ]
    prints = {corpus_fingerprint(make_corpus(tmp_path / str(number), other)) for number, other in enumerate(others)}
    corpus = make_corpus(tmp_path / "c", videos)
    write_settings(corpus.path, {"rate": 2.0})
    prints.add(corpus_fingerprint(Corpus(corpus.path)))
    write_settings(corpus.path, {"rate": 1.0})
    assert corpus_fingerprint(Corpus(corpus.path)) == same
    rows = [VideoRow(**{**row, "split": "test"}) for row in corpus.videos.to_pylist()]
    write_videos(corpus.path, rows)
    prints.add(corpus_fingerprint(Corpus(corpus.path)))
    assert len(prints - {same}) == 6


def test_a_corpus_without_a_usable_video_has_an_empty_index(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    write_videos(tmp_path, [VideoRow("a", "/p", "skipped", "broken", "train")])
    write_settings(tmp_path, {"rate": 1.0})
    for _ in range(2):  # made, then mapped
        index = open_index(Corpus(tmp_path))
        assert len(index) == 0 and index.first_shot.tolist() == [0]


def truncate(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3)


def swap_names(path: Path) -> None:
    """A shard of another corpus under this name."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    names = pa.array([f"other {name}" for name in table["video"].to_pylist()])
    rewrite(path, table.set_column(0, "video", names), None)


def drop_a_row(path: Path) -> None:
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    rewrite(path, table.slice(0, table.num_rows - 1), None)


def compress(path: Path) -> None:
    with pa.memory_map(str(path)) as source:
        rewrite(path, pa.ipc.open_file(source).read_all(), "zstd")


def rewrite(path: Path, table: pa.Table, compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, SHOT_SCHEMA, options=options) as writer:
        writer.write_table(table.cast(SHOT_SCHEMA))
    path.write_bytes(sink.getvalue())


@pytest.mark.parametrize("seen_before", [False, True])
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (os.unlink, "is missing; run the same vivi prepare again"),
        (truncate, "is damaged or not a shard"),
        (swap_names, "holds other videos or frames than videos.parquet says"),
        (drop_a_row, "holds other videos or frames than videos.parquet says"),
        (compress, "its frames are compressed"),
    ],
)
def test_a_broken_shard_is_named_when_the_index_is_opened(
    tmp_path: Path, harm: Callable[[Path], None], message: str, seen_before: bool
) -> None:
    corpus = make_corpus(tmp_path, random_videos(1), per_shard=1)
    if seen_before:
        open_index(corpus)
    harm(shard_path(tmp_path, 1))
    with pytest.raises(UserError, match=message) as error:
        open_index(corpus)
    assert "00001.arrow" in str(error.value) and "\n" not in str(error.value)


def frames_of(index: Index) -> list[list[bytes]]:
    """All frames, shot by shot."""
    return [
        [bytes(frame) for frame in read_frames(index, video, shot, range(index.frames[shot]))]
        for video in range(len(index))
        for shot in range(index.first_shot[video], index.first_shot[video + 1])
    ]


def test_rubbish_in_a_shard_never_gives_an_index_of_rubbish(tmp_path: Path) -> None:
    """Bytes anywhere in the file are overwritten: it is indexed as it was but for bytes of frames, or it is named."""
    corpus = make_corpus(tmp_path, random_videos(1), per_shard=20)
    path = shard_path(tmp_path, 0)
    whole = path.read_bytes()
    right = open_index(corpus)
    good = frames_of(right)
    rng = random.Random(0)
    named = 0
    for _ in range(60):
        place = rng.randrange(len(whole) - 8)
        path.write_bytes(whole[:place] + rng.randbytes(8) + whole[place + 8 :])
        shutil.rmtree(tmp_path / "index", ignore_errors=True)
        try:
            index = open_index(corpus)
            for name in ("first_shot", "first_frame", "frames", "offsets_at", "data_at"):
                assert np.array_equal(getattr(index, name), getattr(right, name))
            found = frames_of(index)
        except UserError as error:
            assert "00000.arrow" in str(error)
            named += 1
        else:
            changed = sum(one != other for one, other in zip(chain(*found), chain(*good), strict=True))
            assert changed <= 3  # as many may lie in eight bytes here
    assert named > 5


def test_rubbish_in_a_shard_that_is_indexed_is_named_or_in_the_frames_alone(tmp_path: Path) -> None:
    """Its size is the same: the index is taken as it is."""
    corpus = make_corpus(tmp_path, random_videos(1), per_shard=20)
    path = shard_path(tmp_path, 0)
    whole = path.read_bytes()
    index = open_index(corpus)
    shots = len(frames_of(index))
    rng, named = random.Random(0), 0
    offsets = [int(place) for place in index.offsets_at]
    for place in offsets + [rng.randrange(len(whole)) for _ in range(60)]:
        path.write_bytes((whole[:place] + rng.randbytes(8) + whole[place + 8 :])[: len(whole)])
        try:
            assert len(frames_of(open_index(corpus))) == shots
        except UserError as error:
            assert "00000.arrow is damaged" in str(error)
            named += 1
    assert named >= shots - 1  # all but an offset that happens to be possible; checksums of frames tell that


def test_a_shard_that_goes_later_is_named_where_it_is_read(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1), per_shard=20)
    index = open_index(corpus)
    path = shard_path(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(index.offsets_at[0]) + 2])
    with pytest.raises(UserError, match=r"00000.arrow is damaged"):
        read_frames(index, 0, 0, [0])
    at = int(index.offsets_at[0])
    for offsets in ([7, 3], [-9, 3], [0, 2**30]):
        path.write_bytes(whole[:at] + np.array(offsets, "<i4").tobytes() + whole[at + 8 :])
        with pytest.raises(UserError, match=r"00000.arrow is damaged"):
            read_frames(index, 0, 0, [0])
    path.unlink()
    with pytest.raises(UserError, match=r"00000.arrow is missing"):
        read_frames(index, 0, 0, [0])


def test_a_table_without_places_is_named(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    rows = [VideoRow(**{**row, "shard": None}) for row in corpus.videos.to_pylist()]
    write_videos(tmp_path, rows)
    with pytest.raises(UserError, match=r"videos.parquet is damaged: it gives video 'a1/clip.mp4' no shard"):
        open_index(Corpus(tmp_path))


def test_consecutive_numbers_follow_each_start() -> None:
    starts, counts = np.array([5, 0, 9, 7]), np.array([2, 3, 0, 1])
    assert consecutive(starts, counts).tolist() == [5, 6, 0, 1, 2, 7]
    assert consecutive(starts[:0], counts[:0]).tolist() == []
