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
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Format
from timm.models.resnetv2 import PreActBasic, PreActBottleneck, ResNetV2
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from vivi.evaluate.foreign import SlimResNet, Unit, pool_same
from vivi.runtime.errors import UserError, first_line

STRIDES = (8, 16, 32)
CHANNELS = 256  # of every map of the pyramid

# An encoder, and images (n, 3, h, w) -> maps (n, c, h / stride, w / stride) from fine to coarse; those of some
# indices, or None: all it has.
Walk = Callable[[Any, Tensor, list[int] | None], list[Tensor]]


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
    """An encoder as the source of maps; those of its parameters that no map depends on are not trained.

    The sides of images must be multiples of `multiple`; `channels` are those of the maps by stride.
    """

    def __init__(self, backbone: nn.Module, name: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.walk = _walk(backbone, name)
        _take_any_size(backbone)
        backbone.eval()
        unit = math.lcm(32, _patch(backbone))
        probe = torch.zeros(1, 3, unit * math.ceil(64 / unit), unit * math.ceil(64 / unit) + unit)
        try:
            with torch.no_grad():
                shapes = [tuple(one.shape) for one in self.walk(backbone, probe, None)]
            strides = [_stride(shape, probe) for shape in shapes]
            self.multiple, chosen = _choose(strides)
            self.indices = list(chosen.values())
            _freeze_unused(backbone, self.walk(backbone, probe, self.indices))
        except Exception as error:  # whatever a network says about images of another size than its own
            raise _no_maps(name, first_line(error)) from None
        self.native = list(chosen)  # strides of the encoder's own maps
        self.channels = {stride: shapes[index][1] for stride, index in chosen.items()}
        self.finer = nn.ModuleDict()
        for stride in (16, 8):
            if stride not in self.channels and max(self.native) > stride:
                coarse = self.channels[2 * stride]
                self.channels[stride] = max(coarse // 2, 1)
                self.finer[str(stride)] = nn.ConvTranspose2d(coarse, self.channels[stride], 2, stride=2)
        for stride in (16, 32):
            self.channels.setdefault(stride, self.channels.get(stride // 2, 0))

    def forward(self, images: Tensor) -> dict[int, Tensor]:
        """(n, 3, h, w) -> {8: (n, c, h / 8, w / 8), 16: ..., 32: ...}"""
        maps = dict(zip(self.native, self.walk(self.backbone, images, self.indices), strict=True))
        for stride in (16, 8):
            if str(stride) in self.finer:
                maps[stride] = self.finer[str(stride)](maps[2 * stride])
        for stride in (16, 32):
            if stride not in maps:
                maps[stride] = F.max_pool2d(maps[stride // 2], 2)
        return {stride: maps[stride] for stride in STRIDES}


# --- what the probe tells ---


def _stride(shape: tuple[int, ...], probe: Tensor) -> float:
    height, width = probe.shape[2:]
    if len(shape) != 4 or height * shape[3] != width * shape[2]:
        raise ValueError(f"a {height} × {width} px image gives {shape}, which is no map of it")
    return height / shape[2]


def _choose(strides: list[float]) -> tuple[int, dict[int, int]]:
    """What sides must be multiples of, and the index of the deepest map of each stride."""
    chosen = {stride: len(strides) - 1 - strides[::-1].index(stride) for stride in STRIDES if stride in strides}
    if chosen:
        return 32, chosen
    last = strides[-1]
    nominal = min(STRIDES, key=lambda stride: abs(math.log(stride / last)))
    if last != int(last) or abs(math.log2(nominal / last)) > 0.5:
        raise ValueError(f"its maps have strides {', '.join(f'{stride:g}' for stride in strides)}")
    return int(last) * 32 // nominal, {nominal: len(strides) - 1}


def _freeze_unused(backbone: nn.Module, maps: list[Tensor]) -> None:
    """Layers behind the last map, such as heads, get no gradient: optimisers and DDP should not wait for one."""
    parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
    slopes = torch.autograd.grad([one.sum() for one in maps], parameters, allow_unused=True)
    for parameter, slope in zip(parameters, slopes, strict=True):
        parameter.requires_grad_(slope is not None)


def _no_maps(name: str, reason: str) -> UserError:
    return UserError(
        f"no maps of stride 8, 16 and 32 can be had from {name} ({reason}); choose a run of vivi or a model of timm "
        "such as resnetv2_50, resnet50, convnext_tiny or vit_small_patch16_224"
    )


# --- sizes ---


def _patch(backbone: Any) -> int:
    """The side of a ViT's patches; 1 for others."""
    size = getattr(getattr(backbone, "patch_embed", None), "patch_size", 1)
    return math.lcm(*size) if isinstance(size, tuple | list) else int(size)


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


# --- the kinds of encoders ---


def _walk(backbone: nn.Module, name: str) -> Walk:
    if isinstance(backbone, ResNetV2) and any(
        isinstance(m, PreActBasic | PreActBottleneck) for m in backbone.modules()
    ):
        return _preactivated
    if isinstance(backbone, SlimResNet):
        return _slim
    if isinstance(backbone, nn.Sequential) and hasattr(backbone, "pool5"):
        return _vgg
    if not hasattr(backbone, "forward_intermediates"):
        raise _no_maps(name, f"timm has no intermediate maps of {type(backbone).__name__}")
    return _intermediates


def _some(maps: list[Tensor], indices: list[int] | None) -> list[Tensor]:
    return maps if indices is None else [maps[index] for index in indices]


def _preactivated(backbone: Any, images: Tensor, indices: list[int] | None) -> list[Tensor]:
    """timm's ResNet-v2, whose stages are blocks: each stage's sum as the next norm and ReLU give it on."""
    first_stage, *later = backbone.stages
    x = first_stage(backbone.stem(images))
    maps = []
    for stage in later:
        first, *blocks = stage.blocks
        active = first.norm1(x)
        maps.append(active)
        x = _rest_of_block(first, active)
        for block in blocks:
            x = block(x)
    return _some([*maps, backbone.norm(x)], indices)


def _rest_of_block(block: Any, active: Tensor) -> Tensor:
    """What timm's block computes from its activated input: the first of a stage needs no other, as its shortcut is
    a convolution."""
    x = block.conv2(block.norm2(block.conv1(active)))
    if isinstance(block, PreActBottleneck):
        x = block.conv3(block.norm3(x))
    total: Tensor = block.drop_path(x) + block.downsample(active)
    return total


def _slim(backbone: Any, images: Tensor, indices: list[int] | None) -> list[Tensor]:
    """MS and MT-SSL: as above; the sum of block3 is the end of the network, and has no norm."""
    x = backbone.block1(pool_same(backbone.conv1(images)))
    maps = []
    for name in backbone.blocks[1:]:
        first, *units = backbone.get_submodule(name)
        active = F.relu(first.preact(x))
        maps.append(active)
        x = _rest_of_unit(first, active)
        for unit in units:
            x = unit(x)
    return _some([*maps, x], indices)


def _rest_of_unit(unit: Unit, active: Tensor) -> Tensor:
    assert unit.shortcut is not None, "the first unit of a block has more channels than came in"
    inner = F.relu(unit.conv1_norm(unit.conv1(active)))
    inner = F.relu(unit.conv2_norm(unit.conv2(inner)))
    total: Tensor = unit.shortcut(active) + unit.conv3(inner)
    return total


def _vgg(backbone: Any, images: Tensor, indices: list[int] | None) -> list[Tensor]:
    """TI: conv4_3, conv5_3 and pool5. fc6 and fc7, trained on whole patches, have no place in a map."""
    x, maps = images, []
    for name, layer in backbone.named_children():
        if name in ("pool4", "pool5"):
            maps.append(x)
        x = layer(x)
        if name == "pool5":
            break
    return _some([*maps, x], indices)


def _intermediates(backbone: Any, images: Tensor, indices: list[int] | None) -> list[Tensor]:
    """timm's other models; the last map with the final norm, where there is one."""
    normed = not type(backbone).__name__.startswith("Hiera")  # which refuses
    maps: list[Tensor] = backbone.forward_intermediates(
        images,
        indices=indices,
        norm=normed,
        stop_early=indices is not None,
        output_fmt="NCHW",
        intermediates_only=True,
    )
    return maps
