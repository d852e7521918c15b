"""Reads and decodes the pictures of the steps ahead, in threads: decoding releases Python's lock.

A thread reads one video, or image, at a time; the one that finishes the last of a core packs the core. What a step
yields depends on its plan alone, not on threads or on how far ahead they are.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.batches.pixels import Pixels, Samples, join, pack
from vivi.batches.sampler import Plan


@dataclass(frozen=True)
class Pictures:
    """What a video, or an image, gives to a batch, and what was wrong with it."""

    pictures: list[Tensor]  # of uint8 (3, height, width), or (length,): a JPEG file that the device is to decode
    which: list[int]  # the picture of each sample
    damaged: list[str]


@dataclass(frozen=True)
class Core:
    """The pictures of one core of a step, decoded or, where the device is to do that, not."""

    plan: Plan
    pictures: Pixels | list[Tensor]
    which: NDArray[np.int64]  # (samples,): the picture of each


class Stream(Protocol):
    """What a loader loads: `plan` says what a step sees, `read` reads one video or image of it, from any thread, and
    `decode` does on the device what `read` left to it, and says what was wrong."""

    cores: int

    def plan(self, step: int) -> Plan: ...

    def read(self, plan: Plan, item: int) -> Pictures: ...

    def decode(self, cores: Sequence[Core], device: torch.device) -> tuple[Pixels, list[str]]: ...


@dataclass(frozen=True)
class LoadedBatch:
    """One step's pictures, for the cores of this process; in the order of videos, shots, frames."""

    step: int
    cores: list[Core]

    @property
    def items(self) -> Tensor:
        """(cores, videos): which videos or images they are."""
        return torch.from_numpy(np.stack([core.plan.video for core in self.cores]))

    @property
    def noise(self) -> Tensor:
        """(cores, videos, K + 1)."""
        return torch.from_numpy(np.stack([core.plan.noise for core in self.cores]))


class Loader:
    """Yields the batches of steps `start` ... `steps` - 1, for the cores `first_core` ... `last_core` - 1.

    `damaged` says of every picture that could not be decoded, so far, what is wrong with it, and counts how often it
    was replaced. With `pin`, decoded pictures lie in page-locked memory. Use it as a context manager: the threads end
    with it.
    """

    def __init__(
        self,
        stream: Stream,
        first_core: int,
        last_core: int,
        threads: int,
        start: int,
        steps: int,
        prefetch: int = 2,
        pin: bool = False,
    ) -> None:
        assert 0 <= first_core < last_core <= stream.cores
        self.stream = stream
        self.damaged: Counter[str] = Counter()
        self._cores = (first_core, last_core)
        self._start, self._steps, self.prefetch = start, steps, prefetch
        self._pin = pin
        self._threads = ThreadPoolExecutor(max(1, threads), "loader")
        self._ahead: deque[list[_Loading]] = deque()  # of the steps that are under way

    def __iter__(self) -> Iterator[LoadedBatch]:
        for step in range(self._start, self._steps):
            for soon in range(step + len(self._ahead), min(step + self.prefetch + 1, self._steps)):
                self._ahead.append(self._begin(soon))
            loaded = [core.loaded.result() for core in self._ahead[0]]
            self._ahead.popleft()
            for _, damaged in loaded:
                self.damaged.update(damaged)
            yield LoadedBatch(step, [core for core, _ in loaded])

    def samples(self, batch: LoadedBatch, some: slice, device: torch.device) -> Samples:
        """The pictures of some cores of a batch, on the device, as often as they are to be augmented."""
        cores = batch.cores[some]
        pixels, damaged = self.stream.decode(cores, device)
        self.damaged.update(damaged)
        before = np.cumsum([0, *(len(core.pictures) for core in cores[:-1])])
        which = np.concatenate([core.which + start for core, start in zip(cores, before, strict=True)])
        return Samples(pixels[which], draws_of(cores))

    def _begin(self, step: int) -> list[_Loading]:
        """Plans a step and hands its videos to the threads."""
        whole = self.stream.plan(step)
        parts = (whole.cores(number, number + 1, self.stream.cores) for number in range(*self._cores))
        cores = [_Loading(part, self._pin) for part in parts]
        for core in cores:
            for item in range(len(core.plan.video)):
                self._threads.submit(self._load, core, item)
        return cores

    def _load(self, core: _Loading, item: int) -> None:
        try:
            core.add(item, self.stream.read(core.plan, item))
        except BaseException as error:
            core.fail(error)

    def close(self) -> None:
        """Stops the threads, each after the video it is at; nothing more is yielded."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for core in (core for cores in self._ahead for core in cores):
            core.loaded.cancel()  # or whoever waits for it would do so for ever

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Loading:
    """The videos of one core as they come in, in any order; packed when the last one is there."""

    def __init__(self, plan: Plan, pin: bool) -> None:
        self.plan = plan
        self.loaded: Future[tuple[Core, list[str]]] = Future()  # and what was damaged
        self._pin = pin
        self._videos: dict[int, Pictures] = {}
        self._lock = threading.Lock()

    def add(self, video: int, pictures: Pictures) -> None:
        with self._lock:
            self._videos[video] = pictures
            complete = len(self._videos) == len(self.plan.video)
        if complete:
            videos = [self._videos[number] for number in range(len(self._videos))]
            self.loaded.set_result((self._core(videos), [line for one in videos for line in one.damaged]))

    def _core(self, videos: Sequence[Pictures]) -> Core:
        pictures = [picture for one in videos for picture in one.pictures]
        before = np.cumsum([0, *(len(one.pictures) for one in videos[:-1])])
        which = np.concatenate([np.array(one.which) + start for one, start in zip(videos, before, strict=True)])
        encoded = any(picture.ndim == 1 for picture in pictures)
        return Core(self.plan, pictures if encoded else pack(pictures, self._pin), which)

    def fail(self, error: BaseException) -> None:
        """Raises the first error of the core where its batch is awaited."""
        with self._lock:
            if not self.loaded.done():
                self.loaded.set_exception(error)


def decoded(cores: Sequence[Core], device: torch.device) -> Pixels | None:
    """The pictures of the cores, on the device, if all came decoded."""
    parts = [core.pictures.to(device) for core in cores if isinstance(core.pictures, Pixels)]
    return join(parts) if len(parts) == len(cores) else None


def draws_of(cores: Sequence[Core]) -> NDArray[np.float32]:
    """Of all samples of the cores, (samples, DRAWS)."""
    return np.concatenate([core.plan.draws.reshape(-1, core.plan.draws.shape[-1]) for core in cores])
