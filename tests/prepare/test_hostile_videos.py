"""Files that want too much memory or time, damaged ones, and names that are no text: one video each, and no more."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from av.packet import Packet
from av.video.stream import VideoStream
from clips import CLIPS
from conftest import PEAK, Run, contents, reasons, write_video
from media import Clip, damage, write_header_bomb
from PIL import Image

from vivi.data.index import open_index
from vivi.prepare.corpus import Corpus, read_videos, shard_videos, write_videos
from vivi.prepare.decode import sample_frames
from vivi.prepare.piece import PrepareSettings, VideoTask, finished_piece, prepare_video
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.prepare.sources import Source, list_sources
from vivi.prepare.statistics import corpus_statistics
from vivi.runtime.errors import UserError


def test_raw_frames_do_not_pile_up_in_a_worker(tmp_path: Path) -> None:
    # Decoded frames of this size take 1.4 MB: 250 of them 350 MB.
    write_video(tmp_path / "large.mp4", shots=1, shot_seconds=25, size=(1280, 720))
    script = (
        "from vivi.prepare.decode import sample_frames\n"
        f"frames = sample_frames({str(tmp_path / 'large.mp4')!r}, 10); next(frames)\n"
        f"before = {PEAK}\n"
        "assert sum(1 for _ in frames) == 249\n"
        f"print({PEAK} - before)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60e6


def test_a_file_that_asks_for_too_much_memory_is_skipped_and_the_reason_says_so(videos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    (folder / "good.mp4").write_bytes((videos / "d.mp4").read_bytes())
    bomb = write_header_bomb(folder / "bomb.mp4", 30_000_000)  # 2 GB
    assert bomb.stat().st_size < 20_000
    rows = prepare([folder], tmp_path / "corpus", execution=PrepareExecution(worker_memory=0.5))
    assert [row.status for row in rows] == ["skipped", "ok"]
    assert reasons(tmp_path / "corpus") == {"bomb.mp4": "needs more than 0.5 GB of memory (--worker-memory)"}


def test_the_parent_opens_no_video(videos: Path, tmp_path: Path) -> None:
    # Also where it must tell whether a file has moved: the bomb would take 2 GB of the parent's memory.
    (tmp_path / "b1").mkdir()
    bomb = write_header_bomb(tmp_path / "b1" / "bomb.mp4", 30_000_000)
    script = (
        "import sys; from pathlib import Path; from vivi.prepare.prepare import *\n"
        "if __name__ == '__main__':\n"
        "    videos, out = [Path(sys.argv[1]), Path(sys.argv[2])], Path(sys.argv[3])\n"
        "    prepare(videos, out, execution=PrepareExecution(worker_memory=0.5))\n"
        f"    print({PEAK})"
    )

    def peak(video: Path) -> int:
        (tmp_path / "run.py").write_text(script)
        words = [tmp_path / "run.py", video, videos / "a.mp4", tmp_path / "corpus"]
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=True)
        return int(done.stdout.split()[-1])

    peak(bomb)
    (tmp_path / "b2").mkdir()
    moved = bomb.rename(tmp_path / "b2" / "bomb.mp4")
    assert peak(moved) < 400e6
    (row,) = [row for row in read_videos(tmp_path / "corpus") if row.status == "skipped"]
    assert (row.video, row.path) == ("bomb.mp4", str(moved))


def test_damaged_videos_give_the_same_corpus_with_any_number_of_workers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("h264-ts", "hevc", "vp8", "vp9", "mpeg2-ts", "mpeg4-avi-b"):
        clip = CLIPS[name]
        content = clip.write(tmp_path / f"whole{clip.suffix}", 60).read_bytes()
        for copy in range(6):
            (folder / f"{name}-{copy}{clip.suffix}").write_bytes(damage(content, rng))
    made = []
    for workers in (1, 2, 4):
        out = tmp_path / f"corpus-{workers}"
        prepare([folder], out, PrepareSettings(rate=5), PrepareExecution(workers=workers))
        made.append(contents(out))
    assert made[0] == made[1] == made[2]
    # And when few are left, as after a kill, so that cores are idle.
    out = tmp_path / "one by one"
    for path in sorted(folder.iterdir()):
        prepare([path], out, PrepareSettings(rate=5), PrepareExecution(workers=1))
    rows = {row.video: (row.status, row.reason, row.frames, row.shots) for row in read_videos(out)}
    together = {
        row.video: (row.status, row.reason, row.frames, row.shots) for row in read_videos(tmp_path / "corpus-2")
    }
    assert rows == together


@pytest.mark.parametrize("harm", ["altered", "cut off", "emptied", "gone"])
def test_a_piece_that_a_power_cut_left_damaged_is_not_used(harm: str, videos: Path, tmp_path: Path) -> None:
    task = VideoTask(Source("a.mp4", str(videos / "a.mp4")), str(tmp_path), PrepareSettings())
    done = prepare_video(task)
    assert finished_piece(task) == done
    content = bytearray(task.piece.read_bytes())
    content[len(content) // 2] ^= 1
    harmed = {"altered": bytes(content), "cut off": content[:-4096], "emptied": bytes(len(content)), "gone": None}[
        harm
    ]
    task.piece.unlink()
    if harmed is not None:
        task.piece.write_bytes(harmed)
    assert finished_piece(task) is None


def test_a_piece_of_a_file_that_has_changed_since_is_not_used(videos: Path, tmp_path: Path) -> None:
    video = tmp_path / "a.mp4"
    video.write_bytes((videos / "a.mp4").read_bytes())
    task = VideoTask(Source("a.mp4", str(video)), str(tmp_path), PrepareSettings())
    prepare_video(task)
    video.write_bytes((videos / "b.mp4").read_bytes())
    assert finished_piece(task) is None


def test_frames_too_long_for_jpeg_are_one_line(videos: Path, tmp_path: Path) -> None:
    clip = Clip("ffv1", ".mkv", size=(65_600, 16))
    clip.write(tmp_path / "long.mkv", 3, picture=lambda _: np.zeros((16, 65_600, 3), np.uint8))
    prepare([tmp_path / "long.mkv", videos / "a.mp4"], tmp_path / "corpus")
    reason = "no frame could be decoded; frames of 65600×16 are longer than JPEG allows, 65500"
    assert reasons(tmp_path / "corpus") == {"long.mkv": reason}


def test_names_that_are_no_text_and_endless_fields_cost_nothing_else(videos: Path, tmp_path: Path, vivi: Run) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9.mp4")
    odd.write_bytes((videos / "a.mp4").read_bytes())
    rows = [b"path,video,split", os.fsencode(odd) + b",\xff\xfe,train", b"x" * 200_000 + b",,", b"b.mp4,b,"]
    (tmp_path / "list.csv").write_bytes(b"\n".join(rows))
    (tmp_path / "b.mp4").write_bytes((videos / "b.mp4").read_bytes())
    done = vivi("prepare", odd, "--out", tmp_path / "one")
    assert done.returncode == 0, done.stderr
    assert [row.video for row in read_videos(tmp_path / "one")] == ["caf\\xe9.mp4"]
    done = vivi("prepare", tmp_path / "list.csv", "--out", tmp_path / "corpus")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = {row.video[:20]: (row.status, row.reason) for row in read_videos(tmp_path / "corpus")}
    assert found == {
        "\\xff\\xfe": ("ok", ""),
        "b": ("ok", ""),
        "x" * 20: ("skipped", "cannot be read: file name too long"),
    }


def test_names_that_read_the_same_are_told_apart_or_left_out(videos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "v"
    folder.mkdir()
    for name, source in ((b"a\xff.mp4", "a.mp4"), (b"a\\xff.mp4", "b.mp4")):
        (folder / os.fsdecode(name)).write_bytes((videos / source).read_bytes())
    first = prepare([folder], tmp_path / "corpus")
    assert [row.video for row in first] == ["a\\xff.mp4"]
    assert prepare([folder], tmp_path / "corpus") == first
    assert list_sources([folder])[1][0].startswith("left out, as their names read like other files': 1 (")


def test_a_manifest_may_hold_paths_as_bytes_and_says_what_it_names_twice(videos: Path, tmp_path: Path) -> None:
    path = str(videos / "a.mp4")
    pq.write_table(
        pa.table({"path": pa.array([path.encode()] * 2), "split": ["train", "test"]}), tmp_path / "m.parquet"
    )
    sources, notes = list_sources([tmp_path / "m.parquet"])
    assert [(source.path, source.split) for source in sources] == [(path, "train")]
    assert notes == ["named more than once: 1 files (a.mp4 and a.mp4); the first name counts"]


def test_an_unclosed_quote_in_a_manifest_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text('path\na.mp4\n"b.mp4\nc.mp4\n')
    with pytest.raises(UserError, match=r"list.csv cannot be read: unexpected end of data"):
        list_sources([tmp_path / "list.csv"])


def test_a_path_in_a_csv_may_hold_line_breaks(videos: Path, tmp_path: Path) -> None:
    odd = tmp_path / "two\nlines\u2028.mp4"
    odd.write_bytes((videos / "a.mp4").read_bytes())
    (tmp_path / "list.csv").write_text(f'path\n"{odd}"\n')
    (row,) = prepare([tmp_path / "list.csv"], tmp_path / "corpus")
    assert row.status == "ok"


def test_pictures_with_exif_come_upright(tmp_path: Path) -> None:
    # PyAV 18 does not know this kind of side data and raises when asked for any.
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24] = 255
    jpeg, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    Image.fromarray(picture).save(jpeg, "JPEG", exif=exif)
    with av.open(str(tmp_path / "camera.avi"), "w") as container:
        stream = container.add_stream("mjpeg", rate=5)
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        container.start_encoding()
        for number in range(5):
            packet = Packet(jpeg.getvalue())
            packet.stream, packet.time_base = stream, Fraction(1, 5)
            packet.pts = packet.dts = number
            container.mux_one(packet)
    frames = list(sample_frames(tmp_path / "camera.avi", 5))
    assert len(frames) == 5
    image = frames[0].image
    assert image.shape == (64, 48, 3)
    assert image[:, :20].mean() < 40 and image[:, -20:].mean() > 200


def test_a_row_that_cannot_be_is_one_line(undisturbed: Path, tmp_path: Path) -> None:
    first, *others = read_videos(undisturbed)
    wrong = [replace(first, first_row=10_000), replace(first, shots=500), replace(first, shard=77)]
    wrong += [replace(first, shots=1 << 29), replace(first, frames=first.frames + 1)]
    for number, row in enumerate(wrong):
        out = tmp_path / str(number)
        shutil.copytree(undisturbed, out)
        write_videos(out, [row, *others])
        with pytest.raises(UserError) as error:
            corpus_statistics(Corpus(out))
            open_index(Corpus(out))
        assert str(out) in str(error.value) and "\n" not in str(error.value)


def test_no_altered_byte_changes_what_videos_parquet_says(undisturbed: Path, tmp_path: Path) -> None:
    rows, content = read_videos(undisturbed), (undisturbed / "videos.parquet").read_bytes()
    refused = 0
    for seed in range(300):
        rng = random.Random(seed)
        altered = bytearray(content)
        altered[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (tmp_path / "videos.parquet").write_bytes(altered)
        try:
            assert read_videos(tmp_path) == rows, seed
        except UserError as error:
            assert "videos.parquet is damaged" in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 100


def test_a_split_or_status_that_is_none_is_refused(undisturbed: Path, tmp_path: Path) -> None:
    table = pq.read_table(undisturbed / "videos.parquet").replace_schema_metadata(
        None
    )  # as another program writes it
    for name in ("split", "status"):
        column = pa.array(["tes|"] * len(table))
        pq.write_table(table.set_column(table.column_names.index(name), name, column), tmp_path / "videos.parquet")
        with pytest.raises(UserError, match=f"a video whose {name} is neither"):
            read_videos(tmp_path)


def test_the_rows_in_a_shard_are_not_believed_where_they_were_altered(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / "corpus")
    (tmp_path / "corpus" / "videos.parquet").unlink()
    shard = tmp_path / "corpus" / "shards" / "00000.arrow"
    shard.write_bytes(shard.read_bytes().replace(b'"split": "train"', b'"split": "tra1n"'))
    with pytest.raises(
        UserError, match=r"00000.arrow is damaged .*\(its list of videos does not match its checksum\)"
    ):
        shard_videos(shard)


def test_lists_of_frames_that_were_altered_are_noticed_before_training(undisturbed: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(undisturbed, corpus, ignore=shutil.ignore_patterns("index"))  # which knows better
    row = max(read_videos(corpus), key=lambda row: row.shots)
    path = corpus / "shards" / f"{row.shard:05d}.arrow"
    with pa.memory_map(str(path)) as source:
        whole = source.read_buffer()
        offsets = pa.ipc.open_file(source).get_batch(0).column("frames").buffers()[1]
        place = offsets.address - whole.address
        del whole, offsets
    content = bytearray(path.read_bytes())
    content[place + 4 * (row.first_row or 0) + 4] ^= 1  # where a shot ends and the next begins
    path.write_bytes(content)
    with pytest.raises(UserError, match="a shot has other times than frames"):
        open_index(Corpus(corpus))


def test_what_a_worker_wrote_of_a_video_is_not_believed_where_it_was_altered(videos: Path, tmp_path: Path) -> None:
    task = VideoTask(Source("a.mp4", str(videos / "a.mp4")), str(tmp_path), PrepareSettings())
    done = prepare_video(task)
    path = task.piece.with_suffix(".json")
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert finished_piece(task) in (None, done)
