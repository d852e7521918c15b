"""Images for a loader: an unreadable one is replaced by the next of its class, and on a GPU the GPU decodes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivi.batches.images import LabelledImages
from vivi.batches.loader import Core, Pictures, decoded
from vivi.batches.pictures import decode_on, read_picture
from vivi.batches.pixels import Pixels, pack
from vivi.batches.sampler import Plan, StreamNumber, plan_images
from vivi.errors import UserError, first_line
from vivi.recipes import Recipe


class ImageStream:
    """`count` images a step, each augmented `copies` times. With `encoded`, JPEG files are left to the device."""

    def __init__(
        self,
        images: LabelledImages,
        count: int,
        copies: int,
        seed: int,
        cores: int,
        number: StreamNumber,
        encoded: bool = False,
    ) -> None:
        self.images, self.count, self.copies = images, count, copies
        self.seed, self.cores, self.number, self.encoded = seed, cores, number, encoded

    def plan(self, step: int) -> Plan:
        return plan_images(len(self.images), self.count, self.copies, self.seed, step, self.number)

    def read(self, plan: Plan, item: int) -> Pictures:
        image = int(plan.video[item])
        try:
            return Pictures([read_picture(self.images.path(image), self.encoded)], [0] * self.copies, [])
        except (OSError, ValueError) as error:
            damaged = [self.damaged(image, first_line(error))]
            return Pictures([self.stand_in(image)], [0] * self.copies, damaged)

    def damaged(self, image: int, why: str) -> str:
        return f"unreadable, the next of its class takes its place: image {str(self.images.path(image))!r}: {why}"

    def stand_in(self, image: int) -> Tensor:
        """The next readable image of the same class, after the last the first."""
        labels = self.images.labels
        same = np.flatnonzero(labels == labels[image])
        for other in np.roll(same, -int(np.searchsorted(same, image)))[1:].tolist():
            try:
                return read_picture(self.images.path(other))
            except (OSError, ValueError):
                continue
        name = self.images.classes[labels[image]]
        raise UserError(
            f"no image of class {name!r} in {self.images.source} can be read, {self.images.names[image]!r} for one; "
            "replace them, or leave the class out"
        )

    def decode(self, cores: Sequence[Core], device: torch.device) -> tuple[Pixels, list[str]]:
        """What was read of some cores, decoded in one go on the device; and what was wrong."""
        here = decoded(cores, device)
        if here is not None:
            return here, []
        pictures = decode_on(device, [picture for core in cores for picture in _pictures(core)])
        numbers = [int(number) for core in cores for number in core.plan.video]
        lines: list[str] = []
        good: list[Tensor] = []
        for picture, number in zip(pictures, numbers, strict=True):
            if isinstance(picture, str):
                lines.append(self.damaged(number, picture))
                picture = self.stand_in(number).to(device)
            good.append(picture)
        return pack(good), lines


def _pictures(core: Core) -> list[Tensor]:
    if isinstance(core.pictures, Pixels):
        return [core.pictures.picture(number) for number in range(len(core.pictures))]
    return core.pictures


def unlabelled_stream(images: LabelledImages, recipe: Recipe) -> ImageStream:
    """The images that take the place of videos; their labels are not used."""
    batch = recipe.batch
    if len(images) < batch.videos:
        raise UserError(
            f"--batch.videos is {batch.videos}, but {images.source} has only {len(images)} images; lower it to "
            f"{len(images)} at most (a multiple of --batch.cores)"
        )
    return ImageStream(images, batch.videos, batch.frames, recipe.seed, batch.cores, StreamNumber.FRAMES)


def labelled_stream(images: LabelledImages, recipe: Recipe) -> ImageStream:
    count, cores = recipe.images.count, recipe.batch.cores
    if len(images) < count:
        raise UserError(
            f"--images.count is {count}, but only {len(images)} labelled images of {images.source} are used "
            f"(--images-fraction {recipe.images.fraction:g}); lower it to {len(images)} at most (a multiple of "
            "--batch.cores)"
        )
    return ImageStream(images, count, recipe.images.copies, recipe.seed, cores, StreamNumber.LABELLED)
