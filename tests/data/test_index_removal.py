"""Indexes that no process uses any more are removed; processes that open, write and remove at once do not harm each
other."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import assert_finds_everything, index_folders, make_corpus, random_videos

from vivi.data.index import open_index
from vivi.prepare.corpus import Corpus, VideoRow, write_videos
from vivi.prepare.index import build_index, index_key, write_index


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
    assert len(index_folders(tmp_path)) == 2
    assert np.array_equal(used.frames, frames)
    del used
    gc.collect()
    last = change(corpus, "train")
    assert_finds_everything(open_index(last), last)
    assert len(index_folders(tmp_path)) == 1


def test_an_index_in_use_by_another_process_is_not_removed(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    script = """
import sys
from vivi.data.index import open_index
from vivi.prepare.corpus import Corpus
index = open_index(Corpus(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
print(int(index.frames.sum()), flush=True)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "open\n"
        (before,) = index_folders(tmp_path)
        changed = change(corpus, "test")
        open_index(changed)
        assert before in index_folders(tmp_path) and len(index_folders(tmp_path)) == 2
        output, _ = other.communicate("\n", timeout=60)
    assert int(output) == open_index(changed).frames.sum()
    open_index(change(corpus, "train"))
    assert before not in index_folders(tmp_path)


def test_what_cannot_be_locked_is_opened_and_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: object, kind: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)
    changed = change(corpus, "test")
    assert_finds_everything(open_index(changed), changed)
    assert len(index_folders(tmp_path)) == 2
    monkeypatch.setattr("vivi.data.index.build_index", lambda corpus: pytest.fail("built anew"))
    assert_finds_everything(open_index(changed), changed)


@pytest.mark.parametrize("lost_at", ["videos.arrow", "shots.arrow"])
def test_an_index_that_goes_while_it_is_opened_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_at: str
) -> None:
    """Another process removes it before it is opened, or after the first of its files was."""
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)
    (folder,) = index_folders(tmp_path)
    lost: list[Path] = []
    flock = fcntl.flock

    def lock_and_lose(file: Any, kind: int) -> None:
        flock(file, kind)
        if not lost and Path(file.name).name == lost_at:
            lost.append(folder)
            shutil.rmtree(folder)

    monkeypatch.setattr(fcntl, "flock", lock_and_lose)
    assert_finds_everything(open_index(corpus), corpus)
    assert lost == [folder]
    monkeypatch.undo()
    assert_finds_everything(open_index(corpus), corpus)


def test_an_index_that_is_being_removed_is_not_opened(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)
    (folder,) = index_folders(tmp_path)
    before = folder.stat().st_ino
    with open(folder / "shots.arrow", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        index = open_index(corpus)
        assert_finds_everything(index, corpus)
        assert index.note == ""
    assert folder.stat().st_ino != before


def test_an_index_for_which_another_process_was_faster_is_left_as_it_is(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    tables = build_index(corpus)
    write_index(tmp_path, tables)
    (folder,) = index_folders(tmp_path)
    before = folder.stat().st_ino
    write_index(tmp_path, tables)
    assert folder.stat().st_ino == before and list((tmp_path / "index").iterdir()) == [folder]


def test_an_index_that_appears_just_before_ours_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    tables = build_index(corpus)
    write_index(tmp_path, tables)
    (folder,) = index_folders(tmp_path)
    faster = folder.rename(tmp_path / "faster")
    rename = os.rename

    def too_late(source: Path, target: Path) -> None:
        if target == folder:
            shutil.copytree(faster, folder)
        rename(source, target)

    monkeypatch.setattr(os, "rename", too_late)
    write_index(tmp_path, tables)
    assert list((tmp_path / "index").iterdir()) == [folder]
    assert_finds_everything(open_index(corpus), corpus)


def test_what_killed_processes_left_goes_and_what_is_new_or_of_others_stays(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    folder = tmp_path / "index"
    for name in ("old.tmp", "new.tmp", "mine"):
        (folder / name).mkdir(parents=True)
        (folder / name / "shots.arrow").write_bytes(b"?")
    long_ago = time.time() - 2 * 24 * 3600
    for name in ("old.tmp", "mine"):
        os.utime(folder / name, (long_ago, long_ago))
    open_index(corpus)
    assert {path.name for path in folder.iterdir()} == {"new.tmp", "mine", index_key(corpus)}
