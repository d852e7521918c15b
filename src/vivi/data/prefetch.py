"""The micro-batches of each step, made ahead of the step that needs them.

On a GPU a thread uploads and augments them on a CUDA stream of its own, while the step before is computed: neither
the host nor the device waits for the other. Elsewhere they are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import Self

import torch

from vivi.data.loader import Loader, MicroBatch
from vivi.runtime.read_ahead import in_background

_SHARE = 0.05  # of the device's memory, for what is made ahead


@dataclass(frozen=True)
class StepInput:
    """What a step sees. Both iterators are to be used up, the videos first."""

    number: int
    videos: Iterator[MicroBatch]  # or images in their place
    images: Iterator[MicroBatch]  # labelled


class Prefetch:
    """The steps of a run. Use it as a context manager: the threads end with it."""

    def __init__(
        self, videos: Loader | None, images: Loader | None, steps: range, device: torch.device, bytes_each: int
    ) -> None:
        """`bytes_each` is the size of a micro-batch."""
        self.videos, self.images, self.steps, self.device = videos, images, steps, device
        self.counts = [loader.micro_batches_per_step if loader else 0 for loader in (videos, images)]
        self.ahead = self._ahead(bytes_each)
        self.waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] | None = None
        """Where it is a list, events before and after every wait of the device for a micro-batch are added to it."""
        self._micro_batches = self._on_gpu() if device.type == "cuda" else self._in_order()

    def _ahead(self, bytes_each: int) -> int:
        """How many micro-batches to make ahead: those of a step, if they do not take too much memory."""
        if self.device.type != "cuda":
            return 0
        total = torch.cuda.get_device_properties(self.device).total_memory
        return max(2, min(sum(self.counts), int(_SHARE * total / bytes_each)))

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

    def _on_gpu(self) -> Generator[MicroBatch, None, None]:
        current = torch.cuda.current_stream(self.device)
        ahead = in_background(self._on_own_stream(), self.ahead)
        try:
            while True:
                before = _event(current) if self.waits is not None else None
                micro_batch, ready = next(ahead, (None, None))
                if micro_batch is None or ready is None:
                    return
                current.wait_event(ready)
                for tensor in micro_batch.tensors():
                    tensor.record_stream(current)
                if self.waits is not None and before is not None:
                    self.waits.append((before, _event(current)))
                yield micro_batch
        finally:
            ahead.close()

    def _on_own_stream(self) -> Generator[tuple[MicroBatch, torch.cuda.Event], None, None]:
        """The micro-batches, and when each is ready."""
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream(self.device, priority=-1)):
            for micro_batch in self._in_order():
                ready = torch.cuda.Event()
                ready.record()
                yield micro_batch, ready

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._micro_batches.close()


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event
