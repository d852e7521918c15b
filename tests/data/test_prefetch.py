"""Prefetching: the planned micro-batches of each step, in order, however far ahead they are made; errors reach the
consumer; the threads end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import assert_same_micro_batches, jpeg, make_corpus
from PIL import Image
from rich.console import Console
from torch import Tensor

from vivi.data.augment import augment, augment_patches
from vivi.data.augment.uniforms import UNIFORMS
from vivi.data.images import LabelledImages, find_images
from vivi.data.index import Index, open_index
from vivi.data.loader import Loader, MicroBatch, Prefetch
from vivi.data.packed import on_device
from vivi.data.plan import Kind
from vivi.data.sources import CorpusSource, ImageSource
from vivi.prepare.corpus import Corpus, shard_path
from vivi.recipes import Augment, Batch, Images, Jigsaw, Loss, Recipe
from vivi.runtime.distributed import World
from vivi.runtime.errors import UserError
from vivi.train.data import TrainingData, micro_batch_bytes, prefetch_steps
from vivi.train.micro_batch import MicroBatchSize
from vivi.train.settings import Execution

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
CORES = 4
STEPS = range(1, 5)
VIDEOS = Recipe("videos", batch=Batch(videos=4, shots=2, frames=3, cores=CORES), augment=Augment(size=24, hue=0.1))
BOTH = replace(VIDEOS, images=Images(count=8, copies=2, policy="imagenet"))
RECIPES = {
    "videos": VIDEOS,
    "single frames": replace(VIDEOS, batch=replace(VIDEOS.batch, shots=1, source="frame")),
    "patches": replace(VIDEOS, batch=replace(VIDEOS.batch, shots=1), loss=Loss(frame=Jigsaw(), video=None)),
    "videos and labelled images": BOTH,
    "labelled images alone": replace(BOTH, batch=replace(BOTH.batch, videos=0)),
    "images in place of videos": replace(BOTH, batch=replace(BOTH.batch, videos=8, shots=1, source="image")),
}
Step = tuple[int, list[MicroBatch], list[MicroBatch]]  # number, videos, labelled images


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> LabelledImages:
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(30):
        path = folder / f"class{number % 3}" / f"{number}.{'png' if number % 5 == 0 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20 + number, 40, 3), np.uint8)).save(path)
    return find_images(folder)


def data_of(index: Index, images: LabelledImages, recipe: Recipe) -> TrainingData:
    videos: CorpusSource | None = None
    if recipe.learns_from_videos:
        videos = CorpusSource(index, recipe.batch, recipe.seed)
    instead = ImageSource(images, recipe, Kind.FRAMES) if recipe.batch.source == "image" else None
    labelled = ImageSource(images, recipe, Kind.LABELLED) if recipe.images.count else None
    return TrainingData(recipe, index, images, images, None, videos or instead, labelled)


def prefetch(
    data: TrainingData,
    recipe: Recipe,
    device: str,
    cores_each: int = 1,
    dtype: torch.dtype = torch.float32,
    execution: Execution | None = None,
) -> Prefetch:
    execution = execution or Execution(threads=2, resident="off")
    size, world = MicroBatchSize(cores_each, cores_each), World(torch.device(device))
    return prefetch_steps(data, recipe, execution, world, size, STEPS, dtype, Console(quiet=True))


def in_one_go(data: TrainingData, recipe: Recipe, step: int, device: str) -> tuple[Tensor | None, Tensor | None]:
    """All frames and all labelled images of a step, augmented at once: (cores, shots, frames, ...)."""
    there = torch.device(device)
    frames = images = None
    if data.videos_source is not None:
        decoded = data.videos_source.read(data.videos_source.plan(step))
        packed = on_device([decoded.images], there)
        uniforms = decoded.plan.augment_uniforms.reshape(-1, UNIFORMS)
        if recipe.sees_patches:
            made = augment_patches(packed, uniforms, 24)
        else:
            made = augment(packed, uniforms, recipe.augment)
        frames = made.unflatten(0, (CORES, -1, recipe.batch.frames))
    if data.labelled_source is not None:
        decoded = data.labelled_source.read(data.labelled_source.plan(step))
        uniforms = decoded.plan.augment_uniforms.reshape(-1, UNIFORMS)
        settings = replace(recipe.augment, policy="imagenet")
        images = augment(on_device([decoded.images], there), uniforms, settings).unflatten(0, (CORES, 2, 2))
    return frames, images


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cores_each", [1, 2, 4])
@pytest.mark.parametrize("name", RECIPES)
def test_steps_hold_the_planned_micro_batches_in_order(
    index: Index, images: LabelledImages, name: str, cores_each: int, device: str
) -> None:
    recipe = RECIPES[name]
    data = data_of(index, images, recipe)
    numbers = []
    with prefetch(data, recipe, device, cores_each) as steps:
        for step in steps:
            numbers.append(step.number)
            videos, labelled = list(step.videos), list(step.images)
            frames, pictures = in_one_go(data, recipe, step.number, device)
            for parts, source, expected in (
                (videos, data.videos_source, frames),
                (labelled, data.labelled_source, pictures),
            ):
                assert len(parts) == (0 if expected is None else CORES // cores_each)
                if expected is None or source is None:
                    continue
                assert all(len(part.frames) == cores_each and part.frames.device.type == device for part in parts)
                joined = torch.cat([part.frames for part in parts])
                torch.testing.assert_close(joined, expected, rtol=0, atol=2e-5)
                plan = source.plan(step.number)
                uniforms = torch.cat([part.uniforms for part in parts]).cpu()
                assert torch.equal(uniforms.flatten(0, 1), torch.from_numpy(plan.loss_uniforms))
            assert all(part.labels is None for part in videos)
            if data.labelled_source is not None:
                wanted = images.labels[data.labelled_source.plan(step.number).video].reshape(CORES, 2)
                labels = torch.cat([part.labels for part in labelled if part.labels is not None])
                assert labels.cpu().tolist() == wanted.tolist()
    assert numbers == list(STEPS)


def steps_of(prefetched: Prefetch, device: str, busy: bool = False) -> Iterator[Step]:
    """The steps; while the device is busy, and where memory is used again as soon as it is let go."""
    side = 2000 if device == "cuda" else 10
    matrix = torch.rand(side, side, device=device)
    for step in prefetched:
        parts: list[list[MicroBatch]] = [[], []]
        for kept, micro_batches in zip(parts, (step.videos, step.images), strict=True):
            for micro_batch in micro_batches:
                for _ in range(10 if busy else 0):
                    matrix = (matrix @ matrix).softmax(dim=1)
                labels = None if micro_batch.labels is None else micro_batch.labels.clone()
                kept.append(MicroBatch(micro_batch.frames.clone(), micro_batch.uniforms.clone(), labels))
        yield step.number, parts[0], parts[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("resident", [False, True])
def test_what_is_made_ahead_is_what_is_made_when_asked_for(
    index: Index, images: LabelledImages, resident: bool, device: str
) -> None:
    """Also while the device is busy, and memory is used again as soon as it is let go."""
    data = data_of(index, images, BOTH)
    execution = Execution(threads=2, resident="on" if resident else "off")
    with prefetch(data, BOTH, device, 2, torch.bfloat16, execution) as ahead:
        there = torch.device(device)
        assert ahead.videos is not None and ahead.images is not None
        assert data.videos_source is not None and data.labelled_source is not None
        videos = replace(ahead.videos, source=data.videos_source, threads=0)
        labelled = replace(ahead.images, threads=0)
        for number, frames, pictures in steps_of(ahead, device, busy=True):
            assert frames[0].frames.dtype == torch.bfloat16 and frames[0].frames.device.type == there.type
            assert_same_micro_batches(frames, list(videos.load(range(number, number + 1))))
            assert_same_micro_batches(pictures, list(labelled.load(range(number, number + 1))))


SMALL = Recipe("small", batch=Batch(videos=1, shots=1, frames=2, cores=1), augment=Augment(size=16))


def small_prefetch(folder: Path, frames: list[bytes], device: str, steps: int) -> Prefetch:
    index = open_index(make_corpus(folder, {"clip": [frames]}))
    source, there = CorpusSource(index, SMALL.batch, 0), torch.device(device)
    loader = Loader(source, partial(augment, settings=SMALL.augment), range(1), 1, 1, there, 1)
    return Prefetch(loader, None, range(steps), there, micro_batch_bytes(SMALL, MicroBatchSize(1, 1), torch.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_what_goes_wrong_while_reading_reaches_the_consumer(tmp_path: Path, device: str) -> None:
    before = threading.active_count()
    given = []
    with (
        pytest.raises(UserError, match=r"00000.arrow is missing"),
        small_prefetch(tmp_path, [jpeg(10)] * 3, device, steps=50) as prefetched,
    ):
        for step in prefetched:
            (micro_batch,) = step.videos
            given.append(step.number)
            assert micro_batch.frames.shape == (1, 1, 2, 3, 16, 16)
            shard_path(tmp_path, 0).unlink(missing_ok=True)
    assert given == list(range(len(given))) and 1 <= len(given) < 12  # what was made ahead is still given
    assert threading.active_count() == before


@pytest.mark.parametrize("device", DEVICES)
def test_leaving_early_ends_the_threads(tmp_path: Path, device: str) -> None:
    before = threading.active_count()
    for taken in (0, 1):
        with small_prefetch(tmp_path / str(taken), [jpeg(10)] * 3, device, steps=10**6) as prefetched:
            steps = iter(prefetched)
            for _ in range(taken):
                next(next(steps).videos)
                assert threading.active_count() > before
        assert threading.active_count() == before
    with (
        pytest.raises(KeyboardInterrupt),
        small_prefetch(tmp_path / "x", [jpeg(10)] * 3, device, steps=10**6) as prefetched,
    ):
        for step in prefetched:
            next(step.videos)
            raise KeyboardInterrupt
    assert threading.active_count() == before


@pytest.mark.parametrize("device", DEVICES)
def test_damaged_frames_are_named_in_every_step_that_sees_them(tmp_path: Path, device: str) -> None:
    with small_prefetch(tmp_path, [jpeg(10), b"?"], device, steps=3) as prefetched:
        for step in prefetched:
            (micro_batch,) = step.videos
            (line,) = micro_batch.damaged
            assert line.startswith("damaged, its neighbour takes its place: video clip shot 0 frame 1: ")


def test_the_size_of_a_micro_batch_is_that_of_its_frames(index: Index, images: LabelledImages) -> None:
    for name, recipe in RECIPES.items():
        for cores_each in (1, 2):
            with prefetch(data_of(index, images, recipe), recipe, "cpu", cores_each) as prefetched:
                step = next(iter(prefetched))
                largest = max(part.frames.nbytes for parts in (step.videos, step.images) for part in parts)
            size = MicroBatchSize(cores_each, cores_each)
            assert micro_batch_bytes(recipe, size, torch.float32) == largest, name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_a_step_ahead_unless_that_takes_too_much_memory(index: Index) -> None:
    gpu = torch.device("cuda")
    source = CorpusSource(index, VIDEOS.batch, 0)
    loader = Loader(source, partial(augment, settings=VIDEOS.augment), range(CORES), CORES, 1, gpu, 1)
    assert Prefetch(loader, None, STEPS, gpu, 1).ahead == CORES
    assert Prefetch(loader, None, STEPS, gpu, 10**15).ahead == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_waits_of_the_device_are_noted_if_asked(tmp_path: Path) -> None:
    with small_prefetch(tmp_path, [jpeg(10)] * 3, "cuda", steps=3) as prefetched:
        prefetched.waits = []
        for step in prefetched:
            assert len(list(step.videos)) == 1
        torch.cuda.synchronize()
        assert len(prefetched.waits) == 3
        assert all(before.elapsed_time(after) >= 0 for before, after in prefetched.waits)
