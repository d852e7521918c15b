"""Reads and decodes the frames of the steps ahead, in threads: decoding JPEG releases Python's lock.

A thread decodes one video at a time; the one that finishes the last video of a core packs the core's canvas. What a
step yields depends on its plan alone, not on threads or on how far ahead they are.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from vivi.batches.augment import Canvas
from vivi.batches.index import Index, read_frames
from vivi.batches.sampler import Plan, eligible, plan
from vivi.errors import first_line
from vivi.recipes import Batch

_GREY = torch.full((3, 32, 32), 128, dtype=torch.uint8)


@dataclass(frozen=True)
class LoadedBatch:
    """One step's frames, for the cores of this process. A canvas holds them in the order of videos, shots, frames."""

    step: int
    cores: list[Canvas]
    noise: Tensor  # (cores, videos, K + 1)


@dataclass(frozen=True)
class DecodedVideo:
    """The frames of one video in a batch, and what was wrong with them."""

    frames: list[Tensor]  # K × L of uint8 (3, height, width)
    damaged: list[str]


class Loader:
    """Yields the batches of steps `start` ... `steps` - 1, for the cores `first_core` ... `last_core` - 1.

    `damaged` says of every frame that could not be decoded, in the batches yielded so far, what is wrong with it, and
    counts how often it was replaced. With `pin`, canvases lie in page-locked memory. Use it as a context manager: the
    threads end with it.
    """

    def __init__(
        self,
        index: Index,
        batch: Batch,
        seed: int,
        first_core: int,
        last_core: int,
        threads: int,
        start: int,
        steps: int,
        prefetch: int = 2,
        pin: bool = False,
    ) -> None:
        self.index = index
        self.batch = batch
        self.seed = seed
        self.eligible = eligible(index, batch)
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
            noise = torch.from_numpy(np.stack([core.plan.noise for core in cores]))  # (cores, videos, K + 1)
            yield LoadedBatch(step, [one.canvas for one in packed], noise)

    def _begin(self, step: int) -> list[_Core]:
        """Plans a step and hands its videos to the threads."""
        whole = plan(self.index, self.eligible, self.batch, self.seed, step)
        numbers = range(*self._cores)
        cores = [_Core(whole.cores(number, number + 1, self.batch.cores), self._pin) for number in numbers]
        for core in cores:
            for video in range(len(core.plan.video)):
                self._threads.submit(self._load, core, video)
        return cores

    def _load(self, core: _Core, video: int) -> None:
        try:
            core.add(video, decode_video(self.index, core.plan, video))
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
    canvas: Canvas
    damaged: list[str]


class _Core:
    """The videos of one core as they come in, in any order; packed when the last one is there."""

    def __init__(self, plan: Plan, pin: bool) -> None:
        self.plan = plan
        self.packed: Future[_PackedCore] = Future()
        self._pin = pin
        self._videos: dict[int, DecodedVideo] = {}
        self._lock = threading.Lock()

    def add(self, video: int, decoded: DecodedVideo) -> None:
        with self._lock:
            self._videos[video] = decoded
            complete = len(self._videos) == len(self.plan.video)
        if complete:
            videos = [self._videos[number] for number in range(len(self._videos))]
            frames = [frame for one in videos for frame in one.frames]
            canvas = pack(frames, self.plan.draws.reshape(len(frames), -1), self._pin)
            self.packed.set_result(_PackedCore(canvas, [line for one in videos for line in one.damaged]))

    def fail(self, error: BaseException) -> None:
        """Raises the first error of the core where its batch is awaited."""
        with self._lock:
            if not self.packed.done():
                self.packed.set_exception(error)


def pack(frames: Sequence[Tensor], draws: np.ndarray[tuple[int, ...], np.dtype[np.float32]], pin: bool) -> Canvas:
    """Puts frames (3, height, width) of any sizes into one canvas."""
    sizes = np.array([frame.shape[1:] for frame in frames], np.int32).reshape(-1, 2)
    height, width = sizes.max(axis=0).tolist()
    # Pixel by pixel in memory, as they come from the decoder, and through numpy: torch would start threads to copy.
    pixels = torch.zeros((len(frames), height, width, 3), dtype=torch.uint8, pin_memory=pin)
    for place, frame in zip(pixels.numpy(), frames, strict=True):
        place[: frame.shape[1], : frame.shape[2]] = frame.permute(1, 2, 0).numpy()
    return Canvas(pixels.permute(0, 3, 1, 2), sizes, draws)


def decode_video(index: Index, plan: Plan, video: int) -> DecodedVideo:
    """Reads and decodes the K × L frames of one video of a plan."""
    decoded = DecodedVideo([], [])
    for shot, numbers in zip(plan.shot[video].tolist(), plan.frame[video].tolist(), strict=True):
        frames, reasons = _decode_shot(index, int(plan.video[video]), shot, numbers)
        decoded.frames.extend(frames)
        if reasons:
            name = index.video_name(int(plan.video[video]))
            within = shot - int(index.first_shot[plan.video[video]])
            decoded.damaged.extend(f"video {name} shot {within} frame {n}: {why}" for n, why in reasons.items())
    return decoded


def _decode_shot(index: Index, video: int, shot: int, numbers: list[int]) -> tuple[list[Tensor], dict[int, str]]:
    """The frames of a shot with these numbers, some possibly more than once; and why some could not be decoded.

    A damaged one is replaced by the nearest of the others; if there is none, by the nearest of the shot, or by grey.
    """
    wanted = sorted(set(numbers))
    good: dict[int, Tensor] = {}
    reasons: dict[int, str] = {}
    for number, jpeg in zip(wanted, read_frames(index, video, shot, wanted), strict=True):
        try:
            good[number] = decode(jpeg)
        except (RuntimeError, ValueError) as error:
            reasons[number] = first_line(error)
    stand_ins: dict[int, Tensor] = {}
    for number in reasons:
        nearest = next(iter(_by_distance(good, number)), None)
        stand_ins[number] = _nearest_in_shot(index, video, shot, number) if nearest is None else good[nearest]
    frames = good | stand_ins
    return [frames[number] for number in numbers], reasons


def _by_distance(numbers: Iterable[int], number: int) -> list[int]:
    """Nearest first; of two at the same distance, the earlier first."""
    return sorted(numbers, key=lambda other: (abs(other - number), other))


def _nearest_in_shot(index: Index, video: int, shot: int, number: int) -> Tensor:
    """The decodable frame of a shot that is nearest to a damaged one, or grey."""
    for other in _by_distance(range(int(index.frames[shot])), number)[1:]:
        try:
            return decode(read_frames(index, video, shot, [other])[0])
        except (RuntimeError, ValueError):
            continue
    return _GREY


def decode(jpeg: bytes) -> Tensor:
    """A JPEG file, also a grey or CMYK one, as RGB: uint8 (3, height, width)."""
    if not jpeg:
        raise ValueError("empty")
    frame: Tensor = decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), mode=ImageReadMode.RGB)
    return frame
