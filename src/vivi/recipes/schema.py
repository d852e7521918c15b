"""What a recipe says: everything that decides what is learned, and nothing else.

The type of a number says the least and the most that it can be (check.py): a number beyond them, mistyped or from a
file that somebody sent, could take all memory. How a run is executed (device, threads, intervals of logging) is no
part of it: vivi.train.settings.Execution.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tyro.conf import AvoidSubcommands, Suppress, arg

from vivi.recipes.losses import Exemplar, Features, InfoNCE, LossSettings

WIDTHS = (0.01, 16.0)  # of the encoder
SIZES = (8, 4096)  # of its input
Count = Annotated[int, (1, 1_000_000)]
CountOrNone = Annotated[int, (0, 1_000_000)]
Seed = Annotated[int, (0, 2**32 - 1)]
Share = Annotated[float, (0, 1)]
PositiveShare = Annotated[float, (1e-6, 1)]
NotNegative = Annotated[float, (0, 1e30)]


@dataclass(frozen=True)
class Encoder:
    """The encoder f, a timm model."""

    name: str = "resnetv2_50"
    """A timm model; its pooled features before the classifier are the representation."""
    width: Annotated[float, WIDTHS] = 1.0
    """Multiply the number of channels (resnetv2 models only); 3 in the paper's Big ones."""
    norm: Literal["own", "group"] = "own"
    """own: what the timm model has; group: group norm and weight standardisation in its place (resnetv2 models)."""
    initialisation: Literal["glorot", "timm"] = "glorot"
    """Glorot uniform, as in the paper's code, or what timm does."""
    bn_momentum: PositiveShare = 0.01
    """Share of the newest step in the running statistics of batch norm (TensorFlow's 0.99 is 0.01 here)."""
    start: str = ""
    """Start from these weights: 'pretrained' (timm's own), or an earlier run or its encoder.safetensors."""


@dataclass(frozen=True)
class Batch:
    """What a step sees: videos, shots of each, frames of each shot; and how they are split into cores."""

    videos: CountOrNone = 512
    """Videos a step (with --batch.source image: images); 0: none, there are labelled images alone."""
    shots: Count = 4
    """K: consecutive shots of each video; videos with fewer are not used."""
    frames: Count = 8
    """L: consecutive frames of each shot."""
    cores: Count = 128
    """Groups of videos that share batch statistics and triplets."""
    source: Literal["shot", "frame", "image"] = "shot"
    """Where the L frames come from: consecutive ones of the shot; one frame of the video, L times; or one image of
    --images, whose label is not used, L times."""
    resample: bool = False
    """With --batch.source frame: another frame of the video each time, instead of one fixed for the run."""
    max_shot_seconds: NotNegative = 0.0
    """Cut longer shots into equal ones of at most this length; 0: they are as prepared."""
    segment_minutes: NotNegative = 0.0
    """Divide longer videos into segments of at most this length, each taken for a video; 0: they stay whole."""


@dataclass(frozen=True)
class Images:
    """Labelled images, trained along with the videos or alone."""

    count: CountOrNone = 0
    """Labelled images a step; 0: none."""
    copies: Count = 1
    """How often each is augmented."""
    fraction: Annotated[float, (1e-9, 1), arg(aliases=("--images-fraction",))] = 1.0  # beside --images-list
    """Share of the labels to use, the same number from every class; 1: all."""
    fraction_seed: Seed = 0
    """Random seed of the choice of labels."""
    policy: Literal["same", "imagenet", "v0"] = "same"
    """AutoAugment on the labelled images, instead of changes of colour; same: as the frames are augmented."""


@dataclass(frozen=True)
class Augment:
    """Inception crop, flip and colour; each frame, and each copy of an image, on its own."""

    size: Annotated[int, SIZES] = 224
    """Pixels of the square that the encoder sees."""
    crop_area: tuple[float, float] = (0.1, 1.0)
    """Share of the frame that a crop covers."""
    crop_aspect: tuple[float, float] = (0.75, 4 / 3)
    """Width by height of a crop."""
    flip: bool = True
    """Mirror half of the frames."""
    brightness: Share = 32 / 255
    """Add at most ± this, where black is 0 and white is 1."""
    saturation: Share = 0.5
    """Scale the saturation by 1 ± this, at most."""
    hue: Share = 0.0
    """Turn the hue by at most ± this share of a full circle."""
    contrast: Share = 0.0
    """Scale the contrast by 1 ± this, at most."""
    hsv: bool = False
    """Add S4L's noise in hue, saturation and value."""
    grey: Share = 0.0
    """Share of the shots, or images, that are grey in all their frames; 0.66 in Kolesnikov's exemplar."""
    grey_frames: Share = 0.0
    """Share of the frames that are grey, each on its own: a loss then cannot rely on colour."""
    standardise: bool = False
    """Give each frame a mean of 0 and a deviation of 1, as in Kolesnikov's exemplar; evaluation does not."""
    policy: Literal["none", "imagenet", "v0"] = "none"
    """AutoAugment instead of changes of colour: the policy in the paper's table (imagenet) or its code (v0)."""


@dataclass(frozen=True)
class Loss:
    """L_S + λ L_V + γ L_SUP, each a mean over its terms in the whole batch."""

    frame: Annotated[LossSettings | None, AvoidSubcommands] = field(default_factory=Exemplar)
    """The frame/shot loss L_S."""
    on_labelled: bool = False
    """Also apply L_S to the labelled images; with videos as well, it is the mean of both."""
    contrastive_weight: NotNegative = 0.0
    """Weight of an explicit contrastive loss (NT-Xent) between the frames of a shot, added to L_S."""
    temperature: Annotated[float, (1e-6, 1e30)] = 0.1
    """Temperature of the contrastive loss."""
    pooling: Literal["mean", "attention"] = "mean"
    """p: how the frames of a shot become one representation."""
    shot_features: Features = 512
    """Size of a shot's embedding."""
    video: Annotated[LossSettings | None, AvoidSubcommands] = field(default_factory=InfoNCE)
    """The video loss L_V."""
    video_weight: NotNegative = 0.04
    """λ, the weight of the video loss."""
    supervised_weight: NotNegative = 0.0
    """γ, the weight of the cross-entropy of the labelled images."""


@dataclass(frozen=True)
class Optimiser:
    """SGD with momentum; the learning rate is a function of the step."""

    lr: NotNegative = 0.8
    """Learning rate after the warm-up."""
    schedule: Literal["steps", "cosine"] = "steps"
    """After the warm-up: constant, lowered at each step of decay_at; or half a cosine down to 0, without them."""
    momentum: Annotated[float, (0, 0.9999)] = 0.9
    """Momentum of SGD."""
    weight_decay: NotNegative = 1e-4
    """L2 penalty on parameters of two dimensions or more: kernels, not biases or norms."""
    warmup: Annotated[int, (0, 10**12)] = 5_000
    """Steps of linear warm-up from 0."""
    decay_at: tuple[int, ...] = (90_000, 110_000)
    """Steps at which the learning rate is lowered, to decay_factor of what it was."""
    decay_factor: PositiveShare = 0.1
    """What the learning rate is multiplied by at each step of decay_at."""
    clip: NotNegative = 0.0
    """Clip the gradient to this norm; 0: never."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what is learned: a row of the paper's training table, or your own."""

    name: Annotated[str, Suppress]  # no flag: the recipe is named on the command line
    steps: Annotated[int, (1, 10**12)] = 120_000
    """Steps to train."""
    seed: Seed = 0
    """Random seed of initial weights, batches and augmentation."""
    encoder: Encoder = field(default_factory=Encoder)
    batch: Batch = field(default_factory=Batch)
    images: Images = field(default_factory=Images)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    optimiser: Optimiser = field(default_factory=Optimiser)

    @property
    def sees_patches(self) -> bool:
        """Whether f sees nine patches of each image."""
        return self.loss.frame is not None and self.loss.frame.patches

    @property
    def encoder_size(self) -> int:
        """Pixels of the square that the encoder is made for: that of whole images also where it is trained on
        patches, which with 64 pixels are of ImageNet's 224."""
        return self.augment.size * 7 // 2 if self.sees_patches else self.augment.size

    @property
    def learns_from_videos(self) -> bool:
        return self.batch.videos > 0 and self.batch.source != "image"

    @property
    def learns_from_labels(self) -> bool:
        return self.images.count > 0

    @property
    def learns_from_images(self) -> bool:
        return self.learns_from_labels or (self.batch.videos > 0 and self.batch.source == "image")
