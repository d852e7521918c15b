"""A corpus whose frames are all in memory, decoded: training then reads and decodes nothing any more.

The frames are those that streaming would decode, so batches are the same, bit for bit.
"""

from __future__ import annotations

import io
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vivi.batches.frames import GREY, FrameStream
from vivi.batches.index import Index, read_frames
from vivi.batches.loader import Core, LoadedBatch, draws_of
from vivi.batches.pixels import Pixels, Samples, pack
from vivi.batches.sampler import Eligible, Plan
from vivi.video.corpus import shard_path
from vivi.video.jpeg import is_intact

_AT_ONCE = 1024  # frames that are decoded together


@dataclass(frozen=True)
class Store:
    """All frames of the videos that a recipe uses."""

    pixels: Pixels
    first: NDArray[np.int64]  # (shots of the index,): the place of each shot's first frame among the pixels
    damaged: list[str]


def frames_in_use(index: Index, eligible: Eligible) -> int:
    videos = eligible.videos
    return int((index.first_frame[videos + 1] - index.first_frame[videos]).sum())


def decoded_bytes(index: Index, eligible: Eligible, most: int) -> int | None:
    """What the frames in use take when decoded, if every video has frames of one size; None if that is over `most`.

    Only a few bytes are read of each video, and none where its shards alone are too large.
    """
    shards = np.unique(index.shard[eligible.videos])
    if sum(shard_path(index.corpus, int(shard)).stat().st_size for shard in shards) > most:
        return None
    total = 0
    for video in eligible.videos.tolist():
        total += 3 * _pixels(index, video) * int(index.first_frame[video + 1] - index.first_frame[video])
        if total > most:
            return None
    return total


def _pixels(index: Index, video: int) -> int:
    """How many a frame of a video has, from the header of the first good one; where none has, they are grey."""
    for shot in range(int(index.first_shot[video]), int(index.first_shot[video + 1])):
        for number in range(int(index.frames[shot])):
            [jpeg] = read_frames(index, video, shot, [number])
            if not is_intact(jpeg):
                continue
            with suppress(OSError, SyntaxError, ValueError), Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
                return image.width * image.height
    return GREY[0].numel()


def load_store(
    stream: FrameStream,
    threads: int,
    size: int,
    device: torch.device,
    keep_on: torch.device,
    progress: Callable[[int], None],
) -> Store | None:
    """Decodes all frames in use, on `device` if the stream leaves them to it, and keeps them on `keep_on`.

    `size` are the bytes to take; None if they turn out to be too few. `progress` is told the frames done.
    """
    shots = _shots(stream.index, stream.eligible)
    counts = np.zeros(len(stream.index.frames), np.int64)
    counts[shots[:, 1]] = stream.index.frames[shots[:, 1]]
    memory = torch.empty(size, dtype=torch.uint8, device=keep_on)
    places, sizes, damaged = [], [], []
    used = done = 0
    planar = False
    for frames, lines in _decoded(stream, shots, threads, device):
        pixels = pack(frames)
        end = used + len(pixels.memory)
        if end > size:
            return None
        memory[used:end].copy_(pixels.memory)
        places.append(pixels.places + used)
        sizes.append(pixels.sizes)
        damaged.extend(lines)
        used, done, planar = end, done + len(frames), pixels.planar
        progress(done)
    if device.type == "cuda" and keep_on.type == "cpu":
        _lock_pages(memory)
    pixels = Pixels(memory, np.concatenate(places), np.concatenate(sizes), planar)
    return Store(pixels, np.cumsum(counts) - counts, damaged)


def _lock_pages(memory: Tensor) -> None:
    """So that copies to the GPU need not wait; torch's own way would take up to twice the memory. Where the system
    refuses, copies are slower."""
    place, cuda = memory.data_ptr(), torch.cuda.cudart()
    if int(cuda.cudaHostRegister(place, memory.numel(), 0)) == 0:
        # Before the memory goes: CUDA would take what comes to lie there next for locked.
        weakref.finalize(memory, _unlock_pages, place).atexit = False
        return
    with suppress(RuntimeError):  # else the next kernel, which cannot help it, raises this error
        torch.zeros(1, device="cuda")


def _unlock_pages(place: int) -> None:
    torch.cuda.synchronize()  # copies may be under way
    torch.cuda.cudart().cudaHostUnregister(place)


def _shots(index: Index, eligible: Eligible) -> NDArray[np.int64]:
    """Video and shot of all shots in use: (shots, 2)."""
    videos = np.sort(eligible.videos)
    counts = index.first_shot[videos + 1] - index.first_shot[videos]
    starts = np.repeat(index.first_shot[videos] - (np.cumsum(counts) - counts), counts)
    return np.stack([np.repeat(videos, counts), starts + np.arange(len(starts))], axis=1)


def _decoded(
    stream: FrameStream, shots: NDArray[np.int64], threads: int, device: torch.device
) -> Iterator[tuple[list[Tensor], list[str]]]:
    """The frames of the shots, some shots at a time, in order; on the device where the stream leaves them to it."""

    def read(video: int, shot: int) -> tuple[list[Tensor], list[str]]:
        return stream.read_shot(video, shot, range(int(stream.index.frames[shot])))

    with ThreadPoolExecutor(max(1, threads), "resident") as pool:
        rest = iter(shots.tolist())
        ahead: deque[tuple[list[int], Future[tuple[list[Tensor], list[str]]]]] = deque()
        waiting = 0  # frames
        while True:
            for video, shot in rest:
                ahead.append(([video, shot], pool.submit(read, video, shot)))
                waiting += int(stream.index.frames[shot])
                if waiting > 2 * _AT_ONCE:
                    break
            if not ahead:
                return
            frames: list[Tensor] = []
            lines: list[str] = []
            where: list[tuple[int, int, int]] = []
            while ahead and len(frames) < _AT_ONCE:
                (video, shot), future = ahead.popleft()
                some, damaged = future.result()
                waiting -= len(some)
                frames += some
                lines += damaged
                where += [(video, shot, number) for number in range(len(some))]
            if stream.encoded:
                frames, more = stream.decode_files(frames, where, device)
                lines += more
            yield frames, lines


class ResidentLoader:
    """Yields the batches that a Loader of the same stream does, from a store."""

    def __init__(
        self, stream: FrameStream, store: Store, first_core: int, last_core: int, start: int, steps: int
    ) -> None:
        self.stream, self.store = stream, store
        self.damaged: Counter[str] = Counter(store.damaged)
        self._cores = range(first_core, last_core)
        self._steps = range(start, steps)

    def __iter__(self) -> Iterator[LoadedBatch]:
        for step in self._steps:
            whole = self.stream.plan(step)
            plans = [whole.cores(number, number + 1, self.stream.cores) for number in self._cores]
            yield LoadedBatch(step, [self._core(plan) for plan in plans])

    def _core(self, plan: Plan) -> Core:
        which = (self.store.first[plan.shot][:, :, None] + plan.frame).reshape(-1)  # (samples,)
        return Core(plan, self.store.pixels[which], np.arange(len(which)))

    def samples(self, batch: LoadedBatch, some: slice, device: torch.device) -> Samples:
        """The frames of some cores of a batch; those that lie elsewhere are copied to the device."""
        cores = batch.cores[some]
        parts = [core.pictures for core in cores if isinstance(core.pictures, Pixels)]
        places, sizes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("places", "sizes"))
        pixels = replace(self.store.pixels, places=places, sizes=sizes)
        return Samples(copy_to(device, pixels), draws_of(cores))

    def close(self) -> None:
        """Nothing is under way."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def copy_to(device: torch.device, pixels: Pixels) -> Pixels:
    """The pictures on the device: of memory that lies elsewhere only what they need."""
    return pixels if pixels.memory.device.type == device.type else compact(pixels, device)


def compact(pixels: Pixels, device: torch.device) -> Pixels:
    """The pictures in new memory on the device, each once, neighbours copied in one go."""
    starts, first, inverse = np.unique(pixels.places, return_index=True, return_inverse=True)
    lengths = 3 * pixels.sizes[first].prod(axis=1, dtype=np.int64)
    there = np.cumsum(lengths) - lengths  # where each goes
    memory = torch.empty(int(lengths.sum()), dtype=torch.uint8, device=device)
    for begin, end in runs(starts, lengths):
        count = int(lengths[begin:end].sum())
        source = pixels.memory[int(starts[begin]) : int(starts[begin]) + count]
        memory[int(there[begin]) : int(there[begin]) + count].copy_(source, non_blocking=True)
    return replace(pixels, memory=memory, places=there[inverse])


def runs(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Of pieces in the order of their places: from where to where they follow each other without a gap."""
    begins = np.flatnonzero(np.concatenate([[True], starts[1:] != starts[:-1] + lengths[:-1]]))
    return list(zip(begins.tolist(), [*begins[1:].tolist(), len(starts)], strict=True))
