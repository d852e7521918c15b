"""Images through the loader: planned like videos, unreadable ones replaced by their class, decoded here or there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vivi.batches.image_stream import ImageStream, labelled_stream, unlabelled_stream
from vivi.batches.images import find_images
from vivi.batches.loader import LoadedBatch, Loader
from vivi.batches.pixels import Pixels
from vivi.batches.sampler import StreamNumber, plan_images
from vivi.errors import UserError
from vivi.recipes import RECIPES

CPU = torch.device("cpu")


def write_images(folder: Path, classes: int = 3, each: int = 5) -> Path:
    """Images of one colour, told apart by their level; every third a PNG."""
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            suffix = "png" if number % 3 == 2 else "jpg"
            level = 10 * (each * label + number)
            path = folder / f"class{label}" / f"{number}.{suffix}"
            Image.new("RGB", (20 + number, 16 + label), (level,) * 3).save(path)
    return folder


def stream(folder: Path, number: StreamNumber = StreamNumber.LABELLED, encoded: bool = False) -> ImageStream:
    return ImageStream(find_images(folder), 6, 2, seed=3, cores=2, number=number, encoded=encoded)


def load(source: ImageStream, steps: int = 5, threads: int = 2) -> tuple[list[LoadedBatch], Loader]:
    with Loader(source, 0, 2, threads, 0, steps) as loader:
        return list(loader), loader


def levels(pixels: Pixels) -> list[int]:
    return [round(float(pixels.picture(number).float().mean()) / 10) for number in range(len(pixels))]


@pytest.mark.parametrize("encoded", [False, True])
def test_a_step_holds_the_planned_images_once_with_draws_for_every_copy(tmp_path: Path, encoded: bool) -> None:
    source = stream(write_images(tmp_path), encoded=encoded)
    batches, loader = load(source)
    for batch in batches:
        plan = source.plan(batch.step)
        assert batch.items.flatten().tolist() == plan.video.tolist()
        assert any(isinstance(core.pictures, list) for core in batch.cores) == encoded
        assert all(len(core.pictures) == 3 for core in batch.cores)
        for cores in (slice(0, 2), slice(1, 2)):
            samples = loader.samples(batch, cores, CPU)
            images = slice(3 * cores.start, 3 * cores.stop)
            assert levels(samples.pixels) == plan.video[images].repeat(2).tolist()
            assert np.array_equal(samples.draws, plan.draws[images].reshape(len(samples.draws), -1))
            assert len(set(samples.pixels.places.tolist())) == len(samples.draws) // 2
    assert not loader.damaged


def test_an_epoch_sees_every_image_once_and_streams_differ() -> None:
    epochs = [[plan_images(12, 4, 1, 0, step).video.tolist() for step in range(3 * e, 3 * e + 3)] for e in range(2)]
    for epoch in epochs:
        assert sorted(image for batch in epoch for image in batch) == list(range(12))
    assert epochs[0] != epochs[1]
    one, other = (plan_images(12, 4, 1, 0, 0, number) for number in StreamNumber)
    assert one.video.tolist() != other.video.tolist()
    assert not np.array_equal(one.draws, other.draws) and not np.array_equal(one.noise, other.noise)


def test_threads_and_devices_do_not_change_a_batch(tmp_path: Path) -> None:
    folder = write_images(tmp_path)
    plain = load(stream(folder), threads=1)[0]
    others, loader = load(stream(folder, encoded=True), threads=3)
    for one, other in zip(plain, others, strict=True):
        for cores in (slice(0, 2), slice(1, 2)):
            here, decoded = (loader.samples(batch, cores, CPU).pixels for batch in (one, other))
            assert len(here) == len(decoded) > 0
            for number in range(len(here)):
                assert torch.equal(here.picture(number), decoded.picture(number))


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("broken", ["empty", "cut", "rubbish in the middle"])
def test_an_unreadable_image_is_replaced_by_the_next_of_its_class_and_named(
    tmp_path: Path, encoded: bool, broken: str
) -> None:
    folder = write_images(tmp_path)
    good = (folder / "class1" / "3.jpg").read_bytes()
    content = {"empty": b"", "cut": good[: len(good) // 2], "rubbish in the middle": good[:20] + b"\xff" * 400}[
        broken
    ]
    for name in ("3.jpg", "4.jpg"):  # images 8 and 9 of 15; after them comes 5, the first of the class
        (folder / "class1" / name).write_bytes(content)
    batches, loader = load(stream(folder, encoded=encoded), steps=10)
    stand_ins = {8: 5, 9: 5}
    for batch in batches:
        shown = levels(loader.samples(batch, slice(0, 2), CPU).pixels)
        wanted = batch.items.flatten().repeat_interleave(2).tolist()
        assert shown == [stand_ins.get(image, image) for image in wanted]
    assert len(loader.damaged) == 2
    for line in loader.damaged:
        assert line.startswith("unreadable, the next of its class takes its place: image ") and "\n" not in line
        assert "class1/3.jpg': " in line or "class1/4.jpg': " in line


def test_a_class_of_unreadable_images_is_one_line(tmp_path: Path) -> None:
    folder = write_images(tmp_path)
    for path in (folder / "class2").iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"no image of class 'class2' in .* can be read") as caught:
        load(stream(folder), steps=10)
    assert "\n" not in str(caught.value)


def test_fewer_images_than_a_step_needs_are_refused(tmp_path: Path) -> None:
    images = find_images(write_images(tmp_path))
    recipe = RECIPES["semi-ex10-tiny"]
    with pytest.raises(UserError, match=r"--batch.videos is 64, but .* has only 15 images; lower it to 15 at most"):
        unlabelled_stream(images, recipe)
    with pytest.raises(UserError, match=r"--images.count is 64, but only 15 labelled images .*--images-fraction 0.1"):
        labelled_stream(images, recipe)
    enough = replace(recipe, images=replace(recipe.images, count=15))
    assert labelled_stream(images, enough).count == 15
