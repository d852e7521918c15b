"""Maps of stride 8, 16 and 32 from any encoder, and the feature pyramid on them.

Which maps an encoder has is found by trying it on a small image. ResNets with pre-activation (those of vivi, MS and
MT-SSL) add raw residuals up: their maps are taken behind the norm and the ReLU with which the next stage begins, and
nothing is computed twice. VGG-16 (TI) gives what goes into its last two poolings, and what comes out of the last.
Everything else is timm's `forward_intermediates`.

An encoder of one stride, a ViT, gets the others as in ViTDet (Li et al. 2022): finer maps by transposed convolutions,
coarser ones by max pooling. With patches of 14 pixels the strides are 7, 14 and 28, and stand for 8, 16 and 32.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Format
from timm.models.resnetv2 import PreActBasic, PreActBottleneck, ResNetV2
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from vivi.evaluate.foreign import SlimResNet, pool_same
from vivi.runtime.errors import UserError, first_line

STRIDES = (8, 16, 32)
CHANNELS = 256  # of every map of the pyramid
_FROM = (
    (16, 32),
    (8, 16),
    (16, 8),
    (32, 16),
)  # a map that an encoder does not have, and the one that it is made from


class Pyramid(nn.Module):
    """Normalised images -> maps P3 to P7, each of 256 channels: the backbone of torchvision's RetinaNet."""

    def __init__(self, maps: Maps) -> None:
        super().__init__()
        self.maps = maps
        channels = [maps.channels[stride] for stride in STRIDES]
        # P6 and P7 come from P5, as in torchvision's retinanet_resnet50_fpn.
        self.fpn = FeaturePyramidNetwork(channels, CHANNELS, LastLevelP6P7(CHANNELS, CHANNELS))
        self.out_channels = CHANNELS

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        levels: dict[str, Tensor] = self.fpn(OrderedDict((str(k), v) for k, v in self.maps(images).items()))
        return levels


class Maps(nn.Module):
    """An encoder as the source of maps. The sides of images must be multiples of `multiple`; `channels` are those of
    the maps by stride."""

    def __init__(self, backbone: nn.Module, name: str) -> None:
        super().__init__()
        self.backbone = backbone.eval()
        _take_any_size(backbone)
        patch = getattr(getattr(backbone, "patch_embed", None), "patch_size", 1)
        unit = math.lcm(32, *(patch if isinstance(patch, Sequence) else [patch]))
        side = unit * math.ceil(64 / unit)
        probe = torch.zeros(1, 3, side, side + unit)
        try:
            with torch.no_grad():
                shapes = [one.shape for one in _all_maps(backbone, probe)]
            self.multiple, chosen = _choose(shapes, probe.shape)
        except Exception as error:  # whatever a network says about images of another size than its own
            raise UserError(
                f"{name} has no feature maps of stride 8, 16 and 32 ({first_line(error)}); choose a run of vivi "
                "or a model of timm such as resnetv2_50, resnet50, convnext_tiny or vit_small_patch16_224"
            ) from None
        self.native, self.indices = list(chosen), list(chosen.values())  # strides of the encoder's own maps
        self.channels = {stride: shapes[index][1] for stride, index in chosen.items()}
        self.finer = nn.ModuleDict()
        for stride, source in _FROM:
            if stride not in self.channels and source in self.channels:
                self.channels[stride] = width = self.channels[source]
                if source > stride:
                    self.channels[stride] = max(width // 2, 1)
                    self.finer[str(stride)] = nn.ConvTranspose2d(width, self.channels[stride], 2, stride=2)

    def forward(self, images: Tensor) -> dict[int, Tensor]:
        """(n, 3, h, w) -> {8: (n, c, h / 8, w / 8), 16: ..., 32: ...}"""
        maps = dict(zip(self.native, _all_maps(self.backbone, images, self.indices), strict=True))
        for stride, source in _FROM:
            if stride not in maps and source in maps:
                x = maps[source]
                maps[stride] = self.finer[str(stride)](x) if source > stride else F.max_pool2d(x, 2)
        return {stride: maps[stride] for stride in STRIDES}


def _take_any_size(backbone: Any) -> None:
    """In place: timm's transformers are made for one size; these are the switches that its arguments set."""
    embed: Any = getattr(backbone, "patch_embed", None)
    if getattr(backbone, "dynamic_img_size", None) is False and hasattr(embed, "output_fmt"):
        backbone.dynamic_img_size = True  # position embeddings are resampled for each size
        embed.flatten, embed.output_fmt = False, Format.NHWC
    if hasattr(embed, "strict_img_size"):
        embed.strict_img_size = False
    for module in backbone.modules():
        if hasattr(module, "dynamic_mask"):  # of Swin's shifted windows
            module.dynamic_mask = True


def _choose(shapes: Sequence[Sequence[int]], probe: Sequence[int]) -> tuple[int, dict[int, int]]:
    """What sides must be multiples of, and the index of the deepest map of each stride, from the maps of a probe. A
    stride stands for the power of two that is nearest."""
    height, width = probe[2:]
    for shape in shapes:
        if len(shape) != 4 or height * shape[3] != width * shape[2]:
            raise ValueError(f"a {height} × {width} px image gives {tuple(shape)}, which is no map of it")
    strides = [height / shape[2] for shape in shapes]
    nominal = [2 ** round(math.log2(stride)) for stride in strides]
    chosen = {stride: index for index, stride in enumerate(nominal) if stride in STRIDES}
    multiple = 32 * strides[-1] / nominal[-1]
    if not chosen or multiple != int(multiple):
        raise ValueError(f"its maps have strides {', '.join(f'{stride:g}' for stride in strides)}")
    return int(multiple), chosen


# --- the kinds of encoders ---


def _all_maps(backbone: Any, images: Tensor, indices: list[int] | None = None) -> list[Tensor]:
    """Images (n, 3, h, w) -> maps (n, c, h / stride, w / stride), from fine to coarse: all, or some by index."""
    kinds = (PreActBasic, PreActBottleneck)
    if isinstance(backbone, ResNetV2) and any(isinstance(module, kinds) for module in backbone.modules()):
        maps = list(_preactivated(backbone, images))
    elif isinstance(backbone, SlimResNet):
        maps = list(_slim(backbone, images))
    elif isinstance(backbone, nn.Sequential) and hasattr(backbone, "pool5"):
        maps = list(_vgg(backbone, images))
    elif hasattr(backbone, "forward_intermediates"):
        # The last map has the final norm, where there is one and the model (Hiera) does not refuse.
        arguments = {"norm": not type(backbone).__name__.startswith("Hiera"), "stop_early": indices is not None}
        chosen: list[Tensor] = backbone.forward_intermediates(
            images, indices=indices, output_fmt="NCHW", intermediates_only=True, **arguments
        )
        return chosen
    else:
        raise ValueError(f"timm has no intermediate maps of {type(backbone).__name__}")
    return maps if indices is None else [maps[index] for index in indices]


def _preactivated(backbone: Any, images: Tensor) -> Iterator[Tensor]:
    """timm's ResNet-v2, whose stages are blocks: each stage's sum as the next norm and ReLU give it on."""
    first_stage, *later = backbone.stages
    x = first_stage(backbone.stem(images))
    for stage in later:
        first, *blocks = stage.blocks
        active = first.norm1(x)
        yield active
        # What the block computes from its activated input: its shortcut is a convolution, and needs no other.
        x = first.conv2(first.norm2(first.conv1(active)))
        if isinstance(first, PreActBottleneck):
            x = first.conv3(first.norm3(x))
        x = first.drop_path(x) + first.downsample(active)
        for block in blocks:
            x = block(x)
    yield backbone.norm(x)


def _slim(backbone: Any, images: Tensor) -> Iterator[Tensor]:
    """MS and MT-SSL: as above; the sum of block3 is the end of the network, and has no norm."""
    x = backbone.block1(pool_same(backbone.conv1(images)))
    for name in backbone.blocks[1:]:
        first, *units = backbone.get_submodule(name)
        active = F.relu(first.preact(x))
        yield active
        inner = F.relu(first.conv1_norm(first.conv1(active)))
        inner = F.relu(first.conv2_norm(first.conv2(inner)))
        x = first.shortcut(active) + first.conv3(inner)
        for unit in units:
            x = unit(x)
    yield x


def _vgg(backbone: Any, images: Tensor) -> Iterator[Tensor]:
    """TI: conv4_3, conv5_3 and pool5. fc6 and fc7, trained on whole patches, have no place in a map."""
    x = images
    for name, layer in backbone.named_children():
        if name in ("pool4", "pool5"):
            yield x
        x = layer(x)
        if name == "pool5":
            yield x
            return
