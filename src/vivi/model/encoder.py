"""The encoder f: a timm model whose batch statistics stay within a core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from vivi import recipes
from vivi.losses.layers import at_least_float32
from vivi.model.architecture import Architecture, architecture_of, glorot, memory_format
from vivi.model.core_norm import CoreBatchNorm, Cores
from vivi.model.files import backbone_with_weights, read_encoder
from vivi.runtime.errors import UserError
from vivi.runtime.image_files import as_rgb


class Encoder(nn.Module):
    """Frames in [-1, 1] to representations, core by core."""

    def __init__(self, architecture: Architecture, backbone: nn.Module, bn_momentum: float) -> None:
        super().__init__()
        self.architecture = architecture
        self.cores = Cores()
        self.backbone = use_core_batch_norm(backbone, bn_momentum, self.cores)
        self.features = int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)  # type: ignore[arg-type]
        self.norms = [module for module in self.modules() if isinstance(module, CoreBatchNorm)]
        self.precision = torch.float32
        self.memory_format = memory_format(backbone)
        self.to(memory_format=self.memory_format)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (architecture.mean, architecture.std))
        # From [-1, 1] to what the backbone expects; nothing changes for mean and std of 0.5.
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", 0.5 / std, persistent=False)
        self.register_buffer("shift", (0.5 - mean) / std, persistent=False)
        self.rescaled = bool((mean != 0.5).any() or (std != 0.5).any())

    def forward(self, frames: Tensor) -> Tensor:
        """(cores, n, 3, size, size) -> (cores, n, features); or frames of no core, without the first dimension."""
        if frames.ndim == 4:
            return self.forward(frames[None])[0]
        if self.rescaled:
            frames = frames * self.scale + self.shift
        with torch.autocast(frames.device.type, self.precision, enabled=self.precision != torch.float32):
            if frames.is_cuda:
                representations = self._forward_cores(frames)
            else:  # on a CPU one core after the other is twice as fast as statistics of several in one pass
                representations = torch.cat([self._forward_cores(core) for core in frames.split(1)])
        return at_least_float32(representations)

    def _forward_cores(self, frames: Tensor) -> Tensor:
        self.cores.count = len(frames)
        flat = frames.flatten(0, 1).contiguous(memory_format=self.memory_format)
        representations: Tensor = self.backbone(flat)
        return representations.view(*frames.shape[:2], -1)

    @contextmanager
    def without_collecting_statistics(self) -> Iterator[None]:
        """Forward passes inside do not count towards the running statistics."""
        self.cores.collecting = False
        try:
            yield
        finally:
            self.cores.collecting = True

    def collected_statistics(self) -> list[Tensor]:
        """Sums over the cores since the last update, to be all-reduced."""
        return [buffer for norm in self.norms for buffer in (norm.mean_sum, norm.var_sum)]

    @torch.no_grad()
    def update_statistics(self, cores: int) -> None:
        """Moves the running statistics towards the mean over this step's cores."""
        if not self.norms:
            return
        sums = self.collected_statistics()
        running = [buffer for norm in self.norms for buffer in (norm.running_mean, norm.running_var)]
        # All layers in a few launches.
        torch._foreach_lerp_(running, torch._foreach_div(sums, float(cores)), self.norms[0].momentum)
        torch._foreach_zero_(sums)
        torch._foreach_add_([norm.num_batches_tracked for norm in self.norms], 1)


def use_core_batch_norm(backbone: nn.Module, momentum: float, cores: Cores) -> nn.Module:
    """Replaces every batch norm, in place."""
    for name, module in [*backbone.named_modules(remove_duplicate=False)]:
        if isinstance(module, nn.BatchNorm2d):
            backbone.set_submodule(name, CoreBatchNorm(module, momentum, cores))
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UserError(f"{type(module).__name__} in the encoder cannot be kept within cores: choose another")
    return backbone


def build_encoder(settings: recipes.Encoder, size: int, patch_strides: bool = False) -> Encoder:
    """The encoder of a recipe, with the weights it starts from; random ones depend on torch's seed."""
    wanted = replace(architecture_of(settings, size), patch_strides=patch_strides)
    if settings.start not in ("", "pretrained"):
        return _start_from(Path(settings.start), wanted, settings.bn_momentum)
    pretrained = settings.start == "pretrained"
    backbone = wanted.create(pretrained)
    if pretrained:
        config: dict[str, Any] = backbone.pretrained_cfg  # type: ignore[assignment]
        wanted = replace(wanted, mean=tuple(config["mean"]), std=tuple(config["std"]))
    elif settings.initialisation == "glorot":
        glorot(backbone)
    return Encoder(wanted, backbone, settings.bn_momentum)


def _start_from(start: Path, wanted: Architecture, bn_momentum: float) -> Encoder:
    """The encoder with the weights of an earlier run."""
    architecture, state = read_encoder(start)
    own = {name: getattr(wanted, name) for name in ("size", "mean", "std", "patch_strides")}
    if wanted != replace(architecture, **own):
        raise UserError(
            f"{start} holds {architecture}, the recipe wants {wanted}: "
            "set --encoder.name, --encoder.width, --encoder.norm or --augment.size"
        )
    backbone = backbone_with_weights(wanted, state, start)
    return Encoder(replace(wanted, mean=architecture.mean, std=architecture.std), backbone, bn_momentum)


def load_encoder(path: Path | str) -> tuple[nn.Module, v2.Transform]:
    """A trained encoder as a plain timm model in eval mode, and the transform that turns PIL images or uint8 tensors
    into its input: the whole image resized to a square."""
    architecture, state = read_encoder(Path(path))
    transform = v2.Compose(
        [
            v2.Lambda(as_rgb),  # palettes, transparency, CMYK and 16 bits, which only PIL can tell
            v2.ToImage(),
            v2.RGB(),  # grey tensors
            v2.Resize((architecture.size, architecture.size), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(architecture.mean, architecture.std),
        ]
    )
    return backbone_with_weights(architecture, state, path).eval(), transform
