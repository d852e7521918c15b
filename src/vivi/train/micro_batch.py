"""Chooses how many cores a micro-batch holds, unless --micro-batch says it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.runtime.errors import UserError, first_line
from vivi.train.settings import Execution

# On a CPU the number must not depend on what else runs there, or a resumed run would round differently.
_CPU_BYTES = 4 << 30
# For gradients of activations, workspaces and fragmentation; a compiled network keeps two thirds of the activations.
_CUDA_SHARE, _COMPILED_CUDA_SHARE = 0.6, 0.9


@dataclass(frozen=True)
class MicroBatchSize:
    """Of how many cores a micro-batch holds the videos, and of how many the labelled images."""

    videos: int
    images: int


def choose_size(
    model: Vivi, recipe: Recipe, execution: Execution, cores: int, device: torch.device
) -> MicroBatchSize:
    """The size for a process that computes so many cores."""
    if cores % (execution.micro_batch or 1):
        raise UserError(
            f"--micro-batch {execution.micro_batch} does not divide this process's number of cores, {cores}, evenly"
        )
    try:
        fit = _cores_that_fit(model, recipe, cores, device, execution.compiles(device.type == "cuda"))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UserError(
            f"{recipe.encoder.name} cannot take frames of {recipe.augment.size} px ({first_line(error)}): "
            "set --augment.size"
        ) from None
    videos = execution.micro_batch or fit
    return MicroBatchSize(videos, _cores_of_images(model, recipe, videos, cores))


def _cores_that_fit(model: Vivi, recipe: Recipe, cores: int, device: torch.device, compiled: bool) -> int:
    """The largest number of cores that divides `cores` and whose activations fit."""
    frames = max(frames_of_encoder(model, recipe)) // recipe.batch.cores  # one after the other, see step.py
    share = _COMPILED_CUDA_SHARE if compiled else _CUDA_SHARE
    room = share * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _CPU_BYTES
    fit = int(room // (frames * activation_bytes(model, recipe.augment.size, device)))
    return max(count for count in range(1, cores + 1) if cores % count == 0 and count <= max(1, fit))


def _cores_of_images(model: Vivi, recipe: Recipe, of_videos: int, cores: int) -> int:
    """As many cores of labelled images as the encoder then sees about as many pictures as of videos: a few at a time
    would leave a GPU idle, and another shape is another graph to compile where there are no batch statistics."""
    frames, images = frames_of_encoder(model, recipe)
    most = of_videos * max(1, frames // max(images, 1))
    return max(count for count in range(of_videos, cores + 1, of_videos) if cores % count == 0 and count <= most)


def frames_of_encoder(model: Vivi, recipe: Recipe) -> tuple[int, int]:
    """What the encoder sees of a step's videos and of its labelled images, all views counted."""
    batch, images = recipe.batch, recipe.images
    views = model.frame_loss.view_count if model.frame_loss else 1
    of_videos = batch.videos * batch.shots * batch.frames * views
    return of_videos, images.count * images.copies * (views if recipe.loss.on_labelled else 1)


def activation_bytes(model: Vivi, size: int, device: torch.device) -> int:
    """What the backward pass keeps of one frame: measured on two, as batch norm needs them."""
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
    if h.shape[-1] != model.encoder.features:
        name = model.encoder.architecture.name
        raise UserError(
            f"--encoder.name {name} cannot be an encoder: it gives {h.shape[-1]} features a frame where timm says "
            f"{model.encoder.features}"
        )
    del h
    return max(1, sum(kept.values()) // 2)
