"""Files that were moved, overwritten or replaced between two runs of prepare are known by their content."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import Run, contents, reasons, write_video
from rich.console import Console

from vivi.data.index import open_index
from vivi.prepare.corpus import Corpus, VideoRow
from vivi.prepare.identity import FileIdentity, identify, same_content
from vivi.prepare.index import build_index
from vivi.prepare.piece import PrepareSettings, VideoTask, prepare_video
from vivi.prepare.prepare import prepare
from vivi.prepare.sources import Source
from vivi.prepare.statistics import corpus_statistics
from vivi.report.verify import verify

CLIPS = ["clip-0.mp4", "clip-1.mp4", "clip-2.mp4"]


def cards(folder: Path, name: str, seed: int) -> Path:
    """A folder of clips that are all called the same and last as long, whatever they show."""
    for number, clip in enumerate(CLIPS):
        write_video(folder / name / clip, shots=2, seed=seed + number)
    return folder / name


def by_name(rows: list[VideoRow]) -> dict[str, VideoRow]:
    return {row.video: row for row in rows}


def test_other_footage_under_the_same_names_is_prepared(tmp_path: Path) -> None:
    first, second = cards(tmp_path, "b1", 0), cards(tmp_path, "b2", 10)
    prepare([first], tmp_path / "corpus")
    shutil.rmtree(first)
    rows = by_name(prepare([second], tmp_path / "corpus"))
    assert sorted(rows) == [*(f"b2/{clip}" for clip in CLIPS), *CLIPS]
    assert rows["b2/clip-0.mp4"].path == str(second / "clip-0.mp4")
    assert rows["clip-0.mp4"].path == str(first / "clip-0.mp4")


def test_moved_files_keep_their_place_in_the_corpus(tmp_path: Path) -> None:
    first = cards(tmp_path, "b1", 0)
    before = by_name(prepare([first], tmp_path / "corpus"))
    first.rename(tmp_path / "b2")
    rows = by_name(prepare([tmp_path / "b2"], tmp_path / "corpus"))
    assert sorted(rows) == CLIPS
    assert rows["clip-1.mp4"].path == str(tmp_path / "b2" / "clip-1.mp4")
    assert [row.shard for row in rows.values()] == [row.shard for row in before.values()]


@pytest.mark.parametrize("how", ["in place, with its old time", "by a renamed file"])
def test_an_overwritten_file_is_named_and_prepared_again(how: str, tmp_path: Path, vivi: Run) -> None:
    folder, out = cards(tmp_path, "b1", 0), tmp_path / "corpus"
    prepare([folder], out)
    old, times = fingerprint(out), os.stat(folder / "clip-1.mp4")
    write_video(tmp_path / "new.mp4", shots=2, seed=99)
    if how == "by a renamed file":
        (tmp_path / "new.mp4").rename(folder / "clip-1.mp4")
    else:
        (folder / "clip-1.mp4").write_bytes((tmp_path / "new.mp4").read_bytes())
        os.utime(folder / "clip-1.mp4", ns=(times.st_atime_ns, times.st_mtime_ns))
    done = vivi("prepare", folder, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "changed since they were prepared, now prepared again: 1 videos (clip-1.mp4)" in done.stdout
    prepare([folder], tmp_path / "fresh")
    assert shots_of(out) == shots_of(tmp_path / "fresh")
    assert old != fingerprint(out) == fingerprint(tmp_path / "fresh")
    # The old shots stay in their shard; nothing stumbles over them.
    durations = [sorted(corpus_statistics(Corpus(corpus)).shot_seconds) for corpus in (out, tmp_path / "fresh")]
    assert durations[0] == pytest.approx(durations[1])
    assert not verify(out, tmp_path / "page", Console(quiet=True)).what_to_do
    assert len(open_index(Corpus(out))) == 3
    assert "now prepared again" not in vivi("prepare", folder, "--out", out).stdout


def fingerprint(corpus: Path) -> str:
    return str(build_index(Corpus(corpus)).about["fingerprint"])


def shots_of(corpus: Path) -> dict[str, list[tuple[list[float], list[bytes]]]]:
    opened = Corpus(corpus)
    rows = opened.videos.to_pylist()
    return {row["video"]: [(shot.times, shot.frames) for shot in opened.shots(row)] for row in rows}


def test_old_shots_never_come_back(tmp_path: Path) -> None:
    folder, out = cards(tmp_path, "b1", 0), tmp_path / "corpus"
    video = folder / "clip-0.mp4"
    prepare([video], out)
    write_video(video, shots=3, seed=50)
    (changed,) = prepare([video], out)
    assert (changed.shard, changed.shots) == (1, 3)
    # The first shard is named by no row any more; what it holds must not count as new.
    for _ in range(2):
        rows = by_name(prepare([folder / "clip-1.mp4"], out))
        assert rows["clip-0.mp4"] == changed
        assert by_name(prepare([video], out))["clip-0.mp4"] == changed
    video.write_text("no video any more")
    (skipped,) = [row for row in prepare([video], out) if row.video == "clip-0.mp4"]
    video.unlink()
    assert by_name(prepare([folder / "clip-2.mp4"], out))["clip-0.mp4"] == skipped


def test_the_number_of_a_deleted_shard_is_not_used_again(tmp_path: Path) -> None:
    folder, out = cards(tmp_path, "b1", 0), tmp_path / "corpus"
    for clip in CLIPS:
        prepare([folder / clip], out)
    (out / "shards" / "00002.arrow").unlink()
    write_video(folder / "a-first.mp4", shots=1, seed=7)
    prepare([folder / "a-first.mp4"], out)
    # As if killed before the table was written: the old table still speaks of shard 2.
    assert sorted(path.name for path in (out / "shards").iterdir()) == ["00000.arrow", "00001.arrow", "00003.arrow"]
    rows = by_name(prepare([folder], out))
    assert {name: row.shard for name, row in rows.items()} == {
        "clip-0.mp4": 0,
        "clip-1.mp4": 1,
        "a-first.mp4": 3,
        "clip-2.mp4": 4,
    }


def test_a_file_that_arrives_while_the_one_before_is_given_up_is_tried(videos: Path, tmp_path: Path) -> None:
    video = tmp_path / "a.mp4"
    video.write_bytes((videos / "d.mp4").read_bytes())
    task = VideoTask(Source("a.mp4", str(video)), str(tmp_path), PrepareSettings(), video_minutes=1e-6)

    def replaced(share: float, seconds: float) -> None:
        video.write_bytes((videos / "b.mp4").read_bytes())

    row = prepare_video(task, replaced).row
    assert row.status == "skipped" and not same_content(row.file, identify(str(video)))


def test_a_hole_that_is_filled_in_place_is_noticed(tmp_path: Path) -> None:
    """As in a file whose room was taken before it was downloaded."""
    path, content = tmp_path / "file", os.urandom(4_000_000)
    path.write_bytes(content[:500_000] + bytes(1_200_000) + content[1_700_000:])
    known = identify(str(path))
    with open(path, "r+b") as file:
        file.write(content)
    assert not same_content(known, identify(str(path), known))


def test_a_file_that_was_touched_or_copied_is_not_prepared_again(tmp_path: Path) -> None:
    folder, out = cards(tmp_path, "b1", 0), tmp_path / "corpus"
    prepare([folder], out)
    before = contents(out)
    (folder / "clip-0.mp4").touch()
    content = (folder / "clip-1.mp4").read_bytes()
    (folder / "clip-1.mp4").unlink()
    (folder / "clip-1.mp4").write_bytes(content)
    prepare([folder], out)
    after = contents(out)
    assert {name: shard for name, shard in after.items() if name != "videos"} == {
        name: shard for name, shard in before.items() if name != "videos"
    }
    assert (
        pq.read_table(out / "videos.parquet")["file_changed"][0].as_py() == os.stat(folder / "clip-0.mp4").st_ctime_ns
    )


def test_a_skipped_file_is_tried_again_once_it_has_changed(videos: Path, tmp_path: Path) -> None:
    out, late, missing = tmp_path / "corpus", tmp_path / "late.mp4", tmp_path / "missing.mp4"
    late.write_text("still being copied")
    (tmp_path / "list.txt").write_text(f"{late}\n{missing}\n")
    prepare([videos / "a.mp4", tmp_path / "list.txt"], out)
    assert reasons(out) == {"late.mp4": "not a video, or its start is damaged", "missing.mp4": "does not exist"}
    for path in (late, missing):
        path.write_bytes((videos / "b.mp4").read_bytes())
    assert {row.status for row in prepare([tmp_path / "list.txt"], out)} == {"ok"}


def test_an_older_corpus_keeps_its_videos_and_says_what_it_cannot_tell(tmp_path: Path, vivi: Run) -> None:
    folder, out = cards(tmp_path, "b1", 0), tmp_path / "corpus"
    prepare([folder], out)
    table = pq.read_table(out / "videos.parquet").drop_columns(["file_bytes", "file_changed", "file_hash"])
    table = table.replace_schema_metadata(None)
    pq.write_table(table, out / "videos.parquet")
    done = vivi("prepare", folder, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "prepared by an older vivi, which did not record the files: 3 videos" in " ".join(done.stdout.split())
    after = pq.read_table(out / "videos.parquet").drop_columns(["file_bytes", "file_changed", "file_hash"])
    assert after.equals(table)
    # A file elsewhere of the same name may be another: unknown counts as different.
    folder.rename(tmp_path / "b2")
    assert len(prepare([tmp_path / "b2"], out)) == 6


def test_identities_tell_size_head_middle_and_tail(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(500_000)
    path.write_bytes(content)
    known = identify(str(path))
    assert identify(str(path), known) is known
    for place in (0, 250_000, 499_999):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert not same_content(known, identify(str(path), known))
    path.write_bytes(content)
    assert same_content(known, identify(str(path), known))
    path.write_bytes(content + b"\0")
    assert not same_content(known, identify(str(path), known))
    path.write_bytes(b"")
    assert identify(str(path)).file_hash


def test_what_is_no_file_has_no_identity_and_is_never_the_same(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nowhere", tmp_path / "zero\0byte"):
        assert identify(str(path)) == identify(str(path), FileIdentity()) == FileIdentity()
    assert not same_content(FileIdentity(), FileIdentity())
