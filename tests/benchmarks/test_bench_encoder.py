"""The encoder alone: what it says is what its steps take."""

from __future__ import annotations

import time

import torch
from encoder import encoder_alone
from torch import Tensor, nn


class Slow(nn.Module):
    """A step of at least 50 ms; counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3)
        self.steps = 0

    def forward(self, images: Tensor) -> Tensor:
        self.steps += 1
        time.sleep(0.05)
        features: Tensor = self.layer(images)
        return features


def test_images_a_second_are_those_of_whole_steps_after_the_first() -> None:
    model = Slow()
    before = model.layer.weight.clone()
    found = encoder_alone(model, batch=5, size=8, device=torch.device("cpu"), compile=False)
    assert model.steps == 3, "one to warm up, two that are timed"
    assert 0 < found <= 5 / 0.05
    assert not torch.equal(model.layer.weight, before)
