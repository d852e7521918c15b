"""The index: finds every frame Arrow finds, is made once, notices what changed, and names what is broken."""

from __future__ import annotations

import io
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from vivi.batches import index as index_module
from vivi.batches.index import Arrays, Index, fingerprint, open_index, read_frames
from vivi.errors import UserError
from vivi.video.corpus import (
    BATCH_BYTES,
    SHOT_SCHEMA,
    Corpus,
    ShotWriter,
    VideoRow,
    shard_path,
    write_settings,
    write_videos,
)


def make_corpus(folder: Path, videos: dict[str, list[list[bytes]]], per_shard: int = 3, seed: int = 0) -> Corpus:
    """A corpus of videos given as the frames of their shots, packed in random order; every fourth is held out."""
    (folder / "shards").mkdir(parents=True)
    order = sorted(videos)
    random.Random(seed).shuffle(order)
    rows = [VideoRow("skipped", "/p", "skipped", "broken", "train")]
    for number, start in enumerate(range(0, len(order), per_shard)):
        first_row = 0
        with ShotWriter(shard_path(folder, number)) as writer:
            for name in order[start : start + per_shard]:
                shots = videos[name]
                for shot, frames in enumerate(shots):
                    writer.add(name, shot, [float(time) for time in range(len(frames))], frames)
                split = "test" if sorted(videos).index(name) % 4 == 3 else "train"
                facts = (1.0, 9, 9, "h264", sum(map(len, shots)), len(shots), number, first_row)
                rows.append(VideoRow(name, "/p", "ok", "", split, *facts))  # type: ignore[arg-type]
                first_row += len(shots)
            writer.commit()
    write_videos(folder, rows)
    write_settings(folder, {"rate": 1.0})
    return Corpus(folder)


def random_videos(seed: int, largest: int = 200) -> dict[str, list[list[bytes]]]:
    """Up to twelve videos, some with names beyond ASCII."""
    rng = random.Random(seed)
    names = [f"{rng.choice('aäzé漢Z')}{number}/clip.mp4" for number in range(rng.randint(1, 12))]
    return {
        name: [
            [rng.randbytes(rng.randint(0, largest)) for _ in range(rng.randint(1, 7))]
            for _ in range(rng.randint(1, 5))
        ]
        for name in names
    }


def assert_finds_everything(index: Index, corpus: Corpus) -> None:
    """Compares with what Arrow reads, video by video."""
    rows = sorted((row for row in corpus.videos.to_pylist() if row["status"] == "ok"), key=lambda row: row["video"])
    assert len(index) == len(rows)
    assert len(index.frames) == index.first_shot[-1] == sum(row["shots"] for row in rows)
    for video, row in enumerate(rows):
        assert index.video_name(video) == row["video"]
        assert index.test[video] == (row["split"] == "test")
        shots = list(corpus.shots(row))
        first, end = index.first_shot[video], index.first_shot[video + 1]
        assert index.frames[first:end].tolist() == [len(shot.frames) for shot in shots]
        assert index.first_frame[video + 1] - index.first_frame[video] == row["frames"]
        for number, shot in enumerate(shots, first):
            assert read_frames(index, video, number, range(len(shot.frames))) == shot.frames
            some = [random.Random(number).randrange(len(shot.frames)) for _ in range(4)]
            assert read_frames(index, video, number, some) == [shot.frames[frame] for frame in some]


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


def folders(corpus: Path) -> list[Path]:
    return [path for path in (corpus / "index").iterdir() if path.is_dir()]


def test_an_unchanged_corpus_is_opened_without_reading_its_table(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    first, table = open_index(corpus), tmp_path / "videos.parquet"
    good, times = table.read_bytes(), (table.stat().st_atime_ns, table.stat().st_mtime_ns)
    table.write_bytes(b"?" * len(good))  # so it cannot be read
    os.utime(table, ns=times)
    again = open_index(Corpus(tmp_path))
    assert again.fingerprint == first.fingerprint
    table.write_bytes(good)
    assert_finds_everything(again, Corpus(tmp_path))
    os.utime(table, ns=(times[0], times[1] + 1))
    table.write_bytes(b"?" * len(good))
    with pytest.raises(UserError, match=r"videos.parquet"):
        open_index(Corpus(tmp_path))


def test_a_table_that_is_replaced_while_it_is_indexed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = random_videos(1)
    whole = make_corpus(tmp_path / "whole", {**videos, "zz": [[b"frame"]]})
    make_corpus(tmp_path / "corpus", videos)
    original = index_module.build

    def while_prepare_finishes(corpus: Path, table: pa.Table) -> Arrays:
        arrays = original(corpus, table)
        shutil.rmtree(corpus / "shards")
        shutil.copytree(whole.path / "shards", corpus / "shards")
        shutil.copy(whole.path / "videos.parquet", corpus / "videos.parquet")
        return arrays

    monkeypatch.setattr(index_module, "build", while_prepare_finishes)
    open_index(Corpus(tmp_path / "corpus"))
    monkeypatch.undo()
    again = Corpus(tmp_path / "corpus")
    assert_finds_everything(open_index(again), again)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"made_from": 1}', b'{"folder": "../.."}', b"\xff"])
def test_a_damaged_note_of_the_latest_index_is_made_anew(tmp_path: Path, content: bytes) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    open_index(corpus)
    note = tmp_path / "index" / "latest.json"
    good = note.read_bytes()
    note.write_bytes(content)
    assert_finds_everything(open_index(corpus), corpus)
    assert note.read_bytes() == good
    (folder,) = folders(tmp_path)
    (folder / "frames.npy").write_bytes(b"?")  # and an index that is damaged
    assert_finds_everything(open_index(corpus), corpus)


def test_the_index_is_made_once_and_then_mapped(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    first = open_index(corpus)
    (folder,) = folders(tmp_path)
    made = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(made) == {"checksums.json", *(f"{field.name}.npy" for field in fields(Arrays))}
    again = open_index(Corpus(tmp_path))
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == made
    for field in fields(Arrays):
        array = getattr(again, field.name)
        assert np.array_equal(array, getattr(first, field.name))
        assert isinstance(array.base, np.memmap)


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
    assert len(folders(tmp_path)) == 1


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


def test_the_fingerprint_knows_the_videos_and_not_how_they_are_packed(tmp_path: Path) -> None:
    videos = random_videos(4)
    name = sorted(videos)[0]
    same = fingerprint(make_corpus(tmp_path / "a", videos))
    assert fingerprint(make_corpus(tmp_path / "b", videos, per_shard=1, seed=5)) == same
    others = [
        {f"{key}!" if key == name else key: value for key, value in videos.items()},
        {**videos, name: [*videos[name], [b"frame"]]},
        {**videos, name: [[*videos[name][0], b"frame"], *videos[name][1:]]},
        {key: value for key, value in videos.items() if key != name},
    ]
    prints = {fingerprint(make_corpus(tmp_path / str(number), other)) for number, other in enumerate(others)}
    corpus = make_corpus(tmp_path / "c", videos)
    write_settings(corpus.path, {"rate": 2.0})
    prints.add(fingerprint(Corpus(corpus.path)))
    write_settings(corpus.path, {"rate": 1.0})
    assert fingerprint(Corpus(corpus.path)) == same
    rows = [VideoRow(**{**row, "split": "test"}) for row in corpus.videos.to_pylist()]
    write_videos(corpus.path, rows)
    prints.add(fingerprint(Corpus(corpus.path)))
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


def test_rubbish_in_a_shard_never_gives_rubbish_silently(tmp_path: Path) -> None:
    """Bytes anywhere in the file are overwritten: it opens as it was but for frames' bytes, or says so."""
    videos = random_videos(1)
    corpus = make_corpus(tmp_path, videos, per_shard=20)
    path = shard_path(tmp_path, 0)
    whole = path.read_bytes()
    rng = random.Random(0)
    named = 0
    for _ in range(60):
        place = rng.randrange(len(whole) - 8)
        path.write_bytes(whole[:place] + rng.randbytes(8) + whole[place + 8 :])
        try:
            index = open_index(corpus)
            for video in range(len(index)):
                for shot in range(index.first_shot[video], index.first_shot[video + 1]):
                    read_frames(index, video, shot, range(index.frames[shot]))
        except UserError as error:
            assert "00000.arrow" in str(error)
            named += 1
    assert named > 5


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


@pytest.mark.parametrize("rubbish", [b"", b"rubbish"])
def test_a_damaged_index_is_made_anew(rubbish: bytes, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    before = np.array(open_index(corpus).frames)
    (path,) = (tmp_path / "index").glob("*/frames.npy")
    path.write_bytes(rubbish)
    assert np.array_equal(open_index(corpus).frames, before)
    assert len(path.read_bytes()) > len(rubbish)


def test_a_table_without_places_is_named(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(1))
    rows = [VideoRow(**{**row, "shard": None}) for row in corpus.videos.to_pylist()]
    write_videos(tmp_path, rows)
    with pytest.raises(UserError, match=r"videos.parquet is damaged: it gives video 'a1/clip.mp4' no shard"):
        open_index(Corpus(tmp_path))
