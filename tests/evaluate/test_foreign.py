"""The networks of MS, MT-SSL and TI, and the names their weights have in files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from safetensors.torch import save_file
from small_models import features, line_of, random
from torch import Tensor, nn

from vivi.evaluate import foreign
from vivi.evaluate.encoders import load_model, load_weights
from vivi.runtime.errors import UserError

Arrays = dict[str, Any]  # of numpy
State = dict[str, Tensor]


# --- MS and MT-SSL ---


def slim_shapes(units: tuple[int, ...] = (3, 4, 23), width: int = 64) -> dict[str, tuple[int, ...]]:
    """The variables of slim's resnet_v2 up to block3, written down from its code."""

    def norm(scope: str, channels: int) -> dict[str, tuple[int, ...]]:
        return {f"{scope}/{leaf}": (channels,) for leaf in ("gamma", "beta", "moving_mean", "moving_variance")}

    shapes: dict[str, tuple[int, ...]] = {"conv1/weights": (7, 7, 3, width), "conv1/biases": (width,)}
    inputs = width
    for block, count in enumerate(units, start=1):
        inner, depth = width << (block - 1), width << (block + 1)
        for unit in range(1, count + 1):
            scope = f"block{block}/unit_{unit}/bottleneck_v2"
            shapes |= norm(f"{scope}/preact", inputs)
            if inputs != depth:
                shapes |= {f"{scope}/shortcut/weights": (1, 1, inputs, depth), f"{scope}/shortcut/biases": (depth,)}
            shapes |= {f"{scope}/conv1/weights": (1, 1, inputs, inner)} | norm(f"{scope}/conv1/BatchNorm", inner)
            shapes |= {f"{scope}/conv2/weights": (3, 3, inner, inner)} | norm(f"{scope}/conv2/BatchNorm", inner)
            shapes |= {f"{scope}/conv3/weights": (1, 1, inner, depth), f"{scope}/conv3/biases": (depth,)}
            inputs = depth
    return {f"resnet_v2_101/{name}": shape for name, shape in shapes.items()}


def slim_variables(units: tuple[int, ...] = (3, 4, 23), width: int = 64) -> Arrays:
    generator = np.random.default_rng(0)

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        values = generator.standard_normal(shape, dtype=np.float32)
        if name.endswith(("gamma", "moving_variance")):
            return 1 + 0.1 * np.abs(values)
        return values * np.float32(math.sqrt(1 / math.prod(shape[:-1]))) if len(shape) == 4 else 0.1 * values

    return {name: value(name, shape) for name, shape in slim_shapes(units, width).items()}


def slim_reference(variables: Arrays, images: Tensor, units: tuple[int, ...]) -> Tensor:
    """slim's resnet_v2 up to block3, step by step; strided convolutions as its documentation explains them: at every
    position, and then every second one."""

    def variable(name: str) -> Tensor:
        return torch.from_numpy(variables[f"resnet_v2_101/{name}"]).double()

    def norm(x: Tensor, scope: str) -> Tensor:
        gamma, beta, mean, variance = (
            variable(f"{scope}/{leaf}").view(-1, 1, 1) for leaf in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return (x - mean) / torch.sqrt(variance + 1e-5) * gamma + beta

    def convolution(x: Tensor, scope: str, stride: int = 1) -> Tensor:
        kernel = variable(f"{scope}/weights").permute(3, 2, 0, 1)
        return F.conv2d(x, kernel, padding=kernel.shape[-1] // 2)[..., ::stride, ::stride]

    def biases(scope: str) -> Tensor:
        return variable(f"{scope}/biases").view(-1, 1, 1)

    x = pooled_slowly(convolution(images.double(), "conv1", 2) + biases("conv1"))
    for block, count in enumerate(units, start=1):
        for unit in range(1, count + 1):
            scope, stride = f"block{block}/unit_{unit}/bottleneck_v2", 2 if unit == count else 1
            active = norm(x, f"{scope}/preact").relu()
            if unit == 1:
                shortcut = convolution(active, f"{scope}/shortcut", stride) + biases(f"{scope}/shortcut")
            else:
                shortcut = x[..., ::stride, ::stride]
            inner = norm(convolution(active, f"{scope}/conv1"), f"{scope}/conv1/BatchNorm").relu()
            inner = norm(convolution(inner, f"{scope}/conv2", stride), f"{scope}/conv2/BatchNorm").relu()
            x = shortcut + convolution(inner, f"{scope}/conv3") + biases(f"{scope}/conv3")
    return x.mean((2, 3)).float()


def pooled_slowly(x: Tensor) -> Tensor:
    """3 × 3 max pooling with stride 2, TensorFlow's SAME: ceil(n / 2) windows, padded at the end first."""
    side = x.shape[-1]
    count = math.ceil(side / 2)
    begin = max((count - 1) * 2 + 3 - side, 0) // 2
    spans = [slice(max(2 * i - begin, 0), 2 * i - begin + 3) for i in range(count)]
    return torch.stack([torch.stack([x[..., a, b].amax((2, 3)) for b in spans], -1) for a in spans], -2)


def test_slims_names_are_those_of_its_checkpoints() -> None:
    shapes = slim_shapes()
    assert len(shapes) == 488
    assert shapes["resnet_v2_101/block1/unit_1/bottleneck_v2/preact/gamma"] == (64,)
    assert shapes["resnet_v2_101/block3/unit_1/bottleneck_v2/shortcut/biases"] == (1024,)
    assert shapes["resnet_v2_101/block3/unit_23/bottleneck_v2/conv2/BatchNorm/moving_variance"] == (256,)
    assert shapes["resnet_v2_101/block3/unit_23/bottleneck_v2/conv3/weights"] == (1, 1, 256, 1024)
    own = {name for name in foreign.SlimResNet().state_dict() if not name.endswith("num_batches_tracked")}
    given = foreign.slim_weights({name: torch.zeros(shape, device="meta") for name, shape in shapes.items()})
    assert {name.removeprefix("resnet_v2_101.") for name in given} == own


def test_a_checkpoint_of_ms_computes_what_slim_computes(tmp_path: Path) -> None:
    variables = slim_variables()
    extra = {  # as checkpoints have them; none of these belongs to the network up to block3
        "global_step": np.array(7),
        "resnet_v2_101/conv1/weights/Momentum": variables["resnet_v2_101/conv1/weights"],
        "resnet_v2_101/block3/unit_1/bottleneck_v2/preact/gamma/ExponentialMovingAverage": np.zeros(512),
        "resnet_v2_101/block4/unit_1/bottleneck_v2/preact/gamma": np.ones(1024),
        "resnet_v2_101/postnorm/gamma": np.ones(2048),
        "motion/conv1/weights": np.ones((1, 1, 2, 2)),
    }
    np.savez(tmp_path / "ms.npz", **variables, **extra)
    model = load_model(f"ms:{tmp_path / 'ms.npz'}", size=64)
    assert (model.name, model.features, model.size, model.learning_rates) == ("MS", 1024, 64, (0.1, 0.01))
    images = random(2, 3, 64, 64)
    torch.testing.assert_close(
        features(model, images), slim_reference(variables, images, (3, 4, 23)), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("side", [31, 32, 33, 46])
def test_slims_padding_is_right_at_every_size(side: int) -> None:
    units, images = (1, 2, 2), random(2, 3, side, side)
    variables = slim_variables(units, width=4)
    network = foreign.SlimResNet(units, width=4)
    tensors = {f"{name}:0": torch.from_numpy(array) for name, array in variables.items()}
    load_weights(network, foreign.slim_weights(tensors), "there", "a small one")
    torch.testing.assert_close(
        features(network, images), slim_reference(variables, images, units), rtol=1e-4, atol=1e-5
    )


def test_block3_is_seven_by_seven_by_1024() -> None:
    with torch.device("meta"):
        network = foreign.SlimResNet().eval()
        x = foreign.pool_same(network.conv1(torch.zeros(1, 3, 224, 224)))
        for block in network.blocks:
            x = network.get_submodule(block)(x)
    assert x.shape == (1, 1024, 7, 7)


def meta_weights(create: Callable[[], nn.Module]) -> State:
    with torch.device("meta"):
        return dict(create().state_dict())


def test_ms_under_names_of_timm_and_of_pre_activation_units_in_torch() -> None:
    own = meta_weights(foreign.SlimResNet)
    given = foreign.slim_weights(meta_weights(lambda: timm.create_model("resnetv2_101")))
    assert {name: tensor.shape for name, tensor in given.items() if name in own} == {
        name: tensor.shape for name, tensor in own.items()
    }
    assert not given["block3.unit_1.shortcut.bias"].any(), "timm's network has no biases"
    named = {
        "layer3.22.bn3.weight": "block3.unit_23.conv2_norm.weight",
        "layer1.0.bn1.bias": "block1.unit_1.preact.bias",
    }
    named |= {"m.layer2.0.shortcut.0.bias": "m.block2.unit_1.shortcut.bias", "conv1.weight": "conv1.weight"} | {
        "conv1.bias": "conv1.bias"
    }
    tensors = {name: torch.zeros(1) for name in named}
    assert {*foreign.slim_weights(tensors)} == {*named.values()}


def test_another_resnet_is_not_taken_for_ms(tmp_path: Path) -> None:
    """torchvision's norms come after the convolutions: other shapes."""
    state = meta_weights(torchvision.models.resnet101)
    with pytest.raises(UserError, match="of another shape"):
        load_weights(foreign.SlimResNet(), foreign.slim_weights(state), "a file", "slim's")
    variables = {name: array for name, array in slim_variables((1, 1, 1), 64).items() if "block3" not in name}
    np.savez(tmp_path / "part.npz", **variables)
    assert "missing (the first: block1.unit_2.preact.weight)" in line_of(f"mt-ssl:{tmp_path / 'part.npz'}")


# --- TI ---

VGG_LAYERS = [
    f"conv{group}_{number}" for group, count in enumerate((2, 2, 3, 3, 3), 1) for number in range(1, count + 1)
]


def caffe_parameters(width: int = 4, fc: tuple[int, ...] = (24, 10)) -> dict[str, tuple[Tensor, Tensor]]:
    """Weights and biases by Caffe's layers, for patches of 96 px: kernels (out, in, 3, 3), fc6 (out, in · 3 · 3)."""
    parameters, inputs = {}, 3
    for seed, layer in enumerate(VGG_LAYERS):
        outputs = width * (1, 2, 4, 8, 8)[int(layer[4]) - 1]
        kernel = random(outputs, inputs, 3, 3, seed=seed) * math.sqrt(2 / (9 * inputs))
        parameters[layer] = kernel / (255 if inputs == 3 else 1), random(outputs, seed=seed + 50) * 0.1
        inputs = outputs
    inputs *= 9
    for layer, outputs in zip(("fc6", "fc7"), fc, strict=False):
        parameters[layer] = random(outputs, inputs, seed=outputs) / math.sqrt(inputs), random(outputs, seed=99) * 0.1
        inputs = outputs
    return parameters


def caffe_reference(parameters: dict[str, tuple[Tensor, Tensor]], pixels: Tensor) -> Tensor:
    """What Caffe does with uint8 RGB images: BGR, less the mean; fc6 on every window of 3 × 3 positions."""
    x = pixels.flip(1).double() - torch.tensor([103.939, 116.779, 123.68], dtype=torch.float64).view(3, 1, 1)
    for layer in VGG_LAYERS:
        weight, bias = (tensor.double() for tensor in parameters[layer])
        x = F.conv2d(x, weight, bias, padding=1).relu()
        if layer in ("conv1_2", "conv2_2", "conv3_3", "conv4_3", "conv5_3"):
            x = F.max_pool2d(x, 2, ceil_mode=True)
    if "fc6" not in parameters:
        return x.mean((2, 3)).float()
    results = []
    for top in range(x.shape[2] - 2):
        for left in range(x.shape[3] - 2):
            y = x[:, :, top : top + 3, left : left + 3].flatten(1)
            for layer in ("fc6", "fc7"):
                if layer in parameters:
                    y = F.linear(y, *(tensor.double() for tensor in parameters[layer])).relu()
            results.append(y)
    return torch.stack(results).mean(0).float()


def in_tensorflows_order(layer: str, weight: Tensor) -> Tensor:
    """As the Caffe-TensorFlow tool does: kernels (h, w, in, out); fc6 from (h, w, in) flattened."""
    if layer == "fc6":
        return weight.reshape(len(weight), -1, 3, 3).permute(2, 3, 1, 0).flatten(0, 2)
    return weight.permute(2, 3, 1, 0) if weight.ndim == 4 else weight.T


def torchvision_layer(layer: str) -> str:
    index = VGG_LAYERS.index(layer) if layer in VGG_LAYERS else -1
    return (
        f"features.{2 * index + int(layer[4]) - 1}"
        if index >= 0
        else {"fc6": "classifier.0", "fc7": "classifier.3"}[layer]
    )


NAMINGS: dict[str, Callable[[str, Tensor, Tensor], State]] = {
    "caffe": lambda layer, w, b: {f"{layer}.weight": w, f"{layer}.bias": b},
    "numbered": lambda layer, w, b: {f"{layer}.0": w, f"{layer}.1": b},
    "old": lambda layer, w, b: {f"{layer}_w": w if w.ndim == 4 else w[None, None], f"{layer}_b": b},
    "tensorflow": lambda layer, w, b: {f"{layer}/weights": in_tensorflows_order(layer, w), f"{layer}/biases": b},
    "scoped": lambda layer, w, b: {
        f"vgg/{layer}/weights:0": in_tensorflows_order(layer, w),
        f"vgg/{layer}/biases:0": b,
    },
    "torchvision": lambda layer, w, b: {
        f"module.{torchvision_layer(layer)}.weight": w,
        f"module.{torchvision_layer(layer)}.bias": b,
    },
}


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("fc", [(), (24,), (24, 10), (24, 24)], ids=str)
def test_vgg_from_every_naming_computes_what_caffe_computes(naming: str, fc: tuple[int, ...]) -> None:
    parameters = caffe_parameters(fc=fc)
    state = {name: tensor for layer, p in parameters.items() for name, tensor in NAMINGS[naming](layer, *p).items()}
    state |= {"fc8.weight": torch.ones(8, 10), "conv1_1_p.weight": torch.ones(4)}
    weights = foreign.caffe_weights(state, "a file")
    network = foreign.caffe_vgg(weights, width=4)
    load_weights(network, weights, "a file", "VGG-16")
    pixels = torch.randint(0, 256, (2, 3, 130, 130), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (foreign.MEAN, foreign.STD))
    actual = features(network, (pixels / 255 - mean) / std)
    assert actual.shape == (2, fc[-1] if fc else 32) and actual.std() > 0
    torch.testing.assert_close(actual, caffe_reference(parameters, pixels), rtol=1e-3, atol=1e-4)


def test_the_names_of_torchvision_are_torchvisions() -> None:
    state = meta_weights(torchvision.models.vgg16)
    names = {torchvision_layer(layer) for layer in (*VGG_LAYERS, "fc6", "fc7")}
    assert {name.rpartition(".")[0] for name in state} - names == {"classifier.6"}


def test_a_checkpoint_of_ti_is_loaded(tmp_path: Path) -> None:
    parameters = caffe_parameters(width=64, fc=(32, 16))
    state = {name: tensor for layer, p in parameters.items() for name, tensor in NAMINGS["caffe"](layer, *p).items()}
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "ti.safetensors")
    source = f"ti:{tmp_path / 'ti.safetensors'}"
    model = load_model(source, size=96)
    assert (model.name, model.features, model.size) == ("TI", 16, 96)
    assert model.learning_rates == (0.01, 0.005, 0.001)
    pixels = torch.randint(0, 256, (1, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = (pixels / 255 - torch.tensor(model.mean).view(3, 1, 1)) / torch.tensor(model.std).view(3, 1, 1)
    torch.testing.assert_close(features(model, images), caffe_reference(parameters, pixels), rtol=1e-3, atol=1e-4)
    assert "cannot take images of 32 px" in line_of(source, size=32)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"conv1_1/bn/scale": torch.ones(64)}, "batch normalisation"),
        ({"fc6.weight": torch.ones(24, 100)}, "no matrix for a square of positions"),
        ({"fc6.weight": torch.ones(24)}, "no matrix for a square of positions"),
    ],
)
def test_another_vgg_gets_one_line(change: State, line: str) -> None:
    parameters = caffe_parameters()
    state = {name: tensor for layer, p in parameters.items() for name, tensor in NAMINGS["caffe"](layer, *p).items()}
    with pytest.raises(UserError, match=line) as caught:
        foreign.caffe_weights(state | change, "a file")
    assert "a file" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"missing \(the first: conv1_1.weight\)"):
        load_weights(
            foreign.caffe_vgg({}, 4), foreign.caffe_weights({"fc8.weight": torch.ones(1)}, "a file"), "a", "b"
        )
