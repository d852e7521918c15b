"""How fast an encoder trains by itself: what everything around it is measured against."""

from __future__ import annotations

import time

import torch
from torch import nn


def encoder_alone(model: nn.Module, batch: int, size: int, device: torch.device, compile: bool) -> float:
    """Images a second, forward, backward and update, on random images that lie on the device; bfloat16 on a GPU."""
    on_gpu = device.type == "cuda"
    model = model.to(device).to(memory_format=torch.channels_last).train()
    network = torch.compile(model) if compile else model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=on_gpu)
    images = torch.randn(batch, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)

    def steps(count: int) -> None:
        for _ in range(count):
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = network(images).float().mean()
            loss.backward()
            optimiser.step()
        if on_gpu:
            torch.cuda.synchronize(device)

    steps(10 if on_gpu else 1)
    began, count = time.perf_counter(), 100 if on_gpu else 2
    steps(count)
    return count * batch / (time.perf_counter() - began)
