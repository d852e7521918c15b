"""Every video method of the paper by name, and smaller ones for one GPU (-small) and for two CPU cores (-tiny).

A recipe holds everything that decides what is learned, and nothing else: the device, the number of threads and the
intervals of logging belong to the machine (vivi.training.machine.Machine).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from tyro.conf import Suppress

from vivi.errors import UserError, check_ranges


@dataclass(frozen=True)
class Encoder:
    """The encoder f, a timm model."""

    name: str = "resnetv2_50"
    """A timm model; its pooled features before the classifier are the representation."""
    width: float = 1.0
    """Channels, times this (resnetv2 models only); 3 in the paper's Big ones."""
    initialisation: Literal["glorot", "timm"] = "glorot"
    """Glorot uniform, as in the paper's code, or what timm does."""
    bn_momentum: float = 0.01
    """Share of the newest step in the running statistics of batch norm (TensorFlow's 0.99 is 0.01 here)."""
    start: str = ""
    """Start from these weights: 'pretrained' (timm's own), or an earlier run or its encoder.safetensors."""


@dataclass(frozen=True)
class Batch:
    """What a step sees: videos, shots of each, frames of each shot; and how they fall into cores."""

    videos: int = 512
    """Videos a step."""
    shots: int = 4
    """K: consecutive shots of each video; videos with fewer are not used."""
    frames: int = 8
    """L: consecutive frames of each shot."""
    cores: int = 128
    """Groups of videos that share batch statistics and triplets."""
    source: Literal["shot", "frame"] = "shot"
    """Where the L frames come from: consecutive ones of the shot, or one frame of the video, L times."""
    resample: bool = False
    """With one frame per video: another one each time, instead of one fixed for the run."""


@dataclass(frozen=True)
class Augment:
    """Inception crop, flip and colour; each frame on its own."""

    size: int = 224
    """Pixels of the square that the encoder sees."""
    crop_area: tuple[float, float] = (0.1, 1.0)
    """Share of the frame that a crop covers."""
    crop_aspect: tuple[float, float] = (0.75, 4 / 3)
    """Width by height of a crop."""
    flip: bool = True
    """Mirror half of the frames."""
    brightness: float = 32 / 255
    """Add up to this, of 1."""
    saturation: float = 0.5
    """Scale by 1 ± this."""
    hue: float = 0.0
    """Turn by up to this, of a full circle."""
    contrast: float = 0.0
    """Scale by 1 ± this."""


@dataclass(frozen=True)
class Loss:
    """L_S + λ L_V, each a mean over its terms in the whole batch."""

    frame: Literal["exemplar", "rotation"] = "exemplar"
    """The frame/shot loss L_S."""
    margin: float = 0.5
    """Of the exemplar triplets."""
    negatives: Literal["shots", "videos"] = "shots"
    """Of the exemplar triplets: frames of all other shots, as in the paper, or of other videos only, for shots that
    are pieces of one take."""
    exemplar_features: int = 1000
    """Size of the exemplar embedding."""
    contrastive_weight: float = 0.0
    """Weight of an explicit contrastive loss (NT-Xent) between the frames of a shot, added to L_S."""
    temperature: float = 0.1
    """Of the contrastive loss."""
    video: Literal["none", "infonce", "order", "shuffle"] = "infonce"
    """The video loss L_V: predict the next shot, tell the order of two shots, or tell shuffled shots from ordered."""
    video_weight: float = 0.04
    """λ."""
    across: Literal["core", "all"] = "all"
    """Negatives of InfoNCE: the shots of the same core, or of all."""
    pooling: Literal["mean", "attention"] = "mean"
    """p: frames of a shot to one representation."""
    shot_features: int = 512
    """Size of a shot's embedding."""
    ahead: int = 1
    """InfoNCE with K >= 3: predict this many shots ahead."""
    both_ways: bool = False
    """InfoNCE with K = 2: also predict the first shot from the second."""


@dataclass(frozen=True)
class Optimiser:
    """SGD with momentum; the learning rate is a function of the step."""

    lr: float = 0.8
    """Learning rate after the warm-up."""
    momentum: float = 0.9
    weight_decay: float = 1e-4
    """L2 on kernels only: no biases, no norms."""
    warmup: int = 5_000
    """Steps of linear warm-up from 0."""
    decay_at: tuple[int, ...] = (90_000, 110_000)
    """Steps from which on the learning rate is multiplied once more by decay_factor."""
    decay_factor: float = 0.1
    clip: float = 0.0
    """Largest norm of the gradient; 0: any."""


@dataclass(frozen=True)
class Recipe:
    """One row of the paper's training table, or one's own."""

    name: Annotated[str, Suppress]  # no flag: the recipe is named on the command line
    steps: int = 120_000
    """Steps to train."""
    seed: int = 0
    """Decides initial weights, batches and augmentation."""
    encoder: Encoder = field(default_factory=Encoder)
    batch: Batch = field(default_factory=Batch)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    optimiser: Optimiser = field(default_factory=Optimiser)


EARLY_DECAY = Optimiser(warmup=17_000, decay_at=(52_000, 86_000))  # the frame baselines
FRAME = Batch(videos=2048, shots=1, source="frame")
NO_VIDEO_LOSS = Loss(video="none", video_weight=0.0)

PAPER = (
    Recipe("ex-yt-f", batch=FRAME, loss=NO_VIDEO_LOSS, optimiser=EARLY_DECAY),
    Recipe("ex-yt-s", batch=Batch(videos=2048, shots=1), loss=NO_VIDEO_LOSS),
    Recipe(
        "vivi-ex2-ord", batch=Batch(videos=1024, shots=2), loss=Loss(video="order", video_weight=0.5, across="core")
    ),
    Recipe("vivi-ex2", batch=Batch(videos=1024, shots=2), loss=Loss(video_weight=0.02, across="core")),
    Recipe("vivi-ex4"),
    Recipe("vivi-ex4-big", encoder=Encoder(width=3)),
    Recipe(
        "rot-yt-f",
        batch=replace(FRAME, frames=1),
        loss=replace(NO_VIDEO_LOSS, frame="rotation"),
        optimiser=EARLY_DECAY,
    ),
    Recipe(
        "vivi-rot2",
        batch=Batch(videos=1024, shots=2, frames=4),
        loss=Loss(frame="rotation", video_weight=0.05, across="core"),
    ),
    Recipe("vivi-rot4", batch=Batch(frames=4), loss=Loss(frame="rotation", video_weight=0.08)),
)

# The values of λ that the paper tried; the recipe has the best one.
VIDEO_WEIGHT_SWEEPS = {
    "vivi-ex2-ord": (2.0, 1.0, 0.5),
    "vivi-ex2": (0.08, 0.04, 0.02),
    "vivi-ex4": (0.04, 0.02, 0.01),
    "vivi-rot2": (0.2, 0.1, 0.05, 0.025),
    "vivi-rot4": (0.32, 0.16, 0.08, 0.04),
}


def small(recipe: Recipe) -> Recipe:
    """For one GPU and a corpus of hours: 112 px, an eighth of the batch, minutes."""
    return replace(
        recipe,
        name=f"{recipe.name}-small",
        steps=2_000,
        encoder=replace(recipe.encoder, bn_momentum=0.1),
        batch=replace(recipe.batch, videos=256 // recipe.batch.shots, cores=8),
        augment=replace(recipe.augment, size=112),
        optimiser=replace(recipe.optimiser, lr=0.1, warmup=200, decay_at=(1_500, 1_800)),
    )


def tiny(recipe: Recipe) -> Recipe:
    """For two CPU cores, the demo and tests: 48 px, a thin ResNet-18, a few minutes.

    One core: with few videos in each, the statistics of a core would give away which shots belong together. Larger
    crops, more colour and a larger λ: so few steps learn from easier positives, and from videos sooner.
    """
    loss, batch = recipe.loss, recipe.batch
    return replace(
        recipe,
        name=f"{recipe.name}-tiny",
        steps=800,
        encoder=replace(recipe.encoder, name="resnetv2_18", width=recipe.encoder.width / 4, bn_momentum=0.1),
        batch=replace(batch, videos=64 // batch.shots, frames=min(batch.frames, 4), cores=1),
        augment=replace(recipe.augment, size=48, crop_area=(0.3, 1.0), hue=0.1, contrast=0.5),
        loss=replace(loss, video_weight=5 * loss.video_weight if loss.video == "infonce" else loss.video_weight),
        optimiser=replace(recipe.optimiser, lr=0.1, warmup=50, decay_at=(640,)),
    )


RECIPES = {recipe.name: recipe for base in PAPER for recipe in (base, small(base), tiny(base))}


def check_recipe(recipe: Recipe) -> None:
    """Raises for the first thing that cannot work, before any work is done."""
    batch, loss = recipe.batch, recipe.loss
    some, positive, share = (1, math.inf), (0, 1e30), (0, 1)
    check_ranges(recipe, {"steps": some, "seed": (0, 2**32 - 1)})
    check_ranges(recipe.encoder, {"width": (0.01, 100), "bn_momentum": (1e-6, 1)}, "encoder.")
    check_ranges(batch, dict.fromkeys(["videos", "shots", "frames", "cores"], some), "batch.")
    check_ranges(recipe.augment, {"size": (8, math.inf)}, "augment.")
    check_ranges(recipe.augment, dict.fromkeys(["brightness", "saturation", "hue", "contrast"], share), "augment.")
    check_ranges(loss, {"exemplar_features": some, "shot_features": some, "temperature": (1e-6, math.inf)}, "loss.")
    check_ranges(loss, dict.fromkeys(["video_weight", "contrastive_weight", "margin"], positive), "loss.")
    check_ranges(recipe.optimiser, {"momentum": (0, 0.9999), "decay_factor": (1e-6, 1)}, "optimiser.")
    check_ranges(recipe.optimiser, dict.fromkeys(["lr", "weight_decay", "warmup", "clip"], positive), "optimiser.")
    _check_augment(recipe.augment)
    _require(
        batch.videos % batch.cores == 0,
        f"--batch.videos {batch.videos} do not divide evenly among --batch.cores {batch.cores}",
    )
    videos_per_core = batch.videos // batch.cores
    shots_per_core = videos_per_core * batch.shots
    _require(batch.source == "shot" or batch.shots == 1, "--batch.source frame goes with --batch.shots 1")
    _require(batch.source == "frame" or not batch.resample, "--batch.resample goes with --batch.source frame")
    if loss.frame == "exemplar" or loss.contrastive_weight:
        name = "the exemplar loss" if loss.frame == "exemplar" else "the contrastive loss"
        _require(batch.frames >= 2, f"{name} compares frames of a shot: --batch.frames must be at least 2")
        _require(shots_per_core >= 2, f"{name} needs at least 2 shots a core: lower --batch.cores")
    if loss.frame == "exemplar" and loss.negatives == "videos":
        _require(videos_per_core >= 2, "--loss.negatives videos needs at least 2 videos a core: lower --batch.cores")
    _check_video_loss(loss, batch, videos_per_core)


def _check_augment(augment: Augment) -> None:
    for flag, (low, high), most in (
        ("--augment.crop-area", augment.crop_area, 1.0),
        ("--augment.crop-aspect", augment.crop_aspect, 1000.0),
    ):
        _require(0 < low <= high <= most, f"{flag} {low:g} {high:g} is no range above 0 and up to {most:g}")


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
