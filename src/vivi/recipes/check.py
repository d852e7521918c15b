"""What a recipe must fulfil, said before any work is done. What a loss demands is said in losses.py."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import get_type_hints

from vivi.recipes.baselines import PATCHES
from vivi.recipes.losses import check_pairs_of_frames
from vivi.recipes.schema import SIZES, Images, Recipe
from vivi.runtime.errors import check_ranges, require


def check_recipe(recipe: Recipe) -> None:
    """Raises for the first thing that cannot work."""
    check_numbers(recipe)
    _check_augment(recipe)
    _check_batch(recipe)
    loss = recipe.loss
    if loss.contrastive_weight:
        require(recipe.batch.videos > 0, "--loss.contrastive-weight needs --batch.videos above 0")
        check_pairs_of_frames(recipe, "the contrastive loss")
    for settings in (loss.frame, loss.video):
        if settings is not None:
            settings.check(recipe)


def check_numbers(settings: object, prefix: str = "") -> None:
    """Raises for the first number that lies outside the range that its type says (schema.py)."""
    kinds = get_type_hints(type(settings), include_extras=True)
    for name, value in vars(settings).items():
        if is_dataclass(value):
            check_numbers(value, f"{prefix}{name}.")
        for allowed in getattr(kinds[name], "__metadata__", ()):
            if isinstance(allowed, tuple):
                check_ranges(settings, {name: allowed}, prefix)


def _check_augment(recipe: Recipe) -> None:
    augment, frame = recipe.augment, recipe.loss.frame
    for flag, (low, high), most in (
        ("--augment.crop-area", augment.crop_area, 1.0),
        ("--augment.crop-aspect", augment.crop_aspect, 1000.0),
    ):
        require(0 < low <= high <= most, f"{flag} {low:g} {high:g} is no range above 0 and up to {most:g}")
    for flag, given in (("no-hsv", augment.hsv), ("grey 0", augment.grey), ("grey-frames 0", augment.grey_frames)):
        policy = f"--augment.policy {augment.policy}"
        require(not given or augment.policy == "none", f"{policy} replaces all colour: add --augment.{flag}")
    if frame is not None and frame.patches:
        # The encoder's input is 7/2 of a patch's size (Recipe.encoder_size).
        check_ranges(augment, {"size": (SIZES[0], SIZES[1] * 2 // 7)}, "augment.")
        alone = f"--loss.frame {frame.name} cuts patches, and of --augment it allows the size alone"
        require(augment == replace(PATCHES, size=augment.size), f"{alone}: start from jigsaw or rel-pat-loc")


def _check_batch(recipe: Recipe) -> None:
    """The videos (or images without labels) and the labelled images of a step."""
    batch, images, loss = recipe.batch, recipe.images, recipe.loss
    videos, labelled, weight = batch.videos > 0, images.count > 0, loss.supervised_weight
    for flag, count in (("--batch.videos", batch.videos), ("--images.count", images.count)):
        require(count % batch.cores == 0, f"{flag} {count} is no multiple of --batch.cores {batch.cores}")
    require(batch.source == "shot" or batch.shots == 1, f"--batch.source {batch.source} needs --batch.shots 1")
    require(batch.source == "frame" or not batch.resample, "--batch.resample needs --batch.source frame")
    require(videos or labelled, "nothing to learn from: --batch.videos and --images.count are both 0")
    both = f"--images.count is {images.count}, --loss.supervised-weight {weight:g}"
    require(labelled == (weight > 0), f"labelled images and their loss need each other: {both}")
    require(labelled or images == Images(), "other --images fields are about labelled ones: set --images.count")
    require(labelled or not loss.on_labelled, "--loss.on-labelled needs labelled images: set --images.count")
    fits = videos or (loss.video is None and (loss.frame is None or loss.on_labelled))
    require(fits, "--batch.videos 0 needs --loss.video none, and --loss.frame none or --loss.on-labelled")
    has_loss = loss.frame is not None or loss.video is not None
    require(has_loss or not videos, "the videos have no loss: set --loss.frame or --loss.video, or --batch.videos 0")
