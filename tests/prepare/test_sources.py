"""Which videos the arguments of prepare name, and what they are called."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vivi.prepare.sources import Source, list_sources, name_apart
from vivi.runtime.errors import UserError


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def named(*arguments: Path, taken: dict[str, str] | None = None) -> dict[str, str]:
    return {source.video: source.path for source in name_apart(list_sources(arguments)[0], taken or {})}


def test_a_folder_is_searched_recursively_and_names_are_relative_to_it(tmp_path: Path) -> None:
    touch(tmp_path / "x.mp4", tmp_path / "deep/er/y.MKV", tmp_path / "notes.md", tmp_path / ".hidden.mp4")
    sources, notes = list_sources([tmp_path])
    assert sorted(source.video for source in sources) == ["deep/er/y.MKV", "x.mp4"]
    assert notes == ["ignored 2 files that are not videos by name (1 .mp4, 1 .md)"]


def test_a_file_is_taken_whatever_its_suffix(tmp_path: Path) -> None:
    touch(tmp_path / "odd.bin")
    assert list(named(tmp_path / "odd.bin")) == ["odd.bin"]


def test_the_same_name_under_two_arguments_stays_distinct(tmp_path: Path) -> None:
    touch(tmp_path / "one/x.mp4", tmp_path / "two/x.mp4", tmp_path / "two/y.mp4")
    names = named(tmp_path / "one", tmp_path / "two")
    assert names == {
        "x.mp4": str(tmp_path / "one/x.mp4"),
        "two/x.mp4": str(tmp_path / "two/x.mp4"),
        "y.mp4": str(tmp_path / "two/y.mp4"),
    }


def test_names_do_not_depend_on_the_order_of_arguments(tmp_path: Path) -> None:
    touch(tmp_path / "one/x.mp4", tmp_path / "two/x.mp4")
    assert named(tmp_path / "one", tmp_path / "two") == named(tmp_path / "two", tmp_path / "one")


def test_a_file_named_twice_counts_once(tmp_path: Path) -> None:
    touch(tmp_path / "x.mp4")
    assert list(named(tmp_path, tmp_path / "x.mp4", tmp_path)) == ["x.mp4"]


def test_a_video_in_the_corpus_keeps_its_name_and_a_new_one_gets_another(tmp_path: Path) -> None:
    touch(tmp_path / "one/x.mp4", tmp_path / "two/x.mp4")
    taken = {"x.mp4": str(tmp_path / "two/x.mp4")}
    assert named(tmp_path / "one", tmp_path / "two", taken=taken) == {
        "x.mp4": str(tmp_path / "two/x.mp4"),
        "one/x.mp4": str(tmp_path / "one/x.mp4"),
    }


def test_names_are_unique_even_where_files_are_missing(tmp_path: Path) -> None:
    touch(tmp_path / "one/y.mp4", tmp_path / "two/x.mp4")
    (tmp_path / "one/x.mp4").symlink_to(tmp_path / "nowhere")
    assert list(named(tmp_path / "one", tmp_path / "two")) == ["two/x.mp4", "x.mp4", "y.mp4"]


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    touch(tmp_path / "disk/x.mp4")
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/link").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/loop").symlink_to(tmp_path / "videos")
    assert "link/x.mp4" in named(tmp_path / "videos")


def test_a_directory_with_a_video_name_is_reported_unless_it_holds_videos(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").mkdir()
    touch(tmp_path / "b.mp4/x.mp4")
    problems = {source.video: source.problem for source in list_sources([tmp_path])[0]}
    assert problems == {"a.mp4": "is a directory", "b.mp4/x.mp4": ""}


def test_file_names_that_are_not_unicode_are_spelled_out(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.mp4"
    try:
        with open(path, "wb") as file:
            file.write(b"x")
    except OSError:
        pytest.skip("the file system wants Unicode names")
    (source,) = list_sources([tmp_path])[0]
    assert source.video == "caf\\xe9.mp4"
    assert os.path.exists(source.path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_manifest_gives_paths_names_and_splits(tmp_path: Path, kind: str) -> None:
    rows = {"path": ["x.mp4", "sub/y.mp4", "z.mp4"], "video": ["ex", None, None], "split": ["test", "train", None]}
    if kind == "csv":
        lines = [
            ",".join(rows),
            *(",".join(value or "" for value in row) for row in zip(*rows.values(), strict=True)),
        ]
        (tmp_path / "list.csv").write_text("\n".join(lines))
    else:
        pq.write_table(pa.table(rows), tmp_path / "list.parquet")
    sources = list_sources([tmp_path / f"list.{kind}"])[0]
    assert sorted(sources, key=lambda source: source.video) == [
        Source("ex", str(tmp_path / "x.mp4"), "test"),
        Source("sub/y.mp4", str(tmp_path / "sub/y.mp4"), "train"),
        Source("z.mp4", str(tmp_path / "z.mp4"), None),
    ]


def test_a_text_manifest_has_a_path_per_line(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# mine\nx.mp4\n\n/elsewhere/y.mp4\n")
    assert named(tmp_path / "list.txt") == {"x.mp4": str(tmp_path / "x.mp4"), "y.mp4": "/elsewhere/y.mp4"}


def test_bad_rows_of_a_manifest_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,split\nx.mp4,train\n,test\ny.mp4,dev\nz.mp4\n")
    problems = {source.video: source.problem for source in list_sources([tmp_path / "list.csv"])[0]}
    assert problems == {
        "x.mp4": "",
        "list.csv, row 3": "no path in the manifest",
        "y.mp4": "split 'dev' in the manifest is neither train nor test",
        "z.mp4": "",
    }


def test_wrong_arguments_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        list_sources([tmp_path / "nowhere"])
    (tmp_path / "list.csv").write_text("file\nx.mp4\n")
    with pytest.raises(UserError, match="no column 'path'"):
        list_sources([tmp_path / "list.csv"])
    (tmp_path / "list.parquet").write_bytes(b"not parquet")
    with pytest.raises(UserError, match="cannot be read"):
        list_sources([tmp_path / "list.parquet"])
