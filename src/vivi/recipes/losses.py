"""The settings of each loss: the fields of a recipe's `loss.frame` and `loss.video`.

A class here has the name of a class in vivi.losses, and its fields are that class's arguments: `Exemplar(margin=0.4)`
in a recipe becomes `vivi.losses.Exemplar(features, shots, margin=0.4)`. The two are apart because a recipe is read,
checked and turned into flags before torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from vivi.runtime.errors import require

if TYPE_CHECKING:
    from vivi.recipes.schema import Recipe

Features = Annotated[int, (1, 65_536)]


@dataclass(frozen=True)
class LossSettings:
    """What the settings of all losses have in common."""

    patches: ClassVar[bool] = False  # whether f sees nine patches of each image, instead of whole frames
    module: ClassVar[type | None] = None  # the class of the loss, if it is not the one of this name in vivi.losses

    @property
    def name(self) -> str:
        """Its name on the command line, in recipe.json and in metrics.jsonl."""
        return (self.module or type(self)).__name__.lower()

    def check(self, recipe: Recipe) -> None:
        """Raises where the loss cannot work with the rest of the recipe."""


@dataclass(frozen=True)
class Exemplar(LossSettings):
    """Frames of a shot lie closer together than to frames of other shots: a triplet loss within each core."""

    dimension: Features = 1000
    """Size of the embedding."""
    triplets: Literal["semi-hard", "batch-hard"] = "semi-hard"
    """semi-hard: FaceNet's, with a margin; batch-hard: the hardest, with a soft margin, as in S4L."""
    margin: Annotated[float, (0, 1e30)] = 0.5
    """Margin of the semi-hard triplets."""
    negatives: Literal["shots", "videos"] = "shots"
    """Frames of all other shots, as in the paper, or of other videos only, for shots that are pieces of one take."""

    def check(self, recipe: Recipe) -> None:
        check_pairs_of_frames(recipe, "the exemplar loss")
        if self.negatives == "videos":
            several = recipe.batch.videos // recipe.batch.cores >= 2
            require(several, "--loss.frame.negatives videos needs at least 2 videos a core: lower --batch.cores")


@dataclass(frozen=True)
class Rotation(LossSettings):
    """Tell by which multiple of 90 degrees a frame was turned."""


@dataclass(frozen=True)
class PatchLoss(LossSettings):
    """What the losses on patches of an image have in common."""

    dimension: Features = 1000
    """Size of a patch's embedding."""
    hidden: Features = 4096
    """Size of the hidden layer."""
    patches: ClassVar[bool] = True

    def check(self, recipe: Recipe) -> None:
        alone = recipe.images.count == 0 and recipe.loss.video is None
        require(alone, f"--loss.frame {self.name} sees patches: it needs --images.count 0 and --loss.video none")


@dataclass(frozen=True)
class Jigsaw(PatchLoss):
    """Tell in which of 100 permutations the nine patches of an image are shown."""


@dataclass(frozen=True)
class Location(PatchLoss):
    """Tell where a patch of an image lies around the one in the centre."""


@dataclass(frozen=True)
class InfoNCE(LossSettings):
    """Predict the next shot of a video among the shots of other videos."""

    across: Literal["core", "all"] = "all"
    """Where the negatives come from: the same core, or all cores."""
    ahead: int = 1
    """Predict this many shots ahead, with three shots or more."""
    both_ways: bool = False
    """Also predict the first shot from the second, with two shots."""

    def check(self, recipe: Recipe) -> None:
        batch = recipe.batch
        require(batch.shots >= 2, "InfoNCE predicts shots from shots: --batch.shots must be at least 2")
        most = f"{batch.shots - 1}, one less than --batch.shots"
        require(1 <= self.ahead < batch.shots, f"--loss.video.ahead {self.ahead} must be between 1 and {most}")
        videos = batch.videos // batch.cores if self.across == "core" else batch.videos
        require(videos >= 2, "InfoNCE has no negatives: set --loss.video.across all, or lower --batch.cores")
        require(not self.both_ways or batch.shots == 2, "--loss.video.both-ways needs --batch.shots 2")


@dataclass(frozen=True)
class Order(LossSettings):
    """Tell whether the shots of a video are in order or shuffled (two shots: reversed)."""

    def check(self, recipe: Recipe) -> None:
        require(recipe.batch.shots >= 2, "--loss.video order compares shots: --batch.shots must be at least 2")


# The losses that can be chosen by name, on the command line and in recipe.json.
FRAME_LOSSES: tuple[type[LossSettings], ...] = (Exemplar, Rotation, Jigsaw, Location)
VIDEO_LOSSES: tuple[type[LossSettings], ...] = (InfoNCE, Order)


def check_pairs_of_frames(recipe: Recipe, name: str) -> None:
    """Raises where a core has no two frames of one shot, or no two shots to tell apart."""
    batch, images = recipe.batch, recipe.images
    if batch.videos:
        require(batch.frames >= 2, f"{name} compares frames of a shot: --batch.frames must be at least 2")
        shots_per_core = batch.videos // batch.cores * batch.shots
        require(shots_per_core >= 2, f"{name} needs at least 2 shots a core: lower --batch.cores")
    if recipe.loss.on_labelled:
        require(images.copies >= 2, f"{name} compares copies of an image: --images.copies must be at least 2")
        require(images.count // batch.cores >= 2, f"{name} needs at least 2 images a core: lower --batch.cores")
