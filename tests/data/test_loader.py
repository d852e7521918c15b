"""The loader: the planned frames, augmented, whatever the threads do; errors and damage reach the consumer; it ends
when told to."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import altered, assert_same_micro_batches, jpeg, make_corpus, write_images
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.augment import augment, augment_patches, unaugmented
from vivi.data.augment.uniforms import UNIFORMS
from vivi.data.images import find_images
from vivi.data.index import Index, open_index
from vivi.data.loader import Loader, MicroBatch
from vivi.data.packed import Image, PackedImages, pack
from vivi.data.plan import Kind, Plan, plan_videos
from vivi.data.sources import CorpusSource, ImageSource, Source
from vivi.prepare.corpus import Corpus, shard_path
from vivi.recipes import Augment, Batch, Images, Recipe
from vivi.runtime.errors import UserError

BATCH = Batch(videos=6, shots=2, frames=4, cores=3)
CPU = torch.device("cpu")
SETTINGS = Augment(size=12, hue=0.1)


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


def loader_of(
    source: Source, cores: range = range(3), all_cores: int = 3, cores_each: int = 1, threads: int = 2
) -> Loader:
    return Loader(source, partial(augment, settings=SETTINGS), cores, all_cores, cores_each, CPU, threads)


def load(loader: Loader, steps: range = range(4)) -> list[MicroBatch]:
    return list(loader.load(steps))


def levels(frames: Tensor) -> list[int]:
    """The colour of each image of what `middle_squares` made, to the nearest ten."""
    return [round(float((image.mean() + 1) * 12.75)) * 10 for image in frames.flatten(0, 2)]


def middle_squares(images: PackedImages, uniforms: NDArray[np.float32]) -> Tensor:
    """Not augmented: an image of a single colour stays what it is."""
    return unaugmented(images, 8)


@pytest.mark.parametrize("cores_each", [1, 3])
def test_micro_batches_are_the_planned_frames_augmented_by_their_uniforms(index: Index, cores_each: int) -> None:
    source = CorpusSource(index, BATCH, 0)
    loader = loader_of(source, cores_each=cores_each)
    assert loader.micro_batches_per_step == 3 // cores_each
    micro_batches = iter(load(loader))
    for step in range(4):
        plan = plan_videos(index, source.eligible, BATCH, 0, step)
        for first in range(0, 6, 2 * cores_each):
            part, micro_batch = plan[first : first + 2 * cores_each], next(micro_batches)
            frames: list[Image] = []
            for video, shots, numbers in zip(part.video, part.shot, part.frame, strict=True):
                for shot, its_numbers in zip(shots, numbers, strict=True):
                    frames += source.read_shot(int(video), int(shot), its_numbers.tolist(), [])
            expected = augment(pack(frames), part.augment_uniforms.reshape(-1, UNIFORMS), SETTINGS)
            assert micro_batch.frames.shape == (cores_each, 4, 4, 3, 12, 12)
            assert torch.equal(micro_batch.frames.flatten(0, 2), expected)
            assert micro_batch.uniforms.shape == (cores_each, 2, 3)
            assert torch.equal(micro_batch.uniforms.flatten(0, 1), torch.from_numpy(part.loss_uniforms))
            assert micro_batch.labels is None and micro_batch.damaged == ()
    assert next(micro_batches, None) is None


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("videos_per_read", [1, 2, 3, 100])
def test_micro_batches_do_not_depend_on_threads_or_on_how_much_is_read_at_once(
    index: Index, threads: int, videos_per_read: int
) -> None:
    source = CorpusSource(index, BATCH, 0)
    expected = load(loader_of(source, cores_each=3, threads=1))
    source.videos_per_read = videos_per_read
    assert_same_micro_batches(load(loader_of(source, cores_each=3, threads=threads)), expected)


def test_starting_at_a_step_is_iterating_to_it(index: Index) -> None:
    loader = loader_of(CorpusSource(index, BATCH, 0))
    assert_same_micro_batches(load(loader, range(7, 9)), load(loader, range(9))[3 * 7 :])
    assert load(loader, range(9, 9)) == []


def test_the_cores_of_two_processes_make_the_batch_of_a_single_one(index: Index) -> None:
    source = CorpusSource(index, BATCH, 0)
    whole = load(loader_of(source))
    first, second = load(loader_of(source, range(0, 1))), load(loader_of(source, range(1, 3)))
    joined = [part for step in range(4) for part in (first[step], second[2 * step], second[2 * step + 1])]
    assert_same_micro_batches(joined, whole)


def test_a_repeated_frame_is_augmented_as_often_as_asked(index: Index) -> None:
    batch = Batch(videos=6, shots=1, frames=3, cores=3, source="frame")
    for micro_batch in load(loader_of(CorpusSource(index, batch, 0))):
        assert micro_batch.frames.shape == (1, 2, 3, 3, 12, 12)
        views = micro_batch.frames[0]
        assert not torch.equal(views[:, 0], views[:, 1]) and not torch.equal(views[:, 1], views[:, 2])
        assert views.flatten(2).any(2).all()


def test_patches_have_a_dimension_of_their_own(index: Index) -> None:
    batch = Batch(videos=6, shots=1, frames=2, cores=3)
    source = CorpusSource(index, batch, 0)
    loader = Loader(source, partial(augment_patches, size=8), range(3), 3, 3, CPU, 1)
    (micro_batch,) = load(loader, range(1))
    assert micro_batch.frames.shape == (3, 2, 2, 9, 3, 8, 8)
    decoded = source.read(source.plan(0))
    expected = augment_patches(decoded.images, decoded.plan.augment_uniforms.reshape(-1, UNIFORMS), 8)
    assert torch.equal(micro_batch.frames.flatten(0, 2), expected)


@pytest.mark.parametrize("threads", [0, 3])
def test_labelled_images_come_with_their_labels(tmp_path: Path, threads: int) -> None:
    images = find_images(write_images(tmp_path, classes=3, each=8))
    source = ImageSource(images, Recipe("labels", seed=3, images=Images(24, copies=2)), Kind.LABELLED)
    assert source.videos_per_read < 24  # several reads for a micro-batch
    loader = Loader(source, middle_squares, range(3), 3, 3, CPU, threads)
    for step, micro_batch in enumerate(load(loader)):
        wanted = source.plan(step).video
        assert micro_batch.frames.shape == (3, 8, 2, 3, 8, 8) and micro_batch.uniforms.shape == (3, 8, 2)
        assert levels(micro_batch.frames) == (10 * wanted.repeat(2)).tolist()
        assert micro_batch.labels is not None and micro_batch.labels.dtype == torch.int64
        assert micro_batch.labels.tolist() == images.labels[wanted].reshape(3, 8).tolist()
        assert len(micro_batch.tensors()) == 3
    parts = [load(Loader(source, middle_squares, range(core, core + 1), 3, 1, CPU, threads)) for core in range(3)]
    for step, micro_batch in enumerate(load(loader)):
        labels = [part[step].labels for part in parts]
        assert torch.equal(torch.cat([own for own in labels if own is not None]), micro_batch.tensors()[2])


# Damage, errors and the end.


def corpus_of(folder: Path, shots: list[list[bytes]]) -> Index:
    return open_index(make_corpus(folder, {"clip": shots}))


@pytest.mark.parametrize("broken", [b"", b"no JPEG", jpeg(0)[:-20], altered(1)])
def test_micro_batches_name_the_damaged_frames_that_they_hold(tmp_path: Path, broken: bytes) -> None:
    shots = [[jpeg(10), broken, jpeg(30), broken, broken, jpeg(60)], [jpeg(200)] * 6]
    source = CorpusSource(corpus_of(tmp_path, shots), Batch(videos=1, shots=2, frames=6, cores=1), 0)
    for micro_batch in load(Loader(source, middle_squares, range(1), 1, 1, CPU, 2)):
        assert levels(micro_batch.frames) == [10, 10, 30, 30, 60, 60] + [200] * 6
        assert [line.split(": ")[1] for line in micro_batch.damaged] == [
            f"video clip shot 0 frame {frame}" for frame in (1, 3, 4)
        ]


def test_a_shard_that_goes_stops_the_run_at_its_step(tmp_path: Path) -> None:
    source = CorpusSource(corpus_of(tmp_path, [[jpeg(10)]]), Batch(videos=1, shots=1, frames=1, cores=1), 0)
    loader = Loader(source, middle_squares, range(1), 1, 1, CPU, 2)
    given = 0
    with pytest.raises(UserError, match=r"00000.arrow is missing"), closing(loader.load(range(50))) as loading:
        for _ in loading:
            given += 1
            shard_path(tmp_path, 0).unlink(missing_ok=True)
    assert 1 <= given <= 6  # what was read ahead is still given: two micro-batches, and one for each thread


def test_reading_ahead_is_limited(index: Index) -> None:
    """Two micro-batches, and what the threads are at."""
    planned: list[int] = []

    class Counted(CorpusSource):
        def plan(self, step: int) -> Plan:
            planned.append(step)
            return super().plan(step)

    batch = Batch(videos=4, shots=1, frames=2, cores=1)
    loader = loader_of(Counted(index, batch, 0), range(1), 1, threads=2)
    with closing(loader.load(range(10_000))) as loading:
        next(loading)
        assert len(planned) <= 1 + 2 + 2


def test_closing_ends_the_threads_quickly(index: Index) -> None:
    before = threading.active_count()
    loader = loader_of(CorpusSource(index, Batch(videos=6, shots=2, frames=8, cores=3), 0), cores_each=3, threads=3)
    with closing(loader.load(range(10_000))) as loading:
        next(loading)
        assert threading.active_count() > before
        start = time.process_time()  # of its threads: a machine that is busy otherwise does not count
    assert time.process_time() - start < 2
    assert threading.active_count() == before


def test_without_threads_none_are_started(index: Index) -> None:
    before = threading.active_count()
    with closing(loader_of(CorpusSource(index, BATCH, 0), threads=0).load(range(9))) as loading:
        next(loading)
        assert threading.active_count() == before


def test_ctrl_c_interrupts_the_consumer_and_ends_the_threads(index: Index) -> None:
    before = threading.active_count()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressed = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    loader = loader_of(CorpusSource(index, BATCH, 0))
    try:
        with pytest.raises(KeyboardInterrupt), closing(loader.load(range(10**6))) as loading:
            for number, _ in enumerate(loading):
                if number == 0:
                    pressed.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    pressed.join()
    assert threading.active_count() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gets_what_a_cpu_does(index: Index) -> None:
    source, gpu = CorpusSource(index, BATCH, 0), torch.device("cuda")
    there = load(Loader(source, partial(augment, settings=SETTINGS), range(3), 3, 3, gpu, 2))
    for micro_batch, expected in zip(there, load(loader_of(source, cores_each=3)), strict=True):
        assert all(tensor.is_cuda for tensor in micro_batch.tensors())
        torch.testing.assert_close(micro_batch.frames.cpu(), expected.frames, rtol=0, atol=0.005)
        assert torch.equal(micro_batch.uniforms.cpu(), expected.uniforms)
