"""How a batch is fitted to little data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from corpora import index_of, write_images

from vivi.data.images import find_images
from vivi.recipes import RECIPES, Recipe
from vivi.train.data import fit_batch


@pytest.mark.parametrize(
    ("recipe", "videos", "fitted"),
    [
        ("vivi-ex4-small", 64, (64, 8)),
        ("vivi-ex4-small", 63, (60, 4)),  # a core keeps 8 videos or more
        ("vivi-ex4-small", 17, (16, 2)),
        ("vivi-ex4-small", 7, (7, 1)),
        ("vivi-ex4", 300, (256, 64)),
        ("vivi-ex4-tiny", 2, (2, 1)),
        ("vivi-ex4-tiny", 1, (16, 1)),  # one video has no negatives: the recipe stays, and is refused
        ("rot-yt-f-tiny", 1, (1, 1)),
        ("vivi-ex4-tiny", 0, (16, 1)),
    ],
)
def test_a_step_has_no_more_videos_than_there_are(recipe: str, videos: int, fitted: tuple[int, int]) -> None:
    index = index_of([[9] * 4] * videos + [[9]] * 5)
    if RECIPES[recipe].batch.shots == 1:
        index = index_of([[9]] * videos)
    found = fit_batch(RECIPES[recipe], index, None, None).batch
    assert (found.videos, found.cores) == fitted


def test_labelled_images_are_fitted_along_with_videos(tmp_path: Path) -> None:
    images = find_images(write_images(tmp_path))  # 15
    recipe = RECIPES["vivi-ex4-co100-small"]  # 64 videos and 256 images in 8 cores
    index = index_of([[9] * 4] * 64)

    def fitted(recipe: Recipe) -> tuple[int, int, int]:
        found = fit_batch(recipe, index, images, images)
        return found.batch.videos, found.images.count, found.batch.cores

    assert fitted(recipe) == (64, 15, 1)
    few = replace(recipe, images=replace(recipe.images, count=8))
    assert fit_batch(few, index, images, images) is few
    assert fitted(replace(recipe, images=replace(recipe.images, count=24))) == (64, 12, 4)
