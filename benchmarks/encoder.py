"""How fast an encoder trains by itself: what everything around it is measured against."""

from __future__ import annotations

import torch
from common import now
from torch import nn


class EncoderAlone:
    """An encoder in training, on random images that lie on the device; in bfloat16 on a GPU."""

    def __init__(self, model: nn.Module, batch: int, size: int, device: torch.device, compile: bool) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"
        self.model = model.to(device).to(memory_format=torch.channels_last).train()
        self.network = torch.compile(self.model, dynamic=False) if compile else self.model
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, fused=self.on_gpu)
        dtype = torch.bfloat16 if self.on_gpu else torch.float32
        images = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
        self.images = images.contiguous(memory_format=torch.channels_last)

    def train(self, steps: int) -> float:
        """Seconds of so many steps: forward, backward and update."""
        began = now(self.device)
        for _ in range(steps):
            self.optimiser.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
                loss = self.network(self.images).float().mean()
            loss.backward()
            self.optimiser.step()
        return now(self.device) - began

    @torch.no_grad()
    def forward(self, steps: int) -> float:
        """Seconds of so many forward passes without gradients."""
        began = now(self.device)
        for _ in range(steps):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
                self.network(self.images)
        return now(self.device) - began


def encoder_alone(model: nn.Module, batch: int, size: int, device: torch.device, compile: bool) -> float:
    """Images a second in training."""
    alone = EncoderAlone(model, batch, size, device, compile)
    alone.train(10 if alone.on_gpu else 1)
    count = 100 if alone.on_gpu else 2
    return count * batch / alone.train(count)
