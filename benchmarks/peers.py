"""The peers of upstream training, on the same frames and the same encoder: a plain DataLoader loop as most people
would write it, and lightly's SimCLR as its documentation writes it.

Each is measured after its warm-up, over whole rounds of its workers. What they prefetched while the encoder was
compiled is used up before the clock starts: it would flatter a loop that waits for its loader.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from common import now
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

from vivi.data.index import Index, read_frames
from vivi.losses.exemplar import Exemplar
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.machine import available_cores, children_ignore_ctrl_c

_WARM_UP = 5  # steps; the first of them compiles
_ENDLESS = 10**12  # items: no peer is measured across the end of an epoch


@dataclass(frozen=True)
class PeerSettings:
    """What is trained, and for how long; the same for all peers."""

    size: int
    frames: int  # of a shot
    batch: int  # frames (views) that the encoder sees in a step
    create: Callable[[], nn.Module]  # the encoder, without a classifier
    device: torch.device
    compile: bool
    workers: int  # processes that load, at least one; on a CPU the encoder has the other cores
    seconds: float  # to measure for, after the warm-up


@dataclass(frozen=True)
class Measured:
    """How fast a peer trained; 0 and the reason where it could not."""

    frames_per_second: float
    steps: int
    note: str = ""


def plain_loop(index: Index, settings: PeerSettings) -> Measured:
    """DataLoader, torchvision's transforms on PIL images, and the triplet loss over shots."""

    def run() -> Measured:
        dataset = Shots(index, settings.frames, _augmentation(settings.size))
        shots = settings.batch // settings.frames
        return _train(dataset, shots, Triplets(settings), shots * settings.frames, settings)

    return _measured(run, settings)


def lightly_loop(index: Index, settings: PeerSettings) -> Measured:
    """SimCLR on two views of single frames; a view counts as a frame, the encoder sees both."""
    try:
        from lightly.loss import NTXentLoss  # type: ignore[import-not-found]
        from lightly.models.modules import SimCLRProjectionHead  # type: ignore[import-not-found]
        from lightly.transforms import SimCLRTransform  # type: ignore[import-not-found]
    except ImportError as error:
        return Measured(0.0, 0, f"missing, lightly cannot be imported: {first_line(error)}")

    def run() -> Measured:
        dataset = Frames(index, SimCLRTransform(input_size=settings.size))
        pairs = settings.batch // 2
        method = TwoViews(settings, lambda d: SimCLRProjectionHead(d, d, 128), NTXentLoss())
        return _train(dataset, pairs, method, 2 * pairs, settings)

    return _measured(run, settings)


class Shots(Dataset[Tensor]):
    """A shot of a training video each: `frames` consecutive frames from a random start."""

    def __init__(self, index: Index, frames: int, transform: Callable[[Image.Image], Tensor]) -> None:
        self.index, self.frames, self.transform = index, frames, transform
        self.video, self.shot = _training_shots(index)

    def __len__(self) -> int:
        return len(self.shot)

    def __getitem__(self, item: int) -> Tensor:
        """(frames, 3, size, size). A shot that is too short begins again, as in VIVI's own batches."""
        video, shot = int(self.video[item]), int(self.shot[item])
        count = int(self.index.frames[shot])
        start = int(torch.randint(max(count - self.frames, 0) + 1, ()))
        numbers = [(start + frame) % count for frame in range(self.frames)]
        jpegs = read_frames(self.index, video, shot, numbers)
        return torch.stack([self.transform(_opened(jpeg)) for jpeg in jpegs])


class Frames(Dataset[tuple[list[Tensor], int]]):
    """A frame of a training video each: its views and, as lightly expects, a label, which nothing uses."""

    def __init__(self, index: Index, transform: Callable[[Image.Image], list[Tensor]]) -> None:
        self.index, self.transform = index, transform
        self.video, self.shot = _training_shots(index)
        self.ends = np.cumsum(index.frames[self.shot], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, item: int) -> tuple[list[Tensor], int]:
        place = int(np.searchsorted(self.ends, item, side="right"))
        video, shot = int(self.video[place]), int(self.shot[place])
        number = item - int(self.ends[place]) + int(self.index.frames[shot])
        return self.transform(_opened(read_frames(self.index, video, shot, [number])[0])), 0


def _training_shots(index: Index) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The video and the place of each shot that is not held out."""
    counts = np.diff(index.first_shot)
    train = np.repeat(~index.test, counts)
    if not train.any():
        raise UserError(f"{index.corpus} holds no shot to train on")
    return np.repeat(np.arange(len(index)), counts)[train], np.flatnonzero(train)


def _opened(jpeg: memoryview) -> Image.Image:
    return Image.open(io.BytesIO(jpeg), formats=("JPEG",)).convert("RGB")


def _augmentation(size: int) -> Callable[[Image.Image], Tensor]:
    augmentation: Callable[[Image.Image], Tensor] = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.1, 1), ratio=(3 / 4, 4 / 3)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(brightness=32 / 255, saturation=0.5),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ]
    )
    return augmentation


class Triplets(nn.Module):
    """The encoder and the exemplar loss, the whole batch one core."""

    def __init__(self, settings: PeerSettings) -> None:
        super().__init__()
        self.device = settings.device
        self.encoder, features = _encoder(settings)
        self.exemplar = Exemplar(features)

    def forward(self, batch: Tensor) -> Tensor:
        """The loss of (shots, frames, 3, size, size)."""
        h = self.encoder(_on_device(batch.flatten(0, 1), self.device))  # (shots * frames, d)
        loss: Tensor = self.exemplar(h.view(*batch.shape[:2], -1))
        return loss


class TwoViews(nn.Module):
    """The encoder, a projection head, and a loss between the views, which pass through one after the other."""

    def __init__(self, settings: PeerSettings, head: Callable[[int], nn.Module], criterion: nn.Module) -> None:
        super().__init__()
        self.device = settings.device
        self.encoder, features = _encoder(settings)
        self.head, self.criterion = head(features), criterion

    def forward(self, batch: tuple[list[Tensor], Tensor]) -> Tensor:
        """The loss of two views, (frames, 3, size, size) each, and labels."""
        z = [self.head(self.encoder(_on_device(view, self.device))) for view in batch[0]]
        loss: Tensor = self.criterion(*z)
        return loss


def _encoder(settings: PeerSettings) -> tuple[Callable[[Tensor], Tensor], int]:
    model: Any = settings.create()
    features = int(getattr(model, "head_hidden_size", None) or model.num_features)
    if not settings.compile:
        return model, features
    # A peer is used to a process of its own: shapes that were compiled earlier in this one must not make its code
    # more general, and so slower.
    torch.compiler.reset()
    return torch.compile(model), features


def _on_device(images: Tensor, device: torch.device) -> Tensor:
    return images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)


def _measured(run: Callable[[], Measured], settings: PeerSettings) -> Measured:
    """What a peer measures, or why it cannot: no memory left, a worker that died, a damaged frame."""
    try:
        with _sharing_cores(settings):
            return run()
    except (RuntimeError, OSError, UserError) as error:
        reason = first_line(error)
        if reason.startswith("Caught "):  # in a worker: its traceback follows, and what it says is at the end
            reason = str(error).strip().split("\n")[-1]
        return Measured(0.0, 0, f"could not run: {reason}")


@contextmanager
def _sharing_cores(settings: PeerSettings) -> Iterator[None]:
    """On a CPU the encoder gets the cores that the workers leave: with more threads than cores all would wait."""
    before = torch.get_num_threads()
    if settings.device.type == "cpu":
        torch.set_num_threads(min(before, max(available_cores() - settings.workers, 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(dataset: Dataset[Any], items: int, method: nn.Module, frames: int, settings: PeerSettings) -> Measured:
    """Trains on batches of so many items, which the encoder sees as so many frames."""
    on_gpu = settings.device.type == "cuda"
    loader = DataLoader(
        dataset,
        batch_size=items,
        sampler=RandomSampler(dataset, replacement=True, num_samples=_ENDLESS),  # type: ignore[arg-type]
        num_workers=settings.workers,
        pin_memory=on_gpu,
        drop_last=True,
        persistent_workers=True,
    )
    method = method.to(settings.device).to(memory_format=torch.channels_last).train()
    optimiser = torch.optim.SGD(method.parameters(), lr=0.01, momentum=0.9, fused=True)
    with children_ignore_ctrl_c():
        batches = iter(loader)

    def steps(count: int) -> None:
        for batch in islice(batches, count):
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(settings.device.type, torch.bfloat16, enabled=on_gpu):
                loss = method(batch)
            loss.backward()
            optimiser.step()

    steps(_WARM_UP + settings.workers * (loader.prefetch_factor or 0))
    began, count = now(settings.device), 0
    while time.perf_counter() - began < settings.seconds:
        steps(settings.workers)  # their batches come in bursts, one of each worker
        count += settings.workers
    return Measured(count * frames / (now(settings.device) - began), count)
