"""What the steps see, augmented and on the device, a few micro-batches ahead of the step that needs them.

On a GPU a thread of its own decodes and augments, on a stream of its own, while the step before is computed: the
host does not wait for the device here, nor the device for the host. Elsewhere pictures are made when asked for.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from vivi.batches.augment import augment, augment_patches
from vivi.batches.loader import LoadedBatch, Loader
from vivi.batches.pixels import Samples, upload
from vivi.batches.resident import ResidentLoader
from vivi.recipes import Recipe, sees_patches
from vivi.training.memory import AtOnce
from vivi.training.step import Frames, Labelled

AnyLoader = Loader | ResidentLoader
_SHARE = 0.05  # of the device's memory, for what is made ahead


@dataclass(frozen=True)
class Batches:
    """The steps' videos (or images in their place) and labelled images, as far as a recipe has them."""

    videos: AnyLoader | None
    images: AnyLoader | None
    labels: Tensor  # (labelled images,)

    def __iter__(self) -> Iterator[tuple[LoadedBatch | None, LoadedBatch | None]]:
        return zip(self.videos or repeat(None), self.images or repeat(None), strict=False)

    def damaged(self) -> set[str]:
        return {line for loader in (self.videos, self.images) if loader for line in list(loader.damaged)}


@dataclass(frozen=True)
class Step:
    """The micro-batches of one step; their pictures are to be asked for once each, in order."""

    number: int
    videos: list[Frames]
    images: list[Labelled]


class Pictures:
    """Makes the pictures of micro-batches."""

    def __init__(self, batches: Batches, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> None:
        self.batches, self.recipe, self.device, self.dtype = batches, recipe, device, dtype

    def frames(self, batch: LoadedBatch, some: slice) -> Tensor:
        """The augmented frames of some cores: (cores, shots, frames, 3, size, size); patches have one dimension
        more."""
        assert self.batches.videos is not None
        frames = self.augmented(self.batches.videos.samples(batch, some, self.device))
        return frames.view(len(batch.cores[some]), -1, self.recipe.batch.frames, *frames.shape[1:])

    def augmented(self, samples: Samples) -> Tensor:
        """(n, 3, size, size), or patches (n, 9, 3, size, size)."""
        if sees_patches(self.recipe):
            return augment_patches(samples, self.recipe.augment.size, self.dtype)
        return augment(samples, self.recipe.augment, self.dtype)

    def labelled(self, batch: LoadedBatch, some: slice) -> Tensor:
        """The augmented labelled images of some cores: (cores, images, copies, 3, size, size)."""
        assert self.batches.images is not None
        settings, images = self.recipe.augment, self.recipe.images
        if images.policy != "same":
            settings = replace(settings, policy=images.policy)
        augmented = augment(self.batches.images.samples(batch, some, self.device), settings, self.dtype)
        return augmented.view(len(batch.cores[some]), -1, images.copies, *augmented.shape[1:])

    def step(self, videos: LoadedBatch | None, images: LoadedBatch | None, at_once: AtOnce) -> Step:
        """A step whose pictures are made when they are asked for."""
        some = videos or images
        assert some is not None
        step = Step(some.step, [], [])
        if videos is not None:
            noise = upload(videos.noise, self.device)
            parts = _parts(videos, at_once.videos)
            step.videos.extend(Frames(partial(self.frames, videos, part), noise[part]) for part in parts)
        if images is not None:
            noise, labels = upload(images.noise, self.device), upload(self.batches.labels[images.items], self.device)
            parts = _parts(images, at_once.images)
            step.images.extend(
                Labelled(partial(self.labelled, images, part), noise[part], labels[part]) for part in parts
            )
        return step


def _parts(batch: LoadedBatch, at_once: int) -> list[slice]:
    return [slice(first, first + at_once) for first in range(0, len(batch.cores), at_once)]


class Feed:
    """Yields the steps of a run, `at_once` cores to a micro-batch. Use it as a context manager: the thread ends with
    it."""

    def __init__(self, pictures: Pictures, at_once: AtOnce) -> None:
        self.pictures, self.at_once = pictures, at_once
        self.waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] | None = None
        """Where it is a list, events around every wait of the device for pictures are added to it."""
        self.ahead = self._ahead()
        self._queue: queue.Queue[object] = queue.Queue(self.ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def __iter__(self) -> Iterator[Step]:
        if self.pictures.device.type != "cuda":
            for videos, images in self.pictures.batches:
                yield self.pictures.step(videos, images, self.at_once)
            return
        self._thread.start()
        current = torch.cuda.current_stream(self.pictures.device)
        while isinstance(step := self._take(), Step):
            uploaded = [part.noise for part in step.videos]
            uploaded += [values for part in step.images for values in (part.noise, part.labels)]
            for values in uploaded:
                values.record_stream(current)
            yield Step(
                step.number,
                [replace(part, frames=self._pictures) for part in step.videos],
                [replace(part, images=self._pictures) for part in step.images],
            )

    def _ahead(self) -> int:
        """How many micro-batches to make ahead: those of a step, if they do not take too much memory."""
        recipe, device = self.pictures.recipe, self.pictures.device
        if device.type != "cuda":
            return 1
        batch, size = recipe.batch, recipe.augment.size
        frames = max(batch.videos * batch.shots * batch.frames, recipe.images.count * recipe.images.copies)
        frames *= 9 if sees_patches(recipe) else 1
        micro_batches = batch.cores // self.at_once.videos
        bytes_each = 3 * size * size * self.pictures.dtype.itemsize * frames / micro_batches
        total = torch.cuda.get_device_properties(device).total_memory
        return max(2, min(micro_batches, int(_SHARE * total / bytes_each)))

    def _work(self) -> None:
        """What the thread makes: steps, after each its pictures in their order; then None, or what went wrong."""
        device = self.pictures.device
        try:
            with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device, priority=-1)):
                for videos, images in self.pictures.batches:
                    self._make(self.pictures.step(videos, images, self.at_once))
                self._put(None)
        except _Stopped:
            pass
        except BaseException as error:
            with suppress(_Stopped):
                self._put(error)

    def _make(self, step: Step) -> None:
        self._put(step)
        makers: Sequence[Callable[[], Tensor]] = [
            *(part.frames for part in step.videos),
            *(part.images for part in step.images),
        ]
        for make in makers:
            self._put(_Made.now(make()))

    def _put(self, thing: object) -> None:
        while not self._stopped.is_set():
            with suppress(queue.Full):
                self._queue.put(thing, timeout=0.1)
                return
        raise _Stopped

    def _take(self) -> object:
        """The next thing that the thread made; raises what it raised."""
        thing = self._queue.get()
        if isinstance(thing, BaseException):
            raise thing
        return thing

    def _pictures(self) -> Tensor:
        """The next micro-batch, for the current stream."""
        current = torch.cuda.current_stream(self.pictures.device)
        before = _event(current) if self.waits is not None else None
        made = self._take()
        assert isinstance(made, _Made)
        current.wait_event(made.ready)
        made.pictures.record_stream(current)
        if self.waits is not None and before is not None:
            self.waits.append((before, _event(current)))
        return made.pictures

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()


@dataclass(frozen=True)
class _Made:
    """Pictures, and when they are ready."""

    pictures: Tensor
    ready: torch.cuda.Event

    @classmethod
    def now(cls, pictures: Tensor) -> Self:
        """What the current stream is making."""
        ready = torch.cuda.Event()
        ready.record()
        return cls(pictures, ready)


class _Stopped(Exception):
    """Nobody wants more pictures."""


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event
