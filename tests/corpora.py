"""Small corpora, images and frames that tests make, and how what was loaded from them is compared."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vivi.data.augment.patches import PATCH_UNIFORMS, layout
from vivi.data.index import Index, read_frames
from vivi.data.loader import MicroBatch
from vivi.data.plan import Plan
from vivi.prepare.corpus import Corpus, ShotWriter, VideoRow, shard_path, write_settings, write_videos
from vivi.prepare.jpeg import encode_jpeg

Videos = dict[str, list[list[bytes]]]  # by name, the frames of each shot


def make_corpus(folder: Path, videos: Videos, per_shard: int = 3, seed: int = 0) -> Corpus:
    """A corpus of videos given as the frames of their shots, packed in random order; every fourth is held out."""
    (folder / "shards").mkdir(parents=True)
    order = sorted(videos)
    random.Random(seed).shuffle(order)
    rows = [VideoRow("skipped", "/p", "skipped", "broken", "train")]
    for number, start in enumerate(range(0, len(order), per_shard)):
        first_row = 0
        with ShotWriter(shard_path(folder, number)) as writer:
            for name in order[start : start + per_shard]:
                shots = videos[name]
                for shot, frames in enumerate(shots):
                    writer.add(name, shot, [float(time) for time in range(len(frames))], frames)
                split = "test" if sorted(videos).index(name) % 4 == 3 else "train"
                facts = (1.0, 9, 9, "h264", sum(map(len, shots)), len(shots), number, first_row)
                rows.append(VideoRow(name, "/p", "ok", "", split, *facts))  # type: ignore[arg-type]
                first_row += len(shots)
            writer.commit()
    write_videos(folder, rows)
    write_settings(folder, {"rate": 1.0})
    return Corpus(folder)


def random_videos(seed: int, largest: int = 200) -> Videos:
    """Up to twelve videos, some with names beyond ASCII; their frames are random bytes."""
    rng = random.Random(seed)
    names = [f"{rng.choice('aäzé漢Z')}{number}/clip.mp4" for number in range(rng.randint(1, 12))]
    return {
        name: [
            [rng.randbytes(rng.randint(0, largest)) for _ in range(rng.randint(1, 7))]
            for _ in range(rng.randint(1, 5))
        ]
        for name in names
    }


def jpeg(level: int, size: tuple[int, int] = (24, 16), mode: str = "RGB") -> bytes:
    """A frame of one colour; the size is its width and height."""
    colours = {"RGB": (level, level, level), "L": (level,), "CMYK": (0, 0, 0, 255 - level)}
    stream = io.BytesIO()
    Image.new(mode, size, colours[mode]).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def altered(level: int, size: tuple[int, int] = (24, 16)) -> bytes:
    """A frame with a checksum, and one wrong byte in its quantisation table: it can be decoded, to other pixels."""
    width, height = size
    file = bytearray(encode_jpeg(np.full((height, width, 3), level, np.uint8), 95))
    file[file.index(b"\xff\xdb") + 5] ^= 0x10
    assert Image.open(io.BytesIO(file)).tobytes() != Image.open(io.BytesIO(jpeg(level, size))).tobytes()
    return bytes(file)


def write_images(folder: Path, classes: int = 3, each: int = 5) -> Path:
    """Labelled images of one colour: image i has the level 10 i. Every third of a class is a PNG."""
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            suffix = "png" if number % 3 == 2 else "jpg"
            level = 10 * (each * label + number)
            path = folder / f"class{label}" / f"{number}.{suffix}"
            Image.new("RGB", (20 + number, 16 + label), (level,) * 3).save(path)
    return folder


def images_and_uniforms(count: int, size: int, seed: int = 0) -> tuple[Tensor, NDArray[np.float32]]:
    """Random images that patches of `size` pixels are cut from, and the uniforms that say where."""
    rng = np.random.default_rng(seed)
    side = layout(size).whole
    pixels = rng.random((count, 3, side, side), np.float32) * 255
    return torch.from_numpy(pixels), rng.random((count, PATCH_UNIFORMS), np.float32)


def index_folders(corpus: Path) -> list[Path]:
    """The complete indexes of a corpus."""
    return [path for path in (corpus / "index").iterdir() if path.is_dir() and path.suffix != ".tmp"]


def assert_finds_everything(index: Index, corpus: Corpus) -> None:
    """Compares with what Arrow reads, video by video."""
    rows = sorted((row for row in corpus.videos.to_pylist() if row["status"] == "ok"), key=lambda row: row["video"])
    assert len(index) == len(rows)
    assert len(index.frames) == index.first_shot[-1] == sum(row["shots"] for row in rows)
    for video, row in enumerate(rows):
        assert index.video_name(video) == row["video"]
        assert index.test[video] == (row["split"] == "test")
        shots = list(corpus.shots(row))
        first, end = index.first_shot[video], index.first_shot[video + 1]
        assert index.frames[first:end].tolist() == [len(shot.frames) for shot in shots]
        assert index.first_frame[video + 1] - index.first_frame[video] == row["frames"]
        for number, shot in enumerate(shots, first):
            assert read_frames(index, video, number, range(len(shot.frames))) == shot.frames
            some = [random.Random(number).randrange(len(shot.frames)) for _ in range(4)]
            assert read_frames(index, video, number, some) == [shot.frames[frame] for frame in some]


def assert_same_micro_batches(actual: Sequence[MicroBatch], expected: Sequence[MicroBatch]) -> None:
    """The same tensors, bit for bit; what was damaged is not compared."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert len(one.tensors()) == len(other.tensors())
        for tensor, same in zip(one.tensors(), other.tensors(), strict=True):
            assert tensor.dtype == same.dtype and torch.equal(tensor, same)


def index_of(videos: list[list[int]], test: list[bool] | None = None, names: list[str] | None = None) -> Index:
    """An index of videos given as the numbers of frames of their shots; nothing of it can be read."""
    shots = [count for video in videos for count in video]
    return Index(
        names=pa.array(names or [f"v{number:05d}" for number in range(len(videos))], pa.large_string()),
        shard=np.zeros(len(videos), np.int32),
        test=np.array(test if test is not None else [False] * len(videos), bool),
        first_shot=np.cumsum([0, *map(len, videos)]),
        first_frame=np.cumsum([0, *map(sum, videos)]),
        frames=np.array(shots, np.int32),
        offsets_at=np.zeros(len(shots), np.int64),
        data_at=np.zeros(len(shots), np.int64),
        corpus=Path("corpus"),
        fingerprint="",
    )


def assert_same_plan(a: Plan, b: Plan) -> None:
    for field in fields(Plan):
        assert np.array_equal(getattr(a, field.name), getattr(b, field.name)), field.name
