"""Batch norm within a core: each core of a micro-batch is normalised by its own statistics.

The running statistics are not touched by a forward pass. What each core saw is summed, and once a step the mean over
all cores goes into them, however the cores were spread over micro-batches and processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivi.losses.layers import at_least_float32


@dataclass
class Cores:
    """What all batch norms of an encoder share: how many cores the present micro-batch has, and whether what they see
    counts towards the running statistics."""

    count: int = 1
    collecting: bool = True


class CoreBatchNorm(nn.Module):
    """Takes the place of a BatchNorm2d (or of timm's, with its activation), under the same parameter names."""

    def __init__(self, norm: nn.BatchNorm2d, momentum: float, cores: Cores) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        assert norm.num_batches_tracked is not None
        self.eps, self.momentum, self.cores = norm.eps, momentum, cores
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        self.mean_sum: Tensor
        self.var_sum: Tensor
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.register_buffer("num_batches_tracked", norm.num_batches_tracked)
        # Over the cores seen since the last update; not part of the state, because a step is never saved halfway.
        self.register_buffer("mean_sum", torch.zeros_like(norm.running_mean), persistent=False)
        self.register_buffer("var_sum", torch.zeros_like(norm.running_var), persistent=False)
        self.drop = getattr(norm, "drop", nn.Identity())  # timm's BatchNormAct2d has these two
        self.act = getattr(norm, "act", nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        """x: (cores × frames, channels, height, width), core by core."""
        if not self.training:
            y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        elif self.cores.count == 1:
            y = self._one_core(x)
        else:
            y = self._many_cores(x)
        result: Tensor = self.act(self.drop(y))
        return result

    def _one_core(self, x: Tensor) -> Tensor:
        # With a momentum of 1, the "running" statistics come out as those of this core.
        mean, var = torch.zeros_like(self.mean_sum), torch.zeros_like(self.var_sum)
        y = F.batch_norm(x, mean, var, self.weight, self.bias, True, 1.0, self.eps)
        self._collect(mean, var)
        return y

    def _many_cores(self, x: Tensor) -> Tensor:
        split = x.unflatten(0, (self.cores.count, -1))  # (cores, frames, channels, height, width)
        mean, var = _statistics(at_least_float32(split), exact=x.dtype.itemsize >= 4)  # (cores, channels)
        scale = self.weight * torch.rsqrt(var + self.eps)
        shift = self.bias - mean * scale
        y = split * scale[:, None, :, None, None] + shift[:, None, :, None, None]
        count = split.shape[1] * split.shape[3] * split.shape[4]
        self._collect(mean.sum(0), var.sum(0) * (count / max(count - 1, 1)))
        normalised: Tensor = y.flatten(0, 1).to(x.dtype)
        return normalised

    def _collect(self, mean: Tensor, var: Tensor) -> None:
        """Adds the statistics of cores; the variance unbiased, as running statistics are."""
        if self.cores.collecting:
            self.mean_sum += mean.detach()
            self.var_sum += var.detach()


def _statistics(values: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance of each core and channel: (cores, frames, channels, height, width) -> (cores, channels).

    Of values that had 16 bits, sums and sums of squares in float32 lose nothing, and compiled they are 2 % of the
    whole network's time faster than variances in one pass.
    """
    if exact:
        var, mean = torch.var_mean(values, dim=(1, 3, 4), correction=0)
        return mean, var
    mean = values.mean(dim=(1, 3, 4))
    return mean, (values.square().mean(dim=(1, 3, 4)) - mean.square()).clamp(min=0)
