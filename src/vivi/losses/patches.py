"""The patch losses: say in which order the nine patches of an image stand, or where one lies around the centre.

A step must not depend on which cores are computed together. So the head's batch statistics are those of a core, and
everything random comes from the core's own noise: hashed, as far more numbers are needed than the noise has.
"""

from __future__ import annotations

import itertools
from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vivi.batches.patches import PATCHES
from vivi.model.heads import linear, precise

CENTRE = PATCHES // 2
DROPPED = 0.5  # share of the hidden units
# What random numbers are for, so that the same noise gives different ones.
_ORDERS, _DROPOUT = 1, 2


class _OnPatches(nn.Module):
    """A loss on the nine patches of an image, which take the place of copies."""

    copies = PATCHES

    def views(self, frames: Tensor) -> Tensor:
        """(cores, shots, frames, 9, 3, s, s) -> (cores, 9, shots, frames, 3, s, s)."""
        return frames.movedim(3, 1)


class Jigsaw(_OnPatches):
    """Of 100 permutations, which one are the patches in? A core sees all its images in the same `shown` of them."""

    def __init__(self, features: int, embedding: int = 1000, hidden: int = 4096, shown: int = 8) -> None:
        super().__init__()
        self.permutations: Tensor
        self.register_buffer("permutations", torch.tensor(read_permutations()), persistent=False)  # (100, 9)
        self.head = PatchHead(features, embedding, PATCHES, hidden, len(self.permutations))
        self.shown = shown

    def forward(self, h: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """h is (cores, 9, shots, frames, d), noise (cores, videos, any number), uniform in [0, 1)."""
        drawn = random_bits(noise, _ORDERS, len(self.permutations)).argsort(dim=1)
        classes = drawn[:, : self.shown]  # (cores, shown)
        scores = self.head(h, self.permutations[classes], noise)
        loss, accuracy = _classification(scores, classes)
        return loss, {"jigsaw_accuracy": accuracy}


class RelativeLocation(_OnPatches):
    """Which of the eight places around the centre is a patch from? Each of the eight, beside the centre, is asked."""

    def __init__(self, features: int, embedding: int = 1000, hidden: int = 4096) -> None:
        super().__init__()
        pairs = [(patch, CENTRE) for patch in range(PATCHES) if patch != CENTRE]
        self.pairs: Tensor
        self.register_buffer("pairs", torch.tensor(pairs), persistent=False)  # (8, 2)
        self.head = PatchHead(features, embedding, 2, hidden, len(pairs))

    def forward(self, h: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """h is (cores, 9, shots, frames, d), noise (cores, videos, any number), uniform in [0, 1), for dropout."""
        scores = self.head(h, self.pairs.expand(len(h), -1, -1), noise)
        classes = torch.arange(len(self.pairs), device=h.device).expand(len(h), -1)
        loss, accuracy = _classification(scores, classes)
        return loss, {"location_accuracy": accuracy}


class PatchHead(nn.Module):
    """Embeds the patches, puts `seen` of an image beside each other, and classifies with one hidden layer.

    That layer has batch norm, ReLU and dropout. Its bias (0.1 in the published code) is left out: batch norm takes
    any bias away again.
    """

    def __init__(self, features: int, embedding: int, seen: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embed = linear(features, embedding)
        self.hidden = linear(seen * embedding, hidden, bias=False)
        self.scale = nn.Parameter(torch.ones(hidden))
        self.shift = nn.Parameter(torch.zeros(hidden))
        self.classify = linear(hidden, classes)
        for layer in (self.hidden, self.classify):
            nn.init.trunc_normal_(layer.weight, std=0.005, a=-0.01, b=0.01)  # TensorFlow cuts at two deviations

    def forward(self, h: Tensor, orders: Tensor, noise: Tensor) -> Tensor:
        """h (cores, 9, shots, frames, d) in the orders (cores, shown, seen): -> (cores, images, shown, classes)."""
        patches = self.embed(h).flatten(2, 3).transpose(1, 2)  # (cores, images, 9, embedding)
        core = torch.arange(len(h), device=h.device).view(-1, 1, 1, 1)
        image = torch.arange(patches.shape[1], device=h.device).view(-1, 1, 1)
        examples = patches[core, image, orders.unsqueeze(1)].flatten(3)  # (cores, images, shown, seen * embedding)
        hidden = precise(self.hidden(examples))  # (cores, images, shown, hidden)
        # The core's own statistics in evaluation too: the head does not outlive training, so it keeps none.
        variance, mean = torch.var_mean(hidden, dim=(1, 2), correction=0, keepdim=True)
        hidden = ((hidden - mean) * torch.rsqrt(variance + 1e-5) * self.scale + self.shift).relu()
        if self.training:
            hidden = dropout(hidden, noise)
        scores: Tensor = self.classify(hidden)
        return scores


def dropout(values: Tensor, noise: Tensor) -> Tensor:
    """Sets a share DROPPED of (cores, ...) to zero and scales up the others; which ones, the core's noise says."""
    bits = random_bits(noise, _DROPOUT, values[0].numel()).view(values.shape)
    return torch.where(bits < int(DROPPED * 2**32), 0, values / (1 - DROPPED))


def _classification(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and accuracy of each core: logits (cores, images, shown, all), classes (cores, shown)."""
    scores = precise(logits).log_softmax(-1)
    truth = classes.unsqueeze(1).expand(scores.shape[:3])  # (cores, images, shown)
    loss = -scores.gather(-1, truth.unsqueeze(-1)).mean((1, 2, 3))
    accuracy = (scores.argmax(-1) == truth).to(scores.dtype).mean((1, 2))
    return loss, accuracy


# --- random numbers on the device, a function of a core's noise ---


def random_bits(noise: Tensor, purpose: int, count: int) -> Tensor:
    """Random integers below 2³², no two alike within a core: noise (cores, ...) -> (cores, count)."""
    bits = noise.float().flatten(1).view(torch.int32).long()  # (cores, numbers)
    place = torch.arange(bits.shape[1], device=noise.device)
    key = scramble(bits ^ scramble(place)).sum(1, keepdim=True) + purpose  # (cores, 1)
    position = torch.arange(count, device=noise.device)
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
    """The 100 that `distant_permutations` finds from the first of them, drawn by lot: at each place, a patch."""
    text = files("vivi.losses").joinpath("permutations.csv").read_text()
    return [[int(patch) for patch in line.split(",")] for line in text.splitlines()]


def distant_permutations(count: int, first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Permutations in which as few patches as possible stand at the same place, one after the other: (count, n).

    Noroozi's algorithm: each is, of all n!, the farthest from those before it, in Hamming distance. Here the nearest
    of those counts first, then the mean: for 100 of nine the mean comes out the same, and no two are close.
    """
    candidates = np.array(list(itertools.permutations(range(len(first)))), np.int8)  # (n!, n)
    nearest = np.full(len(candidates), len(first))
    total = np.zeros(len(candidates), np.int64)
    chosen = [first]
    while len(chosen) < count:
        distance = (candidates != chosen[-1]).sum(1)
        nearest, total = np.minimum(nearest, distance), total + distance
        best = (nearest * count * len(first) + total).argmax()
        chosen.append(candidates[best].astype(np.int64))
    return np.stack(chosen)
