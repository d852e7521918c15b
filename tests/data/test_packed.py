"""Images in one piece of memory: each comes out as it went in; copies take what they need and no more."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vivi.data.packed import Image, PackedImages, adjacent, on_device, pack, upload

CPU = torch.device("cpu")
SIZES = [(4, 9), (7, 3), (5, 5), (1, 1)]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def random_images(sizes: list[tuple[int, int]], seed: int = 0) -> list[Image]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (*size, 3), np.uint8) for size in sizes]


def assert_holds(packed: PackedImages, images: list[Image]) -> None:
    assert len(packed) == len(images)
    for number, image in enumerate(images):
        assert np.array_equal(packed.image(number).cpu().numpy(), image)


def bytes_of_distinct(packed: PackedImages) -> int:
    """What the images take, each counted once."""
    distinct = dict(zip(packed.starts.tolist(), packed.sizes.tolist(), strict=True))
    return sum(3 * height * width for height, width in distinct.values())


def scattered(count: int, seed: int) -> PackedImages:
    """Some images of many, in any order, several of them more than once."""
    rng = np.random.default_rng(seed)
    sizes = [(int(height), int(width)) for height, width in rng.integers(1, 6, (20, 2))]
    return pack(random_images(sizes, seed))[rng.integers(0, 20, count)]


def test_images_of_any_size_are_packed_without_a_gap() -> None:
    images = random_images(SIZES)
    packed = pack(images)
    assert packed.sizes.tolist() == [list(size) for size in SIZES]
    assert packed.starts.tolist() == [0, 108, 171, 246] and len(packed.memory) == 249
    assert_holds(packed, images)
    assert len(pack([])) == 0 and len(pack([]).memory) == 0 and pack([]).sizes.shape == (0, 2)


def test_how_an_image_lay_in_memory_before_does_not_matter() -> None:
    [image] = random_images([(6, 8)])
    others = [
        image.transpose(2, 0, 1).copy().transpose(1, 2, 0),
        image.transpose(1, 0, 2).copy().transpose(1, 0, 2),
        np.concatenate([image, image], axis=1)[:, 8:],
        image[::-1][::-1],
    ]
    assert_holds(pack([image, *others]), [image] * 5)
    grey = np.broadcast_to(np.array([7, 8, 9], np.uint8), (2, 5, 3))
    assert_holds(pack([grey]), [grey])


def test_what_is_packed_is_a_copy() -> None:
    [image] = random_images([(6, 8)])
    packed, before = pack([image]), image.copy()
    image[:] = 0
    assert_holds(packed, [before])


def test_images_can_be_chosen_also_twice_and_in_another_order() -> None:
    images = random_images(SIZES)
    packed = pack(images)
    assert_holds(packed[1:3], images[1:3])
    assert_holds(packed[np.array([2, 0, 2, 2])], [images[number] for number in (2, 0, 2, 2)])
    assert packed[np.array([2, 0])].memory is packed.memory
    assert_holds(packed[:0], [])


def test_parts_become_one_with_all_their_images_in_order() -> None:
    first, second, third = (random_images(SIZES[:count], seed=count) for count in (4, 1, 3))
    joined = on_device([pack(first), pack(second)[np.array([0, 0])], pack(third)[1:]], CPU)
    assert_holds(joined, [*first, *second * 2, *third[1:]])
    assert_holds(on_device([pack(first), pack(second)[:0], pack(third)], CPU), [*first, *third])


def test_parts_that_share_their_memory_are_not_copied() -> None:
    images = random_images(SIZES)
    packed = pack(images)
    again = on_device([packed[2:], packed[:1], packed], CPU)
    assert again.memory is packed.memory
    assert_holds(again, [*images[2:], *images[:1], *images])
    single = on_device([packed], CPU)
    assert single.memory is packed.memory
    assert_holds(single, images)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 3, 30, 200])
def test_of_other_memory_only_what_is_needed_is_copied_each_image_once(count: int, seed: int) -> None:
    parts = [scattered(count, seed), scattered(5, seed + 100)]
    copied = on_device(parts, CPU)
    assert all(copied.memory is not part.memory for part in parts)
    assert_holds(copied, [part.image(number).numpy() for part in parts for number in range(len(part))])
    assert len(copied.memory) == sum(bytes_of_distinct(part) for part in parts)


@pytest.mark.parametrize("seed", range(6))
def test_neighbours_are_found_to_be_copied_in_one_go(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 40)
    starts = np.cumsum(lengths) - lengths
    kept = np.flatnonzero(rng.random(40) < (0.2, 0.5, 0.8)[seed % 3])
    expected: list[tuple[int, int]] = []
    for number, piece in enumerate(kept.tolist()):
        if number and kept[number - 1] == piece - 1:
            expected[-1] = expected[-1][0], number + 1
        else:
            expected.append((number, number + 1))
    assert adjacent(starts[kept], lengths[kept]) == expected
    assert adjacent(starts, lengths) == [(0, 40)]
    assert adjacent(starts[:0], lengths[:0]) == []


def test_a_tensor_is_uploaded_as_it_is() -> None:
    values = torch.arange(12).view(3, 4)
    assert torch.equal(upload(values, CPU), values)


@needs_gpu
def test_a_tensor_is_uploaded_to_a_gpu() -> None:
    values = torch.arange(12).view(3, 4)
    there = upload(values, torch.device("cuda"))
    assert there.is_cuda and torch.equal(there.cpu(), values)


@needs_gpu
@pytest.mark.parametrize("pin", [False, True])
def test_images_are_copied_to_a_gpu_and_stay_there(pin: bool) -> None:
    gpu = torch.device("cuda")
    images = random_images(SIZES)
    packed = pack(images, pin)
    assert packed.memory.is_pinned() == pin
    which = np.array([2, 0, 2])
    there = on_device([packed[which]], gpu)
    assert there.memory.is_cuda and len(there.memory) == bytes_of_distinct(packed[which])
    assert_holds(there, [images[number] for number in which])
    again = on_device([there, there[1:]], gpu)
    assert again.memory is there.memory
    assert_holds(again, [images[number] for number in (2, 0, 2, 0, 2)])
