"""From sources to the micro-batches of each step, on the device: plan → read → decode → upload → augment.

Threads read and decode ahead, some videos at a time: decoding releases Python's lock. On a GPU another thread uploads
and augments on a CUDA stream of its own, while the step before is computed: neither the host nor the device waits for
the other. What a micro-batch holds depends on its plan alone, not on threads or on how far ahead they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.data.augment.uniforms import UNIFORMS
from vivi.data.packed import PackedImages, on_device, upload
from vivi.data.plan import Plan
from vivi.data.sources import Decoded, Source
from vivi.runtime.read_ahead import in_background, map_ahead

_SHARE = 0.05  # of the device's memory, for what is made ahead


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
        """How many videos a micro-batch has."""
        return self.source.videos // self.all_cores * self.cores_per_micro_batch

    @property
    def reads(self) -> int:
        """In how many parts a micro-batch is read and decoded."""
        return math.ceil(self.videos / self.source.videos_per_read)

    @property
    def reads_ahead(self) -> int:
        return 2 * self.reads + self.threads

    def load(self, steps: range) -> Generator[MicroBatch, None, None]:
        """The micro-batches of the steps, in order."""
        read = partial(self.source.read, pin=self.device.type == "cuda")
        with closing(map_ahead(read, self._plans(steps), self.threads, self.reads_ahead)) as decoded:
            while parts := list(islice(decoded, self.reads)):
                yield self.make(parts)

    def _plans(self, steps: range) -> Iterator[Plan]:
        """The plans of the reads, micro-batch by micro-batch."""
        for step in steps:
            plan, per_read = self.source.plan(step), self.source.videos_per_read
            for core in self.cores[:: self.cores_per_micro_batch]:
                first = core * self.source.videos // self.all_cores
                micro_batch = plan[first : first + self.videos]
                yield from (micro_batch[start : start + per_read] for start in range(0, self.videos, per_read))

    def make(self, parts: Sequence[Decoded]) -> MicroBatch:
        """Uploads and augments what was decoded."""
        plans = [part.plan for part in parts]
        uniforms = np.concatenate([plan.augment_uniforms.reshape(-1, UNIFORMS) for plan in plans])
        frames = self.augment(on_device([part.images for part in parts], self.device), uniforms)

        def by_core(values: NDArray[np.generic]) -> Tensor:
            uploaded = upload(torch.from_numpy(values), self.device)
            return uploaded.view(self.cores_per_micro_batch, -1, *uploaded.shape[1:])

        labels = self.source.labels
        return MicroBatch(
            frames.view(self.cores_per_micro_batch, -1, plans[0].frame.shape[2], *frames.shape[1:]),
            by_core(np.concatenate([plan.loss_uniforms for plan in plans])),
            None if labels is None else by_core(labels[np.concatenate([plan.video for plan in plans])]),
            tuple(line for part in parts for line in part.damaged),
        )


@dataclass(frozen=True)
class StepInput:
    """What a step sees. Both iterators are to be used up, the videos first."""

    number: int
    videos: Iterator[MicroBatch]  # or images in their place
    images: Iterator[MicroBatch]  # labelled


class Prefetch(AbstractContextManager["Prefetch"]):
    """The steps of a run: on a GPU their micro-batches are made ahead, elsewhere when they are asked for. Use it as a
    context manager: the threads end with it."""

    def __init__(
        self, videos: Loader | None, images: Loader | None, steps: range, device: torch.device, bytes_each: int
    ) -> None:
        """`bytes_each` is the size of a micro-batch."""
        self.videos, self.images, self.steps, self.device = videos, images, steps, device
        self.counts = [loader.micro_batches_per_step if loader else 0 for loader in (videos, images)]
        self.ahead = 0  # micro-batches that are made ahead: those of a step, if they do not take too much memory
        self.waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] | None = None
        """Where it is a list, events before and after every wait of the device for a micro-batch are added to it."""
        self._micro_batches = self._in_order()
        if device.type == "cuda":
            room = int(_SHARE * torch.cuda.get_device_properties(device).total_memory / bytes_each)
            self.ahead = max(2, min(sum(self.counts), room))
            self._micro_batches = self._made_ahead()

    def __iter__(self) -> Iterator[StepInput]:
        for number in self.steps:
            yield StepInput(number, *(islice(self._micro_batches, count) for count in self.counts))

    def _in_order(self) -> Generator[MicroBatch, None, None]:
        """The micro-batches of videos and of labelled images of the first step, of the second, and so on."""
        with ExitStack() as stack:
            loaders = [loader for loader in (self.videos, self.images) if loader]
            loading = [stack.enter_context(closing(loader.load(self.steps))) for loader in loaders]
            for _ in self.steps:
                for loader, micro_batches in zip(loaders, loading, strict=True):
                    yield from islice(micro_batches, loader.micro_batches_per_step)

    def _made_ahead(self) -> Generator[MicroBatch, None, None]:
        """The same, made in a thread on a CUDA stream of its own."""
        stream = torch.cuda.current_stream(self.device)

        def now() -> torch.cuda.Event | None:  # if waits are measured
            return stream.record_event(torch.cuda.Event(enable_timing=True)) if self.waits is not None else None

        with closing(in_background(self._with_events(), self.ahead)) as made:
            before = now()
            for micro_batch, ready in made:
                stream.wait_event(ready)
                for tensor in micro_batch.tensors():
                    tensor.record_stream(stream)
                after = now()
                if self.waits is not None and before is not None and after is not None:
                    self.waits.append((before, after))
                yield micro_batch
                before = now()

    def _with_events(self) -> Generator[tuple[MicroBatch, torch.cuda.Event], None, None]:
        """The micro-batches, and when each is ready."""
        stream = torch.cuda.Stream(self.device, priority=-1)
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            for micro_batch in self._in_order():
                yield micro_batch, stream.record_event()

    def __exit__(self, *_: object) -> None:
        self._micro_batches.close()
