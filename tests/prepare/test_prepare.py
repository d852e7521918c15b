"""vivi prepare as users meet it: real processes, real signals, real files."""

from __future__ import annotations

import fcntl
import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Run, contents, reasons, write_video
from PIL import Image

from vivi.prepare.corpus import SHOT_SCHEMA, VIDEO_SCHEMA, Corpus
from vivi.prepare.decode import sample_frames
from vivi.prepare.jpeg import encode_jpeg
from vivi.prepare.piece import PrepareSettings, split_by_hash
from vivi.prepare.prepare import PrepareExecution, prepare


def test_the_corpus_on_disk_is_what_the_design_says(undisturbed: Path, videos: Path) -> None:
    table = pq.read_table(undisturbed / "videos.parquet")
    assert table.schema.equals(VIDEO_SCHEMA)
    assert json.loads((undisturbed / "corpus.json").read_text())["rate"] == 5
    assert not (undisturbed / "work").exists()
    rows = table.to_pylist()
    assert {row["video"] for row in rows} == {str(path.relative_to(videos)) for path in videos.rglob("*.mp4")}
    assert len({row["shard"] for row in rows}) > 1
    for row in rows:
        with pa.memory_map(str(undisturbed / "shards" / f"{row['shard']:05d}.arrow")) as source:
            shard = pa.ipc.open_file(source).read_all()
        assert shard.schema.remove_metadata().equals(SHOT_SCHEMA)
        shots = shard.slice(row["first_row"], row["shots"]).to_pylist()
        assert [shot["video"] for shot in shots] == [row["video"]] * row["shots"]
        assert [shot["shot"] for shot in shots] == list(range(row["shots"]))
        times = [time for shot in shots for time in shot["times"]]
        assert times == sorted(times) and len(times) == row["frames"]
        jpegs = [frame for shot in shots for frame in shot["frames"]]
        assert all(Image.open(io.BytesIO(jpeg)).size == (96, 64) for jpeg in jpegs)


def test_shots_are_the_videos_shots(undisturbed: Path) -> None:
    corpus = Corpus(undisturbed)
    shots = {row["video"]: row["shots"] for row in corpus.videos.to_pylist()}
    assert shots == {
        "a.mp4": 1,
        "b.mp4": 2,
        "c.mp4": 3,
        "d.mp4": 4,
        "e.mp4": 1,
        "f.mp4": 2,
        "left/same.mp4": 3,
        "right/same.mp4": 4,
    }
    for row in corpus.videos.to_pylist():
        for shot in corpus.shots(row):
            # The first frame sampled after the cut: at most one step of the grid and half a step off it.
            assert 2.0 * shot.shot <= shot.times[0] <= 2.0 * shot.shot + 0.31


def test_frames_are_those_the_decoder_samples(undisturbed: Path, videos: Path) -> None:
    corpus = Corpus(undisturbed)
    (row,) = [row for row in corpus.videos.to_pylist() if row["video"] == "d.mp4"]
    stored = [pair for shot in corpus.shots(row) for pair in zip(shot.times, shot.frames, strict=True)]
    sampled = [(frame.time, encode_jpeg(frame.image, 90)) for frame in sample_frames(videos / "d.mp4", rate=5)]
    assert stored == sampled


def test_the_number_of_workers_does_not_change_the_corpus(undisturbed: Path, videos: Path, tmp_path: Path) -> None:
    prepare([videos], tmp_path / "corpus", PrepareSettings(rate=5), PrepareExecution(workers=5, shard_megabytes=0.05))
    assert contents(tmp_path / "corpus") == contents(undisturbed)


def test_more_videos_are_appended(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepare([videos / "a.mp4"], out)
    before = (out / "shards" / "00000.arrow").read_bytes()
    rows = prepare([videos / "a.mp4", videos / "b.mp4"], out)
    assert [(row.video, row.shard) for row in rows] == [("a.mp4", 0), ("b.mp4", 1)]
    assert (out / "shards" / "00000.arrow").read_bytes() == before
    assert prepare([videos / "b.mp4"], out) == rows


def test_a_deleted_shard_is_made_again(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepare([videos / "a.mp4"], out)
    prepare([videos / "b.mp4"], out)
    (out / "shards" / "00000.arrow").unlink()
    rows = prepare([videos / "a.mp4", videos / "b.mp4"], out)
    assert sorted((row.video, row.shard) for row in rows) == [("a.mp4", 2), ("b.mp4", 1)]


def test_everything_unusable_is_named_with_its_reason(videos: Path, tmp_path: Path, vivi: Run) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    good = (videos / "d.mp4").read_bytes()
    (folder / "good.mp4").write_bytes(good)
    (folder / "empty.mp4").touch()
    (folder / "header.mp4").write_bytes(good[:32])
    (folder / "text.mp4").write_text("this is no video\n" * 50)
    (folder / "directory.mp4").mkdir()
    Image.new("RGB", (64, 64)).save(folder / "still.mp4", "PNG")
    (folder / "dangling.mp4").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.mp4")
    write_video(folder / "one-frame.mp4", shots=1, shot_seconds=0.1)
    done = vivi("prepare", folder, "--out", tmp_path / "corpus")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = reasons(tmp_path / "corpus")
    assert found == {
        "header.mp4": "not a video, or its start is damaged",
        "text.mp4": "not a video, or its start is damaged",
        "empty.mp4": "is empty (0 bytes)",
        "directory.mp4": "is a directory",
        "still.mp4": "is a still image",
        "dangling.mp4": "does not exist",
        "pipe.mp4": "is not a regular file",
    }
    rows = pq.read_table(tmp_path / "corpus" / "videos.parquet").to_pylist()
    assert {row["video"]: row["frames"] for row in rows if row["status"] == "ok"} == {
        "good.mp4": 9,
        "one-frame.mp4": 1,
    }


def test_nothing_usable_is_an_error(tmp_path: Path, vivi: Run) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    done = vivi("prepare", tmp_path / "text.mp4", "--out", tmp_path / "corpus")
    assert done.returncode == 1
    assert done.stderr == "error: none of the videos could be used\n"
    assert reasons(tmp_path / "corpus").keys() == {"text.mp4"}


def test_skipped_videos_are_tried_again_only_on_request(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepare([videos / "a.mp4"], out)
    prepare([videos / "d.mp4"], out, execution=PrepareExecution(video_minutes=1e-6))
    assert reasons(out) == {"d.mp4": "takes longer than 1e-06 minutes (--video-minutes)"}
    for execution, expected in ((PrepareExecution(), "skipped"), (PrepareExecution(retry_skipped=True), "ok")):
        assert [row.status for row in prepare([videos], out, execution=execution)].count("skipped") == (
            expected == "skipped"
        )


@pytest.mark.parametrize("how", ["vanishes", "is cut off"])
def test_a_file_that_changes_while_being_read_gives_what_was_there(tmp_path: Path, how: str) -> None:
    path = tmp_path / "long.mkv"
    write_video(path, shots=10, shot_seconds=10.0)
    frames = sample_frames(path, rate=10)
    before = [next(frames) for _ in range(5)]
    if how == "vanishes":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2)
    after = list(frames)
    assert [frame.time for frame in before + after] == sorted(frame.time for frame in before + after)
    assert len(after) > 100


def test_two_runs_at_once_do_not_mix(videos: Path, tmp_path: Path, vivi: Run) -> None:
    (tmp_path / "corpus").mkdir()
    lock = os.open(tmp_path / "corpus", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = vivi("prepare", videos, "--out", tmp_path / "corpus")
    os.close(lock)
    assert done.returncode == 1
    assert "another vivi prepare is writing" in done.stderr


def test_other_settings_for_the_same_corpus_are_an_error(videos: Path, tmp_path: Path, vivi: Run) -> None:
    prepare([videos / "a.mp4"], tmp_path / "corpus")
    done = vivi("prepare", videos, "--out", tmp_path / "corpus", "--rate", 2)
    assert done.returncode == 1
    assert "was prepared with --rate 1.0, not 2.0" in done.stderr


def test_a_folder_with_other_files_is_not_taken_for_a_corpus(videos: Path, tmp_path: Path, vivi: Run) -> None:
    (tmp_path / "mine" / "work").mkdir(parents=True)
    (tmp_path / "mine" / "work" / "thesis.tex").write_text("years of work")
    done = vivi("prepare", videos, "--out", tmp_path / "mine")
    assert done.returncode == 1
    assert "holds other files" in done.stderr
    assert (tmp_path / "mine" / "work" / "thesis.tex").exists()


def test_names_in_brackets_are_shown_as_they_are(videos: Path, tmp_path: Path, vivi: Run) -> None:
    folder = tmp_path / "["
    (folder / "Film [").mkdir(parents=True)
    (folder / "Film [" / "red] [eztv].mp4").write_text("no video")
    done = vivi("prepare", folder, videos / "a.mp4", "--out", tmp_path / "corpus [bold]")
    assert done.returncode == 0, done.stderr
    assert (
        "[eztv]" in done.stdout.replace("\n", "")
        and "vivi inspect '" in done.stdout
        and "corpus [bold]'" in done.stdout
    )
    done = vivi("prepare", tmp_path / "nope [" / "red].mp4", "--out", tmp_path / "c")
    assert done.stderr.startswith("error: ") and "nope [/red].mp4 does not exist" in done.stderr


def test_a_ray_cluster_that_is_not_there_is_one_clear_line(videos: Path, tmp_path: Path, vivi: Run) -> None:
    pytest.importorskip("ray")
    done = vivi("prepare", videos, "--out", tmp_path / "c", "--engine", "ray", "--ray-address", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr == "error: no Ray cluster at --ray-address 127.0.0.1:1: Connection refused\n"
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "flags",
    [["--rate", "0"], ["--rate", "nan"], ["--jpeg-quality", "101"], ["--test-fraction", "2"], ["--short-side", "1"]],
)
def test_wrong_settings_fail_before_any_work(videos: Path, tmp_path: Path, vivi: Run, flags: list[str]) -> None:
    done = vivi("prepare", videos, "--out", tmp_path / "corpus", *flags)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {flags[0]} is ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "corpus").exists()


def test_wrong_places_are_one_clear_line(videos: Path, tmp_path: Path, vivi: Run) -> None:
    done = vivi("prepare", tmp_path / "nowhere", "--out", tmp_path / "corpus")
    assert done.returncode == 1 and "does not exist" in done.stderr
    (tmp_path / "empty").mkdir()
    done = vivi("prepare", tmp_path / "empty", "--out", tmp_path / "corpus")
    assert done.returncode == 1 and "no videos found" in done.stderr
    (tmp_path / "file").touch()
    done = vivi("prepare", videos, "--out", tmp_path / "file")
    assert done.returncode == 1 and "cannot write to" in done.stderr


def test_the_split_is_a_fixed_share_by_name() -> None:
    splits = [split_by_hash(f"video {index}", 0.2) for index in range(5000)]
    assert splits.count("test") / 5000 == pytest.approx(0.2, abs=0.02)
    assert splits == [split_by_hash(f"video {index}", 0.2) for index in range(5000)]
    assert {split_by_hash(f"video {index}", 0.0) for index in range(100)} == {"train"}
    assert {split_by_hash(f"video {index}", 1.0) for index in range(100)} == {"test"}


def test_a_manifest_decides_the_split(videos: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(f"path,split\n{videos}/a.mp4,test\n{videos}/b.mp4,train\n")
    rows = prepare([tmp_path / "list.csv"], tmp_path / "corpus", PrepareSettings(test_fraction=0))
    assert {row.video: row.split for row in rows} == {"a.mp4": "test", "b.mp4": "train"}
