"""Steps of every loss: small recipes, and random micro-batches for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch

from vivi.data.loader import MicroBatch
from vivi.recipes import (
    Augment,
    Batch,
    Encoder,
    Exemplar,
    Images,
    InfoNCE,
    Jigsaw,
    Location,
    Loss,
    Order,
    Recipe,
    Rotation,
)

BASE = Recipe(
    "test",
    encoder=Encoder("resnetv2_18", width=0.125),
    batch=Batch(videos=8, shots=4, frames=2, cores=4),
    augment=Augment(size=32),
    loss=Loss(frame=Exemplar(dimension=16), shot_features=12, video_weight=0.7),
)


def variant(shots: int = 4, **loss: object) -> Recipe:
    return replace(BASE, batch=replace(BASE.batch, shots=shots), loss=replace(BASE.loss, **loss))  # type: ignore[arg-type]


def with_labels(recipe: Recipe, videos: int = 8, norm: Literal["own", "group"] = "own") -> Recipe:
    return replace(
        recipe,
        encoder=replace(recipe.encoder, norm=norm),
        batch=replace(recipe.batch, videos=videos),
        images=Images(count=12, copies=2),
        loss=replace(recipe.loss, supervised_weight=0.3),
    )


def patches(frame: Jigsaw | Location) -> Recipe:
    recipe = variant(shots=1, frame=frame, video=None)
    return replace(recipe, augment=replace(recipe.augment, size=16))


LOSSES = {
    "exemplar": variant(video=None),
    "exemplar with negatives from other videos": variant(frame=Exemplar(dimension=16, negatives="videos")),
    "rotation": variant(frame=Rotation(), video=None),
    "contrastive": variant(video=None, contrastive_weight=0.5),
    "contrastive beside rotation": variant(frame=Rotation(), video=None, contrastive_weight=0.5),
    "infonce across all": variant(),
    "infonce within a core": variant(video=InfoNCE(across="core")),
    "infonce two ahead": variant(video=InfoNCE(ahead=2)),
    "infonce of two shots": variant(shots=2, video=InfoNCE(across="core")),
    "infonce of two shots across all, both ways": variant(shots=2, video=InfoNCE(both_ways=True)),
    "order": variant(shots=2, video=Order()),
    "order of four": variant(video=Order()),
    "rotation and infonce, attention pooling": variant(frame=Rotation(), pooling="attention"),
    "infonce alone": variant(frame=None),
    "labels alone": with_labels(variant(frame=None, video=None), videos=0),
    "labels and their rotation": with_labels(variant(frame=Rotation(), video=None, on_labelled=True), videos=0),
    "exemplar and infonce with labels": with_labels(variant()),
    "rotation and infonce with labels, group norm": with_labels(variant(frame=Rotation()), norm="group"),
    "hardest exemplars of images with and without labels": with_labels(
        variant(shots=1, frame=Exemplar(dimension=16, triplets="batch-hard"), video=None, on_labelled=True)
    ),
    "jigsaw": patches(Jigsaw(dimension=16, hidden=24)),
    "location": patches(Location(dimension=16, hidden=24)),
}
CLASSES = 5


def random_batch(recipe: Recipe, seed: int = 0) -> MicroBatch:
    """The videos of a whole step, all cores: frames (cores, shots, frames, 3, size, size), uniforms (cores, videos,
    shots + 1)."""
    generator = torch.Generator().manual_seed(seed)
    batch, size = recipe.batch, recipe.augment.size
    videos = batch.videos // batch.cores
    of_patches = (9,) if recipe.sees_patches else ()
    shape = (batch.cores, videos * batch.shots, batch.frames, *of_patches, 3, size, size)
    frames = torch.rand(*shape, generator=generator) * 2 - 1
    return MicroBatch(frames.double(), torch.rand(batch.cores, videos, batch.shots + 1, generator=generator))


def random_images(recipe: Recipe, seed: int = 1) -> MicroBatch:
    """The same of labelled images: (cores, images, copies, 3, size, size), (cores, images, 2), (cores, images)."""
    generator = torch.Generator().manual_seed(seed)
    images, cores, size = recipe.images, recipe.batch.cores, recipe.augment.size
    count = images.count // cores
    pixels = torch.rand(cores, count, images.copies, 3, size, size, generator=generator) * 2 - 1
    uniforms = torch.rand(cores, count, 2, generator=generator)
    labels = torch.randint(CLASSES, (cores, count), generator=generator)
    return MicroBatch(pixels.double(), uniforms, labels)


def cut(batch: MicroBatch, cores: range, at_once: int) -> Iterator[MicroBatch]:
    """The micro-batches of some cores."""
    for first in range(cores.start, cores.stop, at_once):
        part = slice(first, first + at_once)
        labels = None if batch.labels is None else batch.labels[part]
        yield MicroBatch(batch.frames[part], batch.uniforms[part], labels)
