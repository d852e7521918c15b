"""Every method of the paper by name, and smaller ones for one GPU (-small) and for two CPU cores (-tiny).

A recipe holds everything that decides what is learned, and nothing else: the device, the number of threads and the
intervals of logging belong to the machine (vivi.training.machine.Machine).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from tyro.conf import Suppress, arg


@dataclass(frozen=True)
class Encoder:
    """The encoder f, a timm model."""

    name: str = "resnetv2_50"
    """A timm model; its pooled features before the classifier are the representation."""
    width: float = 1.0
    """Channels, times this (resnetv2 models only); 3 in the paper's Big ones."""
    norm: Literal["own", "group"] = "own"
    """own: what the timm model has; group: group norm and weight standardisation in its place (resnetv2 models)."""
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
    """Videos a step (with --batch.source image: images); 0: none, there are labelled images alone."""
    shots: int = 4
    """K: consecutive shots of each video; videos with fewer are not used."""
    frames: int = 8
    """L: consecutive frames of each shot."""
    cores: int = 128
    """Groups of videos that share batch statistics and triplets."""
    source: Literal["shot", "frame", "image"] = "shot"
    """Where the L frames come from: consecutive ones of the shot; one frame of the video, L times; or one image of
    --images, whose label is not used, L times."""
    resample: bool = False
    """With one frame per video: another one each time, instead of one fixed for the run."""


@dataclass(frozen=True)
class Images:
    """Labelled images, trained along with the videos or alone."""

    count: int = 0
    """Labelled images a step; 0: none."""
    copies: int = 1
    """How often each is augmented."""
    fraction: Annotated[float, arg(aliases=("--images-fraction",))] = 1.0
    """Share of the labels to use, the same number from every class; 1: all."""
    fraction_seed: int = 0
    """Which ones: another seed takes others."""
    policy: Literal["same", "imagenet", "v0"] = "same"
    """AutoAugment on the labelled images, instead of their colour; same: they are augmented like the frames."""


@dataclass(frozen=True)
class Augment:
    """Inception crop, flip and colour; each frame, and each copy of an image, on its own."""

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
    hsv: bool = False
    """Also the noise in hue, saturation and value of S4L."""
    policy: Literal["none", "imagenet", "v0"] = "none"
    """AutoAugment instead of all colour: the policy in the paper's table (imagenet), or in its authors' code (v0)."""


@dataclass(frozen=True)
class Loss:
    """L_S + λ L_V + γ L_SUP, each a mean over its terms in the whole batch."""

    frame: Literal["none", "exemplar", "rotation", "jigsaw", "location"] = "exemplar"
    """The frame/shot loss L_S; jigsaw and location (of patches) see one image each."""
    on_labelled: bool = False
    """L_S also on the labelled images; where there are others too, it is the mean of both."""
    triplets: Literal["semi-hard", "batch-hard"] = "semi-hard"
    """Of the exemplar loss: FaceNet's with a margin, or the hardest ones with a soft margin, as in S4L."""
    margin: float = 0.5
    """Of the semi-hard triplets."""
    negatives: Literal["shots", "videos"] = "shots"
    """Of the exemplar triplets: frames of all other shots, as in the paper, or of other videos only, for shots that
    are pieces of one take."""
    exemplar_features: int = 1000
    """Size of the exemplar embedding, and of a patch's."""
    patch_hidden: int = 4096
    """Hidden layer of jigsaw and location."""
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
    supervised_weight: float = 0.0
    """γ: of the cross-entropy of the labelled images."""


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
    images: Images = field(default_factory=Images)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    optimiser: Optimiser = field(default_factory=Optimiser)


FRAME_BASELINE = Optimiser(warmup=17_000, decay_at=(52_000, 86_000))
FRAME = Batch(videos=2048, shots=1, source="frame")
IMAGE = replace(FRAME, source="image")
EXEMPLAR = Loss(video="none", video_weight=0.0)
ROTATION = replace(EXEMPLAR, frame="rotation")

# Co-training: batch statistics of videos and of images would not match, so there are none.
GROUP_NORM = Encoder("resnetv2_50x1_bit")
GROUP_NORM_BIG = Encoder("resnetv2_50x3_bit")
CO_TRAINING = Optimiser(warmup=3_000, decay_at=(70_000, 85_000, 95_000))
CO_TRAINING_10 = Optimiser(lr=0.1, warmup=3_000, decay_at=(76_000, 88_000, 96_000), weight_decay=1e-3)
INCEPTION_HSV = Augment(hsv=True)

FROM_VIDEOS = (
    Recipe("ex-yt-f", batch=FRAME, loss=EXEMPLAR, optimiser=FRAME_BASELINE),
    Recipe("ex-yt-s", batch=Batch(videos=2048, shots=1), loss=EXEMPLAR),
    Recipe(
        "vivi-ex2-ord", batch=Batch(videos=1024, shots=2), loss=Loss(video="order", video_weight=0.5, across="core")
    ),
    Recipe("vivi-ex2", batch=Batch(videos=1024, shots=2), loss=Loss(video_weight=0.02, across="core")),
    Recipe("vivi-ex4"),
    Recipe("vivi-ex4-big", encoder=Encoder(width=3)),
    Recipe("rot-yt-f", batch=replace(FRAME, frames=1), loss=ROTATION, optimiser=FRAME_BASELINE),
    Recipe(
        "vivi-rot2",
        batch=Batch(videos=1024, shots=2, frames=4),
        loss=Loss(frame="rotation", video_weight=0.05, across="core"),
    ),
    Recipe("vivi-rot4", batch=Batch(frames=4), loss=Loss(frame="rotation", video_weight=0.08)),
)

CO_TRAINED = (
    Recipe(
        "vivi-ex4-co10",
        steps=100_000,
        encoder=GROUP_NORM,
        images=Images(256, fraction=0.1),
        augment=INCEPTION_HSV,
        loss=Loss(supervised_weight=4.0),
        optimiser=CO_TRAINING_10,
    ),
    Recipe(
        "vivi-ex4-co100",
        steps=100_000,
        encoder=GROUP_NORM,
        images=Images(2048),
        augment=INCEPTION_HSV,
        loss=Loss(supervised_weight=1.0),
        optimiser=CO_TRAINING,
    ),
    Recipe(
        "vivi-ex4-co100-big",
        steps=100_000,
        encoder=GROUP_NORM_BIG,
        images=Images(2048, policy="v0"),
        augment=INCEPTION_HSV,
        loss=Loss(supervised_weight=5.0),
        optimiser=CO_TRAINING,
    ),
)


def with_autoaugment(recipe: Recipe) -> Recipe:
    """The paper's -AA methods: AutoAugment on the frames, and half of λ."""
    return replace(
        recipe,
        name=f"{recipe.name}-aa",
        augment=replace(recipe.augment, policy="v0"),
        loss=replace(recipe.loss, video_weight=recipe.loss.video_weight / 2),
    )


AUTOAUGMENTED = tuple(
    with_autoaugment(recipe)
    for recipe in FROM_VIDEOS
    if recipe.name in ("ex-yt-f", "ex-yt-s", "vivi-ex4", "vivi-ex4-big", "rot-yt-f", "vivi-rot4")
)

# The baselines that the paper takes from others: their own batches and schedules, in epochs of ImageNet.
IMAGENET = 1_281_167
ONE_IMAGE = Batch(videos=128, shots=1, frames=1, cores=8, source="image")
NO_FRAMES = Batch(videos=0, shots=1, frames=1, cores=8)
SUPERVISED = Loss(frame="none", video="none", video_weight=0.0, supervised_weight=1.0)
CROP_AND_FLIP = Augment(brightness=0.0, saturation=0.0)


def epochs(count: float, batch: int, images: int = IMAGENET) -> int:
    """The steps of so many passes over the images."""
    return round(count * images / batch)


def scheduled(
    batch: int, lr: float, weight_decay: float, warmup: int, decays: tuple[int, ...], images: int = IMAGENET
) -> Optimiser:
    """A schedule that is given in epochs."""
    decay_at = tuple(epochs(epoch, batch, images) for epoch in decays)
    return Optimiser(lr=lr, weight_decay=weight_decay, warmup=epochs(warmup, batch, images), decay_at=decay_at)


# Patches are cut from the whole image; nothing else is done to it.
PATCHES = Augment(64, (1.0, 1.0), (1.0, 1.0), flip=False, brightness=0.0, saturation=0.0)


def from_patches(name: str, frame: Literal["jigsaw", "location"]) -> Recipe:
    return Recipe(
        name,
        steps=epochs(35, 128),
        batch=ONE_IMAGE,
        augment=PATCHES,
        loss=replace(EXEMPLAR, frame=frame),
        optimiser=scheduled(128, 0.05, 1e-4, 5, (15, 25)),
    )


FROM_IMAGES = (
    Recipe("ex-imagenet", batch=IMAGE, loss=EXEMPLAR, optimiser=FRAME_BASELINE),
    Recipe("rot-imagenet", batch=replace(IMAGE, frames=1), loss=ROTATION, optimiser=FRAME_BASELINE),
    Recipe(
        "sup10",
        steps=epochs(200, 256, 128_000),
        batch=NO_FRAMES,
        images=Images(256, fraction=0.1),
        augment=CROP_AND_FLIP,
        loss=SUPERVISED,
        optimiser=scheduled(256, 0.1, 1e-3, 5, (140, 160, 180), images=128_000),
    ),
    Recipe(
        "sup100",
        steps=epochs(90, 256),
        batch=NO_FRAMES,
        images=Images(256),
        loss=SUPERVISED,
        optimiser=scheduled(256, 0.1, 1e-4, 5, (30, 60, 80)),
    ),
    Recipe(
        "sup-rot100",
        steps=epochs(90, 256),
        batch=NO_FRAMES,
        images=Images(256),
        augment=CROP_AND_FLIP,
        loss=replace(SUPERVISED, frame="rotation", on_labelled=True),
        optimiser=scheduled(256, 0.1, 1e-4, 5, (30, 60, 80)),
    ),
    Recipe(
        "semi-ex10",
        steps=epochs(200, 512, 128_000),
        batch=Batch(videos=512, shots=1, cores=8, source="image"),
        images=Images(512, copies=8, fraction=0.1),
        augment=replace(CROP_AND_FLIP, hsv=True),
        loss=replace(SUPERVISED, frame="exemplar", triplets="batch-hard", on_labelled=True),
        optimiser=scheduled(512, 0.1, 1e-3, 10, (140, 160, 180), images=128_000),
    ),
    from_patches("jigsaw", "jigsaw"),
    from_patches("rel-pat-loc", "location"),
)

PAPER = FROM_VIDEOS + AUTOAUGMENTED + CO_TRAINED + FROM_IMAGES

# The values of λ and γ that the paper tried; the recipes have the best ones.
SWEEPS = {
    "vivi-ex2-ord": ("loss.video_weight", (2.0, 1.0, 0.5)),
    "vivi-ex2": ("loss.video_weight", (0.08, 0.04, 0.02)),
    "vivi-ex4": ("loss.video_weight", (0.04, 0.02, 0.01)),
    "vivi-rot2": ("loss.video_weight", (0.2, 0.1, 0.05, 0.025)),
    "vivi-rot4": ("loss.video_weight", (0.32, 0.16, 0.08, 0.04)),
    "vivi-ex4-co10": ("loss.supervised_weight", (1.0, 4.0, 8.0, 16.0)),
    "vivi-ex4-co100": ("loss.supervised_weight", (0.1, 0.5, 1.0, 5.0)),
    "vivi-ex4-co100-big": ("loss.supervised_weight", (0.1, 0.5, 1.0, 5.0)),
}


def sees_patches(recipe: Recipe) -> bool:
    return recipe.loss.frame in ("jigsaw", "location")


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
        augment=recipe.augment if sees_patches(recipe) else replace(recipe.augment, size=112),
        optimiser=replace(recipe.optimiser, lr=0.1, warmup=200, decay_at=(1_500, 1_800)),
    )


def tiny(recipe: Recipe) -> Recipe:
    """For two CPU cores, the demo and tests: 48 px, a thin ResNet-18, a few minutes.

    One core: with few videos in each, the statistics of a core would give away which shots belong together. Larger
    crops, more colour but no HSV noise, and a larger λ: so few steps learn from easier positives, and from videos
    sooner. Group norm learns at half the rate.
    """
    loss, batch, images = recipe.loss, recipe.batch, recipe.images
    augment = replace(recipe.augment, size=48, crop_area=(0.3, 1.0), hue=0.1, contrast=0.5, hsv=False)
    if sees_patches(recipe):
        loss = replace(loss, exemplar_features=64, patch_hidden=256)
        augment = replace(recipe.augment, size=16)
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
        loss=replace(loss, video_weight=5 * loss.video_weight if loss.video == "infonce" else loss.video_weight),
        optimiser=replace(recipe.optimiser, lr=0.05 if group_norm else 0.1, warmup=50, decay_at=(640,)),
    )


RECIPES = {recipe.name: recipe for base in PAPER for recipe in (base, small(base), tiny(base))}
