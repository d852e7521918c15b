"""What a network makes of images: features, and how often a classifier is right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def encode(
    encoder: nn.Module,
    batches: Iterable[Tensor],
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
) -> Tensor:
    """The encoder's features (images, d) of batches of uint8 images (batch, 3, size, size), float32 on the CPU.

    `mean` and `std` are those of the three channels where pixels lie between 0 and 1. The encoder, on the device, is
    in evaluation mode meanwhile, and unchanged afterwards.
    """
    centre = torch.tensor(mean, device=device).view(3, 1, 1) * 255
    scale = torch.tensor(std, device=device).view(3, 1, 1) * 255
    with evaluation_mode(encoder), torch.no_grad():
        features = [encoder((images.to(device).float() - centre) / scale).float().cpu() for images in batches]
    return torch.cat(features)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Puts a module and all in it in evaluation mode, and each back as it was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def top_k(logits: Tensor, labels: Tensor, ks: Sequence[int] = (1, 5)) -> tuple[int, ...]:
    """For each k: of how many images (n, classes) the label is among the first k; all, if there are no more than k
    classes.

    A class that is as likely as the label comes before it, and so does one whose logit is not a number: a constant
    or broken output is never right by luck.
    """
    own = logits.gather(1, labels.to(logits.device)[:, None])  # (n, 1)
    rank = (~(logits < own)).sum(dim=1)  # the label's own, 1 at best
    return tuple(int((rank <= k).sum()) for k in ks)
