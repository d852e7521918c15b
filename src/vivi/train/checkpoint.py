"""Checkpoints of a run: written as a whole or not at all, checked when read, the last few kept.

    run/checkpoints/step-00000030.safetensors             all tensors after 30 steps
    run/checkpoints/step-00000030.safetensors.damaged     one that failed its check, set aside

A checkpoint is one safetensors file: the model's weights and statistics, and the optimiser's momentum. Its metadata
holds the step, the format version, and a checksum of both and of every tensor. One process writes and reads them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from vivi.model.files import checksum, read_tensors
from vivi.runtime.distributed import World
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import fsync, storage, write_atomically

FORMAT_VERSION = 1


class NothingToRestore(UserError):
    """There are checkpoints, and all of them are damaged."""


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], keep: int = 3) -> Path:
    """Writes the checkpoint of a step, then removes all but the newest `keep`; returns its path.

    When this returns, the checkpoint outlives a power cut. Raises StorageError where it cannot be written; the
    checkpoints before it are then untouched.
    """
    path, plain = folder / f"step-{step:08d}.safetensors", _plain(tensors)
    about = {"format_version": FORMAT_VERSION, "step": step, "checksum": checksum(f"{FORMAT_VERSION} {step}", plain)}
    metadata = {"vivi": json.dumps(about)}  # one entry, as safetensors would write several in any order
    with storage(path):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("*.tmp"):  # of runs that were killed while saving
            stale.unlink(missing_ok=True)
        write_atomically(path, safetensors.torch.save(plain, metadata))
        fsync(folder)
        for old in _checkpoints(folder)[:-keep]:
            old.unlink(missing_ok=True)
    return path


def restore(folder: Path, warn: Callable[[str], None]) -> tuple[int, dict[str, Tensor]] | None:
    """The step and tensors of the newest checkpoint that passes its check; None if none was ever written.

    A damaged one is renamed to `*.damaged`, and a line for `warn` says so and what is used instead. Where damaged
    ones are all there is, it raises: a run never begins anew unasked.
    """
    lost: list[str] = []
    for path in reversed(_checkpoints(folder)):
        try:
            restored = _read(path)
        except ValueError as error:
            lost.append(f"{path} is damaged ({first_line(error)})")
            with storage(path):  # renamed, it is neither taken again nor removed as an old one
                path.rename(path.with_name(f"{path.name}.damaged"))
                fsync(folder)
            continue
        for line in lost:
            warn(f"{line}; it was set aside, and the run goes on from {path.name}")
        return restored
    set_aside = sorted(folder.glob("*.damaged"))
    if not set_aside:
        return None
    what = lost[0] if lost else f"{set_aside[-1]} is damaged"
    todo = "put a good one there, or choose another --out"
    raise NothingToRestore(f"{what}, and there is no other checkpoint to go on from; {todo}")


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first; not those set aside."""
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); fix that and run it again") from None
    return sorted((path for path in entries if re.fullmatch(r"step-\d+\.safetensors", path.name)), key=_step)


def _step(path: Path) -> int:
    return int(path.stem[5:])


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as a file holds them: in main memory, row by row, none sharing its bytes with another."""
    plain: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        on_cpu = tensor.detach().cpu().contiguous()
        address = on_cpu.untyped_storage().data_ptr()
        plain[name] = on_cpu.clone() if address in addresses else on_cpu
        addresses.add(address)
    return plain


def _read(path: Path) -> tuple[int, dict[str, Tensor]]:
    """The step and tensors of a checkpoint; ValueError where it cannot be trusted."""
    if not os.access(path, os.R_OK):
        raise UserError(f"{path} may not be read; change its permissions")
    try:
        tensors, metadata = read_tensors(path)
        about = json.loads(metadata["vivi"])
        # First: of another version, nothing else is known, not even how its checksum is made.
        version = about["format_version"]
        if type(version) is int and version != FORMAT_VERSION:
            raise UserError(f"{path} has format version {version}; this vivi reads version {FORMAT_VERSION}")
        step, expected = about["step"], about["checksum"]
    except (OSError, KeyError, TypeError) as error:
        raise ValueError(first_line(error)) from None
    if version != FORMAT_VERSION or expected != checksum(f"{FORMAT_VERSION} {step}", tensors):
        raise ValueError("its content does not match its checksum")
    if step != _step(path):
        raise ValueError(f"it holds step {step}")
    return step, tensors


# --- what a checkpoint holds ---


def state_tensors(model: nn.Module, optimiser: torch.optim.SGD) -> dict[str, Tensor]:
    """Everything that a resumed run needs besides its step."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        momentum = optimiser.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"optimiser.{name}"] = momentum
    return tensors


def load_state(model: nn.Module, optimiser: torch.optim.SGD, tensors: Mapping[str, Tensor]) -> None:
    """Puts back what state_tensors gave."""
    model_state = {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    try:
        model.load_state_dict(model_state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the checkpoint does not fit the recipe's model: {reason}") from None
    for name, parameter in model.named_parameters():
        momentum = tensors.get(f"optimiser.{name}")
        if momentum is not None:
            # As the parameter lies in memory, so that the same kernels run as before.
            optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)


def broadcast_state(model: nn.Module, optimiser: torch.optim.SGD, world: World) -> None:
    """Gives every process what state_tensors gives in rank 0."""
    parameters = dict(model.named_parameters())
    with_momentum = [name for name, parameter in parameters.items() if optimiser.state.get(parameter)]
    for name in world.broadcast_object(with_momentum):
        optimiser.state[parameters[name]].setdefault("momentum_buffer", torch.empty_like(parameters[name]))
    world.broadcast(list(state_tensors(model, optimiser).values()))
