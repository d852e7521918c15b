"""Fine-tuning: a fresh linear head on the representation, and the whole network trained on a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from shutil import rmtree

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vivi.evaluate.encoders import Model
from vivi.evaluate.features import Pictures
from vivi.evaluate.results import Setting
from vivi.model.architecture import memory_format
from vivi.model.features import evaluation_mode
from vivi.runtime.errors import UserError, first_line
from vivi.train.checkpoint import NothingToRestore, restore, save

MOMENTUM = 0.9
# Where the learning rate falls to a tenth, as shares of the steps.
DECAY_AT = (0.3, 0.6, 0.9)
EVALUATION_BATCH = {"cuda": 512, "cpu": 64}
# Steps between two looks at the loss, which make the host wait for the device.
LOOK_EVERY = 50


@dataclass(frozen=True)
class Tuning:
    """All that a fine-tuned network depends on, besides the encoder and the images."""

    setting: Setting
    seed: int = 0
    batch: int = 512
    micro_batch: int = 0  # images whose batch statistics are taken together; 0: the whole batch


def learning_rate(step: int, setting: Setting) -> float:
    """Of a step, counted from 0."""
    return setting.lr * 0.1 ** sum(step >= int(share * setting.steps) for share in DECAY_AT)


def batch_order(images: int, tuning: Tuning, start: int = 0) -> Iterator[Tensor]:
    """The indices of each step's images from step `start` on: all images in random order, then all in another."""
    batch = min(tuning.batch, images)
    for first in range(start * batch, tuning.setting.steps * batch, batch):
        last = first + batch
        parts = []
        for epoch in range(first // images, (last - 1) // images + 1):
            before = epoch * images  # seen in earlier epochs
            parts.append(_permutation(images, tuning.seed, epoch)[max(first - before, 0) : last - before])
        yield torch.cat(parts)


@lru_cache(maxsize=2)
def _permutation(images: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(images, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))


class Tuner:
    """Fine-tunes one model any number of times, always from the weights it came with; it is compiled only once."""

    def __init__(self, model: Model, device: torch.device, precision: str = "auto", compile: bool = False) -> None:
        """`precision` is auto, float32 or bfloat16; auto: bfloat16 on a GPU."""
        self.model, self.device = model, device
        self.format = memory_format(model.backbone)
        self.backbone = model.backbone.to(device).to(memory_format=self.format)
        self.initial = {name: tensor.clone() for name, tensor in self.backbone.state_dict().items()}
        bfloat16 = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
        self.precision = torch.bfloat16 if bfloat16 else torch.float32
        self.centre = torch.tensor(model.mean, device=device).view(3, 1, 1) * 255
        self.scale = torch.tensor(model.std, device=device).view(3, 1, 1) * 255
        # One graph for each shape: those of a step and of an evaluation, which stay the same from task to task.
        self.represent = torch.compile(self._represent, dynamic=False) if compile else self._represent

    def _represent(self, pixels: Tensor) -> Tensor:
        """uint8 (n, size, size, 3) -> (n, features)"""
        images = (pixels.permute(0, 3, 1, 2).float() - self.centre) / self.scale
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            representation: Tensor = self.backbone(images.contiguous(memory_format=self.format))
        return representation.float()

    def accuracy(
        self,
        train: Pictures,
        test: Pictures,
        classes: int,
        tuning: Tuning,
        checkpoints: Path | None = None,
        every_seconds: float = 120.0,
        asked_to_stop: Callable[[int], bool] = lambda step: False,
    ) -> float:
        """Fine-tunes on some images, and gives the share of others that is classified right; see `tune`."""
        head = self.tune(train, classes, tuning, checkpoints, every_seconds, asked_to_stop)
        result = self.evaluate(test, head)
        if checkpoints:
            rmtree(checkpoints, ignore_errors=True)
        return result

    def tune(
        self,
        train: Pictures,
        classes: int,
        tuning: Tuning,
        checkpoints: Path | None = None,
        every_seconds: float = 120.0,
        asked_to_stop: Callable[[int], bool] = lambda step: False,
    ) -> nn.Linear:
        """Fine-tunes the backbone on some images, from the weights it came with, and gives the head.

        `asked_to_stop` is called after each step; when it says so, and now and then besides, what was done so far is
        kept in `checkpoints`, from where the same call goes on. Stopped, it raises KeyboardInterrupt.
        """
        # The encoder as it came, and a head of zeros.
        torch.manual_seed(tuning.seed)
        self.backbone.load_state_dict(self.initial)
        head = nn.Linear(self.model.features, classes, device=self.device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        network = nn.ModuleDict({"backbone": self.backbone, "head": head})
        fused = self.device.type == "cuda"
        optimiser = torch.optim.SGD(network.parameters(), lr=0.0, momentum=MOMENTUM, fused=fused)
        start = _restored(checkpoints, network, optimiser) if checkpoints else 0
        self.backbone.train()
        last_save = time.monotonic()
        for step, (pixels, labels) in enumerate(train.batches(batch_order(len(train), tuning, start)), start):
            optimiser.param_groups[0]["lr"] = learning_rate(step, tuning.setting)
            torch.manual_seed(1_000_003 * tuning.seed + step)  # for layers that draw random numbers
            optimiser.zero_grad(set_to_none=True)
            loss = self._backward(pixels, labels, head, tuning.micro_batch or len(pixels))
            optimiser.step()
            if (step + 1) % LOOK_EVERY == 0 and not torch.isfinite(loss):
                break  # what has diverged stays so, and is judged as it is
            stopping = asked_to_stop(step + 1)
            if checkpoints and (stopping or time.monotonic() - last_save > every_seconds):
                save(checkpoints, step + 1, _state(network, optimiser), keep=1)
                last_save = time.monotonic()
            if stopping and step + 1 < tuning.setting.steps:
                raise KeyboardInterrupt
        return head

    def _backward(self, pixels: Tensor, labels: Tensor, head: nn.Linear, at_once: int) -> Tensor:
        """Adds the gradients of a batch; returns its mean loss."""
        total = torch.zeros((), device=self.device)
        try:
            for part, truth in zip(pixels.split(at_once), labels.split(at_once), strict=True):
                loss = F.cross_entropy(head(self.represent(part)), truth, reduction="sum") / len(labels)
                loss.backward()
                total += loss.detach()
        except ValueError as error:  # statistics of a single value
            raise UserError(
                f"{len(pixels)} images, {at_once} at once, cannot be trained on ({first_line(error)}); "
                "give it more images, a larger --size or another --micro-batch"
            ) from None
        except torch.OutOfMemoryError:
            raise UserError(
                f"{at_once} images of {self.model.size} px at once do not fit into the memory of {self.device}; "
                f"try --micro-batch {max(1, at_once // 2)}: batch statistics are then taken over so many"
            ) from None
        return total

    def evaluate(self, test: Pictures, head: nn.Linear) -> float:
        """The share of images whose highest logit is that of their label."""
        batch = min(EVALUATION_BATCH.get(self.device.type, 128), len(test))
        hits = torch.zeros((), dtype=torch.int64, device=self.device)
        with evaluation_mode(self.backbone), torch.no_grad():
            # The last batch is filled up, so that no other shape needs to be compiled.
            parts = torch.arange(len(test)).split(batch)
            full = (torch.cat([part, part[:1].expand(batch - len(part))]) for part in parts)
            for part, (pixels, labels) in zip(parts, test.batches(full), strict=True):
                predicted = head(self.represent(pixels)).argmax(dim=1)
                hits += (predicted == labels)[: len(part)].sum()
        return int(hits) / len(test)


def _state(network: nn.Module, optimiser: torch.optim.SGD) -> dict[str, Tensor]:
    state = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for index, parameter in enumerate(network.parameters()):
        if parameter in optimiser.state:
            state[f"momentum.{index}"] = optimiser.state[parameter]["momentum_buffer"]
    return state


def _restored(checkpoints: Path, network: nn.Module, optimiser: torch.optim.SGD) -> int:
    """Puts the checkpoint of an interrupted run in place; returns its step. Where all are damaged, it is 0."""
    try:
        restored = restore(checkpoints, lambda line: None)
    except NothingToRestore:
        rmtree(checkpoints, ignore_errors=True)
        return 0
    if restored is None:
        return 0
    step, tensors = restored
    network.load_state_dict({name: tensors[f"network.{name}"] for name in network.state_dict()})
    for index, parameter in enumerate(network.parameters()):
        momentum = tensors.get(f"momentum.{index}")
        if momentum is not None:
            optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)
    return step
