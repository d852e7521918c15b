"""The encoder f: a timm model whose batch statistics stay within a core, and the files it is exported to."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import GroupNormAct, StdConv2d
from torch import Tensor, nn
from torchvision.transforms import v2

from vivi import recipes
from vivi.errors import UserError, check_ranges, first_line
from vivi.images import as_rgb
from vivi.model.files import check_facts, check_values, parse_tensors, write_facts, write_tensors
from vivi.model.heads import precise
from vivi.model.normalisation import CoreBatchNorm
from vivi.model.strides import use_patch_strides
from vivi.recipe_checks import SIZES, WIDTHS
from vivi.storage import WEIGHTS, read_file


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

    def create(self, pretrained: bool = False) -> nn.Module:
        """A plain timm model without a classifier."""
        layers: dict[str, Any] = {"norm_layer": group_norm, "conv_layer": StdConv2d} if self.group_norm else {}
        model: nn.Module = timm.create_model(
            self.name, pretrained=pretrained, num_classes=0, **self.arguments, **layers
        )
        if self.patch_strides:
            use_patch_strides(model)
        return model


def group_norm(channels: int, **arguments: Any) -> nn.Module:
    """32 groups, as BiT has them; fewer in thin layers, where a group would have less than eight channels."""
    norm: nn.Module = GroupNormAct(channels, num_groups=math.gcd(32, max(channels // 8, 1)), **arguments)
    return norm


class Encoder(nn.Module):
    """Frames in [-1, 1] to representations, core by core."""

    def __init__(self, architecture: Architecture, backbone: nn.Module, bn_momentum: float) -> None:
        super().__init__()
        self.architecture = architecture
        self.backbone = _within_cores(backbone, bn_momentum)
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
                representations = self._at_once(frames)
            else:  # on a CPU one core after the other is twice as fast as statistics of several at once
                representations = torch.cat([self._at_once(core) for core in frames.split(1)])
        return precise(representations)

    def _at_once(self, frames: Tensor) -> Tensor:
        for norm in self.norms:
            norm.cores = len(frames)
        flat = frames.flatten(0, 1).contiguous(memory_format=self.memory_format)
        representations: Tensor = self.backbone(flat)
        return representations.view(*frames.shape[:2], -1)

    @contextmanager
    def statistics_left_alone(self) -> Iterator[None]:
        """Forward passes inside do not count towards the running statistics."""
        for norm in self.norms:
            norm.collecting = False
        try:
            yield
        finally:
            for norm in self.norms:
                norm.collecting = True

    def collected_statistics(self) -> list[Tensor]:
        """Sums over the cores since the last update, to be added up over processes."""
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


def build_encoder(settings: recipes.Encoder, size: int, patch_strides: bool = False) -> Encoder:
    """The encoder of a recipe, with the weights it starts from; random ones depend on torch's seed."""
    wanted = replace(named_architecture(settings, size), patch_strides=patch_strides)
    if settings.start not in ("", "pretrained"):
        architecture, state = read_encoder(Path(settings.start))
        as_wanted = {name: getattr(wanted, name) for name in ("size", "mean", "std", "patch_strides")}
        if wanted != replace(architecture, **as_wanted):
            raise UserError(
                f"{settings.start} holds {describe(architecture)}, the recipe wants {describe(wanted)}: "
                "set --encoder.name, --encoder.width, --encoder.norm or --augment.size"
            )
        backbone = loaded_backbone(wanted, state, settings.start)
        return Encoder(replace(wanted, mean=architecture.mean, std=architecture.std), backbone, settings.bn_momentum)
    pretrained = settings.start == "pretrained"
    backbone = create_backbone(wanted, pretrained)
    if pretrained:
        config: dict[str, Any] = backbone.pretrained_cfg  # type: ignore[assignment]
        wanted = replace(wanted, mean=tuple(config["mean"]), std=tuple(config["std"]))
    elif settings.initialisation == "glorot":
        glorot(backbone)
    return Encoder(wanted, backbone, settings.bn_momentum)


def describe(architecture: Architecture) -> str:
    width, size = architecture.arguments.get("width_factor", 1), architecture.arguments.get("img_size")
    norm = " with group norm" if architecture.group_norm else ""
    return architecture.name + (f" ×{width:g}" if width != 1 else "") + norm + (f" for {size} px" if size else "")


def glorot(model: nn.Module) -> None:
    """Kernels Glorot-uniform and biases zero, TensorFlow's defaults; norms stay at 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _config(name: str) -> Any:
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


def named_architecture(settings: recipes.Encoder, size: int) -> Architecture:
    config = _config(settings.name)
    check_ranges(settings, {"width": WIDTHS}, "encoder.")
    arguments: dict[str, Any] = {}
    if settings.width != 1:
        if not settings.name.startswith("resnetv2") or settings.name.endswith("_bit"):
            raise UserError(
                f"--encoder.width is {settings.width:g} in this recipe, and {settings.name} has one width only: "
                "add --encoder.width 1"
            )
        arguments["width_factor"] = settings.width
    if settings.norm == "group" and not settings.name.startswith("resnetv2"):
        raise UserError(f"--encoder.norm group goes with resnetv2 models, not with {settings.name}")
    if config is not None and config.fixed_input_size:
        arguments["img_size"] = size
    has_its_own = settings.name.endswith("_bit")
    return Architecture(settings.name, arguments, size, group_norm=settings.norm == "group" and not has_its_own)


def create_backbone(architecture: Architecture, pretrained: bool) -> nn.Module:
    try:
        return architecture.create(pretrained)
    except UserError:
        raise
    except Exception as error:
        if not pretrained:
            raise UserError(f"timm cannot make {describe(architecture)}: {first_line(error)}") from None
        raise UserError(
            f"the pretrained weights of {architecture.name} cannot be had ({first_line(error)}); "
            f"is there a network, or a filled cache of the hub?"
        ) from None


def memory_format(backbone: nn.Module) -> torch.memory_format:
    """channels_last, the fastest on GPUs and CPUs; except where torch (2.15) then corrupts memory on a CPU: in the
    gradient of strided 1 × 1 convolutions of fewer than 8 channels (RepVGG, FastViT, MobileOne)."""
    convolutions = (module for module in backbone.modules() if isinstance(module, nn.Conv2d))
    if any(c.in_channels < 8 and c.kernel_size == (1, 1) and max(c.stride) > 1 for c in convolutions):
        return torch.contiguous_format
    return torch.channels_last


def _within_cores(module: nn.Module, momentum: float) -> nn.Module:
    """Replaces every batch norm."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, CoreBatchNorm(child, momentum))
        elif isinstance(child, nn.modules.batchnorm._BatchNorm):
            raise UserError(f"{type(child).__name__} in the encoder cannot be kept within cores: choose another")
        else:
            _within_cores(child, momentum)
    return module


# --- files ---

# What plain timm does not know of: said in encoder.json where it is so.
_VARIANTS = ("group_norm", "patch_strides")
# What encoder.json may say.
_SIZES = (1, SIZES[1])
_ARGUMENTS: dict[str, tuple[float, float]] = {"width_factor": WIDTHS, "img_size": _SIZES}
_MEANS, _STDS = (-10, 10), (1e-3, 100)


def write_encoder(run: Path, encoder: Encoder, recipe: str, step: int) -> None:
    """encoder.safetensors, which plain timm loads, and encoder.json, which says how."""
    architecture = encoder.architecture
    about = {
        "timm_name": architecture.name,
        "timm_arguments": {"num_classes": 0, **architecture.arguments},
        "input_size": architecture.size,
        "mean": architecture.mean,
        "std": architecture.std,
        **{name: True for name in _VARIANTS if getattr(architecture, name)},
        "features": encoder.features,
        "recipe": recipe,
        "step": step,
    }
    write_tensors(run / "encoder.safetensors", encoder.backbone.state_dict())
    write_facts(run / "encoder.json", about, indent=2)


def read_encoder(path: Path) -> tuple[Architecture, dict[str, Tensor]]:
    """What write_encoder wrote: `path` is the run, or its encoder.safetensors."""
    try:
        weights = path / "encoder.safetensors" if path.is_dir() else path
        if weights.exists() and not weights.is_file():
            raise UserError(f"the encoder {weights} is no file; name a run, or its encoder.safetensors")
        content = read_file(weights, WEIGHTS)
    except FileNotFoundError:
        raise UserError(f"there is no encoder at {path}; a run has one from its first checkpoint on") from None
    except OSError as error:
        raise UserError(f"the encoder {path} cannot be read ({error.strerror})") from None
    about = weights.parent / "encoder.json"
    try:
        facts = json.loads(read_file(about))
        architecture = _read_architecture(facts)
    except UserError as error:
        raise UserError(f"{about}: {error}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{about} is missing or damaged ({first_line(error)})") from None
    check_facts(facts, about)
    return architecture, parse_tensors(content, weights)


def _read_architecture(about: Any) -> Architecture:
    """The architecture in the fields of an encoder.json. Each is checked: timm does what its arguments say, and
    among them are files to load and sizes to allocate."""
    name, size, mean, std = about["timm_name"], about["input_size"], tuple(about["mean"]), tuple(about["std"])
    arguments = {name: value for name, value in about["timm_arguments"].items() if name != "num_classes"}
    for argument, value in arguments.items():
        if argument not in _ARGUMENTS:
            raise ValueError(f"timm_arguments has {argument[:80]!r}, which no run of vivi has")
        _check_number(argument, value, _ARGUMENTS[argument], whole=argument == "img_size")
    if about["timm_arguments"].get("num_classes", 0) != 0:
        raise ValueError("num_classes must be 0")
    if not isinstance(name, str) or len(mean) != 3 or len(std) != 3:
        raise ValueError("timm_name must be text, mean and std three numbers each")
    _config(name)
    _check_number("input_size", size, _SIZES, whole=True)
    for field, values, allowed in (("mean", mean, _MEANS), ("std", std, _STDS)):
        for value in values:
            _check_number(field, value, allowed)
    variants = {name: about.get(name, False) for name in _VARIANTS}
    if not all(isinstance(value, bool) for value in variants.values()):
        raise ValueError(f"{' and '.join(_VARIANTS)} must be true or false")
    return Architecture(name, arguments, int(size), mean, std, **variants)


def _check_number(name: str, value: Any, allowed: tuple[float, float], whole: bool = False) -> None:
    least, most = allowed
    if type(value) not in (int, float) or not least <= value <= most or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise ValueError(f"{name} must be a {kind} between {least:g} and {most:g}")


def loaded_backbone(architecture: Architecture, state: Mapping[str, Tensor], where: object) -> nn.Module:
    """The network with these weights; raises where they do not fit."""
    try:
        _try_on(architecture, state)
        backbone = create_backbone(architecture, pretrained=False)
        check_values(state, backbone.state_dict(), where)
        backbone.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{where} does not fit {describe(architecture)}: {first_line(error)}") from None
    return backbone


def _try_on(architecture: Architecture, state: Mapping[str, Tensor]) -> None:
    """Raises RuntimeError where the weights do not fit, before the network takes memory: a file that somebody sent
    may name the largest of all."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            outline = architecture.create()
        except Exception:  # it needs real numbers while it is made, or cannot be made; create_backbone tells
            return
    # Counters that change no output; some files lack them, and torch would warn of the meta device.
    counters = {name: own for name, own in outline.state_dict().items() if name.endswith("num_batches_tracked")}
    outline.load_state_dict({**counters, **{name: tensor.to("meta") for name, tensor in state.items()}})


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
    return loaded_backbone(architecture, state, path).eval(), transform
