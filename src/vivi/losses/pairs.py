"""Pairs of frames: those that share a shot, and those that do not."""

from __future__ import annotations

import torch
from torch import Tensor


def split_pairs(values: Tensor, fill: float, group: int = 1) -> tuple[Tensor, Tensor]:
    """The values of pairs of frames, (..., shots, frames, shots, frames), split by whether they share a shot.

    Returns what each frame has with those of its own shot, itself among them, (..., shots, frames, frames), and with
    all frames, (..., shots, frames, shots * frames), where those of its own group of consecutive shots, by default
    the shot alone, are set to `fill`.
    """
    shots, frames = values.shape[-2:]
    if shots <= group or frames < 2:
        raise ValueError(
            "frames are compared within and across shots: it takes 2 frames of a shot and more shots than one group, "
            f"not {frames} frames, {shots} shots in groups of {group}"
        )
    within = values.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)  # (..., shots, frames, frames)
    groups = torch.arange(shots, device=values.device) // group
    same = (groups[:, None] == groups)[:, None, :, None]
    return within, values.masked_fill(same, fill).flatten(-2)


def mean_over_positives(values: Tensor) -> Tensor:
    """The mean over ordered pairs of different frames of a shot: (..., shots, frames, frames) -> (...)."""
    shots, frames = values.shape[-3:-1]
    different = ~torch.eye(frames, dtype=torch.bool, device=values.device)
    return (values * different).sum((-3, -2, -1)) / (shots * frames * (frames - 1))
