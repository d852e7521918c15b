"""Loads every model that is evaluated: runs of vivi, timm's, files of weights, untrained ones.

Files of weights differ in what they hold. What a checkpoint holds besides the network (classifiers, projection heads,
queues, a second encoder, a wrapper's prefix) is left aside; a weight of the network that is missing, left over or of
another shape is an error, never a guess.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import timm
import torch
from torch import Tensor, nn

from vivi import recipes
from vivi.evaluate import foreign
from vivi.model.architecture import Architecture, architecture_of, glorot, timm_config
from vivi.model.files import backbone_with_weights, check_tensors, check_values, read_encoder, read_tensors
from vivi.recipes.check import SIZES
from vivi.recipes.files import find_recipe
from vivi.runtime.console import explain
from vivi.runtime.errors import UserError, check_ranges, first_line
from vivi.runtime.storage import check_regular

VTAB_SIZE = 224
LEARNING_RATES = (0.1, 0.01)
TI_LEARNING_RATES = (0.01, 0.005, 0.001)  # the paper's: TI diverges at higher ones

# NAME is one of timm's own: hf-hub:, local-dir: and the like are refused by architecture_of.
SOURCES = "a run's folder, timm:NAME, untrained:NAME, ms:FILE, mt-ssl:FILE or ti:FILE"


@dataclass(frozen=True)
class Model:
    """A network to be evaluated, and what its images must look like."""

    name: str  # in tables
    source: str  # as it was given
    backbone: nn.Module  # normalised images (n, 3, size, size) -> (n, features); on the CPU, in eval mode
    features: int
    size: int  # side of its square input
    mean: tuple[float, ...]  # of the channels where pixels lie between 0 and 1
    std: tuple[float, ...]
    learning_rates: tuple[float, ...]  # what the sweep of VTAB tries
    checksum: str  # of its weights
    architecture: Architecture


# A name, the network, and what its input looks like.
_Loaded = tuple[str, nn.Module, Architecture]


def load_model(source: str, weights: Path | None = None, size: int = 0, name: str = "") -> Model:
    """The model that `source` names, in one of the ways in SOURCES.

    `weights` is a file for a timm model, instead of timm's own. A `size` of 0 is the model's own.
    """
    if size < 0:
        raise UserError(f"--size is {size}; it must be the side of the images in pixels, or 0 for the model's own")
    kind, rest = source.split(":", 1) if ":" in source else ("", source)
    if not rest.strip():
        raise UserError(f"--encoder is '{source}', which names no model: give {SOURCES}")
    if weights is not None and kind != "timm":
        raise UserError(f"--weights {weights} goes with timm:NAME only; {source} says itself where its weights are")
    if kind == "timm":
        loaded = _timm(rest, weights, size)
    elif kind == "untrained":
        loaded = _untrained(rest, size)
    elif kind in ("ms", "mt-ssl", "ti"):
        loaded = _foreign(kind, Path(rest), size)
    else:
        loaded = _run(source, size)
    own_name, backbone, architecture = loaded
    size, mean, std = architecture.size, architecture.mean, architecture.std
    rates = TI_LEARNING_RATES if kind == "ti" else LEARNING_RATES
    features = _features(backbone.eval(), size, source)
    explain(f"{source}: {features} features of images of {size} px, mean {mean}, std {std}")
    weights_checksum = checksum(backbone, mean, std)
    return Model(name or own_name, source, backbone, features, size, mean, std, rates, weights_checksum, architecture)


def checksum(backbone: nn.Module, mean: Sequence[float], std: Sequence[float]) -> str:
    """sha256 over its kinds of layers, the statistics of its input, and its weights: names, types, shapes, bytes."""
    digest = hashlib.sha256(f"{[float(value) for value in (*mean, *std)]}\n".encode())
    for name, module in backbone.named_modules():
        digest.update(f"{name} {type(module).__name__}\n".encode())
    for name, tensor in sorted(backbone.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _features(backbone: nn.Module, size: int, source: str) -> int:
    """The length of a representation, by trying: names of attributes differ, and not every size fits every model."""
    try:
        with torch.no_grad():
            shape = backbone(torch.zeros(1, 3, size, size)).shape
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"{source} cannot take images of {size} px ({reason}); choose another --size") from None
    if len(shape) != 2:
        raise UserError(f"{source} gives {tuple(shape)} for one image, not a vector; choose another model")
    return int(shape[1])


# --- the kinds of sources ---


def _run(source: str, size: int) -> _Loaded:
    if not os.path.exists(source):
        hint = f"timm's model is timm:{source}" if timm.is_model(source) else f"a model is {SOURCES}"
        raise UserError(f"there is no run or file {source}; {hint}")
    architecture, state = read_encoder(Path(source))
    backbone = backbone_with_weights(architecture, state, source)
    path = Path(source).resolve()
    return (path if path.is_dir() else path.parent).name, backbone, _resize(backbone, architecture, size, source)


def _timm(name: str, weights: Path | None, size: int) -> _Loaded:
    if weights is None:
        architecture = _timm_architecture(name, size)
        return name, architecture.create(pretrained=True), architecture
    architecture = _timm_architecture(name, 0)
    state = read_weights(weights)  # before the network is made: a missing file is told at once
    backbone = architecture.create()
    load_weights(backbone, state, weights, str(architecture))
    stem = Path(weights.name.removesuffix(".tar")).stem
    return f"{name} ({stem})", backbone, _resize(backbone, architecture, size, str(weights))


def _untrained(name: str, size: int) -> _Loaded:
    settings, seed = recipes.Encoder(name, initialisation="timm"), 0
    if timm.is_model(name):
        architecture = _timm_architecture(name, size)
    elif name in recipes.RECIPES or name.endswith(".json") or os.path.exists(name):
        recipe = find_recipe(name)
        check_ranges(recipe.augment, {"size": SIZES}, "augment.")
        name, settings, seed = recipe.name, recipe.encoder, recipe.seed
        architecture = architecture_of(settings, size or recipe.augment.size)
    else:
        close = difflib.get_close_matches(name, [*recipes.RECIPES, *timm.list_models()], n=1)
        hint = f"did you mean {close[0]}?" if close else "vivi recipes and timm.list_models() name them all"
        raise UserError(f"neither a recipe nor a model of timm is called '{name}'; {hint}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU alone, where weights are made
        backbone = architecture.create()
        if settings.initialisation == "glorot":
            glorot(backbone)
    return f"untrained {name}", backbone, architecture


def _foreign(kind: str, path: Path, size: int) -> _Loaded:
    state = read_weights(path)
    backbone: nn.Module
    if kind == "ti":
        state = foreign.caffe_weights(state, path)
        backbone, what = foreign.caffe_vgg(state), "VGG-16"
    else:
        state = foreign.slim_weights(state)
        backbone, what = foreign.SlimResNet(), "the ResNet-101 v2 of TF-slim up to block3"
    load_weights(backbone, state, path, what)
    return kind.upper(), backbone, Architecture(what, {}, size or VTAB_SIZE, foreign.MEAN, foreign.STD)


def _timm_architecture(name: str, size: int) -> Architecture:
    """A timm model with its own input statistics. Its size is the one given, or its own where that is fixed, or
    VTAB's."""
    config = timm_config(name)
    default = int(config.input_size[-1]) if config and config.fixed_input_size else VTAB_SIZE
    architecture = architecture_of(recipes.Encoder(name), size or default)
    return replace(architecture, mean=tuple(config.mean), std=tuple(config.std)) if config else architecture


def _resize(backbone: nn.Module, architecture: Architecture, size: int, where: str) -> Architecture:
    """A network of loaded weights at another size, made to fit where its input size is fixed; 0 leaves it."""
    if size and size != architecture.size and "img_size" in architecture.arguments:
        try:
            cast(Any, backbone).set_input_size(img_size=(size, size))  # timm's; resamples position embeddings
        except Exception as error:
            raise UserError(
                f"the weights of {where} are for images of {architecture.size} px only ({first_line(error)}): "
                "leave out --size"
            ) from None
    return replace(architecture, size=size or architecture.size)


# --- files of weights ---

_NESTED = (  # where checkpoints keep the network; of two, the one that their authors evaluate comes first
    *("state_dict", "model_state_dict", "model", "teacher", "target_network", "student", "network", "net"),
    *("classy_state_dict", "base_model", "trunk", "backbone", "encoder"),
)
_DEEPEST = 8  # of such levels; a pickle may also contain itself
_CLASSIFIERS = ("fc", "head", "head_dist", "heads", "classifier", "logits")
_PICKLES = (".pth", ".pt", ".bin", ".tar")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name. No pickled code is ever run."""
    if not os.path.exists(path):
        raise UserError(f"there is no file of weights {path}")
    if path.suffix not in (".safetensors", ".npz", *_PICKLES):
        raise UserError(
            f"{path} is none of .safetensors, .npz, {', '.join(_PICKLES)}: export it by numpy.savez; "
            "vivi/evaluate/foreign.py begins with the lines for TensorFlow and Caffe"
        )
    try:
        content = _read(path)
    except UserError:
        raise
    except Exception as error:  # safetensors, zip, numpy and torch have many
        # Torch itself would advise to run what is in the file.
        if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
            raise UserError(
                f"{path} is damaged, or a pickle of more than tensors, which is never loaded; convert it to "
                "safetensors, or save the weights alone: torch.save(model.state_dict(), FILE)"
            ) from None
        raise UserError(f"{path} cannot be read as weights ({first_line(error)}); fetch or export it again") from None
    for _ in range(_DEEPEST):
        level = content if isinstance(content, Mapping) else {}
        content = next((level[name] for name in _NESTED if isinstance(level.get(name), Mapping)), content)
    tensors = content.items() if isinstance(content, Mapping) else ()
    state = {str(name): tensor for name, tensor in tensors if isinstance(tensor, Tensor)}
    if not state:
        raise UserError(f"{path} holds no weights by name; save a state dict: torch.save(model.state_dict(), FILE)")
    return state


def _read(path: Path) -> Any:
    check_regular(path)
    if path.suffix == ".safetensors":
        tensors, metadata = read_tensors(path)
        check_tensors(tensors, metadata, path)
        return tensors
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            named = ((name, arrays[name]) for name in arrays.files)
            return {name: torch.from_numpy(array) for name, array in named if array.dtype.kind in "fiub"}
    # Many a checkpoint has its flags with it; a Namespace holds values and no code.
    with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
        return torch.load(path, map_location="cpu", weights_only=True)


def load_weights(backbone: nn.Module, state: Mapping[str, Tensor], where: object, what: str) -> None:
    """Loads what belongs to the network `what`, under whatever prefix it stands; all of it must be there and fit."""
    own = backbone.state_dict()
    prefix = _prefix(state, own)
    given = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    # More weights under the names of its own parts are another network's: ResNet-34 begins with those of ResNet-18.
    parts = {name.partition(".")[0] for name in own} - {*_CLASSIFIERS}
    complaints = {
        # A counter changes no output; many files lack it.
        "missing": [name for name in own if name not in given and not name.endswith("num_batches_tracked")],
        "unexpected": [name for name in given if name not in own and name.partition(".")[0] in parts],
        "of another shape": [name for name in own if name in given and own[name].shape != given[name].shape],
    }
    if any(complaints.values()):
        counts = [f"{len(names)} {how} (the first: {names[0]})" for how, names in complaints.items() if names]
        raise UserError(
            f"{where} does not fit {what}: of {len(own)} weights, {', '.join(counts)}; "
            "name the network that it was trained as"
        )
    check_values(given, own, where)
    backbone.load_state_dict({name: given[name] for name in own if name in given}, strict=False)


def _prefix(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """What stands before most of the network's names: "", "module.", "module.encoder_q.", ...; of two the first."""
    starts = ((name, start) for name in state for start in (0, *(dot.end() for dot in re.finditer(r"\.", name))))
    votes = Counter(name[:start] for name, start in starts if name[start:] in own)
    return max(votes, key=votes.__getitem__, default="")
