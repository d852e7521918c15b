"""How fast is AutoAugment, beside the encoder it feeds and beside torchvision on the CPU? On a GPU:

    python studies/images/autoaugment_speed.py --json studies/images/autoaugment_speed.json

All in one process, on the same images: ours on the device, for both policies and several batches, from images and
uniforms to augmented images; the encoder alone, before and after (compiled, bfloat16, channels_last, fed with random
input that is already on the device: forward, backward and SGD); and torchvision's AutoAugment on the CPU, image by
image, with a thread for each core. On a small machine, to see that it runs:

    python studies/images/autoaugment_speed.py --device cpu --no-compile --batches 16 --size 64 --encoder-batch 4 \
        --model resnetv2_18 --repeats 3 --seconds 1
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import timm
import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torchvision.transforms import v2

from vivi.data.augment.autoaugment import Policy, autoaugment

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from encoder import encoder_alone


@dataclass(frozen=True)
class Rate:
    """Images a second, of several measurements."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class Speed:
    """Measures on the present device."""

    batches: tuple[int, ...] = (128, 512, 2048)
    size: int = 224
    repeats: int = 20
    """Measurements of each batch size, each of about 4,096 images (on a CPU: one batch)."""
    model: str = "resnetv2_50"
    encoder_batch: int = 256
    compile: bool = True
    seconds: float = 20
    """For torchvision."""
    device: str = "cuda"
    json: Path | None = None

    def run(self, console: Console) -> None:
        device = torch.device(self.device)
        images = smooth_noise(max(self.batches), self.size)
        encoder = [self.encoder_alone(device)]
        ours = {
            policy: {batch: self.ours(images[:batch].to(device), policy, device) for batch in self.batches}
            for policy in get_args(Policy)
        }
        memory = self.memory(images.to(device), device)
        encoder.append(self.encoder_alone(device))
        torchvision = self.torchvision(images)
        best = max(encoder)

        table = Table("", "batch", "images/s", "least", "most", "× encoder")
        for policy, rates in ours.items():
            for batch, rate in rates.items():
                columns = [f"{number:,.0f}" for number in (rate.median, rate.least, rate.most)]
                table.add_row(f"ours, {policy}", str(batch), *columns, f"{rate.median / best:.2f}")
        for alone in encoder:
            table.add_row(
                f"{self.model} alone", str(self.encoder_batch), f"{alone:,.0f}", "", "", f"{alone / best:.2f}"
            )
        name = f"torchvision, {os.cpu_count()} threads"
        table.add_row(name, "1", f"{torchvision:,.0f}", "", "", f"{torchvision / best:.2f}")
        console.print(table)
        if device.type == "cuda":
            console.print(
                f"A batch of {len(images)} takes {memory:.2f} GiB at most beside its images and its result."
            )
        if self.json:
            found = {
                **{name: value for name, value in asdict(self).items() if name != "json"},
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
                "torch": torch.__version__,
                "ours": {
                    policy: {batch: asdict(rate) for batch, rate in rates.items()} for policy, rates in ours.items()
                },
                "encoder_alone": encoder,
                "torchvision": torchvision,
                "torchvision_threads": os.cpu_count(),
                "least_ratio": min(rate.median for rates in ours.values() for rate in rates.values()) / best,
                "working_gib": memory,
            }
            self.json.write_text(json.dumps(found, indent=1) + "\n")

    def ours(self, images: Tensor, policy: Policy, device: torch.device) -> Rate:
        """New uniforms for every batch; they are drawn beforehand, as a loader draws them elsewhere."""
        count = max(4096 // len(images), 1) if device.type == "cuda" else 1
        rng = np.random.default_rng(0)
        uniforms = [rng.random((len(images), 5), np.float32) for _ in range(count)]
        rates = []
        for _ in range(1 + self.repeats):
            _wait(device)
            began = time.perf_counter()
            for some in uniforms:
                autoaugment(images, some, policy)
            _wait(device)
            rates.append(count * len(images) / (time.perf_counter() - began))
        rates = rates[1:]  # the first one is to warm up
        return Rate(statistics.median(rates), min(rates), max(rates))

    def memory(self, images: Tensor, device: torch.device) -> float:
        """GiB that the larger of the policies needs at its peak beside its images and its result; 0 on a CPU."""
        if device.type != "cuda":
            return 0.0
        uniforms = np.random.default_rng(0).random((len(images), 5), np.float32)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        for policy in get_args(Policy):
            autoaugment(images, uniforms, policy)
        return (torch.cuda.max_memory_allocated(device) - before - images.nbytes) / 2**30

    def encoder_alone(self, device: torch.device) -> float:
        """Images a second."""
        model = timm.create_model(self.model, num_classes=0)
        return encoder_alone(model, self.encoder_batch, self.size, device, self.compile)

    def torchvision(self, images: Tensor) -> float:
        """Images a second of torchvision's transform on the CPU; every thread takes its own images, one at a time."""
        transform = v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET)
        threads = os.cpu_count() or 1
        within = torch.get_num_threads()
        torch.set_num_threads(1)  # the cores have their images; dividing one among them only costs
        began = time.perf_counter()

        def work(first: int) -> int:
            done = 0
            while time.perf_counter() - began < self.seconds:
                transform(images[(first + done * threads) % len(images)])
                done += 1
            return done

        with ThreadPoolExecutor(threads) as pool:
            total = sum(pool.map(work, range(threads)))
        taken = time.perf_counter() - began
        torch.set_num_threads(within)
        return total / taken


def smooth_noise(count: int, size: int) -> Tensor:
    """uint8 (count, 3, size, size) of large and small blotches: neighbours resemble each other, as in photographs."""
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(count, 3, size, size)
    for cells, height in ((3, 100.0), (12, 50.0), (48, 25.0)):
        blotches = torch.randn((count, 3, cells, cells), generator=generator) * height
        images += torch.nn.functional.interpolate(blotches, size=(size, size), mode="bilinear")
    return images.add_(128).clamp_(0, 255).to(torch.uint8)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    tyro.cli(Speed).run(Console(width=120))
