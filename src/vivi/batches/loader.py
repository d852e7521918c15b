"""Reads and decodes the pictures of the steps ahead, in threads: decoding releases Python's lock.

A thread reads one video, or image, at a time; the one that finishes the last of a core packs the core's canvas. What
a step yields depends on its plan alone, not on threads or on how far ahead they are.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivi.batches.augment import Canvas
from vivi.batches.sampler import Plan


@dataclass(frozen=True)
class Pictures:
    """The frames of one video in a batch, or an image, and what was wrong with them."""

    frames: list[Tensor]  # of uint8 (3, height, width), or (length,): a JPEG file that the device is to decode
    damaged: list[str]


class Stream(Protocol):
    """What a loader loads: `plan` says what a step sees, `read` reads one video or image of it, from any thread, and
    `decode` does on the device what `read` left to it, and says what was wrong."""

    cores: int
    copies: int  # how often each picture is augmented

    def plan(self, step: int) -> Plan: ...

    def read(self, plan: Plan, item: int) -> Pictures: ...

    def decode(
        self, cores: Sequence[Canvas | Encoded], items: Tensor, device: torch.device
    ) -> tuple[list[Canvas], list[str]]: ...


@dataclass(frozen=True)
class Encoded:
    """The pictures of a core, some of them JPEG files, to be decoded on the device."""

    pictures: list[Tensor]
    draws: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    copies: int


@dataclass(frozen=True)
class LoadedBatch:
    """One step's pictures, for the cores of this process; in the order of videos, shots, frames."""

    step: int
    cores: list[Canvas | Encoded]
    items: Tensor  # (cores, videos): which videos or images they are
    noise: Tensor  # (cores, videos, K + 1)


class Loader:
    """Yields the batches of steps `start` ... `steps` - 1, for the cores `first_core` ... `last_core` - 1.

    `damaged` says of every picture that could not be decoded, in the batches yielded so far, what is wrong with it,
    and counts how often it was replaced. With `pin`, canvases lie in page-locked memory. Use it as a context manager:
    the threads end with it.
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
        self.stream = stream
        self.damaged: Counter[str] = Counter()
        self._cores = (first_core, last_core)
        self._start, self._steps, self._prefetch = start, steps, prefetch
        self._pin = pin
        self._threads = ThreadPoolExecutor(max(1, threads), "loader")
        self._ahead: deque[list[_Core]] = deque()  # of the steps that are under way

    def __iter__(self) -> Iterator[LoadedBatch]:
        for step in range(self._start, self._steps):
            for soon in range(step + len(self._ahead), min(step + self._prefetch + 1, self._steps)):
                self._ahead.append(self._begin(soon))
            cores = self._ahead[0]
            packed = [core.packed.result() for core in cores]
            self._ahead.popleft()
            for one in packed:
                self.damaged.update(one.damaged)
            items = torch.from_numpy(np.stack([core.plan.video for core in cores]))  # (cores, videos)
            noise = torch.from_numpy(np.stack([core.plan.noise for core in cores]))  # (cores, videos, K + 1)
            yield LoadedBatch(step, [one.content for one in packed], items, noise)

    def canvases(self, batch: LoadedBatch, some: slice, device: torch.device) -> list[Canvas]:
        """The pictures of some cores of a batch, decoded."""
        canvases, damaged = self.stream.decode(batch.cores[some], batch.items[some], device)
        self.damaged.update(damaged)
        return canvases

    def _begin(self, step: int) -> list[_Core]:
        """Plans a step and hands its videos to the threads."""
        whole = self.stream.plan(step)
        parts = (whole.cores(number, number + 1, self.stream.cores) for number in range(*self._cores))
        cores = [_Core(part, self.stream.copies, self._pin) for part in parts]
        for core in cores:
            for item in range(len(core.plan.video)):
                self._threads.submit(self._load, core, item)
        return cores

    def _load(self, core: _Core, item: int) -> None:
        try:
            core.add(item, self.stream.read(core.plan, item))
        except BaseException as error:
            core.fail(error)

    def close(self) -> None:
        """Stops the threads, each after the video it is at; nothing more is yielded."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for core in (core for cores in self._ahead for core in cores):
            core.packed.cancel()  # or whoever waits for it would do so for ever

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _PackedCore:
    content: Canvas | Encoded
    damaged: list[str]


class _Core:
    """The videos of one core as they come in, in any order; packed when the last one is there."""

    def __init__(self, plan: Plan, copies: int, pin: bool) -> None:
        self.plan = plan
        self.packed: Future[_PackedCore] = Future()
        self._copies, self._pin = copies, pin
        self._videos: dict[int, Pictures] = {}
        self._lock = threading.Lock()

    def add(self, video: int, pictures: Pictures) -> None:
        with self._lock:
            self._videos[video] = pictures
            complete = len(self._videos) == len(self.plan.video)
        if complete:
            videos = [self._videos[number] for number in range(len(self._videos))]
            damaged = [line for one in videos for line in one.damaged]
            self.packed.set_result(
                _PackedCore(self._content([frame for one in videos for frame in one.frames]), damaged)
            )

    def _content(self, frames: list[Tensor]) -> Canvas | Encoded:
        draws = self.plan.draws.reshape(len(frames) * self._copies, -1)
        if any(frame.ndim == 1 for frame in frames):
            return Encoded(frames, draws, self._copies)
        return pack(frames, draws, self._pin, self._copies)

    def fail(self, error: BaseException) -> None:
        """Raises the first error of the core where its batch is awaited."""
        with self._lock:
            if not self.packed.done():
                self.packed.set_exception(error)


def pack(
    frames: Sequence[Tensor], draws: np.ndarray[tuple[int, ...], np.dtype[np.float32]], pin: bool, copies: int = 1
) -> Canvas:
    """Puts frames (3, height, width) of any sizes into one canvas."""
    sizes = np.array([frame.shape[1:] for frame in frames], np.int32).reshape(-1, 2)
    height, width = sizes.max(axis=0).tolist()
    # Pixel by pixel in memory, as they come from the decoder, and through numpy: torch would start threads to copy.
    pixels = torch.zeros((len(frames), height, width, 3), dtype=torch.uint8, pin_memory=pin)
    for place, frame in zip(pixels.numpy(), frames, strict=True):
        place[: frame.shape[1], : frame.shape[2]] = frame.permute(1, 2, 0).numpy()
    return Canvas(pixels.permute(0, 3, 1, 2), sizes, draws, copies)
