"""What the steps are fed with: the planned pictures, in order, however far ahead they are made; errors reach the
consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_index import make_corpus
from test_loader import jpeg
from torch import Tensor

from vivi.batches.augment import augment, augment_patches
from vivi.batches.frames import FrameStream
from vivi.batches.image_stream import labelled_stream
from vivi.batches.images import LabelledImages, find_images
from vivi.batches.index import Index, open_index
from vivi.batches.loader import Loader
from vivi.batches.resident import ResidentLoader, decoded_bytes, load_store
from vivi.errors import UserError
from vivi.recipes import Augment, Batch, Images, Loss, Recipe
from vivi.training.feed import AnyLoader, Batches, Feed, Pictures
from vivi.training.memory import AtOnce
from vivi.video.corpus import Corpus, shard_path

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
CORES = 4
VIDEOS = Recipe("videos", batch=Batch(videos=4, shots=2, frames=3, cores=CORES), augment=Augment(size=24, hue=0.1))
BOTH = replace(VIDEOS, images=Images(count=8, copies=2, policy="imagenet"))
RECIPES = {
    "videos": VIDEOS,
    "single frames": replace(VIDEOS, batch=replace(VIDEOS.batch, shots=1, source="frame")),
    "patches": replace(VIDEOS, batch=replace(VIDEOS.batch, shots=1), loss=Loss(frame="jigsaw", video="none")),
    "videos and labelled images": BOTH,
    "labelled images alone": replace(BOTH, batch=replace(BOTH.batch, videos=0)),
}


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


@contextmanager
def open_batches(
    index: Index, images: LabelledImages, recipe: Recipe, device: str, steps: int = 5, resident: bool = False
) -> Iterator[Batches]:
    """As vivi.training.loading does, but all of it is asked for."""
    there = device == "cuda"
    videos: AnyLoader | None = None
    if recipe.batch.videos:
        stream = FrameStream(index, recipe.batch, 0, encoded=there)
        videos = Loader(stream, 0, CORES, 2, 1, steps, pin=there)
        if resident:
            size = decoded_bytes(index, stream.eligible, 10**9)
            assert size is not None
            store = load_store(stream, 2, size, torch.device(device), torch.device("cpu"), lambda done: None)
            assert store is not None
            videos = ResidentLoader(stream, store, 0, CORES, 1, steps)
    labelled = None
    if recipe.images.count:
        photographs = labelled_stream(images, recipe)
        photographs.encoded = there
        labelled = Loader(photographs, 0, CORES, 2, 1, steps, pin=there)
    try:
        yield Batches(videos, labelled, torch.from_numpy(images.labels))
    finally:
        for loader in (videos, labelled):
            if loader is not None:
                loader.close()


def expected_steps(
    index: Index, images: LabelledImages, recipe: Recipe, device: str
) -> Iterator[tuple[Tensor | None, Tensor | None, Tensor | None]]:
    """All frames, all labelled images and all labels of every step, made in one go: (cores, ...)."""
    here = torch.device(device)
    colours = replace(recipe.augment, policy="imagenet")
    with open_batches(index, images, recipe, device) as batches:
        for videos, labelled in batches:
            frames = pictures = labels = None
            if videos is not None and batches.videos is not None:
                samples = batches.videos.samples(videos, slice(0, CORES), here)
                patches = recipe.loss.frame == "jigsaw"
                made = augment_patches(samples, 24) if patches else augment(samples, recipe.augment)
                frames = made.unflatten(0, (CORES, recipe.batch.shots, recipe.batch.frames))
            if labelled is not None and batches.images is not None:
                samples = batches.images.samples(labelled, slice(0, CORES), here)
                pictures = augment(samples, colours).unflatten(0, (CORES, 2, 2))
                plan = labelled_stream(images, recipe).plan(labelled.step)
                labels = torch.from_numpy(images.labels)[plan.video].view(CORES, 2)
            yield frames, pictures, labels


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at_once", [1, 2, 4])
@pytest.mark.parametrize("name", RECIPES)
def test_steps_hold_the_planned_pictures_in_order(
    index: Index, images: LabelledImages, name: str, at_once: int, device: str
) -> None:
    recipe = RECIPES[name]
    numbers = []
    with (
        open_batches(index, images, recipe, device) as batches,
        Feed(Pictures(batches, recipe, torch.device(device), torch.float32), AtOnce(at_once, at_once)) as feed,
    ):
        for step, (frames, pictures, labels) in zip(feed, expected_steps(index, images, recipe, device), strict=True):
            numbers.append(step.number)
            assert len(step.videos) == (0 if frames is None else CORES // at_once)
            assert len(step.images) == (0 if pictures is None else CORES // at_once)
            if frames is not None:
                made = [part.frames() for part in step.videos]
                assert all(len(one) == at_once and one.device.type == device for one in made)
                torch.testing.assert_close(torch.cat(made), frames, rtol=0, atol=2e-5)
                noise = torch.cat([part.noise for part in step.videos]).cpu()
                plan = FrameStream(index, recipe.batch, 0).plan(step.number)
                assert torch.equal(noise.flatten(0, 1), torch.from_numpy(plan.noise))
            if pictures is not None and labels is not None:
                made = [part.images() for part in step.images]
                torch.testing.assert_close(torch.cat(made), pictures, rtol=0, atol=2e-5)
                assert torch.equal(torch.cat([part.labels for part in step.images]).cpu(), labels)
                noise = torch.cat([part.noise for part in step.images]).cpu()
                plan = labelled_stream(images, recipe).plan(step.number)
                assert torch.equal(noise.flatten(0, 1), torch.from_numpy(plan.noise))
    assert numbers == [1, 2, 3, 4]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("resident", [False, True])
def test_pictures_made_ahead_are_those_made_when_asked_for(
    index: Index, images: LabelledImages, resident: bool, device: str
) -> None:
    """Also while the device is busy, and memory is used again as soon as it is let go."""
    gpu = torch.device(device)
    with (
        open_batches(index, images, BOTH, device, resident=resident) as ahead,
        open_batches(index, images, BOTH, device) as lazy,
        Feed(Pictures(ahead, BOTH, gpu, torch.bfloat16), AtOnce(2, 2)) as feed,
    ):
        later = Pictures(lazy, BOTH, gpu, torch.bfloat16)
        expected = (later.step(videos, labelled, AtOnce(2, 2)) for videos, labelled in lazy)
        busy = torch.rand(2000 if device == "cuda" else 10, 2000 if device == "cuda" else 10, device=device)
        for step, wanted in zip(feed, expected, strict=True):
            for part, same in zip(step.videos, wanted.videos, strict=True):
                pictures = part.frames()
                for _ in range(10):
                    busy = (busy @ busy).softmax(dim=1)
                seen = pictures.clone()
                del pictures
                assert seen.dtype == torch.bfloat16
                assert torch.equal(seen, same.frames()) and torch.equal(part.noise, same.noise)
            for one, other in zip(step.images, wanted.images, strict=True):
                assert torch.equal(one.images(), other.images()) and torch.equal(one.labels, other.labels)
                assert torch.equal(one.noise, other.noise)


def small_corpus(folder: Path, frames: list[bytes]) -> Index:
    return open_index(make_corpus(folder, {"clip": [frames]}))


ONE = Recipe("one", batch=Batch(videos=1, shots=1, frames=2, cores=1), augment=Augment(size=16))


@contextmanager
def feed_of(index: Index, device: str, steps: int) -> Iterator[Feed]:
    with Loader(FrameStream(index, ONE.batch, 0, encoded=device == "cuda"), 0, 1, 1, 0, steps) as loader:
        batches = Batches(loader, None, torch.zeros(0, dtype=torch.int64))
        with Feed(Pictures(batches, ONE, torch.device(device), torch.float32), AtOnce(1, 1)) as feed:
            yield feed


@pytest.mark.parametrize("device", DEVICES)
def test_what_goes_wrong_while_reading_reaches_the_consumer(tmp_path: Path, device: str) -> None:
    index = small_corpus(tmp_path, [jpeg(10)] * 3)
    numbers = []
    with pytest.raises(UserError, match=r"00000.arrow is missing"), feed_of(index, device, steps=50) as feed:
        for step in feed:
            numbers.append(step.number)
            assert step.videos[0].frames().shape == (1, 1, 2, 3, 16, 16)
            shard_path(tmp_path, 0).unlink(missing_ok=True)
    assert numbers == list(range(len(numbers))) and 1 <= len(numbers) < 12  # what was made ahead is still given
    assert not [thread for thread in threading.enumerate() if thread.name == "feed"]


@pytest.mark.parametrize("device", DEVICES)
def test_leaving_early_ends_the_thread(tmp_path: Path, device: str) -> None:
    index = small_corpus(tmp_path, [jpeg(10)] * 3)
    before = threading.active_count()
    for taken in (0, 1):
        with feed_of(index, device, steps=10**6) as feed:
            steps = iter(feed)
            for _ in range(taken):
                next(steps).videos[0].frames()
        assert threading.active_count() == before
    with pytest.raises(KeyboardInterrupt), feed_of(index, device, steps=10**6) as feed:
        for _ in feed:
            raise KeyboardInterrupt
    assert threading.active_count() == before


@pytest.mark.parametrize("device", DEVICES)
def test_damaged_pictures_are_named(tmp_path: Path, device: str) -> None:
    index = small_corpus(tmp_path, [jpeg(10), b"?"])
    with feed_of(index, device, steps=3) as feed:
        for step in feed:
            step.videos[0].frames()
            (line,) = feed.pictures.batches.damaged()
            assert line.startswith("damaged, its neighbour takes its place: video clip shot 0 frame 1: ")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_waits_of_the_device_are_noted_if_asked(tmp_path: Path) -> None:
    with feed_of(small_corpus(tmp_path, [jpeg(10)] * 3), "cuda", steps=3) as feed:
        feed.waits = []
        for step in feed:
            step.videos[0].frames()
        torch.cuda.synchronize()
        assert len(feed.waits) == 3 and all(before.elapsed_time(after) >= 0 for before, after in feed.waits)
