"""Pictures in one piece of memory: each comes out as it went in, whatever lies beside it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from vivi.batches.pixels import Pixels, join, pack

SIZES = [(4, 9), (7, 3), (5, 5), (1, 1)]


def random_pictures(sizes: list[tuple[int, int]], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]


def planar(pictures: list[Tensor]) -> Pixels:
    """Packed as a GPU does."""
    lengths = np.array([picture.numel() for picture in pictures])
    memory = torch.cat([picture.flatten() for picture in pictures])
    sizes = np.array([picture.shape[1:] for picture in pictures], np.int32)
    return Pixels(memory, np.cumsum(lengths) - lengths, sizes, planar=True)


def assert_holds(pixels: Pixels, pictures: list[Tensor]) -> None:
    assert len(pixels) == len(pictures)
    for number, picture in enumerate(pictures):
        assert torch.equal(pixels.picture(number), picture)


def test_pictures_of_any_size_are_packed_without_a_gap() -> None:
    pictures = random_pictures(SIZES)
    pixels = pack(pictures)
    assert pixels.sizes.tolist() == [list(size) for size in SIZES] and not pixels.planar
    assert pixels.places.tolist() == [0, 108, 171, 246] and len(pixels.memory) == 249
    assert_holds(pixels, pictures)
    assert len(pack([])) == 0 and len(pack([]).memory) == 0


def test_how_a_picture_lay_in_memory_before_does_not_matter() -> None:
    picture = random_pictures([(6, 8)])[0]
    others = [
        picture.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        picture.transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat([picture, picture], dim=2)[:, :, 8:],
    ]
    assert_holds(pack([picture, *others]), [picture] * 4)
    assert_holds(pack([torch.full((3, 1, 1), 7, dtype=torch.uint8).expand(3, 2, 5)]), [torch.full((3, 2, 5), 7)])


@pytest.mark.parametrize("packed", [pack, planar])
def test_some_of_the_pictures_also_twice_and_in_another_order(packed: Callable[[list[Tensor]], Pixels]) -> None:
    pictures = random_pictures(SIZES)
    pixels = packed(pictures)
    assert_holds(pixels[1:3], pictures[1:3])
    assert_holds(pixels[np.array([2, 0, 2, 2])], [pictures[number] for number in (2, 0, 2, 2)])
    assert pixels[np.array([2, 0])].memory is pixels.memory
    assert_holds(pixels[:0], [])


@pytest.mark.parametrize("packed", [pack, planar])
def test_joined_parts_hold_all_their_pictures(packed: Callable[[list[Tensor]], Pixels]) -> None:
    first, second, third = (random_pictures(SIZES[:count], seed=count) for count in (4, 1, 3))
    joined = join([packed(first), packed(second)[np.array([0, 0])], packed(third)[1:]])
    assert_holds(joined, [*first, *second * 2, *third[1:]])
    pixels = packed(first)
    again = join([pixels[2:], pixels[:1], pixels])
    assert again.memory is pixels.memory
    assert_holds(again, [*first[2:], *first[:1], *first])
    assert_holds(join([pixels]), first)


def test_parts_of_different_layout_are_not_joined() -> None:
    pictures = random_pictures(SIZES)
    with pytest.raises(AssertionError):
        join([pack(pictures), planar(pictures)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pictures_on_a_gpu_are_packed_there() -> None:
    pictures = random_pictures(SIZES)
    there = pack([picture.cuda() for picture in pictures])
    assert there.memory.is_cuda and there.planar
    moved = pack(pictures, pin=True).to(torch.device("cuda"))
    assert moved.memory.is_cuda and not moved.planar
    for pixels in (there, moved, join([moved, moved[1:]])):
        for number, picture in enumerate(pictures):
            assert torch.equal(pixels.picture(number).cpu(), picture)
