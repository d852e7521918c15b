"""The files of an index: whatever is altered is noticed, and the index is made anew."""

from __future__ import annotations

import errno
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from corpora import assert_finds_everything, index_folders, make_corpus, random_videos

from vivi.data.index import Index, open_index
from vivi.prepare import index as index_module
from vivi.prepare.corpus import Corpus
from vivi.prepare.index import IndexTables, build_index, index_key, map_index, write_index
from vivi.recipes import RECIPES
from vivi.train.data import TrainingData

Harm = Callable[[bytes, random.Random], bytes]
FILES = ["shots.arrow", "videos.arrow"]


def flip_a_bit(whole: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(whole))
    return whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :]


def change_bytes(whole: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(whole))
    return (whole[:place] + rng.randbytes(rng.randrange(1, 40)) + whole[place:])[: len(whole)]


def overwrite_bytes(whole: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(whole) - 40)
    count = rng.randrange(1, 40)
    return whole[:place] + rng.randbytes(count) + whole[place + count :]


def change_a_digit(whole: bytes, rng: random.Random) -> bytes:
    """Of the JSON in the metadata, which stays JSON."""
    start = whole.rindex(b'{"key"')  # in the footer, which is what readers see
    places = [place for place in range(start, start + 200) if chr(whole[place]) in "0123456789abcdef"]
    place = rng.choice(places)
    return whole[:place] + rng.choice("0123456789abcdef").encode() + whole[place + 1 :]


def cut(whole: bytes, rng: random.Random) -> bytes:
    return whole[: rng.randrange(len(whole))]


def lengthen(whole: bytes, rng: random.Random) -> bytes:
    return whole + rng.randbytes(rng.randrange(1, 40))


def empty(whole: bytes, rng: random.Random) -> bytes:
    return b""


def rubbish(whole: bytes, rng: random.Random) -> bytes:
    return b"rubbish"


def content(index: Index) -> dict[str, object]:
    """What an index says, without its maps."""
    names = ("shard", "test", "first_shot", "first_frame", "frames", "offsets_at", "data_at")
    arrays = {name: (getattr(index, name).dtype, getattr(index, name).tolist()) for name in names}
    return {"fingerprint": index.fingerprint, "names": index.names.to_pylist()} | arrays


@pytest.mark.parametrize(
    "harm", [flip_a_bit, change_bytes, overwrite_bytes, change_a_digit, cut, lengthen, empty, rubbish]
)
def test_no_altered_file_of_the_index_changes_what_it_says(tmp_path: Path, harm: Harm) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    right = content(open_index(corpus))
    (folder,) = index_folders(tmp_path)
    paths = sorted(folder.iterdir())
    assert [path.name for path in paths] == FILES
    rng = random.Random(0)
    for path in paths:
        for _ in range(12):
            good = path.read_bytes()
            path.write_bytes(harm(good, rng))
            damaged = path.read_bytes()
            index = open_index(Corpus(tmp_path))
            assert content(index) == right
            # Made anew, unless only padding was altered.
            assert path.read_bytes() == (good if index.note else damaged)
            del index
            path.write_bytes(good)
    assert_finds_everything(open_index(corpus), corpus)


# Opens a copy of an index with each bit flipped in turn, and says how it went. In a process of its own: what is under
# test is also that it does not crash.
FLIP_EVERY_BIT = """
import sys
from pathlib import Path
from vivi.data.index import _index
from vivi.prepare.index import map_index

path, first, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
good = path.read_bytes()

def content():
    index = _index(map_index(path.parent), Path())
    names = ("shard", "test", "first_shot", "first_frame", "frames", "offsets_at", "data_at")
    arrays = [getattr(index, name) for name in names]
    return [index.fingerprint, index.names.to_pylist(), *((array.dtype, array.tolist()) for array in arrays)]

right, outcomes = content(), {"damaged": 0, "same": 0}
for bit in range(first, 8 * len(good), step):
    altered = bytearray(good)
    altered[bit // 8] ^= 1 << bit % 8
    path.write_bytes(altered)
    try:
        same = content() == right
    except ValueError:
        outcomes["damaged"] += 1
        continue
    assert same, f"bit {bit}"
    outcomes["same"] += 1
print(outcomes["damaged"], outcomes["same"])
"""


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_crashes_the_process_or_goes_unnoticed(tmp_path: Path, name: str) -> None:
    """Every seventh bit of a small index."""
    corpus = make_corpus(tmp_path, random_videos(2))
    write_index(tmp_path, build_index(corpus))
    path = tmp_path / "index" / index_key(corpus) / name
    bits = 8 * path.stat().st_size
    command = [sys.executable, "-c", FLIP_EVERY_BIT, str(path), "3", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    damaged, same = map(int, done.stdout.split())
    assert damaged + same == len(range(3, bits, 7))
    assert damaged > same / 2 > 0  # padding, and the header, whose copy in the footer is what counts


def test_files_that_changed_places_are_noticed(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    right = content(open_index(corpus))
    (folder,) = index_folders(tmp_path)
    shots, videos = (folder / name for name in FILES)
    before = shots.read_bytes()
    shots.write_bytes(videos.read_bytes())
    videos.write_bytes(before)
    index = open_index(Corpus(tmp_path))
    assert content(index) == right and "videos.arrow is not as it was written" in index.note


def test_columns_that_changed_places_are_noticed(tmp_path: Path) -> None:
    """Of the same type, so that the schema does not tell."""
    corpus = make_corpus(tmp_path, random_videos(4))
    right = content(open_index(corpus))
    (folder,) = index_folders(tmp_path)
    path = folder / "shots.arrow"
    with pa.OSFile(str(path)) as source:
        reader = pa.ipc.open_file(source)
        batch, schema = reader.get_batch(0), reader.schema
    frames, offsets_at, data_at = batch.columns
    swapped = pa.RecordBatch.from_arrays([frames, data_at, offsets_at], schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(swapped)
    index = open_index(Corpus(tmp_path))
    assert content(index) == right and "shots.arrow is not as it was written" in index.note


def test_a_large_table_is_checked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond one chunk of what is summed up at once."""
    monkeypatch.setattr(index_module, "_CHUNK", 1 << 20)
    count = 700_000
    positions = {name: np.arange(count) for name in ("offsets_at", "data_at")}
    few = build_index(make_corpus(tmp_path, random_videos(4)))
    shots = pa.RecordBatch.from_pydict({"frames": np.arange(count, dtype=np.int32), **positions})
    write_index(tmp_path, IndexTables(few.videos, shots, few.about))
    (folder,) = index_folders(tmp_path)
    loaded = map_index(folder)
    assert loaded.shots.equals(shots) and loaded.videos.equals(few.videos) and loaded.about == few.about
    del loaded
    path = folder / "shots.arrow"
    whole = bytearray(path.read_bytes())
    last = whole.rindex(int(count - 1).to_bytes(8, "little"))
    for place in (1 << 20, 5 << 20, last):
        whole[place] ^= 1
        path.write_bytes(whole)
        with pytest.raises(ValueError, match=r"shots\.arrow is not as it was written"):
            map_index(folder)
        whole[place] ^= 1


def test_the_index_of_something_else_is_not_taken(tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "other", random_videos(3))
    open_index(other)
    corpus = make_corpus(tmp_path / "corpus", random_videos(4))
    open_index(corpus)
    (folder,) = index_folders(corpus.path)
    shutil.rmtree(folder)
    shutil.copytree(index_folders(other.path)[0], folder)
    again = open_index(corpus)
    assert_finds_everything(again, corpus)
    assert "it is the index of something else" in again.note


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_index_is_not_taken(tmp_path: Path, name: str) -> None:
    other = make_corpus(tmp_path / "other", random_videos(3))
    open_index(other)
    corpus = make_corpus(tmp_path / "corpus", random_videos(4))
    open_index(corpus)
    (folder,) = index_folders(corpus.path)
    shutil.copyfile(index_folders(other.path)[0] / name, folder / name)
    again = open_index(corpus)
    assert_finds_everything(again, corpus)
    assert "it is the index of something else" in again.note


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    assert open_index(corpus).note == ""
    assert open_index(corpus).note == ""
    (folder,) = index_folders(tmp_path)
    path = folder / "shots.arrow"
    place = path.read_bytes().index(memoryview(map_index(folder).shots.column("data_at").buffers()[1]))
    whole = bytearray(path.read_bytes())
    whole[place] ^= 1
    path.write_bytes(whole)
    expected = f"{folder} was damaged (shots.arrow is not as it was written) and has been made anew"
    index = open_index(corpus)
    assert index.note == expected
    assert TrainingData(RECIPES["vivi-ex4-tiny"], index, None, None, None).notes() == [
        expected
    ]  # which training prints
    assert open_index(corpus).note == ""


def test_a_damaged_index_is_removed_once_it_is_made_anew(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)
    (folder,) = index_folders(tmp_path)
    (folder / "shots.arrow").write_bytes(b"rubbish")
    assert open_index(corpus).note != ""
    assert list((tmp_path / "index").iterdir()) == [folder]


def test_an_index_that_lacks_a_file_is_made_anew(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    for name in FILES:
        open_index(corpus)
        (folder,) = index_folders(tmp_path)
        (folder / name).unlink()
        index = open_index(corpus)
        assert_finds_everything(index, corpus)
        assert index.note == "" and (folder / name).exists()
        assert list((tmp_path / "index").iterdir()) == [folder]
        del index


def test_an_index_of_an_older_vivi_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    with monkeypatch.context() as older:
        older.setattr(index_module, "FORMAT", 1)
        open_index(corpus)
    (before,) = index_folders(tmp_path)
    index = open_index(corpus)
    assert_finds_everything(index, corpus)
    assert len(index_folders(tmp_path)) == 2 and before in index_folders(tmp_path) and index.note == ""


def test_where_there_is_no_room_the_index_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(index_module, "fsync", full)
    corpus = make_corpus(tmp_path, random_videos(4))
    index = open_index(corpus)
    assert_finds_everything(index, corpus)
    assert list((tmp_path / "index").iterdir()) == []
