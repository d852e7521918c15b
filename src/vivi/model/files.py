"""The files of a trained model, each with a checksum of its own content.

    encoder.safetensors, encoder.json          weights under timm's names, and how to make the model for them
    classifier.safetensors, classifier.json    weight and bias on the encoder's features, and the classes' names

A disk, a network or a person may alter a file without a trace. The checksum tells: a safetensors file has it in its
metadata, where other readers pass over it, a JSON file in the field `checksum`. A file without one is read as it is:
older runs have none, nor have the files of others. It protects against accidents, not against forgery.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from vivi.model.architecture import Architecture
from vivi.recipes.schema import SIZES, WIDTHS
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import check_regular, json_crc32, read_json, write_atomically

if TYPE_CHECKING:
    from vivi.model.encoder import Encoder

T = TypeVar("T")
_KEY = "vivi_checksum"  # in the metadata of a safetensors file


# --- tensors ---


def checksum(about: str, tensors: Mapping[str, Tensor]) -> str:
    """A CRC-32 of `about` and of the name, type, shape and bytes of tensors that lie in main memory, row by row."""
    value = zlib.crc32(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file, which any reader of such files can read."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, _with_sorted_metadata(save(plain, {"format": "pt", _KEY: checksum("", plain)})))


def _with_sorted_metadata(content: bytes) -> bytes:
    """safetensors writes metadata in any order, and equal runs are to be equal bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(content)[end:]))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, in memory of their own, and its metadata; OSError or ValueError where it is
    none."""
    check_regular(path)
    try:
        with safe_open(path, "pt") as file:
            # Cloned, as what safe_open gives may still be the file itself, mapped.
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(first_line(error)) from None


def _read_weights(path: Path, missing: str) -> dict[str, Tensor]:
    """The tensors that write_tensors wrote; `missing` is said where there is no such file."""
    try:
        tensors, metadata = read_tensors(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(missing) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)})") from None
    check_tensors(tensors, metadata, path)
    return tensors


def check_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None, path: Path) -> None:
    """Raises where tensors do not match the checksum in their file's metadata, if it has one."""
    expected = (metadata or {}).get(_KEY)
    if expected is not None and expected != checksum("", tensors):
        raise UserError(f"{path} was altered or damaged: it does not match its checksum; copy it again from its run")


def check_values(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], where: object) -> None:
    """Raises where weights that replace floating-point weights of a network are not finite floating-point numbers."""
    for name, tensor in tensors.items():
        if name not in own or not own[name].is_floating_point():
            continue
        if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.is_meta:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"{where} holds no plain floating numbers (tensor {name[:200]}, {kind}); save float32")
        if not torch.isfinite(tensor.to(own[name].dtype)).all():
            raise UserError(f"{where} holds values that are not finite (tensor {name[:200]}); take another copy")


# --- JSON ---


def _write_json(path: Path, content: Mapping[str, Any], indent: int) -> None:
    with_checksum = {**content, "checksum": f"{json_crc32(content):08x}"}
    write_atomically(path, json.dumps(with_checksum, indent=indent).encode() + b"\n")


def _read_json(path: Path, kind: type[T]) -> T:
    """The fields of a JSON file, each checked against its type; raises where they do not match their checksum, if the
    file has one."""
    remedy = "copy it again from its run"
    content, fields = read_json(path, kind, remedy), read_json(path, dict[str, Any], remedy)
    expected = fields.pop("checksum", None)
    if expected is not None and expected != f"{json_crc32(fields):08x}":
        raise UserError(
            f"{path} was altered or damaged: it does not match its checksum; {remedy}, or remove its field "
            "'checksum' if the change is meant"
        )
    return content


# --- the encoder ---

_Size = Annotated[int, Meta(ge=1, le=SIZES[1])]
_Mean = Annotated[float, Meta(ge=-10, le=10)]
_Std = Annotated[float, Meta(ge=1e-3, le=100)]


class _TimmArguments(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The only arguments of timm that a file may give: others would name files to load, or sizes to allocate."""

    num_classes: Literal[0] = 0
    width_factor: Annotated[float, Meta(ge=WIDTHS[0], le=WIDTHS[1])] | None = None
    img_size: _Size | None = None


_NAMES = {"name": "timm_name", "arguments": "timm_arguments", "size": "input_size"}


class _EncoderFile(msgspec.Struct, rename=_NAMES, omit_defaults=True):
    """What encoder.json says of an Architecture."""

    name: str
    arguments: _TimmArguments
    size: _Size
    mean: tuple[_Mean, _Mean, _Mean]
    std: tuple[_Std, _Std, _Std]
    group_norm: bool = False  # this and the next plain timm does not know of
    patch_strides: bool = False


def write_encoder(run: Path, encoder: Encoder, recipe: str, step: int) -> None:
    """encoder.safetensors, which plain timm loads, and encoder.json, which says how."""
    architecture = vars(encoder.architecture)
    arguments = {"num_classes": 0, **architecture["arguments"]}
    about = msgspec.to_builtins(_EncoderFile(**{**architecture, "arguments": arguments}))
    write_tensors(run / "encoder.safetensors", encoder.backbone.state_dict())
    about |= {"features": encoder.features, "recipe": recipe, "step": step}
    _write_json(run / "encoder.json", about, indent=2)


def read_encoder(path: Path) -> tuple[Architecture, dict[str, Tensor]]:
    """What write_encoder wrote: `path` is the run, or its encoder.safetensors."""
    weights = path / "encoder.safetensors" if os.path.isdir(path) else path
    state = _read_weights(weights, f"there is no encoder at {path}; a run has one from its first checkpoint on")
    fields = _read_json(weights.parent / "encoder.json", _EncoderFile)
    arguments = msgspec.to_builtins(fields.arguments)
    return Architecture(**{**msgspec.structs.asdict(fields), "arguments": arguments}), state


def backbone_with_weights(architecture: Architecture, state: Mapping[str, Tensor], where: object) -> nn.Module:
    """The network with these weights; raises where they do not fit."""
    try:
        _check_shapes(architecture, state)
        backbone = architecture.create()
        check_values(state, backbone.state_dict(), where)
        backbone.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{where} does not fit {architecture}: {first_line(error)}") from None
    return backbone


def _check_shapes(architecture: Architecture, state: Mapping[str, Tensor]) -> None:
    """Raises RuntimeError where the weights do not fit, before the network takes memory: a file that somebody sent
    may name the largest of all."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            outline = architecture.create()
        except UserError:  # it needs real numbers while it is made, or cannot be made; the caller's create tells
            return
    # Counters that change no output; some files lack them, and torch would warn of the meta device.
    counters = {name: own for name, own in outline.state_dict().items() if name.endswith("num_batches_tracked")}
    outline.load_state_dict({**counters, **{name: tensor.to("meta") for name, tensor in state.items()}})


# --- the classifier ---


@dataclass(frozen=True)
class Classifier:
    """The linear classifier on the encoder's representations: logits are `weight` · representation + `bias`."""

    weight: Tensor  # (classes, features)
    bias: Tensor  # (classes,)
    classes: tuple[str, ...]  # their names, in the order of the logits

    def layer(self) -> nn.Linear:
        """As a module: representations (n, features) -> logits (n, classes)."""
        classes, features = self.weight.shape
        # Without initial weights: these would take random numbers from training.
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, features, classes, device=self.weight.device)
        with torch.no_grad():
            layer.weight.copy_(self.weight)
            layer.bias.copy_(self.bias)
        return layer


class _ClassifierFile(msgspec.Struct):
    """What classifier.json says."""

    classes: Annotated[tuple[str, ...], Meta(min_length=1)]
    features: Annotated[int, Meta(ge=1)]


def write_classifier(run: Path, classifier: Classifier, step: int) -> None:
    """classifier.safetensors, with `weight` and `bias`, and classifier.json, which names the classes."""
    tensors = {"weight": classifier.weight, "bias": classifier.bias}
    about = {"classes": classifier.classes, "features": classifier.weight.shape[1], "step": step}
    write_tensors(run / "classifier.safetensors", {name: tensor.float() for name, tensor in tensors.items()})
    _write_json(run / "classifier.json", about, indent=1)


def read_classifier(run: Path) -> Classifier:
    """What write_classifier wrote."""
    weights, about = run / "classifier.safetensors", run / "classifier.json"
    missing = (
        f"{run} has no classifier: it was trained without labels, or has no checkpoint yet; "
        "vivi evaluate knn, linear or vtab measure an encoder alone"
    )
    state, fields = _read_weights(weights, missing), _read_json(about, _ClassifierFile)
    classes, features = fields.classes, fields.features
    if len(set(classes)) < len(classes):
        raise UserError(f"{about} is missing or damaged (a class is there twice)")
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if shapes != {"weight": (len(classes), features), "bias": (len(classes),)}:
        raise UserError(f"{weights} does not fit {about.name}: take both files from the same run")
    check_values(state, {name: torch.empty(0) for name in state}, weights)
    return Classifier(state["weight"].float(), state["bias"].float(), classes)
