"""Indexes of long ago are removed; processes that open, write and remove at once do not harm each other."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import assert_finds_everything, index_folders, make_corpus, random_videos

from vivi.data.index import open_index
from vivi.prepare.corpus import Corpus, VideoRow, write_videos
from vivi.prepare.index import build_index, index_key, write_index

DAY = 24 * 3600


def change(corpus: Corpus, split: str) -> Corpus:
    """Another corpus in the same folder: other videos are held out."""
    rows: list[dict[str, Any]] = corpus.videos.to_pylist()
    write_videos(corpus.path, [VideoRow(**{**row, "split": split}) for row in rows])
    return Corpus(corpus.path)


def age(folder: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(folder, (then, then))


def test_an_older_index_stays_for_a_week(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    open_index(corpus)
    (first,) = index_folders(tmp_path)
    age(first, 6)
    open_index(change(corpus, "test"))
    assert first in index_folders(tmp_path) and len(index_folders(tmp_path)) == 2
    age(first, 8)
    last = change(corpus, "train")
    assert_finds_everything(open_index(last), last)
    assert first not in index_folders(tmp_path) and len(index_folders(tmp_path)) == 2


def test_an_index_that_is_removed_can_still_be_read_by_those_who_have_it_mapped(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, random_videos(4))
    index = open_index(corpus)
    frames, names = np.array(index.frames), index.names.to_pylist()
    (folder,) = index_folders(tmp_path)
    age(folder, 30)
    open_index(change(corpus, "test"))
    assert folder not in index_folders(tmp_path)
    assert np.array_equal(index.frames, frames) and index.names.to_pylist() == names


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
    for name in ("old.tmp", "mine"):
        age(folder / name, 8)
    open_index(corpus)
    assert {path.name for path in folder.iterdir()} == {"new.tmp", "mine", index_key(corpus)}
