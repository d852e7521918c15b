"""Which network the encoder is: a timm model, by name and arguments."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.layers import GroupNormAct, StdConv2d
from timm.models.resnetv2 import ResNetV2
from torch import nn

from vivi import recipes
from vivi.model.pretrained import create_pretrained
from vivi.recipes.schema import WIDTHS
from vivi.runtime.errors import UserError, check_ranges, first_line


@dataclass(frozen=True)
class Architecture:
    """What timm needs to make the encoder, and what its input looks like."""

    name: str
    arguments: dict[str, Any]
    size: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    group_norm: bool = False  # with weight standardisation, in place of batch norm
    patch_strides: bool = False  # those of the patch methods

    def __str__(self) -> str:
        width, size = self.arguments.get("width_factor", 1), self.arguments.get("img_size")
        norm = " with group norm" if self.group_norm else ""
        return self.name + (f" ×{width:g}" if width != 1 else "") + norm + (f" for {size} px" if size else "")

    def create(self, pretrained: bool = False) -> nn.Module:
        """A plain timm model without a classifier; raises a UserError where there can be none."""
        timm_config(self.name)
        layers: dict[str, Any] = {"norm_layer": group_norm, "conv_layer": StdConv2d} if self.group_norm else {}
        create = create_pretrained if pretrained else timm.create_model
        try:
            model: nn.Module = create(self.name, num_classes=0, **self.arguments, **layers)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"timm cannot make {self}: {first_line(error)}") from None
        if self.patch_strides:
            use_patch_strides(model)
        return model


def architecture_of(settings: recipes.Encoder, size: int) -> Architecture:
    """The architecture that a recipe names; raises where timm has none such."""
    config = timm_config(settings.name)
    check_ranges(settings, {"width": WIDTHS}, "encoder.")
    arguments: dict[str, Any] = {}
    if settings.width != 1:
        if not settings.name.startswith("resnetv2") or settings.name.endswith("_bit"):
            width = f"--encoder.width is {settings.width:g} in this recipe"
            raise UserError(f"{width}, and {settings.name} has one width only: add --encoder.width 1")
        arguments["width_factor"] = settings.width
    if settings.norm == "group" and not settings.name.startswith("resnetv2"):
        raise UserError(f"--encoder.norm group needs a resnetv2 model, {settings.name} is none")
    if config is not None and config.fixed_input_size:
        arguments["img_size"] = size
    has_group_norm = settings.name.endswith("_bit")
    return Architecture(settings.name, arguments, size, group_norm=settings.norm == "group" and not has_group_norm)


def timm_config(name: str) -> Any:
    """What timm knows of one of its models, or None; raises where it has no model of this name.

    A name is an architecture, or architecture.tag, and nothing else: timm would fetch or read what stands after a
    source (hf-hub:, local-dir:), and names also come from files that somebody sent.
    """
    short = name[:80]
    if not re.fullmatch(r"\w+(\.\w+)?", name) or not timm.is_model(name):
        close = difflib.get_close_matches(short, timm.list_models(), n=1)
        hint = f"; did you mean {close[0]}?" if close else "; timm.list_models() names them all"
        if ":" in name or "/" in name:
            hint = ": give one of its own names; hf-hub:, local-dir: and other places are not looked at"
        raise UserError(f"timm has no model {short!r}{hint}")
    try:
        return timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:  # name.tag, and no such tag
        raise UserError(f"timm has no model {short!r}: {first_line(error)}") from None


def group_norm(channels: int, **arguments: Any) -> nn.Module:
    """32 groups, as BiT has them; fewer in thin layers, where a group would have less than eight channels."""
    norm: nn.Module = GroupNormAct(channels, num_groups=math.gcd(32, max(channels // 8, 1)), **arguments)
    return norm


def glorot(model: nn.Module) -> None:
    """Kernels Glorot-uniform and biases zero, TensorFlow's defaults; norms stay at 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def use_patch_strides(backbone: nn.Module) -> None:
    """The strides with which the patch methods train ResNets: 1 in the root convolution and in the last stage (block
    strides 2, 2, 1), in place. A patch of 64 pixels keeps a map of 8 × 8 features.

    Weights keep their names and shapes, so that plain timm loads the exported encoder, with its own strides.
    """
    if not isinstance(backbone, ResNetV2):
        raise UserError(f"--loss.frame jigsaw and location need a resnetv2 encoder, not {type(backbone).__name__}")
    first = backbone.get_submodule("stages.3.blocks.0")  # only the first block of a stage has a stride
    for module in (*backbone.get_submodule("stem").modules(), *first.modules()):
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
    shortcut = first.get_submodule("downsample")
    if hasattr(shortcut, "pool"):  # the models named d shrink their shortcut by averages
        shortcut.pool = nn.Identity()


def memory_format(backbone: nn.Module) -> torch.memory_format:
    """channels_last, the fastest on GPUs and CPUs; except where torch (2.15) then corrupts memory on a CPU: in the
    gradient of strided 1 × 1 convolutions of fewer than 8 channels (RepVGG, FastViT, MobileOne)."""
    convolutions = (module for module in backbone.modules() if isinstance(module, nn.Conv2d))
    if any(c.in_channels < 8 and c.kernel_size == (1, 1) and max(c.stride) > 1 for c in convolutions):
        return torch.contiguous_format
    return torch.channels_last
