"""From a source to micro-batches on the device: plan → read → decode → upload → augment.

Threads read and decode ahead, some videos at a time: decoding releases Python's lock. What a micro-batch holds
depends on its plan alone, not on threads or on how far ahead they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.augment.uniforms import UNIFORMS
from vivi.data.packed import PackedImages, on_device, upload
from vivi.data.plan import Plan
from vivi.data.sources import Decoded, Source
from vivi.runtime.read_ahead import map_ahead


@dataclass(frozen=True)
class MicroBatch:
    """Some cores of a step, augmented, on the device."""

    frames: Tensor
    """(cores, shots, frames, 3, size, size). A labelled image is a shot, its copies are frames. Patches have one
    dimension more: (cores, shots, frames, 9, 3, size, size)."""
    uniforms: Tensor  # (cores, videos, shots of a video + 1), for losses that need random numbers
    labels: Tensor | None = None  # (cores, images)
    damaged: tuple[str, ...] = ()  # a line for each frame that had to be replaced

    def tensors(self) -> list[Tensor]:
        return [self.frames, self.uniforms, *([self.labels] if self.labels is not None else [])]


@dataclass(frozen=True)
class Loader:
    """Loads what a source has for the cores of this process."""

    source: Source
    augment: Callable[[PackedImages, NDArray[np.float32]], Tensor]
    """Of n images and their uniforms (n, UNIFORMS) makes what the encoder sees, (n, 3, size, size)."""
    cores: range  # those of the step that this process computes
    all_cores: int
    cores_per_micro_batch: int
    device: torch.device
    threads: int  # that read and decode; 0: none, for a source in memory

    @property
    def micro_batches_per_step(self) -> int:
        return len(self.cores) // self.cores_per_micro_batch

    @property
    def videos(self) -> int:
        """Of a micro-batch."""
        return self.source.videos // self.all_cores * self.cores_per_micro_batch

    @property
    def reads(self) -> int:
        """Of a micro-batch: so many parts of it are read and decoded one by one."""
        return math.ceil(self.videos / self.source.videos_per_read)

    @property
    def reads_ahead(self) -> int:
        return 2 * self.reads + self.threads

    def load(self, steps: range) -> Generator[MicroBatch, None, None]:
        """The micro-batches of the steps, in order."""
        with closing(map_ahead(self._read, self._plans(steps), self.threads, self.reads_ahead)) as decoded:
            while parts := list(islice(decoded, self.reads)):
                yield self.make(parts)

    def _plans(self, steps: range) -> Iterator[Plan]:
        """What is read in one go, micro-batch by micro-batch."""
        for step in steps:
            plan, per_read = self.source.plan(step), self.source.videos_per_read
            for core in self.cores[:: self.cores_per_micro_batch]:
                first = core * self.source.videos // self.all_cores
                micro_batch = plan[first : first + self.videos]
                yield from (micro_batch[start : start + per_read] for start in range(0, self.videos, per_read))

    def _read(self, plan: Plan) -> Decoded:
        return self.source.read(plan, pin=self.device.type == "cuda")

    def make(self, parts: Sequence[Decoded]) -> MicroBatch:
        """A micro-batch of what was decoded."""
        plans = [part.plan for part in parts]
        uniforms = np.concatenate([plan.augment_uniforms.reshape(-1, UNIFORMS) for plan in plans])
        frames = self.augment(on_device([part.images for part in parts], self.device), uniforms)
        labels = self.source.labels
        return MicroBatch(
            frames.view(self.cores_per_micro_batch, -1, plans[0].frame.shape[2], *frames.shape[1:]),
            self._upload(np.concatenate([plan.loss_uniforms for plan in plans])),
            None if labels is None else self._upload(labels[np.concatenate([plan.video for plan in plans])]),
            tuple(line for part in parts for line in part.damaged),
        )

    def _upload(self, values: NDArray[np.generic]) -> Tensor:
        """(videos, ...) -> (cores, videos of a core, ...) on the device."""
        uploaded = upload(torch.from_numpy(values), self.device)
        return uploaded.view(self.cores_per_micro_batch, -1, *uploaded.shape[1:])
