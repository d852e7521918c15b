"""Every recipe in three sizes: as in the paper, for one GPU (-small), and for two CPU cores (-tiny)."""

from __future__ import annotations

from dataclasses import replace

from vivi.recipes.baselines import FROM_IMAGES
from vivi.recipes.losses import InfoNCE, PatchLoss
from vivi.recipes.paper import CO_TRAINED, FRAMES_AND_SHOTS, WITH_AUTOAUGMENT
from vivi.recipes.schema import Encoder, Recipe


def small(recipe: Recipe) -> Recipe:
    """For one GPU and a corpus of hours: 112 px, at most 256 shots and 256 images a step, minutes."""
    batch, images = recipe.batch, recipe.images
    return replace(
        recipe,
        name=f"{recipe.name}-small",
        steps=2_000,
        encoder=replace(recipe.encoder, bn_momentum=0.1),
        batch=replace(batch, videos=min(batch.videos, 256 // batch.shots), cores=8),
        images=replace(images, count=min(images.count, 256)),
        augment=recipe.augment if recipe.sees_patches else replace(recipe.augment, size=112),
        optimiser=replace(recipe.optimiser, lr=0.1, warmup=200, decay_at=(1_500, 1_800)),
    )


def tiny(recipe: Recipe) -> Recipe:
    """For two CPU cores, the demo and tests: 48 px, a thin ResNet-18, a few minutes.

    One core: with few videos in each, the statistics of a core would give away which shots belong together. Larger
    crops, more colour but no HSV noise, and a larger λ: in so few steps, easier positives and more of the video loss
    teach more. Group norm learns at half the rate.
    """
    loss, batch, images = recipe.loss, recipe.batch, recipe.images
    augment = replace(recipe.augment, size=48, crop_area=(0.3, 1.0), hue=0.1, contrast=0.5, hsv=False)
    if isinstance(loss.frame, PatchLoss):
        loss = replace(loss, frame=replace(loss.frame, dimension=64, hidden=256))
        augment = replace(recipe.augment, size=16)
    if isinstance(loss.video, InfoNCE):
        loss = replace(loss, video_weight=5 * loss.video_weight)
    group_norm = recipe.encoder.name.endswith("_bit")
    width = 3 if "x3_" in recipe.encoder.name else recipe.encoder.width
    return replace(
        recipe,
        name=f"{recipe.name}-tiny",
        steps=800,
        encoder=Encoder("resnetv2_18", width=width / 4, norm="group" if group_norm else "own", bn_momentum=0.1),
        batch=replace(batch, videos=min(batch.videos, 64 // batch.shots), frames=min(batch.frames, 4), cores=1),
        images=replace(images, count=min(images.count, 64), copies=min(images.copies, 4)),
        augment=augment,
        loss=loss,
        optimiser=replace(recipe.optimiser, lr=0.05 if group_norm else 0.1, warmup=50, decay_at=(640,)),
    )


METHODS = {method().name: method for method in (*FRAMES_AND_SHOTS, *WITH_AUTOAUGMENT, *CO_TRAINED, *FROM_IMAGES)}
"""The functions of the paper's methods, by the names of their recipes."""
PAPER = tuple(method() for method in METHODS.values())
RECIPES = {recipe.name: recipe for base in PAPER for recipe in (base, small(base), tiny(base))}
