"""Chooses how many cores a micro-batch holds, unless --micro-batch says it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.runtime.console import explain
from vivi.runtime.errors import UserError, first_line
from vivi.train.settings import Execution

# On a CPU the number must not depend on what else runs there, or a resumed run would round differently.
_CPU_BYTES = 4 << 30
# For gradients of activations, workspaces and fragmentation; a compiled network keeps two thirds of the activations.
_CUDA_SHARE, _COMPILED_CUDA_SHARE = 0.6, 0.9


@dataclass(frozen=True)
class MicroBatchSize:
    """How many cores a micro-batch of videos holds, and how many one of labelled images."""

    videos: int
    images: int


def choose_size(
    model: Vivi, recipe: Recipe, execution: Execution, cores: int, device: torch.device
) -> MicroBatchSize:
    """The size for a process that computes so many cores: of videos, the largest number that divides them and fits.

    Labelled images are fewer: a micro-batch of theirs holds more cores, so that the encoder sees about as many
    pictures. A few at a time would leave a GPU idle, and where there are no batch statistics another number of
    pictures is another graph to compile.
    """
    chosen, size, on_gpu = execution.micro_batch, recipe.augment.size, device.type == "cuda"
    if chosen and cores % chosen:
        raise UserError(f"--micro-batch {chosen} does not divide this process's number of cores, {cores}, evenly")
    share = _COMPILED_CUDA_SHARE if execution.compiles(on_gpu) else _CUDA_SHARE
    room = share * torch.cuda.mem_get_info(device)[0] if on_gpu else _CPU_BYTES
    try:
        bytes_per_frame = activation_bytes(model, size, device)
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = f"cannot take frames of {size} px ({first_line(error)})"
        raise UserError(f"{recipe.encoder.name} {reason}: set --augment.size") from None
    frames, images = frames_of_encoder(model, recipe)
    # Videos and images go through the encoder one after the other, see step.py.
    fit = room // (max(frames, images) // recipe.batch.cores * bytes_per_frame)
    counts = [count for count in range(1, cores + 1) if cores % count == 0]
    videos = chosen or max(count for count in counts if count <= max(1, fit))
    most = videos * max(1, frames // max(images, 1))
    explain(
        f"micro-batch: {videos} of {cores} cores at once; a frame takes {bytes_per_frame / 1e6:.1f} MB of "
        f"activations, {room / 2**30:.1f} GiB are to spare"
    )
    return MicroBatchSize(videos, max(count for count in counts if count % videos == 0 and count <= most))


def frames_of_encoder(model: Vivi, recipe: Recipe) -> tuple[int, int]:
    """How many frames of videos and how many labelled images the encoder sees in a step, all views counted."""
    batch, images = recipe.batch, recipe.images
    views = model.frame_loss.view_count if model.frame_loss else 1
    of_videos = batch.videos * batch.shots * batch.frames * views
    return of_videos, images.count * images.copies * (views if recipe.loss.on_labelled else 1)


def activation_bytes(model: Vivi, size: int, device: torch.device) -> int:
    """Bytes that the backward pass keeps of one frame, measured on two, which batch norm needs."""
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    frames = torch.zeros(1, 2, 3, size, size, device=device)
    keep = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with model.encoder.without_collecting_statistics(), keep:
        h = model.encoder(frames)  # keeps the tensors alive, so that no address is used twice
    name, expected = model.encoder.architecture.name, model.encoder.features
    given = h.shape[-1]
    if given != expected:
        raise UserError(f"--encoder.name {name} gives {given} features where timm says {expected}: choose another")
    del h
    return max(1, sum(kept.values()) // 2)
