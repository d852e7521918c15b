"""A corpus in memory: batches are those that streaming gives, bit for bit, and its size is known beforehand."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import assert_same_run, run_here
from test_index import make_corpus
from test_loader import altered, jpeg

from vivi.batches.frames import FrameStream
from vivi.batches.index import Index, open_index, read_frames
from vivi.batches.loader import Loader
from vivi.batches.pixels import Pixels, Samples, pack
from vivi.batches.resident import (
    ResidentLoader,
    Store,
    compact,
    copy_to,
    decoded_bytes,
    frames_in_use,
    load_store,
    runs,
)
from vivi.recipes import Batch
from vivi.video.corpus import Corpus

CPU = torch.device("cpu")
SHOTS = Batch(videos=4, shots=2, frames=6, cores=2)
FRAMES = Batch(videos=6, shots=1, frames=3, cores=3, source="frame")
ENOUGH = 10**9


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


def damaged_index(folder: Path) -> Index:
    """Two videos with damaged frames, one shot without a good frame, and a held-out video."""
    good = [jpeg(10 * level, (40, 32)) for level in range(12)]
    videos = {
        "a": [[good[1], b"", good[3], b"no JPEG", good[4][:-20], good[6]], [good[7]] * 3],
        "b": [[b"?", b"!"], [good[8], good[9][:150], b"?"], [good[10]]],
        "c": [[good[11], good[2]], [good[5], b""]],
        "d": [[good[0]] * 5, [good[0]] * 5],
    }
    return open_index(make_corpus(folder, videos))


def keep(stream: FrameStream, threads: int = 2) -> Store:
    """All frames in use, in as many bytes as they are said to need."""
    size = decoded_bytes(stream.index, stream.eligible, ENOUGH)
    assert size is not None
    seen: list[int] = []
    store = load_store(stream, threads, size, CPU, CPU, seen.append)
    assert store is not None
    assert seen == sorted(seen) and seen[-1] == frames_in_use(stream.index, stream.eligible) == len(store.pixels)
    return store


def assert_equal(one: Samples, other: Samples) -> None:
    assert len(one.pixels) == len(other.pixels) > 0 and np.array_equal(one.draws, other.draws)
    for number in range(len(one.pixels)):
        assert torch.equal(one.pixels.picture(number), other.pixels.picture(number))


def assert_same_batches(stream: FrameStream, first: int, last: int, start: int, steps: int) -> Store:
    store = keep(stream)
    with (
        Loader(stream, first, last, 2, start, steps) as streamed,
        ResidentLoader(stream, store, first, last, start, steps) as kept,
    ):
        for expected, batch in zip(streamed, kept, strict=True):
            assert batch.step == expected.step
            assert torch.equal(batch.noise, expected.noise) and torch.equal(batch.items, expected.items)
            for some in (slice(0, last - first), slice(0, 1), slice(last - first - 1, last - first)):
                assert_equal(kept.samples(batch, some, CPU), streamed.samples(expected, some, CPU))
        assert set(streamed.damaged) <= set(kept.damaged)
    return store


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(
    ("batch", "cores"), [(SHOTS, (0, 2)), (SHOTS, (1, 2)), (FRAMES, (0, 3)), (FRAMES, (1, 3))], ids=str
)
def test_batches_are_those_that_streaming_gives(
    index: Index, batch: Batch, cores: tuple[int, int], encoded: bool
) -> None:
    store = assert_same_batches(FrameStream(index, batch, 3, encoded), *cores, start=0, steps=4)
    assert not store.damaged


def test_a_later_start_changes_nothing(index: Index) -> None:
    stream = FrameStream(index, SHOTS, 0)
    assert_same_batches(stream, 0, 2, start=7, steps=9)
    assert list(ResidentLoader(stream, keep(stream), 0, 2, 9, 9)) == []


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("source", ["shot", "frame"])
def test_damaged_frames_have_the_same_stand_ins_and_are_named_once(
    tmp_path: Path, source: str, encoded: bool
) -> None:
    index = damaged_index(tmp_path)
    batch = Batch(videos=3, shots=2, frames=6, cores=1) if source == "shot" else FRAMES
    if source == "frame":
        batch = Batch(videos=3, shots=1, frames=2, cores=1, source="frame", resample=True)
    stream = FrameStream(index, batch, 0, encoded)
    store = assert_same_batches(stream, 0, 1, start=0, steps=30)
    assert len(store.damaged) == len(set(store.damaged)) == 8
    assert sorted(line.split(": ")[1] for line in store.damaged) == [
        *(f"video a shot 0 frame {frame}" for frame in (1, 3, 4)),
        *(f"video b shot 0 frame {frame}" for frame in (0, 1)),
        *(f"video b shot 1 frame {frame}" for frame in (1, 2)),
        "video c shot 1 frame 1",
    ]
    # In 30 steps streaming has met all of them.
    with Loader(stream, 0, 1, 2, 0, 30) as streamed:
        for one in streamed:
            streamed.samples(one, slice(0, 1), CPU)
    assert set(streamed.damaged) == set(store.damaged)


def test_threads_do_not_matter(index: Index) -> None:
    stores = [keep(FrameStream(index, SHOTS, 0), threads) for threads in (1, 5)]
    assert torch.equal(stores[0].pixels.memory, stores[1].pixels.memory)
    assert np.array_equal(stores[0].first, stores[1].first)


def test_many_shots_are_loaded_some_at_a_time_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivi.batches.resident._AT_ONCE", 8)
    videos = {
        f"v{number}": [
            [jpeg(10 * shot + frame, (16, 16)) for frame in range(1 + (number + shot) % 4)] for shot in (0, 1)
        ]
        for number in range(9)
    }
    index = open_index(make_corpus(tmp_path, videos))
    stream = FrameStream(index, Batch(videos=4, shots=2, frames=3, cores=2), 0)
    seen: list[int] = []
    size = decoded_bytes(index, stream.eligible, ENOUGH)
    assert size is not None and load_store(stream, 2, size, CPU, CPU, seen.append) is not None
    assert len(seen) > 2
    assert_same_batches(stream, 0, 2, start=0, steps=6)


def test_the_size_is_known_before_anything_is_decoded(index: Index) -> None:
    for batch in (SHOTS, FRAMES):
        stream = FrameStream(index, batch, 0)
        expected = 0
        for video in stream.eligible.videos.tolist():
            for shot in range(int(index.first_shot[video]), int(index.first_shot[video + 1])):
                numbers = range(int(index.frames[shot]))
                frames, _ = stream.read_shot(video, shot, numbers)
                assert len(read_frames(index, video, shot, numbers)) == len(frames)
                expected += sum(frame.numel() for frame in frames)
        assert decoded_bytes(index, stream.eligible, ENOUGH) == expected
        assert decoded_bytes(index, stream.eligible, expected) == expected
        assert decoded_bytes(index, stream.eligible, expected - 1) is None
        assert decoded_bytes(index, stream.eligible, 100) is None  # the shards alone are larger
        store = keep(stream)
        assert len(store.pixels.memory) == expected
        ends = store.pixels.places + 3 * store.pixels.sizes.prod(axis=1)
        assert ends.max() == expected


def test_a_video_of_damaged_frames_alone_is_counted_as_grey(tmp_path: Path) -> None:
    index = open_index(make_corpus(tmp_path, {"a": [[jpeg(50)] * 3], "b": [[b"?", b""]]}))
    stream = FrameStream(index, Batch(videos=2, shots=1, frames=2, cores=1), 0)
    store = assert_same_batches(stream, 0, 1, start=0, steps=2)
    assert len(store.damaged) == 2


def test_the_size_is_not_taken_from_an_altered_frame(tmp_path: Path) -> None:
    index = open_index(make_corpus(tmp_path, {"a": [[altered(50, (48, 48)), jpeg(60, (16, 16))]]}))
    stream = FrameStream(index, Batch(videos=1, shots=1, frames=2, cores=1), 0)
    assert decoded_bytes(index, stream.eligible, ENOUGH) == 2 * 3 * 16 * 16
    store = assert_same_batches(stream, 0, 1, start=0, steps=2)
    assert len(store.damaged) == 1


def test_frames_that_need_more_than_was_said_are_not_kept(tmp_path: Path) -> None:
    mixed = {"a": [[jpeg(50, (16, 16)), jpeg(60, (48, 48))]], "b": [[jpeg(70, (16, 16))]]}
    index = open_index(make_corpus(tmp_path, mixed))
    stream = FrameStream(index, Batch(videos=2, shots=1, frames=2, cores=1), 0)
    size = decoded_bytes(index, stream.eligible, ENOUGH)
    assert size == 3 * 3 * 16 * 16  # as if all were like the first of their video
    assert load_store(stream, 2, size, CPU, CPU, lambda done: None) is None
    enough = 3 * (16 * 16 + 48 * 48 + 16 * 16)
    assert load_store(stream, 2, enough - 1, CPU, CPU, lambda done: None) is None
    assert load_store(stream, 2, enough, CPU, CPU, lambda done: None) is not None


def scattered(count: int, seed: int) -> Pixels:
    """Some pictures of many, in any order, some of them several times."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, (20, 2)).tolist()
    pictures = [torch.from_numpy(rng.integers(0, 256, (3, *size), np.uint8)) for size in sizes]
    return pack(pictures)[rng.integers(0, 20, count)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 3, 30, 200])
def test_only_what_is_needed_is_copied_each_once(count: int, seed: int) -> None:
    pixels = scattered(count, seed)
    copied = compact(pixels, CPU)
    assert len(copied) == count
    assert all(torch.equal(copied.picture(number), pixels.picture(number)) for number in range(count))
    distinct = dict(zip(pixels.places.tolist(), pixels.sizes.tolist(), strict=True))
    assert len(copied.memory) == sum(3 * height * width for height, width in distinct.values())
    assert copy_to(CPU, pixels) is pixels


@pytest.mark.parametrize("seed", range(6))
def test_neighbours_are_copied_in_one_go(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 40)
    places = np.cumsum(lengths) - lengths
    kept = np.flatnonzero(rng.random(40) < (0.2, 0.5, 0.8)[seed % 3])
    expected: list[tuple[int, int]] = []
    for number, piece in enumerate(kept.tolist()):
        if number and kept[number - 1] == piece - 1:
            expected[-1] = expected[-1][0], number + 1
        else:
            expected.append((number, number + 1))
    assert runs(places[kept], lengths[kept]) == expected
    assert runs(places, lengths) == [(0, 40)]


def test_training_is_the_same_with_the_corpus_in_memory(corpus: Path, tmp_path: Path) -> None:
    """Also where a frame is damaged, which is then named once."""
    shutil.copytree(corpus, tmp_path / "corpus")
    index = open_index(Corpus(corpus))
    video = int(np.flatnonzero(~index.test & (np.diff(index.first_shot) >= 4))[0])
    shot = int(index.first_shot[video])
    shard = tmp_path / "corpus" / "shards" / f"{int(index.shard[video]):05d}.arrow"
    content = bytearray(shard.read_bytes())
    start = int(index.data_at[shot]) + int(np.frombuffer(content, "<i4", 1, int(index.offsets_at[shot]))[0])
    content[start : start + 64] = bytes(64)
    shard.write_bytes(content)
    runs_of = {
        how: run_here(tmp_path / "corpus", tmp_path / how, "--steps", 2, "--log-every", 1, "--resident", how)
        for how in ("on", "off")
    }
    assert "are kept in memory, decoded" in runs_of["on"] and "are kept" not in runs_of["off"]
    line = f"its neighbour takes its place: video {index.video_name(video)} shot 0 frame 0: "
    assert runs_of["on"].count(line) == 1
    assert_same_run(tmp_path / "on", tmp_path / "off")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("keep_on", ["cuda", "cpu"])
def test_a_gpu_sees_the_same_of_a_corpus_in_memory(index: Index, keep_on: str, encoded: bool) -> None:
    gpu = torch.device("cuda")
    stream = FrameStream(index, SHOTS, 0, encoded)
    size = decoded_bytes(index, stream.eligible, ENOUGH)
    assert size is not None
    store = load_store(stream, 2, size, gpu, torch.device(keep_on), lambda done: None)
    assert store is not None and store.pixels.memory.device.type == keep_on
    assert store.pixels.memory.is_pinned() == (keep_on == "cpu")
    with (
        Loader(stream, 0, 2, 2, 0, 3, pin=True) as streamed,
        ResidentLoader(stream, store, 0, 2, 0, 3) as kept,
    ):
        for expected, batch in zip(streamed, kept, strict=True):
            for some in (slice(0, 2), slice(1, 2)):
                one, other = kept.samples(batch, some, gpu), streamed.samples(expected, some, gpu)
                assert one.pixels.memory.is_cuda
                assert_equal(one, other)
