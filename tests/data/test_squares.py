"""Central squares: as Pillow makes them, in the order of the files; what cannot be read is named."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpora import write_images
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as vision

from vivi.data.decode import read_image
from vivi.data.images import LabelledImages, find_images
from vivi.data.squares import BATCH, central_square, labelled_squares, read_squares, sample_squares
from vivi.runtime.errors import UserError

SIZE = 16


def pillow_square(image: Image.Image, size: int) -> Image.Image:
    """By Pillow: the short side to size · 256 / 224, then the central square."""
    short = round(size * 256 / 224)
    scale = short / min(image.size)
    resized = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = round((resized.width - size) / 2), round((resized.height - size) / 2)
    return resized.crop((left, top, left + size, top + size))


@pytest.mark.parametrize("size", [32, 56, 224])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (40, 90), (300, 200), (17, 13), (20, 60)])
def test_squares_are_those_of_pillow(height: int, width: int, size: int) -> None:
    random = np.random.default_rng(height + size)
    image = Image.fromarray(random.integers(0, 256, (5, 4, 3)).astype(np.uint8)).resize((width, height))
    found = central_square(np.array(image), size)
    expected = torch.from_numpy(np.array(pillow_square(image, size))).permute(2, 0, 1)
    assert found.shape == (3, size, size) and found.dtype == torch.uint8
    assert (found.int() - expected.int()).abs().float().mean() < 1


def test_a_strip_is_cut_before_it_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    resized: list[int] = []  # pixels
    resize = vision.resize

    def watched(image: Tensor, *arguments: Any, **options: Any) -> Tensor:
        made: Tensor = resize(image, *arguments, **options)
        resized.append(made[0].numel())
        return made

    monkeypatch.setattr(vision, "resize", watched)
    strip = np.zeros((1, 10_000, 3), np.uint8)
    strip[:, 4_990:5_010] = 200
    for image in (strip, strip.transpose(1, 0, 2)):
        assert (central_square(image, 32) == 200).all()
    assert len(resized) == 2 and max(resized) <= 4 * 37 * 37


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> LabelledImages:
    """49 images of seven classes, each different; numbers 9 and 33 cannot be read."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(49):
        path = folder / f"class{number // 7}" / f"{number:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20 + number % 5, 24, 3), np.uint8)).save(path)
        if number in (9, 33):
            path.write_bytes(path.read_bytes()[:99])
    return find_images(folder)


def test_files_are_read_in_their_order_with_their_numbers(images: LabelledImages) -> None:
    files = [(10 * number, images.path(number)) for number in (5, 3, 9, 40, 3)] * 150
    assert len(files) > 2 * BATCH
    batches = list(read_squares(iter(files), SIZE))
    assert [len(batch.numbers) + len(batch.unreadable) for batch in batches] == [256, 256, 238]
    assert [number for batch in batches for number in batch.numbers] == [50, 30, 400, 30] * 150
    assert all(len(batch.squares) == len(batch.numbers) for batch in batches)
    for number, square in zip(batches[0].numbers, batches[0].squares, strict=True):
        assert torch.equal(square, central_square(read_image(images.path(number // 10)), SIZE))
    for line in batches[1].unreadable:
        assert line.startswith(f"'{images.path(9)}': ") and "\n" not in line


def test_files_that_cannot_be_read_give_an_empty_batch(images: LabelledImages) -> None:
    (batch,) = read_squares([(1, images.path(9)), (2, images.path(33))], SIZE)
    assert batch.numbers == [] and batch.squares.shape == (0, 3, SIZE, SIZE) and len(batch.unreadable) == 2
    assert list(read_squares([], SIZE)) == []


def test_labels_are_those_of_the_readable_images(images: LabelledImages) -> None:
    ((squares, labels, unreadable),) = labelled_squares(images, [8, 9, 48, 0], SIZE)
    assert labels.tolist() == [1, 6, 0] and len(squares) == 3 and len(unreadable) == 1


def test_some_images_stand_for_all(images: LabelledImages) -> None:
    squares, labels, lines = sample_squares(images, SIZE, 1000)
    readable = [number for number in range(49) if number not in (9, 33)]
    assert squares.shape == (47, 3, SIZE, SIZE) and squares.dtype == torch.uint8
    assert labels.tolist() == [int(images.labels[number]) for number in readable]
    assert [line.split("': ")[0].lstrip("'") for line in lines] == [str(images.path(9)), str(images.path(33))]
    for most in (1, 7, 30):
        some, some_labels, skipped = sample_squares(images, SIZE, most)
        assert len(some) == len(some_labels) == most - len(skipped)
        places = [next(n for n, other in enumerate(squares) if torch.equal(other, square)) for square in some]
        assert places == sorted(set(places))
        steps = np.diff([readable[place] for place in places])
        assert most == 1 or steps.max() <= (1 + len(skipped)) * -(-49 // most)


def test_no_readable_image_is_an_error(tmp_path: Path) -> None:
    images = find_images(write_images(tmp_path))
    for path in tmp_path.rglob("*.*"):
        path.write_bytes(b"?")
    with pytest.raises(UserError, match=r"none of 15 test images of .* can be read \(the first: ") as caught:
        sample_squares(images, SIZE, 100)
    assert "\n" not in str(caught.value)


def test_leaving_early_ends_the_threads(images: LabelledImages) -> None:
    before = threading.active_count()
    with closing(read_squares(((number, images.path(0)) for number in range(10**6)), SIZE)) as batches:
        next(batches)
        assert threading.active_count() > before
    assert threading.active_count() == before
