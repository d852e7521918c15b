"""The networks of three older methods that learn from video, as their checkpoints need them: MS, MT-SSL and TI.

MS and MT-SSL (Doersch and Zisserman 2017) are TF-slim's resnet_v2_101 up to block3, as the README of
google-deepmind/multiself says: VGG-style input (0 to 255, the mean RGB subtracted), the output of block3 itself,
without the `postnorm` that slim has after block4. It is a module of its own because timm's ResNet differs: slim
strides in the last unit of a block (224 px give 7 × 7 × 1024 after block3), has biases in conv1, conv3 and shortcut,
and pads its max pooling as TensorFlow does. The paper found the global average of these positions best. Checkpoints
are exported where TensorFlow is:

    reader = tf.train.load_checkpoint("model.ckpt")
    names = reader.get_variable_to_shape_map()
    numpy.savez("ms.npz", **{name: reader.get_tensor(name) for name in names})

TI (Wang, He and Gupta 2017) is a VGG-16 in Caffe, trained on patches of 96 × 96 px. Where a file has fc6 and fc7,
they become convolutions: the paper says that *the model* is applied fully convolutionally and averaged at the end,
and on a patch the model ends in fc7 with its ReLU (so it does in the VGG of the authors' earlier caffe-video_triplet;
the L2 norm after it belongs to the loss). Their kernel follows from the shape of fc6: 3 × 3 for patches of 96 px.
Without them, pool5 is averaged. Exported from Caffe, or from what the Caffe-TensorFlow tool made, by

    net = caffe.Net("deploy.prototxt", "ti.caffemodel", caffe.TEST)
    blobs = {f"{name}.{i}": blob.data for name in net.params for i, blob in enumerate(net.params[name])}
    numpy.savez("ti.npz", **blobs)

    layers = numpy.load("ti.npy", allow_pickle=True, encoding="latin1").item()
    numpy.savez("ti.npz", **{f"{name}/{kind}": layers[name][kind] for name in layers for kind in layers[name]})

Caffe's images are BGR: the channels of the first kernel are flipped at load, whatever its file calls it, so that RGB
goes in as for every other model. That pixels lie between 0 and 255 less a mean is written as MEAN and STD.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivi.runtime.errors import UserError

# (x - MEAN) / STD of pixels x between 0 and 1 are pixels between 0 and 255 less the mean of ImageNet: RGB.
MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
STD = (1 / 255, 1 / 255, 1 / 255)

RESNET_101 = (3, 4, 23)  # units of block1, block2 and block3


# --- MS and MT-SSL ---


class Unit(nn.Module):
    """slim's bottleneck_v2: a norm and a ReLU before each convolution, none after the last."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.preact = nn.BatchNorm2d(inputs)  # slim's epsilon in these networks is torch's 1e-5
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.conv1_norm = nn.BatchNorm2d(width)
        # slim's conv2d_same pads strided kernels evenly, as torch does.
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.conv2_norm = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1)
        self.shortcut = nn.Conv2d(inputs, 4 * width, 1, stride) if inputs != 4 * width else None
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, 4 width, h / stride, w / stride), rounded up."""
        active = F.relu(self.preact(x))
        shortcut = self.shortcut(active) if self.shortcut is not None else x[..., :: self.stride, :: self.stride]
        inner = F.relu(self.conv1_norm(self.conv1(active)))
        inner = F.relu(self.conv2_norm(self.conv2(inner)))
        total: Tensor = shortcut + self.conv3(inner)
        return total


class SlimResNet(nn.Module):
    """TF-slim's resnet_v2 up to block3, globally averaged."""

    def __init__(self, units: tuple[int, ...] = RESNET_101, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3)
        inputs = width
        for block, count in enumerate(units, start=1):
            inner = width * 2 ** (block - 1)
            layers = OrderedDict[str, nn.Module]()
            for unit in range(1, count + 1):
                layers[f"unit_{unit}"] = Unit(inputs, inner, stride=2 if unit == count else 1)
                inputs = 4 * inner
            self.add_module(f"block{block}", nn.Sequential(layers))
        self.blocks = [f"block{block}" for block in range(1, len(units) + 1)]

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, size, size) -> (n, 16 width)."""
        x = pool_same(self.conv1(images))  # (n, width, size / 4, size / 4)
        for block in self.blocks:
            x = self.get_submodule(block)(x)
        return x.mean((2, 3))


def pool_same(x: Tensor) -> Tensor:
    """3 × 3 max pooling with stride 2 and TensorFlow's SAME padding: of an even side only the end is padded."""
    bottom, right = 1, 1
    top, left = (side % 2 for side in x.shape[2:])
    return F.max_pool2d(F.pad(x, (left, right, top, bottom), value=-math.inf), 3, stride=2)


_SLIM_LEAVES = {"weights": "weight", "biases": "bias", "gamma": "weight", "beta": "bias"}
_SLIM_LEAVES |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
# How timm's resnetv2 and torchvision name the parts of a pre-activation unit.
_NORMS = ("preact", "conv1_norm", "conv2_norm")
_TORCH_PARTS = {f"{kind}{number}": name for kind in ("norm", "bn") for number, name in enumerate(_NORMS, start=1)}
_TORCH_PARTS |= dict.fromkeys(("downsample.conv", "downsample.0", "shortcut.0"), "shortcut")
_TORCH_UNIT = re.compile(rf"(stages\.|layer)(\d+)\.(?:blocks\.)?(\d+)\.({'|'.join(_TORCH_PARTS)}|conv\d)(?=\.)")


def slim_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors by SlimResNet's names; those of other layers keep names that it does not have."""
    if any("/" in name for name in state):
        return _from_slim(state)

    def of_slim(torch_unit: re.Match[str]) -> str:
        layout, block, unit, part = torch_unit.groups()
        number = int(block) + 1 if layout == "stages." else int(block)  # timm counts from 0, torchvision from 1
        return f"block{number}.unit_{int(unit) + 1}.{_TORCH_PARTS.get(part, part)}"

    def has_bias(name: str) -> bool:
        first = name.endswith("conv1.weight") and "unit_" not in name
        return first or name.endswith(("conv3.weight", "shortcut.weight"))

    weights = {_TORCH_UNIT.sub(of_slim, name).replace("stem.conv.", "conv1."): state[name] for name in state}
    biases = {f"{name[:-6]}bias": torch.zeros(len(weights[name])) for name in weights if has_bias(name)}
    # Either all of them or none, as in timm's.
    return weights if biases.keys() & weights.keys() else weights | biases


def _from_slim(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """resnet_v2_101/block1/unit_1/bottleneck_v2/conv1/BatchNorm/gamma and the like; kernels are (h, w, in, out)."""
    weights = {}
    for name, tensor in state.items():
        *scopes, leaf = name.removesuffix(":0").split("/")
        if leaf not in _SLIM_LEAVES:  # the global step, and an optimiser's slots: .../weights/Momentum
            continue
        place = ".".join(scope for scope in scopes if scope != "bottleneck_v2").replace(".BatchNorm", "_norm")
        kernel = leaf == "weights" and tensor.ndim == 4
        weights[f"{place}.{_SLIM_LEAVES[leaf]}"] = tensor.permute(3, 2, 0, 1) if kernel else tensor
    return weights


# --- TI ---


def caffe_vgg(weights: Mapping[str, Tensor], width: int = 64) -> nn.Sequential:
    """VGG-16 by Caffe's names, with those of fc6 and fc7 as convolutions that `weights` has, globally averaged:
    (n, 3, size, size) -> (n, features)."""
    layers = OrderedDict[str, nn.Module]()
    inputs = 3
    for layer in _VGG_CONVOLUTIONS:
        group = int(layer[4])
        outputs = width * min(2 ** (group - 1), 8)
        layers[layer] = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers[layer.replace("conv", "relu")] = nn.ReLU(inplace=True)
        if layer in _VGG_POOLED:
            layers[f"pool{group}"] = nn.MaxPool2d(2, ceil_mode=True)  # Caffe rounds up
        inputs = outputs
    for number in (6, 7):
        kernel = weights.get(f"fc{number}.weight")
        if kernel is None:
            break
        layers[f"fc{number}"] = nn.Conv2d(inputs, len(kernel), kernel.shape[-1])
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        inputs = len(kernel)
    layers["average"] = nn.AdaptiveAvgPool2d(1)
    layers["flat"] = nn.Flatten()
    return nn.Sequential(layers)


_VGG_POOLED = ("conv1_2", "conv2_2", "conv3_3", "conv4_3", "conv5_3")
_VGG_CONVOLUTIONS = [f"conv{last[4]}_{number}" for last in _VGG_POOLED for number in range(1, int(last[-1]) + 1)]
_TORCH_PLACES = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)  # among torchvision's features
_TORCH_VGG = {f"features.{place}": layer for place, layer in zip(_TORCH_PLACES, _VGG_CONVOLUTIONS, strict=True)}
_TORCH_VGG |= {"classifier.0": "fc6", "classifier.3": "fc7", "pre_logits.fc1": "fc6", "pre_logits.fc2": "fc7"}
_VGG_WEIGHT = re.compile(
    r"(?:^|[/.])(conv[1-5]_[1-3]|fc[67]|features\.\d+|classifier\.[03]|pre_logits\.fc[12])"
    r"[/._](?:(weights?|kernel|w|0)|biases|bias|b|1)(?::0)?$",
    re.IGNORECASE,
)
_BATCH_NORM = re.compile(r"(^|[/._])(bn|batch_?norm)|(running|moving)_mean", re.IGNORECASE)


def caffe_weights(state: Mapping[str, Tensor], where: object) -> dict[str, Tensor]:
    """A checkpoint's tensors by caffe_vgg's names and for RGB input; other layers are left out."""
    if any(_BATCH_NORM.search(name) for name in state):
        raise UserError(
            f"{where} has batch normalisation, which the VGG-16 of TI does not: "
            "fold it into the convolutions' weights and biases first"
        )
    weights: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if found := _VGG_WEIGHT.search(name):
            layer = found[1].lower()
            # The first one: a Siamese network may be stored once for each tower.
            weights.setdefault(f"{_TORCH_VGG.get(layer, layer)}.{'weight' if found[2] else 'bias'}", tensor)
    first = weights.get("conv1_1.weight")
    if first is None or first.ndim != 4:
        return weights  # whoever loads them says what is missing
    tensorflow = first.shape[0] == 3  # (3, 3, in, out); Caffe and torch have (out, in, 3, 3)
    for name, before in (("fc6.weight", "conv5_3.bias"), ("fc7.weight", "fc6.bias")):
        if name in weights and (weights[name].ndim != 4 or weights[name].shape[:2] == (1, 1)):
            weights[name] = _as_kernel(weights[name], tensorflow, weights.get(before), f"{where}: {name}")
    if tensorflow:
        weights = {n: tensor.permute(3, 2, 0, 1) if tensor.ndim == 4 else tensor for n, tensor in weights.items()}
    weights["conv1_1.weight"] = weights["conv1_1.weight"].flip(1)  # BGR to RGB
    return weights


def _as_kernel(weight: Tensor, tensorflow: bool, before: Tensor | None, where: str) -> Tensor:
    """A fully connected layer's matrix as a convolution's kernel, its axes in the order of its file. `before` has one
    value for each channel that comes in."""
    matrix = weight.flatten(0, -2) if weight.ndim > 1 else weight[None]  # old Caffe files have (1, 1, out, in)
    inputs = matrix.shape[0 if tensorflow else 1]
    channels = inputs if before is None else len(before)
    side = math.isqrt(inputs // channels)
    if weight.ndim == 1 or channels * side * side != inputs:
        raise UserError(
            f"{where} has the shape {tuple(weight.shape)}, which is no matrix for a square of positions with "
            f"{channels} channels; export the layers of one network"
        )
    return matrix.reshape(side, side, channels, -1) if tensorflow else matrix.reshape(-1, channels, side, side)
