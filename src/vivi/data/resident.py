"""A corpus whose frames are all in memory, decoded once: training then reads and decodes nothing any more.

The frames are those that streaming would decode, so batches are the same, bit for bit.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.decode import decode_frame, plain_jpeg_size
from vivi.data.index import Index, read_frames
from vivi.data.packed import PackedImages, pack
from vivi.data.plan import Plan, fixed_frames, shots_of_frames
from vivi.data.sources import GREY, CorpusSource, Decoded
from vivi.prepare.index import consecutive
from vivi.prepare.jpeg import is_intact
from vivi.runtime.read_ahead import map_ahead

_FRAMES_PER_READ = 256
_SAMPLE = 256  # videos that tell whether all will fit


class ResidentSource:
    """What a CorpusSource gives, from memory."""

    labels: NDArray[np.int64] | None = None

    def __init__(self, source: CorpusSource, images: PackedImages, first: NDArray[np.int64]) -> None:
        """`first` (shots of the index,) is the place among the images of each shot's frame 0."""
        self.source, self.images, self.first = source, images, first
        self.videos = self.videos_per_read = source.videos

    def plan(self, step: int) -> Plan:
        return self.source.plan(step)

    def read(self, plan: Plan, pin: bool = False) -> Decoded:
        which = (self.first[plan.shot][:, :, None] + plan.frame).reshape(-1)  # (V · K · L,)
        return Decoded(plan, self.images[which])


@dataclass(frozen=True)
class FramesInUse:
    """All frames that a recipe may see of a corpus: consecutive ones of n shots."""

    video: NDArray[np.int64]  # (n,)
    shot: NDArray[np.int64]  # (n,)
    first: NDArray[np.int64]  # (n,): the first one's number in the shot
    count: NDArray[np.int64]  # (n,)

    @property
    def total(self) -> int:
        return int(self.count.sum())


def frames_in_use(source: CorpusSource) -> FramesInUse:
    """All frames of the videos that a recipe uses; of frame baselines the one of each video that they see."""
    index, batch, videos = source.index, source.batch, source.eligible
    if batch.source == "frame" and not batch.resample:
        shot, number = shots_of_frames(index, videos, fixed_frames(index, videos, source.seed))
        return FramesInUse(videos, shot, number, np.ones(len(videos), np.int64))
    shots = index.first_shot[videos + 1] - index.first_shot[videos]
    shot = consecutive(index.first_shot[videos], shots)
    return FramesInUse(
        np.repeat(videos, shots), shot, np.zeros(len(shot), np.int64), index.frames[shot].astype(np.int64)
    )


def decoded_bytes(index: Index, frames: FramesInUse, most: int) -> int | None:
    """What the frames take when decoded, if every video has frames of one size; None if that is over `most`.

    Only a few bytes are read of each video, and of few where the first ones already say that it is far too much.
    """
    total = seen = 0
    videos, starts = np.unique(frames.video, return_index=True)
    for number, (video, count) in enumerate(
        zip(videos.tolist(), np.add.reduceat(frames.count, starts).tolist(), strict=True)
    ):
        total += 3 * _pixels_of_a_frame(index, video) * count
        seen += count
        if total > most or (number >= _SAMPLE and total / seen * frames.total > 2 * most):
            return None
    return total


def _pixels_of_a_frame(index: Index, video: int) -> int:
    """How many a frame of a video has, from the first good one; where none is good, they are grey."""
    for shot in range(int(index.first_shot[video]), int(index.first_shot[video + 1])):
        for number in range(int(index.frames[shot])):
            [jpeg] = read_frames(index, video, shot, [number])
            with suppress(ValueError):
                size = plain_jpeg_size(bytes(jpeg)) if is_intact(jpeg) else None
                return math.prod(size or decode_frame(jpeg).shape[:2])
    return math.prod(GREY.shape[:2])


def load_resident(
    source: CorpusSource,
    frames: FramesInUse,
    size: int,
    threads: int,
    device: torch.device,
    keep_on: torch.device,
    progress: Callable[[int, tuple[str, ...]], None],
) -> ResidentSource | None:
    """Decodes all frames in use and keeps them on `keep_on`, for training on `device`.

    `size` are the bytes to take; None if they turn out to be too few. `progress` is told the frames done, and the
    lines about damaged ones.
    """
    memory = torch.empty(size, dtype=torch.uint8, device=keep_on)
    starts: list[NDArray[np.int64]] = []
    sizes: list[NDArray[np.int32]] = []
    used = done = 0

    def read(rows: NDArray[np.int64]) -> tuple[PackedImages, tuple[str, ...]]:
        images, damaged = [], list[str]()
        for row in rows.tolist():
            numbers = range(int(frames.first[row]), int(frames.first[row] + frames.count[row]))
            images += source.read_shot(int(frames.video[row]), int(frames.shot[row]), numbers, damaged)
        return pack(images), tuple(damaged)

    with closing(map_ahead(read, _groups(frames.count), threads, 2 * threads)) as decoded:
        for packed, damaged in decoded:
            end = used + len(packed.memory)
            if end > size:
                return None
            memory[used:end].copy_(packed.memory)
            starts.append(packed.starts + used)
            sizes.append(packed.sizes)
            used, done = end, done + len(packed)
            progress(done, damaged)
    if device.type == "cuda" and keep_on.type == "cpu":
        _lock_pages(memory)
    first = np.zeros(len(source.index.frames), np.int64)
    first[frames.shot] = np.cumsum(frames.count) - frames.count - frames.first
    return ResidentSource(source, PackedImages(memory, np.concatenate(starts), np.concatenate(sizes)), first)


def _groups(counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Consecutive rows, of about so many frames that they are best read in one go."""
    group = (np.cumsum(counts) - 1) // _FRAMES_PER_READ
    return np.split(np.arange(len(counts)), np.flatnonzero(np.diff(group)) + 1)


def _lock_pages(memory: Tensor) -> None:
    """So that copies to the GPU need not wait; torch's own way would take up to twice the memory. Where the system
    refuses, copies are slower."""
    place, cuda = memory.data_ptr(), torch.cuda.cudart()
    if int(cuda.cudaHostRegister(place, memory.numel(), 0)) == 0:
        # Before the memory goes: CUDA would take what comes to lie there next for locked.
        weakref.finalize(memory, _unlock_pages, place).atexit = False
        return
    with suppress(RuntimeError):  # else the next kernel raises this error, which is not its own
        torch.zeros(1, device="cuda")


def _unlock_pages(place: int) -> None:
    torch.cuda.synchronize()  # copies may be under way
    torch.cuda.cudart().cudaHostUnregister(place)
