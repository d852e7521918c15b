"""The loader: the planned frames, whatever the threads do; damaged frames replaced and named; ends when told to."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_index import make_corpus
from torch import Tensor

from vivi.batches.augment import augment
from vivi.batches.frames import FrameStream, decode
from vivi.batches.index import Index, open_index
from vivi.batches.loader import Core, LoadedBatch, Loader
from vivi.batches.pixels import Pixels
from vivi.batches.sampler import eligible, plan
from vivi.errors import UserError
from vivi.recipes import Augment, Batch
from vivi.video.corpus import Corpus, shard_path
from vivi.video.jpeg import encode_jpeg

BATCH = Batch(videos=4, shots=2, frames=6, cores=2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


def load(
    index: Index,
    batch: Batch = BATCH,
    cores: tuple[int, int] = (0, 2),
    threads: int = 2,
    start: int = 0,
    steps: int = 4,
    prefetch: int = 2,
) -> list[LoadedBatch]:
    with Loader(FrameStream(index, batch, 0), *cores, threads, start, steps, prefetch) as loader:
        return list(loader)


def assert_equal(a: list[LoadedBatch], b: list[LoadedBatch]) -> None:
    assert [one.step for one in a] == [one.step for one in b]
    for left, right in zip(a, b, strict=True):
        assert torch.equal(left.noise, right.noise) and torch.equal(left.items, right.items)
        for one, other in zip(left.cores, right.cores, strict=True):
            assert np.array_equal(one.plan.draws, other.plan.draws)
            pairs = zip(pictures(frames_of(one)), pictures(frames_of(other)), strict=True)
            assert all(torch.equal(frame, same) for frame, same in pairs)


def jpeg(level: int, size: tuple[int, int] = (24, 16), mode: str = "RGB") -> bytes:
    """A frame of one colour."""
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


def frames_of(core: Core) -> Pixels:
    """All of a core whose frames came decoded, also those that it sees twice."""
    assert isinstance(core.pictures, Pixels)
    return core.pictures[core.which]


def pictures(pixels: Pixels) -> list[Tensor]:
    return [pixels.picture(number) for number in range(len(pixels))]


def levels(pixels: Pixels) -> list[int]:
    """The colour of each picture, to the nearest ten."""
    return [round(float(picture.float().mean()) / 10) * 10 for picture in pictures(pixels)]


def test_the_frames_are_those_of_the_plan(corpus: Path, index: Index) -> None:
    opened = Corpus(corpus)
    rows = {row["video"]: row for row in opened.videos.to_pylist()}
    found = eligible(index, BATCH)
    for batch in load(index):
        whole = plan(index, found, BATCH, 0, batch.step)
        assert torch.equal(batch.noise.flatten(0, 1), torch.from_numpy(whole.noise))
        assert batch.noise.shape == (2, 2, 3)
        for number, core in enumerate(batch.cores):
            assert isinstance(core.pictures, Pixels)
            seen, distinct, place = frames_of(core), set(), 0
            for video in (2 * number, 2 * number + 1):
                position = int(whole.video[video])
                shots = list(opened.shots(rows[index.video_name(position)]))
                for shot, frames in zip(whole.shot[video], whole.frame[video], strict=True):
                    for frame in frames:
                        stored = shots[shot - index.first_shot[position]].frames[frame]
                        expected = torch.from_numpy(np.array(Image.open(io.BytesIO(stored)))).permute(2, 0, 1)
                        assert torch.equal(seen.picture(place), expected)
                        distinct.add((int(shot), int(frame)))
                        place += 1
            assert place == len(seen)
            # Each is in memory once, and nothing else is.
            assert len(core.pictures) == len(set(seen.places.tolist())) == len(distinct)
            assert len(seen.memory) == sum(picture.numel() for picture in pictures(core.pictures))
            assert np.array_equal(core.plan.draws, whole.cores(number, number + 1, 2).draws)


@pytest.mark.parametrize("encoded", [False, True])
def test_samples_are_the_frames_of_some_cores_with_their_draws(index: Index, encoded: bool) -> None:
    batch = Batch(videos=6, shots=2, frames=4, cores=3)
    decoded = load(index, batch, cores=(0, 3), steps=2)
    with Loader(FrameStream(index, batch, 0, encoded), 0, 3, 2, 0, 2) as loader:
        for loaded, plain in zip(loader, decoded, strict=True):
            assert all(isinstance(core.pictures, list) == encoded for core in loaded.cores)
            for some in (slice(0, 3), slice(0, 1), slice(1, 3), slice(2, 9)):
                samples = loader.samples(loaded, some, CPU)
                expected = [frame for core in plain.cores[some] for frame in pictures(frames_of(core))]
                assert len(samples.pixels) == len(expected)
                assert all(torch.equal(a, b) for a, b in zip(pictures(samples.pixels), expected, strict=True))
                draws = [core.plan.draws.reshape(16, -1) for core in plain.cores[some]]
                assert np.array_equal(samples.draws, np.concatenate(draws))
    assert not loader.damaged


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 0), (2, 1), (5, 4)])
def test_batches_do_not_depend_on_threads_or_prefetching(index: Index, threads: int, prefetch: int) -> None:
    assert_equal(load(index, threads=threads, prefetch=prefetch), load(index))


def test_starting_at_a_step_is_iterating_to_it(index: Index) -> None:
    assert_equal(load(index, start=7, steps=9), load(index, steps=9)[7:])
    assert load(index, start=9, steps=9) == []


def test_the_cores_of_two_processes_make_the_batch_of_one(index: Index) -> None:
    whole = load(index)
    parts = load(index, cores=(0, 1)), load(index, cores=(1, 2))
    joined = [LoadedBatch(one.step, one.cores + other.cores) for one, other in zip(*parts, strict=True)]
    assert_equal(joined, whole)


def test_one_frame_is_read_once_and_augmented_as_often_as_asked(index: Index) -> None:
    batch = Batch(videos=4, shots=1, frames=3, cores=2, source="frame")
    with Loader(FrameStream(index, batch, 0), 0, 2, 2, 0, 4) as loader:
        for loaded in loader:
            for number, core in enumerate(loaded.cores):
                assert len(core.pictures) == 2 and core.which.tolist() == [0, 0, 0, 1, 1, 1]
                samples = loader.samples(loaded, slice(number, number + 1), CPU)
                assert len(samples.pixels) == len(samples.draws) == 6
                views = augment(samples, Augment(size=16)).unflatten(0, (2, 3))
                assert not torch.equal(views[:, 0], views[:, 1])
                assert torch.equal(views[:, 0].flatten(1).any(1), torch.tensor([True, True]))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_grey_and_cmyk_frames_become_rgb(mode: str) -> None:
    frame: Tensor = decode(jpeg(100, mode=mode))
    assert frame.shape == (3, 16, 24) and frame.dtype == torch.uint8
    assert ((frame.int() - 100).abs() <= 3).all()


def corpus_of(folder: Path, shots: list[list[bytes]]) -> Index:
    return open_index(make_corpus(folder, {"clip": shots}))


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("broken", [b"", b"no JPEG", jpeg(0)[:200], jpeg(0)[:-20], altered(1)])
def test_a_damaged_frame_is_replaced_by_the_nearest_and_named_once(
    tmp_path: Path, broken: bytes, encoded: bool
) -> None:
    shots = [[jpeg(10), broken, jpeg(30), broken, broken, jpeg(60)], [jpeg(200)] * 6]
    stream = FrameStream(corpus_of(tmp_path, shots), Batch(videos=1, shots=2, frames=6, cores=1), 0, encoded)
    with Loader(stream, 0, 1, 2, 0, 3) as loader:
        for batch in loader:
            samples = loader.samples(batch, slice(0, 1), CPU)
            assert levels(samples.pixels) == [10, 10, 30, 30, 60, 60] + [200] * 6
            assert sorted(loader.damaged.values()) == [batch.step + 1] * 3
    messages = list(loader.damaged)
    what = "damaged, its neighbour takes its place: video clip shot 0 frame"
    assert [": ".join(line.split(": ")[:2]) for line in messages] == [f"{what} {frame}" for frame in (1, 3, 4)]
    assert all(line.split(": ", 1)[1] and "\n" not in line for line in messages)


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("frames", [1, 2, 3, 6])
def test_what_stands_for_a_frame_is_the_nearest_of_its_shot_whatever_else_is_wanted(
    tmp_path: Path, frames: int, encoded: bool
) -> None:
    index = corpus_of(tmp_path, [[jpeg(10), b"?", b"?", b"?", jpeg(50), jpeg(60)]])
    batch = Batch(videos=1, shots=1, frames=frames, cores=1)
    found = eligible(index, batch)
    seen = set()
    with Loader(FrameStream(index, batch, 0, encoded), 0, 1, 2, 0, 50) as loader:
        for loaded in loader:
            first = int(plan(index, found, batch, 0, loaded.step).frame[0, 0, 0])
            shown = levels(loader.samples(loaded, slice(0, 1), CPU).pixels)
            assert shown == [10, 10, 10, 50, 50, 60][first : first + frames]  # of two that are as near the earlier
            seen.add(first)
    assert seen == set(range(7 - frames))


@pytest.mark.parametrize("encoded", [False, True])
def test_a_frame_with_another_checksum_is_named_as_such_and_not_decoded(tmp_path: Path, encoded: bool) -> None:
    index = corpus_of(tmp_path, [[altered(10), jpeg(20)]])
    stream = FrameStream(index, Batch(videos=1, shots=1, frames=2, cores=1), 0, encoded)
    read = stream.read(stream.plan(0), 0)
    if encoded:
        assert [len(file) for file in read.pictures] == [1, len(jpeg(20))]  # the device gets none
    with Loader(stream, 0, 1, 1, 0, 1) as loader:
        assert levels(loader.samples(next(iter(loader)), slice(0, 1), CPU).pixels) == [20, 20]
    (line,) = loader.damaged
    assert line.endswith("video clip shot 0 frame 0: its checksum is wrong")
    with pytest.raises(ValueError, match="checksum"):
        decode(altered(10))


@pytest.mark.parametrize("encoded", [False, True])
def test_a_shot_without_a_good_frame_is_grey(tmp_path: Path, encoded: bool) -> None:
    index = corpus_of(tmp_path, [[b"?", altered(7)], [jpeg(40)]])
    with Loader(FrameStream(index, Batch(videos=1, shots=2, frames=3, cores=1), 0, encoded), 0, 1, 2, 0, 1) as loader:
        pixels = loader.samples(next(iter(loader)), slice(0, 1), CPU).pixels
    assert levels(pixels) == [130] * 3 + [40] * 3
    assert (pixels.picture(0) == 128).all()


def test_a_shard_that_goes_stops_the_run_at_its_step(tmp_path: Path) -> None:
    index = corpus_of(tmp_path, [[jpeg(10)]])
    steps = []
    with (
        Loader(FrameStream(index, Batch(videos=1, shots=1, frames=1, cores=1), 0), 0, 1, 2, 0, 20) as loader,
        pytest.raises(UserError, match=r"00000.arrow is missing"),
    ):
        for batch in loader:
            steps.append(batch.step)
            shard_path(tmp_path, 0).unlink(missing_ok=True)
    assert steps[0] == 0 and len(steps) <= 3  # what was read ahead is still yielded


def test_closing_stops_the_threads_quickly(index: Index) -> None:
    before = threading.active_count()
    batch = Batch(videos=8, shots=2, frames=8, cores=2)
    with Loader(FrameStream(index, batch, 0), 0, 2, 3, 0, 10_000, prefetch=300) as loader:
        next(iter(loader))
        assert threading.active_count() > before
        start = time.process_time()  # of its threads: a machine that is busy otherwise does not count
    assert time.process_time() - start < 2
    assert threading.active_count() == before


def test_ctrl_c_interrupts_the_consumer_and_ends_the_threads(index: Index) -> None:
    before = threading.active_count()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressed = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            Loader(FrameStream(index, BATCH, 0), 0, 2, 2, 0, 10**6, prefetch=20) as loader,
        ):
            for batch in loader:
                if batch.step == 0:
                    pressed.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    pressed.join()
    assert threading.active_count() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_decoded_frames_are_pinned_if_asked(index: Index) -> None:
    with Loader(FrameStream(index, BATCH, 0), 0, 2, 2, 0, 1, pin=True) as loader:
        (batch,) = loader
    assert all(frames_of(core).memory.is_pinned() for core in batch.cores)
    assert_equal([batch], load(index, steps=1))
