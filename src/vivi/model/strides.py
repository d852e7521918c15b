"""The strides with which the patch methods train ResNets: a patch of 64 pixels keeps a map of 8 × 8 features."""

from __future__ import annotations

from timm.models.resnetv2 import ResNetV2
from torch import nn

from vivi.errors import UserError


def use_patch_strides(backbone: nn.Module) -> None:
    """In place: stride 1 in the root convolution and in the last stage (block strides 2, 2, 1).

    Weights keep their names and shapes, so that plain timm loads the exported encoder, with its own strides.
    """
    if not isinstance(backbone, ResNetV2):
        raise UserError(
            "--loss.frame jigsaw and location go with a resnetv2 encoder, whose strides they change, "
            f"not with {type(backbone).__name__}: set --encoder.name resnetv2_50"
        )
    first = backbone.get_submodule("stages.3.blocks.0")  # only the first block of a stage has a stride
    for module in (*backbone.get_submodule("stem").modules(), *first.modules()):
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
    shortcut = first.get_submodule("downsample")
    if hasattr(shortcut, "pool"):  # the models named d shrink their shortcut by averages
        shortcut.pool = nn.Identity()
