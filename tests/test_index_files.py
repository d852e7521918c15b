"""The files of an index: what is altered is noticed and made anew, what nobody uses any more is removed."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_index import assert_finds_everything, folders, make_corpus, random_videos

from vivi.batches import index as index_module
from vivi.batches import index_files
from vivi.batches.index import Arrays, Index, open_index
from vivi.storage import StorageError, read_checked_json
from vivi.training.data import Data
from vivi.video.corpus import Corpus, VideoRow, write_videos

Harm = Callable[[bytes, random.Random], bytes]


def flip_a_bit(whole: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(whole))
    return whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :]


def change_bytes(whole: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(whole))
    return (whole[:place] + rng.randbytes(rng.randrange(1, 40)) + whole[place:])[: len(whole)]


def change_a_digit(whole: bytes, rng: random.Random) -> bytes:
    """Of a JSON file, which stays one."""
    place = rng.choice([place for place, byte in enumerate(whole) if chr(byte) in "0123456789abcdef"])
    return whole[:place] + rng.choice("0123456789abcdef").encode() + whole[place + 1 :]


def cut(whole: bytes, rng: random.Random) -> bytes:
    return whole[: rng.randrange(len(whole))]


def lengthen(whole: bytes, rng: random.Random) -> bytes:
    return whole + rng.randbytes(rng.randrange(1, 40))


def content(index: Index) -> dict[str, object]:
    """What an index says, without its maps."""
    return {"fingerprint": index.fingerprint} | {
        field.name: getattr(index, field.name).tolist() for field in fields(Arrays)
    }


@pytest.mark.parametrize("harm", [flip_a_bit, change_bytes, change_a_digit, cut, lengthen])
def test_no_altered_file_of_the_index_changes_what_it_says(tmp_path: Path, harm: Harm) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    right = content(open_index(corpus))
    paths = sorted(path for path in (tmp_path / "index").rglob("*") if path.is_file())
    assert len(paths) == len(fields(Arrays)) + 2
    rng = random.Random(0)
    for path in paths:
        for _ in range(3):
            good = path.read_bytes()
            path.write_bytes(harm(good, rng))
            assert content(open_index(Corpus(tmp_path))) == right, path
            assert path.name.endswith(".json") or path.read_bytes() == good
    assert_finds_everything(open_index(corpus), corpus)


def test_files_that_changed_places_are_noticed(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    right = content(open_index(corpus))
    (folder,) = folders(tmp_path)
    one, other = folder / "first_shot.npy", folder / "first_frame.npy"
    assert one.stat().st_size == other.stat().st_size
    before = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(before)
    assert content(open_index(Corpus(tmp_path))) == right


def test_a_large_array_is_checked_to_its_end(tmp_path: Path) -> None:
    """Beyond one chunk of what is summed up at once."""
    arrays: dict[str, NDArray[Any]] = {"few": np.arange(3), "many": np.arange(700_000), "none": np.zeros(0, np.uint8)}
    index_files.save(arrays, tmp_path / "index" / "key")
    loaded = index_files.load(tmp_path / "index" / "key", list(arrays))
    assert all(np.array_equal(loaded[name], arrays[name]) for name in arrays)
    path = tmp_path / "index" / "key" / "many.npy"
    whole = bytearray(path.read_bytes())
    for place in (1 << 20, 5 << 20, len(whole) - 1):
        whole[place] ^= 1
        path.write_bytes(whole)
        with pytest.raises(ValueError, match=r"many\.npy is not as it was written"):
            index_files.load(tmp_path / "index" / "key", list(arrays))
        whole[place] ^= 1


def test_the_index_of_something_else_is_not_taken(tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "other", random_videos(3))
    open_index(other)
    corpus = make_corpus(tmp_path / "corpus", random_videos(4))
    open_index(corpus)
    (folder,) = folders(corpus.path)
    shutil.rmtree(folder)
    shutil.copytree(folders(other.path)[0], folder)
    again = open_index(corpus)
    assert_finds_everything(again, corpus)
    assert "it is the index of something else" in again.note


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    assert open_index(corpus).note == ""
    assert open_index(corpus).note == ""
    (folder,) = folders(tmp_path)
    path = folder / "test.npy"
    path.write_bytes(flip_a_bit(path.read_bytes(), random.Random(0)))
    expected = f"{folder} was damaged (test.npy is not as it was written) and has been made anew"
    index = open_index(corpus)
    assert index.note == expected
    assert Data(index, None, None, None).notes() == [expected]  # which training prints
    assert open_index(corpus).note == ""


def test_an_index_of_an_older_version_is_made_anew(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)
    (folder,) = folders(tmp_path)
    (folder / "checksums.json").unlink()
    index = open_index(corpus)
    assert_finds_everything(index, corpus)
    assert index.note == "" and (folder / "checksums.json").exists()
    assert folders(tmp_path) == [folder]


def test_where_the_checksums_cannot_be_written_the_index_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: object) -> None:
        raise StorageError("No space left on device")

    monkeypatch.setattr(index_files, "write_checked_json", full)
    corpus = make_corpus(tmp_path, random_videos(4))
    assert_finds_everything(open_index(corpus), corpus)
    assert folders(tmp_path) == []


def change(corpus: Corpus, split: str) -> Corpus:
    """Another corpus in the same folder: other videos are held out."""
    rows: list[dict[str, Any]] = corpus.videos.to_pylist()
    write_videos(corpus.path, [VideoRow(**{**row, "split": split}) for row in rows])
    return Corpus(corpus.path)


def test_an_index_goes_when_another_is_in_place_unless_it_is_in_use(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    used = open_index(corpus)
    frames = np.array(used.frames)
    changed = change(corpus, "test")
    open_index(changed)
    assert len(folders(tmp_path)) == 2
    assert np.array_equal(used.frames, frames)
    del used
    gc.collect()
    last = change(corpus, "train")
    assert_finds_everything(open_index(last), last)
    assert len(folders(tmp_path)) == 1


def test_what_cannot_be_locked_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: object, kind: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)
    changed = change(corpus, "test")
    assert_finds_everything(open_index(changed), changed)
    assert len(folders(tmp_path)) == 2


def test_an_index_that_goes_while_it_is_opened_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes it after latest.json was read, or after some of its files were opened."""
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)

    def read_and_lose(path: Path) -> Any:
        content = read_checked_json(path)
        for folder in folders(tmp_path):
            shutil.rmtree(folder)
        return content

    for module in (index_module, index_files):
        monkeypatch.setattr(module, "read_checked_json", read_and_lose)
        assert_finds_everything(open_index(corpus), corpus)
        monkeypatch.undo()
    assert_finds_everything(open_index(corpus), corpus)


def test_an_index_that_is_being_removed_is_not_opened(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)
    (folder,) = folders(tmp_path)
    with open(folder / "frames.npy", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert_finds_everything(open_index(corpus), corpus)


def test_what_killed_processes_left_goes_and_what_is_new_or_of_others_stays(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    folder = tmp_path / "index"
    for name in ("old.tmp", "new.tmp", "mine"):
        (folder / name).mkdir(parents=True)
        (folder / name / "frames.npy").write_bytes(b"?")
    for name in ("latest.json.123.tmp", "latest.json.124.tmp"):
        (folder / name).write_bytes(b"{")
    long_ago = time.time() - 2 * 24 * 3600
    for name in ("old.tmp", "latest.json.123.tmp", "mine"):
        os.utime(folder / name, (long_ago, long_ago))
    open_index(corpus)
    left = {path.name for path in folder.iterdir() if len(path.name) != 24}
    assert left == {"new.tmp", "mine", "latest.json", "latest.json.124.tmp"}
