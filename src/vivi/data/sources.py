"""Where frames and images come from: what a step sees of a corpus, or of image files, planned, read and decoded.

A damaged frame is replaced by the nearest of its shot, an unreadable image by the next of its class; a line says so.
What stands in for it depends on the data alone, not on what else a batch wants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from vivi.data.decode import decode_frame, read_image
from vivi.data.images import LabelledImages
from vivi.data.index import Index, read_frames
from vivi.data.packed import Image, PackedImages, pack
from vivi.data.plan import Kind, Plan, eligible_videos, plan_all_frames, plan_images, plan_videos
from vivi.recipes import Batch, Recipe
from vivi.runtime.errors import UserError, first_line

GREY: Image = np.full((32, 32, 3), 128, np.uint8)
"""Stands for a frame whose shot has none that can be decoded."""
# Enough at once that Python's overhead is small, few enough that every thread has work.
_FRAMES_PER_READ, _IMAGES_PER_READ = 64, 16
_VIDEOS_PER_PLAN = 256  # where all frames are planned: one plan of all videos would take gigabytes


@dataclass(frozen=True)
class Decoded:
    """What was planned, read and decoded: an image for each frame of the plan, in its order."""

    plan: Plan  # V videos × K shots × L frames
    images: PackedImages  # V · K · L, several of which may be the same one
    damaged: tuple[str, ...] = ()  # a line for each that had to be replaced


class Source(ABC):
    """Plans what a step sees; reads and decodes it, or some videos of it, from any thread."""

    videos: int  # of a step
    videos_per_read: int  # that are best read in one go
    labels: NDArray[np.int64] | None = None  # of all images, where they are used

    @abstractmethod
    def plan(self, step: int) -> Plan: ...

    @abstractmethod
    def read_shot(self, video: int, shot: int, numbers: Sequence[int], damaged: list[str]) -> list[Image]:
        """Some frames of a shot; a line for each damaged one is added to `damaged`."""

    def read(self, plan: Plan, pin: bool = False) -> Decoded:
        """Each frame is decoded once, however often it is wanted."""
        images: list[Image] = []
        positions: list[int] = []  # among the images
        damaged: list[str] = []
        for (video, shot), rows in groupby(plan.frames(), key=lambda row: row[:2]):
            numbers = [number for _, _, number in rows]
            wanted = sorted(set(numbers))
            positions += [len(images) + wanted.index(number) for number in numbers]
            images += self.read_shot(video, shot, wanted, damaged)
        return Decoded(plan, pack(images, pin)[np.array(positions)], tuple(damaged))


class CorpusSource(Source):
    """The frames that a recipe's steps see of a corpus."""

    def __init__(self, index: Index, batch: Batch, seed: int) -> None:
        self.index, self.batch, self.seed = index, batch, seed
        self.eligible = eligible_videos(index, batch)
        self.videos, self.videos_per_read = batch.videos, max(1, _FRAMES_PER_READ // (batch.shots * batch.frames))

    def plan(self, step: int) -> Plan:
        return plan_videos(self.index, self.eligible, self.batch, self.seed, step)

    def frame_counts(self) -> NDArray[np.int64]:
        """Of each eligible video, how many different frames the steps may see."""
        fixed = self.batch.source == "frame" and not self.batch.resample
        return np.ones_like(self.eligible) if fixed else self.index.frames_of(self.eligible)

    def plans_of_all_frames(self) -> Iterator[Plan]:
        """Every frame that the steps may see, once, as many in a plan as are best read in one go."""
        for first in range(0, len(self.eligible), _VIDEOS_PER_PLAN):
            videos = self.eligible[first : first + _VIDEOS_PER_PLAN]
            plan = plan_all_frames(self.index, videos, self.batch, self.seed)
            yield from (plan[start : start + _FRAMES_PER_READ] for start in range(0, len(plan), _FRAMES_PER_READ))

    def read_shot(self, video: int, shot: int, numbers: Sequence[int], damaged: list[str]) -> list[Image]:
        images = []
        for number, jpeg in zip(numbers, read_frames(self.index, video, shot, numbers), strict=True):
            try:
                images.append(decode_frame(jpeg))
            except ValueError as error:
                within = shot - int(self.index.first_shot[video])
                where = f"video {self.index.video_name(video)} shot {within} frame {number}"
                damaged.append(f"damaged, its neighbour takes its place: {where}: {first_line(error)}")
                images.append(self._nearest(video, shot, number))
        return images

    def _nearest(self, video: int, shot: int, number: int) -> Image:
        """The decodable frame of a shot that is nearest to a damaged one, of two the earlier, or grey."""
        for other in sorted(range(self.index.frames[shot]), key=lambda other: (abs(other - number), other))[1:]:
            with suppress(ValueError):
                return decode_frame(*read_frames(self.index, video, shot, [other]))
        return GREY


class ImageSource(Source):
    """The images that a recipe's steps see, each a video of one shot of one frame, augmented several times: the
    labelled ones, or those that take the place of videos, whose labels are not used."""

    def __init__(self, images: LabelledImages, recipe: Recipe, kind: Kind) -> None:
        flag, self.videos, self.copies = "--batch.videos", recipe.batch.videos, recipe.batch.frames
        if kind == Kind.LABELLED:
            flag, self.videos, self.copies = "--images.count", recipe.images.count, recipe.images.copies
        if len(images) < self.videos:
            raise UserError(
                f"{flag} is {self.videos}, but {len(images)} images of {images.source} are used: too few to learn "
                "from; give more images"
            )
        self.images, self.seed, self.kind = images, recipe.seed, kind
        self.videos_per_read = _IMAGES_PER_READ
        self.labels = images.labels if kind == Kind.LABELLED else None

    def plan(self, step: int) -> Plan:
        return plan_images(len(self.images), self.videos, self.copies, self.seed, step, self.kind)

    def read_shot(self, video: int, shot: int, numbers: Sequence[int], damaged: list[str]) -> list[Image]:
        path = self.images.path(video)
        try:
            return [read_image(path)]
        except (OSError, ValueError) as error:
            where = f"image {str(path)!r}"
            damaged.append(f"unreadable, the next of its class takes its place: {where}: {first_line(error)}")
            return [self._next_of_class(video)]

    def _next_of_class(self, number: int) -> Image:
        """The next readable image of the same class, after the last the first."""
        images, label = self.images, self.images.labels[number]
        same = np.flatnonzero(images.labels == label)
        for other in np.roll(same, -int(np.searchsorted(same, number)))[1:].tolist():
            with suppress(OSError, ValueError):
                return read_image(images.path(other))
        raise UserError(
            f"no image of class {images.classes[label]!r} in {images.source} can be read, "
            f"{images.names[number]!r} for one; replace them, or remove the class"
        )
