"""A corpus whose frames are all in memory, decoded once: training then reads and decodes nothing any more.

The frames are those that streaming would decode, so batches are the same, bit for bit.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import closing, suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.decode import decode_frame, plain_jpeg_size
from vivi.data.index import Index, read_frames
from vivi.data.packed import PackedImages, on_device
from vivi.data.plan import Plan
from vivi.data.sources import GREY, CorpusSource, Decoded
from vivi.prepare.jpeg import is_intact
from vivi.runtime.read_ahead import map_ahead

_SAMPLE = 256  # videos that tell whether all will fit


class ResidentSource(CorpusSource):
    """The same frames, from memory."""

    def __init__(self, source: CorpusSource, images: PackedImages, first: NDArray[np.int64]) -> None:
        """`first` (shots of the index,) is the place among the images of each shot's frame 0."""
        super().__init__(source.index, source.batch, source.seed)
        self.source, self.images, self.first, self.videos_per_read = source, images, first, source.videos

    def read(self, plan: Plan, pin: bool = False) -> Decoded:
        which = (self.first[plan.shot][:, :, None] + plan.frame).reshape(-1)  # (V · K · L,)
        return Decoded(plan, self.images[which])


def decoded_bytes(source: CorpusSource, most: int) -> int | None:
    """What all frames take when decoded, if every video has frames of one size; None if that is over `most`. Only a
    few bytes are read of each video, and of few where the first ones already say that it is far too much."""
    counts = source.frame_counts()
    all_frames, frames, total = int(counts.sum()), 0, 0
    for number, (video, count) in enumerate(zip(source.eligible.tolist(), counts.tolist(), strict=True)):
        total += 3 * _pixels_of_a_frame(source.index, video) * count
        frames += count
        if total > most or (number >= _SAMPLE and total / frames * all_frames > 2 * most):
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
    size: int,
    threads: int,
    device: torch.device,
    keep_on: torch.device,
    progress: Callable[[int, tuple[str, ...]], None],
) -> ResidentSource | None:
    """Decodes all frames that the steps may see and keeps them on `keep_on`, for training on `device`. `size` are the
    bytes to take; None if they turn out to be too few. `progress` is told the frames done, and the lines about
    damaged ones."""
    memory = torch.empty(size, dtype=torch.uint8, device=keep_on)
    first = np.zeros(len(source.index.frames), np.int64)
    images: list[PackedImages] = []
    used = done = 0
    with closing(map_ahead(source.read, source.plans_of_all_frames(), threads, 2 * threads)) as parts:
        for part in parts:
            decoded, shot, frame = part.images, part.plan.shot[:, 0], part.plan.frame[:, 0, 0]
            begin, used = used, used + len(decoded.memory)
            if used > size:
                return None
            memory[begin:used].copy_(decoded.memory)
            images.append(PackedImages(memory, decoded.starts + begin, decoded.sizes))
            first[shot] = np.arange(done, done + len(decoded)) - frame  # the same for all frames of a shot
            done += len(decoded)
            progress(done, part.damaged)
    if device.type == "cuda" and keep_on.type == "cpu":
        _lock_pages(memory)
    return ResidentSource(source, on_device(images, keep_on), first)


def _lock_pages(memory: Tensor) -> None:
    """Page-locks memory, so that copies to the GPU need not wait; torch's own way would take up to twice as much of
    it. Where the system refuses, copies are slower."""
    address, cuda = memory.data_ptr(), torch.cuda.cudart()

    def unlock() -> None:
        torch.cuda.synchronize()  # copies may be under way
        cuda.cudaHostUnregister(address)

    if int(cuda.cudaHostRegister(address, memory.numel(), 0)) == 0:
        # Before the memory is freed: CUDA would take whatever lies there next for locked.
        weakref.finalize(memory, unlock).atexit = False
        return
    with suppress(RuntimeError):  # else the next kernel raises this error, which is not its own
        torch.zeros(1, device="cuda")
