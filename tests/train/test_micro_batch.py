"""How many cores a micro-batch holds: of the videos what fits, of the labelled images as many pictures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vivi.model.vivi import Vivi, build_model
from vivi.recipes import RECIPES, Encoder, Recipe
from vivi.runtime.errors import UserError
from vivi.train import micro_batch
from vivi.train.micro_batch import MicroBatchSize, activation_bytes, choose_size, frames_of_encoder
from vivi.train.settings import Execution

CPU = torch.device("cpu")


def thin(name: str) -> tuple[Recipe, Vivi]:
    recipe = RECIPES[name]
    recipe = replace(recipe, encoder=Encoder("resnetv2_18", width=0.125), augment=replace(recipe.augment, size=32))
    return recipe, build_model(recipe, 3 if recipe.images.count else 0)


@pytest.mark.parametrize(
    ("name", "at_once", "cores", "expected"),
    [
        ("vivi-ex4-co100", 16, 128, 128),  # 128 frames and 16 images in a core: eight times as many cores
        ("vivi-ex4-co100", 16, 64, 64),  # of this process; no more than there are
        ("vivi-ex4-co100", 2, 128, 16),
        ("vivi-ex4-co10", 4, 128, 128),  # 2 images in a core
        ("semi-ex10", 2, 8, 2),  # as many images as others
        ("sup100", 4, 8, 4),  # no videos
    ],
)
def test_images_fill_a_micro_batch_as_videos_do(name: str, at_once: int, cores: int, expected: int) -> None:
    recipe, model = thin(name)
    size = choose_size(model, recipe, Execution(micro_batch=at_once), cores, CPU)
    assert size == MicroBatchSize(at_once, expected)
    assert cores % expected == 0 and expected % at_once == 0


def test_as_many_cores_are_computed_at_once_as_fit_and_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, model = thin("vivi-ex4")
    each = 128 * activation_bytes(model, 32, CPU)  # frames of a core
    for room, expected in [(0.5, 1), (1.0, 1), (3.9, 3), (5.5, 4), (7.0, 6), (100.0, 12)]:
        monkeypatch.setattr(micro_batch, "_CPU_BYTES", int(room * each) + 1)
        assert choose_size(model, recipe, Execution(), 12, CPU).videos == expected


def test_a_size_that_does_not_divide_the_cores_is_refused() -> None:
    recipe, model = thin("vivi-ex4")
    with pytest.raises(UserError, match="--micro-batch 5 does not divide this process's number of cores, 12, evenly"):
        choose_size(model, recipe, Execution(micro_batch=5), 12, CPU)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vivi-ex4", (512 * 4 * 8, 0)),
        ("vivi-rot4", (4 * 512 * 4 * 4, 0)),
        ("vivi-ex4-co100", (512 * 4 * 8, 2048)),
        ("sup-rot100", (0, 4 * 256)),  # the rotated copies of labelled images
        ("semi-ex10", (512 * 8, 512 * 8)),
        ("jigsaw", (9 * 128, 0)),
    ],
)
def test_the_encoder_sees_all_copies_of_videos_and_images(name: str, expected: tuple[int, int]) -> None:
    recipe = RECIPES[name]
    recipe = replace(recipe, encoder=Encoder("resnetv2_18", width=0.125))
    assert frames_of_encoder(build_model(recipe, 3 if recipe.images.count else 0), recipe) == expected


def test_measuring_a_frame_leaves_the_statistics_alone() -> None:
    _, model = thin("vivi-ex4")
    assert activation_bytes(model, 48, CPU) > activation_bytes(model, 32, CPU) > 32 * 32
    assert not any(total.any() for total in model.encoder.collected_statistics())


def test_a_backbone_with_other_features_than_timm_says_cannot_be_an_encoder() -> None:
    _, model = thin("vivi-ex4")
    model.encoder.features += 1
    with pytest.raises(UserError, match="gives 64 features where timm says 65"):
        activation_bytes(model, 32, CPU)
