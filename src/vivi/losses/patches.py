"""The patch losses: tell in which order the nine patches of an image are, or where one lies around the centre.

A step must not depend on which cores are computed together. So the head's batch statistics are those of a core, and
everything random comes from the core's own uniforms: hashed, as far more numbers are needed than there are uniforms.
"""

from __future__ import annotations

from importlib.resources import files
from typing import ClassVar

import torch
from torch import Tensor, nn

from vivi.data.augment.patches import PATCHES
from vivi.losses.base import FrameLoss, Measured, cross_entropy
from vivi.losses.layers import at_least_float32, linear

CENTRE = PATCHES // 2
DROPPED = 0.5  # share of the hidden units
# What random numbers are for, so that the same uniforms give different ones.
_ORDERS, _DROPOUT = 1, 2


class PatchLoss(FrameLoss):
    """A loss on the nine patches of an image, which are its views.

    `h` is (9, images, frames, d), `uniforms` any number for each batch.
    """

    view_count = PATCHES

    def views(self, frames: Tensor) -> Tensor:
        """(cores, shots, frames, 9, 3, s, s) -> (cores, 9, shots, frames, 3, s, s)."""
        return frames.movedim(3, 1)

    def measure(self, h: Tensor, uniforms: Tensor | None = None) -> Measured:
        if h.ndim == 4:  # no cores
            loss, metrics = self.measure(h[None], None if uniforms is None else uniforms[None])
            return loss[0], {name: values[0] for name, values in metrics.items()}
        return self.measure_cores(h, torch.rand(len(h), 2, device=h.device) if uniforms is None else uniforms)

    def measure_cores(self, h: Tensor, uniforms: Tensor) -> Measured:
        """h is (cores, 9, shots, frames, d), uniforms (cores, ...)."""
        raise NotImplementedError


class Jigsaw(PatchLoss):
    """In which of 100 permutations are the patches? Each image of a core is shown in the same `shown` of them."""

    metrics: ClassVar = {"jigsaw_accuracy": "jigsaw accuracy"}

    def __init__(
        self, features: int, shots: int = 1, dimension: int = 1000, hidden: int = 4096, shown: int = 8
    ) -> None:
        super().__init__()
        self.permutations: Tensor
        self.register_buffer("permutations", torch.tensor(read_permutations()), persistent=False)  # (100, 9)
        self.head = PatchHead(features, dimension, PATCHES, hidden, len(self.permutations))
        self.shown = shown

    def measure_cores(self, h: Tensor, uniforms: Tensor) -> Measured:
        order = random_bits(uniforms, _ORDERS, len(self.permutations)).argsort(dim=1)
        classes = order[:, : self.shown]  # (cores, shown)
        logits = self.head(h, self.permutations[classes], uniforms)  # (cores, images, shown, 100)
        loss, accuracy = cross_entropy(logits, classes.unsqueeze(1).expand(logits.shape[:3]), (1, 2))
        return loss, {"jigsaw_accuracy": accuracy}


class Location(PatchLoss):
    """In which of the eight places around the centre is a patch? Asked of each of the eight, with the centre."""

    metrics: ClassVar = {"location_accuracy": "location accuracy"}

    def __init__(self, features: int, shots: int = 1, dimension: int = 1000, hidden: int = 4096) -> None:
        super().__init__()
        pairs = [(patch, CENTRE) for patch in range(PATCHES) if patch != CENTRE]
        self.pairs: Tensor
        self.register_buffer("pairs", torch.tensor(pairs), persistent=False)  # (8, 2)
        self.head = PatchHead(features, dimension, 2, hidden, len(pairs))

    def measure_cores(self, h: Tensor, uniforms: Tensor) -> Measured:
        logits = self.head(h, self.pairs.expand(len(h), -1, -1), uniforms)  # (cores, images, 8, 8)
        classes = torch.arange(len(self.pairs), device=h.device).expand(logits.shape[:3])
        loss, accuracy = cross_entropy(logits, classes, (1, 2))
        return loss, {"location_accuracy": accuracy}


class PatchHead(nn.Module):
    """Embeds the patches, puts `seen` of an image beside each other, and classifies with one hidden layer.

    That layer has batch norm, ReLU and dropout. Its bias (0.1 in the published code) is left out: batch norm takes
    any bias away again.
    """

    def __init__(self, features: int, dimension: int, seen: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embed = linear(features, dimension)
        self.hidden = linear(seen * dimension, hidden, bias=False)
        self.scale = nn.Parameter(torch.ones(hidden))
        self.shift = nn.Parameter(torch.zeros(hidden))
        self.classify = linear(hidden, classes)
        for layer in (self.hidden, self.classify):
            nn.init.trunc_normal_(layer.weight, std=0.005, a=-0.01, b=0.01)  # TensorFlow cuts at two deviations

    def forward(self, h: Tensor, orders: Tensor, uniforms: Tensor) -> Tensor:
        """h (cores, 9, shots, frames, d) in the orders (cores, shown, seen): -> (cores, images, shown, classes)."""
        patches = self.embed(h).flatten(2, 3).transpose(1, 2)  # (cores, images, 9, dimension)
        core = torch.arange(len(h), device=h.device).view(-1, 1, 1, 1)
        image = torch.arange(patches.shape[1], device=h.device).view(-1, 1, 1)
        examples = patches[core, image, orders.unsqueeze(1)].flatten(3)  # (cores, images, shown, seen * dimension)
        hidden = at_least_float32(self.hidden(examples))  # (cores, images, shown, hidden)
        # The core's own statistics in evaluation too: the head does not outlive training, so it keeps none.
        variance, mean = torch.var_mean(hidden, dim=(1, 2), correction=0, keepdim=True)
        hidden = ((hidden - mean) * torch.rsqrt(variance + 1e-5) * self.scale + self.shift).relu()
        if self.training:
            hidden = dropout(hidden, uniforms)
        scores: Tensor = self.classify(hidden)
        return scores


def dropout(values: Tensor, uniforms: Tensor) -> Tensor:
    """Sets a share DROPPED of (cores, ...) to zero and scales up the others; the core's uniforms decide which."""
    bits = random_bits(uniforms, _DROPOUT, values[0].numel()).view(values.shape)
    return torch.where(bits < int(DROPPED * 2**32), 0, values / (1 - DROPPED))


# --- random numbers on the device, a function of a core's uniforms ---


def random_bits(uniforms: Tensor, purpose: int, count: int) -> Tensor:
    """Random integers below 2³², no two alike within a core: uniforms (cores, ...) -> (cores, count)."""
    bits = uniforms.float().flatten(1).view(torch.int32).long()  # (cores, numbers)
    place = torch.arange(bits.shape[1], device=uniforms.device)
    key = scramble(bits ^ scramble(place)).sum(1, keepdim=True) + purpose  # (cores, 1)
    position = torch.arange(count, device=uniforms.device)
    return scramble(scramble(position) + scramble(key))


def scramble(numbers: Tensor) -> Tensor:
    """An integer hash of the lowest 32 bits, one to one (Wellons' lowbias32)."""
    word = 2**32 - 1
    numbers = numbers & word
    numbers = (numbers ^ numbers >> 16) * 0x7FEB352D & word
    numbers = (numbers ^ numbers >> 15) * 0x846CA68B & word
    return numbers ^ numbers >> 16


# --- the permutations ---


def read_permutations() -> list[list[int]]:
    """The 100 that Noroozi's greedy algorithm finds from the first of them, which is random: at each place, a patch.

    Each is, of all 9!, the farthest from those before it in Hamming distance; the nearest of those counts first, then
    the mean (tests/losses/test_patch_losses.py makes them again).
    """
    text = files("vivi.losses").joinpath("permutations.csv").read_text()
    return [[int(patch) for patch in line.split(",")] for line in text.splitlines()]
