"""vivi inspect --verify: whatever is altered in a shard is found and named, and what it says to do mends it."""

from __future__ import annotations

import csv
import io
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Run, contents
from PIL import Image
from rich.console import Console

from vivi.prepare.corpus import SHOT_SCHEMA, VIDEO_SCHEMA, Corpus, shard_path
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.report.inspect import write_page
from vivi.report.verify import Verified, verify
from vivi.runtime.errors import UserError

Row = dict[str, Any]


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    """A corpus that a test may damage."""
    shutil.copytree(corpus, tmp_path / "corpus", ignore=shutil.ignore_patterns("index"))
    return tmp_path / "corpus"


def prepared_again(corpus: Path, copy: Path) -> None:
    """The command that made the corpus, for its copy."""
    settings = PrepareSettings(rate=5, short_side=48, min_shot_seconds=0.3, test_fraction=0.45)
    prepare(
        [corpus.parent / "videos"],
        copy,
        settings,
        PrepareExecution(workers=2, shard_megabytes=0.05),
        Console(quiet=True),
    )


def verified(corpus: Path) -> tuple[Verified, str, list[Row]]:
    """What is found, what is said, and the list in the file."""
    console = Console(file=io.StringIO(), width=200)
    found = verify(corpus, corpus.parent / "page", console)
    with open(corpus.parent / "page" / "damaged.csv", newline="", encoding="utf-8") as file:
        listed = list(csv.DictReader(file))
    assert isinstance(console.file, io.StringIO)
    return found, console.file.getvalue(), listed


def videos(corpus: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(corpus / "videos.parquet").to_pylist()
    return sorted(rows, key=lambda row: (row["shard"], row["first_row"]))


def name(row: Row) -> str:
    return str(row["video"])


def write_table(corpus: Path, rows: list[Row]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, VIDEO_SCHEMA), corpus / "videos.parquet")


def change_rows(corpus: Path, shard: int, change: Callable[[list[Row]], None]) -> None:
    """Writes a shard anew with other rows."""
    with pa.memory_map(str(shard_path(corpus, shard))) as source:
        reader = pa.ipc.open_file(source)
        schema, rows = reader.schema, reader.read_all().to_pylist()
    change(rows)
    with pa.OSFile(str(shard_path(corpus, shard)), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))


def alter_frame(corpus: Path, video: Row, shot: int, frame: int, place: int = 200) -> None:
    """Changes one byte of a frame where it lies in its shard."""
    jpeg = list(Corpus(corpus).shots(video))[shot].frames[frame]
    path = shard_path(corpus, video["shard"])
    content = bytearray(path.read_bytes())
    content[content.index(jpeg) + place] ^= 0x40
    path.write_bytes(content)


def test_a_sound_corpus_is_said_to_be(copy: Path) -> None:
    found, said, listed = verified(copy)
    frames = sum(row["frames"] for row in videos(copy))
    assert found == Verified(False, "") and listed == []
    shards = len(list((copy / "shards").iterdir()))
    assert f"read: {frames} frames, videos: 12, shards: {shards}; nothing is damaged" in said
    assert "checksum" not in said


def test_an_altered_frame_is_named_and_what_is_said_to_do_mends_it(corpus: Path, copy: Path, vivi: Run) -> None:
    before = contents(copy)
    video = next(row for row in videos(copy) if row["shots"] >= 3 and row["shard"] > 0)
    alter_frame(copy, video, shot=2, frame=1)
    done = vivi("inspect", copy, "--verify", "--out", copy.parent / "page")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    path = shard_path(copy, video["shard"])
    inside = sum(row["shard"] == video["shard"] for row in videos(copy))
    anew = f"its {inside} videos are made anew" if inside > 1 else "its 1 video is made anew"
    assert " ".join(done.stderr.split()) == (
        f"error: {copy} is damaged; delete {path} and run the same vivi prepare again: {anew}"
    )
    assert video["video"] in done.stdout and "its checksum is wrong" in " ".join(done.stdout.split())
    assert (copy.parent / "page" / "index.html").exists()
    _, _, listed = verified(copy)
    expected = {"video": video["video"], "shot": "2", "frame": "1", "shard": path.name}
    assert listed == [{**expected, "problem": "its checksum is wrong"}]

    path.unlink()
    prepared_again(corpus, copy)
    assert verified(copy)[0].what_to_do == ""
    after = contents(copy)
    if path.exists():  # it was the last shard, so its number is free again
        assert after == before
    for old, new in zip(sorted(videos(corpus), key=name), sorted(videos(copy), key=name), strict=True):
        assert list(Corpus(copy).shots(new)) == list(Corpus(corpus).shots(old))


def test_frames_without_a_checksum_are_decoded(copy: Path) -> None:
    """As those of older corpora."""
    counted = 0

    def without(rows: list[Row]) -> None:
        nonlocal counted
        for row in rows:
            row["frames"] = [jpeg[:20] + jpeg[38:] for jpeg in row["frames"]]
            assert all(Image.open(io.BytesIO(jpeg)).load() for jpeg in row["frames"])
            counted += len(row["frames"])

    change_rows(copy, 0, without)
    found, said, listed = verified(copy)
    assert found.what_to_do == "" and listed == []
    assert f"{counted} of them are from an older vivi and have no checksum" in said

    change_rows(copy, 0, lambda rows: rows[0]["frames"].__setitem__(1, rows[0]["frames"][1][:100]))
    _, _, listed = verified(copy)
    assert [(one["shot"], one["frame"]) for one in listed] == [("0", "1")]
    assert listed[0]["problem"].startswith("cannot be decoded: ")


def test_a_lost_checksum_is_noticed(copy: Path) -> None:
    alter_frame(copy, videos(copy)[0], shot=0, frame=2, place=25)
    _, _, listed = verified(copy)
    assert [(one["frame"], one["problem"]) for one in listed] == [("2", "its checksum is lost")]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda row: row["times"].__setitem__(1, math.nan), "its times are not finite"),
        (lambda row: row["times"].__setitem__(1, math.inf), "its times are not finite"),
        (lambda row: row["times"].__setitem__(1, row["times"][0]), "its times do not increase"),
        (lambda row: row.update(times=[0.0, *row["times"][1:]]), "its times do not increase"),
        (lambda row: row["times"].pop(), "frames and"),
        (lambda row: row.update(times=None), "frames and 0 times"),
        (lambda row: row.update(frames=[]), "has no frames"),
        (lambda row: row["frames"].__setitem__(0, None), "its checksum is lost"),
    ],
)
def test_wrong_times_and_missing_frames_are_named(copy: Path, change: Callable[[Row], None], problem: str) -> None:
    """In the second shot of a video, whose times follow those of the first."""
    video = next(row for row in videos(copy) if row["shots"] >= 2)
    change_rows(copy, video["shard"], lambda rows: change(rows[video["first_row"] + 1]))
    found, _, listed = verified(copy)
    assert found.what_to_do
    assert (listed[0]["video"], listed[0]["shot"]) == (video["video"], "1") and problem in listed[0]["problem"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows.pop(), "ends after"),
        (lambda rows: rows[-1].update(video="another"), "of 'another', but videos.parquet says shot"),
        (lambda rows: rows[-1].update(video=None), "of None, but videos.parquet says shot"),
        (lambda rows: rows[-1].update(shot=99), "is shot 99 of"),
        (lambda rows: rows[-1]["frames"].pop() and rows[-1]["times"].pop(), "but videos.parquet says"),
    ],
)
def test_rows_that_are_not_those_of_the_table_are_named(
    copy: Path, change: Callable[[list[Row]], None], problem: str
) -> None:
    change_rows(copy, 0, change)
    found, _, listed = verified(copy)
    assert shard_path(copy, 0).name in found.what_to_do
    assert problem in listed[-1]["problem"]


def test_a_missing_and_an_unreadable_shard_are_named(copy: Path) -> None:
    shard_path(copy, 0).unlink()
    content = shard_path(copy, 1).read_bytes()
    shard_path(copy, 1).write_bytes(content[: len(content) // 2])
    found, said, listed = verified(copy)
    assert found.unreadable
    assert [one["shard"] for one in listed] == ["00000.arrow", "00001.arrow"]
    assert "is missing" in listed[0]["problem"] and "is damaged or not a shard" in listed[1]["problem"]
    assert f"delete {shard_path(copy, 1)} and run" in found.what_to_do
    assert "(all)" in said


def test_a_missing_shard_need_not_be_deleted(copy: Path, vivi: Run) -> None:
    shard_path(copy, 0).unlink()
    done = vivi("inspect", copy, "--verify", "--out", copy.parent / "page")
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert f"{copy} is damaged; run the same vivi prepare again: " in said and "delete" not in said
    assert not (copy.parent / "page" / "index.html").exists()


def test_other_columns_are_no_shard(copy: Path) -> None:
    table = pa.table({name: ["a"] for name in SHOT_SCHEMA.names})
    with pa.OSFile(str(shard_path(copy, 0)), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    found, _, listed = verified(copy)
    assert found.unreadable and "its columns are not those of a shard" in listed[0]["problem"]
    with pytest.raises(UserError, match=r"00000\.arrow is damaged"):
        write_page(copy, copy.parent / "page")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("first_row", -5),
        ("first_row", 10**12),
        ("shots", 10**9),
        ("shots", 0),
        ("shots", None),
        ("shard", None),
        ("shard", -1),
        ("frames", 0),
        ("seconds", math.nan),
        ("codec", None),
    ],
)
def test_a_table_that_cannot_be_right_gets_one_line_and_what_it_says_to_do_mends_it(
    corpus: Path, copy: Path, column: str, value: object
) -> None:
    rows = videos(copy)
    rows[3][column] = value
    write_table(copy, rows)
    for command in (lambda: verified(copy), lambda: write_page(copy, copy.parent / "page")):
        with pytest.raises(UserError, match=r"videos\.parquet is damaged: it gives video .*delete it") as error:
            command()
        assert "\n" not in str(error.value)
    if column == "first_row":
        (copy / "videos.parquet").unlink()
        prepared_again(corpus, copy)
        assert verified(copy)[0].what_to_do == ""
        assert contents(copy) == contents(corpus)


def test_much_damage_is_shown_in_brief_and_listed_whole(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivi.report.verify._SHOWN", 3)
    monkeypatch.setattr("vivi.report.verify._NAMED", 1)
    for video in videos(copy):
        alter_frame(copy, video, 0, 0)
        alter_frame(copy, video, 0, 1)
    found, said, listed = verified(copy)
    assert len(listed) == 24 and "24 times damaged, in 12 videos" in said and "; 9 more videos: " in said
    shards = len(list((copy / "shards").iterdir()))
    assert f"delete the {shards} shards that {copy.parent / 'page' / 'damaged.csv'} names and run" in found.what_to_do
    assert "their 12 videos are made anew" in found.what_to_do


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_read(copy: Path) -> None:
    (copy.parent / "page").write_text("mine")
    with pytest.raises(UserError, match="is a file; give --out a folder"):
        verify(copy, copy.parent / "page", Console(quiet=True))


def test_rows_that_no_video_claims_are_passed_over(copy: Path) -> None:
    """Such as those of a file that changed and was prepared again, into another shard."""
    change_rows(copy, 0, lambda rows: rows.append(rows[-1] | {"frames": [b"damaged"] * len(rows[-1]["frames"])}))
    assert not verified(copy)[0].what_to_do


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [row.update(video="another") for row in rows], "holds other videos than videos.parquet says"),
        (lambda rows: rows.pop(), "holds fewer shots than videos.parquet says"),
        (lambda rows: rows[1].update(times=[math.nan] * len(rows[1]["times"])), "times that are not finite"),
        (lambda rows: rows[1].update(times=[0.0] * 99), "other times than frames"),
        (lambda rows: rows[1].update(times=[], frames=[]), "a shot has no frames"),
        (lambda rows: rows[1].update(frames=None), "something is missing in a shot"),
    ],
)
def test_shards_that_cannot_be_right_get_one_line(
    copy: Path, tmp_path: Path, change: Callable[[list[Row]], None], message: str
) -> None:
    change_rows(copy, 0, change)
    with pytest.raises(UserError, match=message) as error:
        write_page(copy, tmp_path / "page")
    assert "\n" not in str(error.value)
