"""The formats of vivi export: how each is written, and how whoever gets the folder loads it.

timm, hf       model.safetensors, config.json    timm.create_model("local-dir:FOLDER"), or "hf-hub:YOU/NAME"
torchscript    model.pt                          torch.jit.load, in Python and C++
onnx           model.onnx                        onnxruntime and others; any number of images at once
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import timm
import torch
from timm.layers import StdConv2d
from torch import Tensor, nn

from vivi.answers.settings import Format
from vivi.evaluate.encoders import Model
from vivi.model.files import write_tensors
from vivi.runtime.errors import require
from vivi.runtime.storage import GB, storage, write_atomically

if TYPE_CHECKING:
    import onnx

ONNX_OPSET = 18  # what torch's exporter writes; onnxruntime reads it since 1.14

Features = Callable[[Tensor], Tensor]
"""Images (n, 3, size, size) -> features (n, d)."""


class FromPixels(nn.Module):
    """A network with the normalisation of its images before it: takes 8-bit RGB (n, 3, size, size)."""

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", 255 * torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(std).view(3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.network((pixels.float() - self.mean) / self.std)
        return features


def write_model(model: Model, to: Format, normalise_inside: bool, images: Tensor, folder: Path) -> None:
    """Writes the files of a format; `images` are some that the model takes. Where they are normalised inside, they
    are 8-bit RGB. The model's network is changed."""
    if to in ("timm", "hf"):
        write_tensors(folder / "model.safetensors", model.backbone.state_dict())
        write_atomically(folder / "config.json", json.dumps(timm_config(model), indent=2).encode() + b"\n")
        return
    use_constant_kernels(model.backbone)
    network = FromPixels(model.backbone, model.mean, model.std).eval() if normalise_inside else model.backbone
    write = _write_torchscript if to == "torchscript" else _write_onnx
    with storage(folder), warnings.catch_warnings(action="ignore"), torch.no_grad():
        write(network, images, folder)


def load_exported(folder: Path, to: Format) -> Features:
    """What was written, as whoever gets the folder loads it."""
    if to in ("timm", "hf"):
        network: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
        return network.eval()
    if to == "torchscript":
        with warnings.catch_warnings(action="ignore"):  # torch calls TorchScript deprecated
            return torch.jit.load(folder / "model.pt")  # type: ignore[no-any-return]
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


# --- timm ---


def check_that_timm_has_it(model: Model) -> None:
    """Raises where timm's own model of that name would compute something else."""
    architecture, instead = model.architecture, "give --to torchscript or onnx"
    require(timm.is_model(architecture.name), f"{model.source} is no model of timm: {instead}")
    cannot = f"a config.json cannot tell timm's {architecture.name}"
    require(not architecture.group_norm, f"{cannot} of the group norm that {model.source} has: {instead}")
    require(not architecture.patch_strides, f"{cannot} of the strides for patches of {model.source}: {instead}")


def timm_config(model: Model) -> dict[str, object]:
    """config.json as timm writes it: the network, and what its images look like. vivi gives it whole images, resized
    to a square."""
    architecture, first_and_last = model.architecture, vars(model.backbone)["pretrained_cfg"]
    arguments = {name: value for name, value in architecture.arguments.items() if name != "num_classes"}
    return {
        "architecture": architecture.name.partition(".")[0],
        "num_classes": 0,
        "num_features": model.features,
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [3, model.size, model.size],
            "fixed_input_size": "img_size" in arguments,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "mean": model.mean,
            "std": model.std,
            "num_classes": 0,
            "first_conv": first_and_last.get("first_conv"),
            "classifier": first_and_last.get("classifier"),
        },
    }


# --- TorchScript and ONNX ---


def use_constant_kernels(network: nn.Module) -> None:
    """Standardises weights now instead of in every forward pass, in place: many runtimes take only kernels that are
    constant."""
    convs: list[tuple[str, Any]] = [(name, part) for name, part in network.named_modules() if type(part) is StdConv2d]
    for name, conv in convs:
        sizes = (conv.in_channels, conv.out_channels, conv.kernel_size)
        plain = nn.Conv2d(*sizes, conv.stride, conv.padding, conv.dilation, conv.groups, conv.bias is not None)
        kernels = conv.weight.detach().flatten(1)
        variance, mean = torch.var_mean(kernels, dim=1, correction=0, keepdim=True)
        kernels = (kernels - mean) * (variance + conv.eps).rsqrt()
        plain.load_state_dict({**conv.state_dict(), "weight": kernels.view_as(conv.weight)})
        network.set_submodule(name, plain)


def _write_torchscript(network: nn.Module, images: Tensor, folder: Path) -> None:
    traced: Any = torch.jit.trace(network, images, check_trace=False)
    traced.save(folder / "model.pt")


def _write_onnx(network: nn.Module, images: Tensor, folder: Path) -> None:
    import onnx

    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    require(
        size < 2 * GB, f"an ONNX file holds 2 GB at most, this network has {size / GB:.1f}: give --to torchscript"
    )
    torch.onnx.export(
        network,
        (images,),
        folder / "model.onnx",
        input_names=["images"],
        output_names=["features"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=ONNX_OPSET,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    graph = onnx.load(folder / "model.onnx")
    keep_zeros_before_max_pool(graph)
    onnx.checker.check_model(graph)
    onnx.save(graph, folder / "model.onnx")


def keep_zeros_before_max_pool(model: onnx.ModelProto) -> None:
    """Names the axes of each Pad before a MaxPool, in place.

    onnxruntime (1.31) moves such a Pad into the MaxPool, which pads by −∞ and not by the zeros that BiT's networks
    have there: their features are then wrong by 5 %. It leaves a Pad that names its axes where it is.
    """
    import onnx

    pooled = {node.input[0] for node in model.graph.node if node.op_type == "MaxPool"}
    for node in model.graph.node:
        if node.op_type == "Pad" and node.output[0] in pooled and len(node.input) < 4:
            node.input.extend([""] * (3 - len(node.input)))
            node.input.append(f"{node.output[0]}_axes")
            axes = np.arange(len(model.graph.input[0].type.tensor_type.shape.dim))
            model.graph.initializer.append(onnx.numpy_helper.from_array(axes, node.input[3]))
