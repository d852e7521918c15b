"""What a recipe must fulfil, said before any work is done. What a loss demands is said in losses.py."""

from __future__ import annotations

import math
from dataclasses import replace

from vivi.recipes.baselines import PATCHES
from vivi.recipes.losses import MOST_FEATURES, check_pairs_of_frames
from vivi.recipes.schema import Images, Recipe
from vivi.runtime.errors import check_ranges, require

# What can be computed at all: beyond it a slip of the keyboard, or a file that somebody sent, takes all memory.
WIDTHS = (0.01, 16.0)  # of the encoder
SIZES = (8, 4096)  # of its input
_MOST, _MOST_STEPS, _MOST_SEED = 1_000_000, 10**12, 2**32 - 1


def check_recipe(recipe: Recipe) -> None:
    """Raises for the first thing that cannot work."""
    _check_numbers(recipe)
    _check_augment(recipe)
    _check_batch(recipe)
    if recipe.loss.frame is not None:
        recipe.loss.frame.check(recipe)
    if recipe.loss.contrastive_weight:
        require(recipe.batch.videos > 0, "--loss.contrastive-weight needs --batch.videos above 0")
        check_pairs_of_frames(recipe, "the contrastive loss")
    if recipe.loss.video is not None:
        recipe.loss.video.check(recipe)


def _check_numbers(recipe: Recipe) -> None:
    count, share, seed, positive = (1, _MOST), (0, 1), (0, _MOST_SEED), (0, 1e30)
    # Of patches, the encoder's input is 7/2 of their size (Recipe.encoder_size).
    sizes = (SIZES[0], SIZES[1] * 2 // 7 if recipe.sees_patches else SIZES[1])
    ranges: dict[str, dict[str, tuple[float, float]]] = {
        "": {"steps": (1, _MOST_STEPS), "seed": seed},
        "encoder.": {"width": WIDTHS, "bn_momentum": (1e-6, 1)},
        "batch.": {"videos": (0, _MOST), "shots": count, "frames": count, "cores": count},
        "images.": {"count": (0, _MOST), "copies": count, "fraction": (1e-9, 1), "fraction_seed": seed},
        "augment.": {
            "size": sizes,
            **dict.fromkeys(["brightness", "saturation", "hue", "contrast", "grey", "grey_frames"], share),
        },
        "loss.": {
            "shot_features": (1, MOST_FEATURES),
            "temperature": (1e-6, math.inf),
            **dict.fromkeys(["video_weight", "contrastive_weight", "supervised_weight"], positive),
        },
        "optimiser.": {
            "momentum": (0, 0.9999),
            "decay_factor": (1e-6, 1),
            **dict.fromkeys(["lr", "weight_decay", "warmup", "clip"], positive),
        },
    }
    for prefix, allowed in ranges.items():
        check_ranges(getattr(recipe, prefix[:-1]) if prefix else recipe, allowed, prefix)


def _check_augment(recipe: Recipe) -> None:
    augment = recipe.augment
    for flag, (low, high), most in (
        ("--augment.crop-area", augment.crop_area, 1.0),
        ("--augment.crop-aspect", augment.crop_aspect, 1000.0),
    ):
        require(0 < low <= high <= most, f"{flag} {low:g} {high:g} is no range above 0 and up to {most:g}")
    require(
        not augment.hsv or augment.policy == "none",
        f"--augment.policy {augment.policy} takes the place of all colour: add --augment.no-hsv",
    )
    for flag, share in (("--augment.grey", augment.grey), ("--augment.grey-frames", augment.grey_frames)):
        require(
            share == 0 or augment.policy == "none",
            f"--augment.policy {augment.policy} takes the place of all colour: add {flag} 0",
        )
    if recipe.loss.frame is not None and recipe.sees_patches:
        require(
            augment == replace(PATCHES, size=augment.size),
            f"--loss.frame {recipe.loss.frame.name} cuts patches from the whole image, and of --augment it allows "
            "the size alone: start from a recipe that has this loss, jigsaw or rel-pat-loc",
        )


def _check_batch(recipe: Recipe) -> None:
    """The videos (or images without labels) and the labelled images of a step."""
    batch, images, loss = recipe.batch, recipe.images, recipe.loss
    for flag, count in (("--batch.videos", batch.videos), ("--images.count", images.count)):
        require(count % batch.cores == 0, f"{flag} {count} is no multiple of --batch.cores {batch.cores}")
    require(batch.source == "shot" or batch.shots == 1, f"--batch.source {batch.source} needs --batch.shots 1")
    require(batch.source == "frame" or not batch.resample, "--batch.resample needs --batch.source frame")
    require(
        batch.videos > 0 or images.count > 0, "nothing to learn from: --batch.videos and --images.count are both 0"
    )
    require(
        (images.count > 0) == (loss.supervised_weight > 0),
        f"labelled images and their loss need each other: --images.count is {images.count}, "
        f"--loss.supervised-weight {loss.supervised_weight:g}",
    )
    require(
        images.count > 0 or images == Images(),
        "--images.fraction, --images.copies and --images.policy are about labelled images: set --images.count",
    )
    require(not loss.on_labelled or images.count > 0, "--loss.on-labelled needs labelled images: set --images.count")
    require(
        batch.videos > 0 or (loss.video is None and (loss.frame is None or loss.on_labelled)),
        "with --batch.videos 0 there are labelled images alone: set --loss.video none, and --loss.frame none or "
        "--loss.on-labelled",
    )
    require(
        batch.videos == 0 or loss.frame is not None or loss.video is not None,
        "the videos have no loss: set --loss.frame or --loss.video, or --batch.videos 0",
    )
