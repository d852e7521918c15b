"""What a recipe must fulfil, said before any work is done."""

from __future__ import annotations

import math
from dataclasses import replace

from vivi.errors import UserError, check_ranges
from vivi.recipes import PATCHES, Batch, Images, Loss, Recipe, sees_patches

# What can be computed at all: beyond it a slip of the keyboard, or a file that somebody sent, takes all memory.
WIDTHS = (0.01, 16.0)  # of the encoder
SIZES = (8, 4096)  # of its input
_MOST, _MOST_FEATURES, _MOST_STEPS = 1_000_000, 65_536, 10**12


def check_recipe(recipe: Recipe) -> None:
    """Raises for the first thing that cannot work."""
    batch, images, loss = recipe.batch, recipe.images, recipe.loss
    _check_numbers(recipe)
    _check_augment(recipe)
    _check_streams(batch, images, loss)
    _check_frame_loss(batch, images, loss)
    _check_video_loss(loss, batch, batch.videos // batch.cores)


def _check_numbers(recipe: Recipe) -> None:
    some, some_features, positive, share = (1, _MOST), (1, _MOST_FEATURES), (0, 1e30), (0, 1)
    # Patches are cut from images of 7/2 their size.
    sizes = (SIZES[0], SIZES[1] * 2 // 7 if sees_patches(recipe) else SIZES[1])
    augment, loss, optimiser = recipe.augment, recipe.loss, recipe.optimiser
    check_ranges(recipe, {"steps": (1, _MOST_STEPS), "seed": (0, 2**32 - 1)})
    check_ranges(recipe.encoder, {"width": WIDTHS, "bn_momentum": (1e-6, 1)}, "encoder.")
    check_ranges(recipe.batch, {"videos": (0, _MOST), **dict.fromkeys(["shots", "frames", "cores"], some)}, "batch.")
    check_ranges(recipe.images, {"count": (0, _MOST), "copies": some, "fraction": (1e-9, 1)}, "images.")
    check_ranges(recipe.images, {"fraction_seed": (0, 2**32 - 1)}, "images.")
    check_ranges(augment, {"size": sizes}, "augment.")
    check_ranges(augment, dict.fromkeys(["brightness", "saturation", "hue", "contrast"], share), "augment.")
    check_ranges(loss, dict.fromkeys(["exemplar_features", "shot_features", "patch_hidden"], some_features), "loss.")
    check_ranges(loss, {"temperature": (1e-6, math.inf)}, "loss.")
    weights = ["video_weight", "contrastive_weight", "supervised_weight", "margin"]
    check_ranges(loss, dict.fromkeys(weights, positive), "loss.")
    check_ranges(optimiser, {"momentum": (0, 0.9999), "decay_factor": (1e-6, 1)}, "optimiser.")
    check_ranges(optimiser, dict.fromkeys(["lr", "weight_decay", "warmup", "clip"], positive), "optimiser.")


def _check_augment(recipe: Recipe) -> None:
    augment = recipe.augment
    for flag, (low, high), most in (
        ("--augment.crop-area", augment.crop_area, 1.0),
        ("--augment.crop-aspect", augment.crop_aspect, 1000.0),
    ):
        _require(0 < low <= high <= most, f"{flag} {low:g} {high:g} is no range above 0 and up to {most:g}")
    _require(
        not augment.hsv or augment.policy == "none",
        f"--augment.policy {augment.policy} takes the place of all colour: add --augment.no-hsv",
    )
    _require(
        not sees_patches(recipe) or augment == replace(PATCHES, size=augment.size),
        f"--loss.frame {recipe.loss.frame} cuts patches from the whole image: of --augment it has the size alone",
    )


def _check_streams(batch: Batch, images: Images, loss: Loss) -> None:
    """The videos (or images without labels) and the labelled images of a step."""
    for flag, count in (("--batch.videos", batch.videos), ("--images.count", images.count)):
        _require(count % batch.cores == 0, f"{flag} {count} do not divide evenly among --batch.cores {batch.cores}")
    _require(batch.source == "shot" or batch.shots == 1, f"--batch.source {batch.source} goes with --batch.shots 1")
    _require(batch.source == "frame" or not batch.resample, "--batch.resample goes with --batch.source frame")
    _require(
        batch.videos > 0 or images.count > 0, "nothing to learn from: --batch.videos and --images.count are both 0"
    )
    _require(
        (images.count > 0) == (loss.supervised_weight > 0),
        f"labelled images and their loss go together: --images.count is {images.count}, "
        f"--loss.supervised-weight {loss.supervised_weight:g}",
    )
    _require(
        images.count > 0 or images == Images(),
        "--images.fraction, --images.copies and --images.policy are about labelled images: set --images.count",
    )
    _require(
        not loss.on_labelled or images.count > 0, "--loss.on-labelled goes with labelled images: set --images.count"
    )
    _require(
        batch.videos > 0 or (loss.video == "none" and (loss.frame == "none" or loss.on_labelled)),
        "with --batch.videos 0 there are labelled images alone: set --loss.video none, and --loss.frame none or "
        "--loss.on-labelled",
    )
    _require(
        batch.videos == 0 or (loss.frame, loss.video) != ("none", "none"),
        "the videos have no loss: set --loss.frame or --loss.video, or --batch.videos 0",
    )


def _check_frame_loss(batch: Batch, images: Images, loss: Loss) -> None:
    _require(
        not loss.contrastive_weight or batch.videos > 0, "--loss.contrastive-weight goes with --batch.videos above 0"
    )
    if loss.frame == "exemplar" or loss.contrastive_weight:
        name = "the exemplar loss" if loss.frame == "exemplar" else "the contrastive loss"
        shots_per_core = batch.videos // batch.cores * batch.shots
        if batch.videos:
            _require(batch.frames >= 2, f"{name} compares frames of a shot: --batch.frames must be at least 2")
            _require(shots_per_core >= 2, f"{name} needs at least 2 shots a core: lower --batch.cores")
        if loss.on_labelled:
            _require(images.copies >= 2, f"{name} compares copies of an image: --images.copies must be at least 2")
            _require(images.count // batch.cores >= 2, f"{name} needs at least 2 images a core: lower --batch.cores")
    if loss.frame == "exemplar" and loss.negatives == "videos":
        _require(
            batch.videos // batch.cores >= 2,
            "--loss.negatives videos needs at least 2 videos a core: lower --batch.cores",
        )
    if loss.frame in ("jigsaw", "location"):
        _require(
            images.count == 0 and loss.video == "none",
            f"--loss.frame {loss.frame} sees patches: no labelled images (--images.count 0), --loss.video none",
        )


def _check_video_loss(loss: Loss, batch: Batch, videos_per_core: int) -> None:
    if loss.video == "infonce":
        _require(batch.shots >= 2, "InfoNCE predicts shots from shots: --batch.shots must be at least 2")
        _require(1 <= loss.ahead < batch.shots, f"--loss.ahead {loss.ahead} must be between 1 and {batch.shots - 1}")
        rivals = videos_per_core if loss.across == "core" else batch.videos
        _require(rivals >= 2, "InfoNCE has no negatives: it needs at least 2 videos (--batch.cores, --loss.across)")
        _require(not loss.both_ways or batch.shots == 2, "--loss.both-ways goes with --batch.shots 2")
    if loss.video == "order":
        _require(
            batch.shots == 2, "the order of shots is asked of two: --batch.shots 2 (for more: --loss.video shuffle)"
        )
    if loss.video == "shuffle":
        _require(
            batch.shots >= 3, "shuffled shots are told apart from 3 on: --batch.shots 3 (for two: --loss.video order)"
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)
