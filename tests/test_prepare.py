"""vivi prepare as users meet it: real processes, real signals, real files."""

from __future__ import annotations

import fcntl
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Run, write_video
from PIL import Image

from vivi.video.corpus import SHOT_SCHEMA, VIDEO_SCHEMA, Corpus
from vivi.video.decode import SampledFrame, sample_frames
from vivi.video.piece import PrepareSettings, encode_jpeg, split_by_hash, split_into_shots
from vivi.video.prepare import Machine, prepare

SMALL_SHARDS = Machine(shard_megabytes=0.05)


def contents(corpus: Path) -> dict[str, object]:
    """Everything in a corpus, for comparing two of them: the table's rows and the shards' bytes."""
    shards = {path.name: path.read_bytes() for path in sorted((corpus / "shards").iterdir())}
    return {"videos": pq.read_table(corpus / "videos.parquet").to_pylist(), **shards}


def reasons(corpus: Path) -> dict[str, str]:
    """The skipped videos of a corpus with their reasons."""
    rows = pq.read_table(corpus / "videos.parquet").to_pylist()
    return {row["video"]: row["reason"] for row in rows if row["status"] == "skipped"}


@pytest.fixture(scope="session")
def undisturbed(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of all test videos, in several shards."""
    out = tmp_path_factory.mktemp("undisturbed") / "corpus"
    prepare([videos], out, PrepareSettings(rate=5), SMALL_SHARDS)
    return out


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
    prepare([videos], tmp_path / "corpus", PrepareSettings(rate=5), Machine(workers=5, shard_megabytes=0.05))
    assert contents(tmp_path / "corpus") == contents(undisturbed)


def start(*arguments: object) -> subprocess.Popen[str]:
    """A vivi command as the leader of a process group of its own."""
    command = [sys.executable, "-m", "vivi", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_ray_gives_the_same_corpus_though_a_worker_dies(undisturbed: Path, videos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "text.mp4").write_text("not a video")
    write_video(tmp_path / "zz-long.mp4", shots=3, shot_seconds=100)
    extra = [tmp_path / "text.mp4", tmp_path / "zz-long.mp4"]
    flags = ["--rate", 5, "--engine", "ray", "--shard-megabytes", 0.05]
    running = start("prepare", videos, *extra, "--out", tmp_path / "corpus", *flags)
    while not (at_work := ray_workers(tmp_path)):
        assert running.poll() is None
        time.sleep(0.01)
    os.kill(at_work[0], signal.SIGKILL)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    rows = pq.read_table(tmp_path / "corpus" / "videos.parquet").to_pylist()
    assert reasons(tmp_path / "corpus").keys() == {"text.mp4"}
    assert rows[-1]["video"] == "zz-long.mp4" and rows[-1]["status"] == "ok"
    assert [row for row in rows if row["video"] not in ("text.mp4", "zz-long.mp4")] == contents(undisturbed)["videos"]


def ray_workers(folder: Path) -> list[int]:
    """Process ids of Ray workers that have a file of this folder open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::" in (process / "cmdline").read_bytes():
                links = [os.readlink(link) for link in (process / "fd").iterdir()]
                found += [int(process.name)] * any(link.startswith(str(folder)) for link in links)
        except OSError:
            continue  # it has just ended
    return found


def dies_after_changes(
    running: subprocess.Popen[str], folder: Path, changes: int, kill: Callable[[int, int], None]
) -> bool:
    """Kills a process when files in the folder have come or gone so many times; False if it ended before."""
    before: set[str] = set()
    while running.poll() is None:
        now = {path for path, _, files in os.walk(folder) for path in [path, *files]}
        changes -= now != before
        before = now
        if changes < 0:
            kill(running.pid, signal.SIGKILL)
            running.communicate()
            return True
    running.communicate()
    return False


@pytest.mark.parametrize("everything", [True, False], ids=["with its workers", "the parent alone"])
def test_killed_at_any_moment_the_same_command_ends_with_the_same_corpus(
    undisturbed: Path, videos: Path, tmp_path: Path, everything: bool
) -> None:
    rng = random.Random(everything)
    out = tmp_path / "corpus"
    kills = 0
    while True:
        running = start("prepare", videos, "--out", out, "--rate", 5, "--workers", 1, "--shard-megabytes", 0.05)
        if not dies_after_changes(running, out, rng.randint(1, 12), os.killpg if everything else os.kill):
            break
        kills += 1
    assert running.returncode == 0
    assert kills >= 2
    assert contents(out) == contents(undisturbed)
    assert sorted(path.name for path in out.iterdir()) == ["corpus.json", "shards", "videos.parquet"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_goes_on(
    undisturbed: Path, videos: Path, tmp_path: Path, vivi: Run, number: signal.Signals
) -> None:
    out = tmp_path / "corpus"
    flags = ["prepare", videos, "--out", out, "--rate", 5, "--shard-megabytes", 0.05, "--workers", 1]
    running = start(*flags)
    while not any((out / "work").glob("*.json")):
        assert running.poll() is None
        time.sleep(0.01)
    os.killpg(running.pid, number)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert errors.strip() == "stopped; the same command goes on from here"
    assert vivi(*flags).returncode == 0
    assert contents(out) == contents(undisturbed)


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


def test_a_retry_that_was_killed_before_its_end_is_not_lost(videos: Path, tmp_path: Path) -> None:
    out, late = tmp_path / "corpus", tmp_path / "late.mp4"
    late.write_text("still being copied")
    prepare([videos / "a.mp4", late], out)
    table = (out / "videos.parquet").read_bytes()
    late.write_bytes((videos / "b.mp4").read_bytes())
    rows = prepare([late], out, machine=Machine(retry_skipped=True))
    (out / "videos.parquet").write_bytes(table)  # as if killed between the new shard and the table
    assert prepare([late], out) == rows


def test_skipped_videos_are_tried_again_only_on_request(videos: Path, tmp_path: Path) -> None:
    out, late = tmp_path / "corpus", tmp_path / "late.mp4"
    late.write_text("still being copied")
    prepare([videos / "a.mp4", late], out)
    late.write_bytes((videos / "b.mp4").read_bytes())
    assert [row.status for row in prepare([late], out)] == ["ok", "skipped"]
    assert [row.status for row in prepare([late], out, machine=Machine(retry_skipped=True))] == ["ok", "ok"]


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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_full_disk_is_a_clear_error_and_the_same_command_goes_on(
    undisturbed: Path, videos: Path, small_disk: Path, vivi: Run
) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(600_000))
    flags = ["prepare", videos, "--out", small_disk / "corpus", "--rate", 5, "--shard-megabytes", 0.05]
    done = vivi(*flags)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write") and done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr and "run the same command again" in done.stderr
    filler.unlink()
    done = vivi(*flags)
    assert done.returncode == 0, done.stderr
    assert contents(small_disk / "corpus") == contents(undisturbed)


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


def test_a_worker_whose_parent_was_killed_leaves_no_half_video(tmp_path: Path) -> None:
    write_video(tmp_path / "long.mp4", shots=8, shot_seconds=100)
    out = tmp_path / "corpus"
    flags = ["prepare", tmp_path / "long.mp4", "--out", out, "--rate", 10]
    running = start(*flags)
    while not any((out / "work").glob("*.tmp")):
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    running.kill()
    running.wait()
    assert not list((out / "work").glob("*.json"))
    again = start(*flags)
    again.communicate()
    assert again.returncode == 0
    (row,) = pq.read_table(out / "videos.parquet").to_pylist()
    assert (row["reason"], row["frames"]) == ("", 8000)


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


def test_a_moved_video_is_recognised_and_another_of_its_name_is_not(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    for card, source in (("card1", "d.mp4"), ("card2", "d.mp4"), ("card3", "a.mp4")):
        (tmp_path / card).mkdir()
        (tmp_path / card / "GOPR0001.mp4").write_bytes((videos / source).read_bytes())
    prepare([tmp_path / "card1"], out)
    (tmp_path / "card1" / "GOPR0001.mp4").unlink()
    (moved,) = prepare([tmp_path / "card2"], out)
    assert (moved.video, moved.path) == ("GOPR0001.mp4", str(tmp_path / "card2" / "GOPR0001.mp4"))
    (tmp_path / "card2" / "GOPR0001.mp4").unlink()
    rows = prepare([tmp_path / "card3"], out)
    assert [row.video for row in rows] == ["GOPR0001.mp4", "card3/GOPR0001.mp4"]


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


class FixedBoundaries:
    """A detector that finds given boundaries, `lookahead` frames late."""

    def __init__(self, boundaries: list[int], lookahead: int) -> None:
        self.boundaries = boundaries
        self.lookahead = lookahead
        self.count = 0

    def add(self, time: float, frame: object) -> list[int]:
        self.count += 1
        return [b for b in self.boundaries if b + self.lookahead == self.count - 1]

    def finish(self) -> list[int]:
        return [b for b in self.boundaries if b + self.lookahead >= self.count]


@pytest.mark.parametrize("seed", range(30))
def test_splitting_keeps_every_frame_every_boundary_and_the_cap(seed: int) -> None:
    rng = random.Random(seed)
    count, cap, lookahead = rng.randint(1, 120), rng.randint(1, 20), rng.randint(0, 15)
    boundaries = sorted(rng.sample(range(1, count), min(count - 1, rng.randint(0, 6))))
    blank = np.zeros((2, 2, 3), np.uint8)
    frames = (SampledFrame(float(index), blank) for index in range(count))
    shots = list(split_into_shots(frames, FixedBoundaries(boundaries, lookahead), cap, 90))
    assert [time for shot in shots for time, _ in shot] == list(range(count))
    starts = {int(shot[0][0]) for shot in shots}
    assert starts >= set(boundaries)
    assert max(map(len, shots)) <= cap
    # A take that must be split has no slivers: every part is at least half as long as the cap.
    for start, end in zip([0, *boundaries], [*boundaries, count], strict=True):
        parts = [len(shot) for shot in shots if start <= shot[0][0] < end]
        assert len(parts) == 1 or min(parts) >= cap // 2


def test_long_takes_are_split_on_request(tmp_path: Path) -> None:
    write_video(tmp_path / "take.mp4", shots=1, shot_seconds=19)
    (row,) = prepare([tmp_path / "take.mp4"], tmp_path / "whole", PrepareSettings(rate=2))
    assert row.shots == 1
    (row,) = prepare([tmp_path / "take.mp4"], tmp_path / "split", PrepareSettings(rate=2, max_shot_seconds=5))
    assert row.shots == 4
    corpus = Corpus(tmp_path / "split")
    assert [len(shot.times) for shot in corpus.shots(corpus.videos.to_pylist()[0])] == [10, 10, 9, 10]


def peak_memory(path: Path, out: Path) -> int:
    """Peak resident bytes of one worker that prepares the file."""
    script = (
        "import sys, resource; from vivi.video.piece import *; from vivi.video.sources import Source\n"
        f"task = VideoTask(Source('v', {str(path)!r}), {str(out)!r}, PrepareSettings(rate=10, max_shot_frames=50))\n"
        "row = prepare_video(task).row; assert row.status == 'ok', row\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    out.mkdir()
    return (
        int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout) * 1024
    )


def test_memory_does_not_grow_with_the_length_of_the_video(tmp_path: Path) -> None:
    for name, seconds in (("short.mp4", 20), ("long.mp4", 400)):
        write_video(tmp_path / name, shots=1, shot_seconds=seconds, size=(320, 240))
    short = peak_memory(tmp_path / "short.mp4", tmp_path / "short")
    long = peak_memory(tmp_path / "long.mp4", tmp_path / "long")
    written = sum(path.stat().st_size for path in (tmp_path / "long").glob("*.arrow"))
    assert written > 30e6
    assert long - short < 0.5 * written
