"""How many cores to compute at once, when the machine's owner does not say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivi.errors import UserError
from vivi.model.vivi import Vivi
from vivi.recipes import Recipe

# On a CPU the number must not depend on what else runs there, or a resumed run would round differently.
_CPU_BYTES = 4 << 30
# For gradients of activations, workspaces and fragmentation; a compiled network keeps two thirds of the activations.
_CUDA_SHARE, _COMPILED_CUDA_SHARE = 0.6, 0.9


@dataclass(frozen=True)
class AtOnce:
    """Of how many cores a micro-batch holds the videos, and the labelled images."""

    videos: int
    images: int


def cores_at_once(model: Vivi, recipe: Recipe, cores: int, device: torch.device, compiled: bool) -> int:
    """The largest number of cores that divides `cores` and whose activations fit."""
    frames = max(encoder_load(model, recipe)) // recipe.batch.cores  # one after the other, see step.py
    share = _COMPILED_CUDA_SHARE if compiled else _CUDA_SHARE
    room = share * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _CPU_BYTES
    fit = int(room // (frames * activation_bytes(model, recipe.augment.size, device)))
    return max(count for count in range(1, cores + 1) if cores % count == 0 and count <= max(1, fit))


def images_at_once(model: Vivi, recipe: Recipe, at_once: int, cores: int) -> int:
    """Of how many cores to compute the labelled images at once, where so many are computed of the videos.

    As many as the encoder then sees about as many pictures: a few at a time would leave a GPU idle, and another shape
    is another graph to compile where there are no batch statistics.
    """
    of_videos, of_images = encoder_load(model, recipe)
    most = at_once * max(1, of_videos // max(of_images, 1))
    return max(count for count in range(at_once, cores + 1, at_once) if cores % count == 0 and count <= most)


def encoder_load(model: Vivi, recipe: Recipe) -> tuple[int, int]:
    """What the encoder sees of a step's videos and of its labelled images, all copies counted."""
    batch, images = recipe.batch, recipe.images
    copies = model.frame_loss.copies if model.frame_loss else 1
    of_videos = batch.videos * batch.shots * batch.frames * copies
    return of_videos, images.count * images.copies * (copies if recipe.loss.on_labelled else 1)


def activation_bytes(model: Vivi, size: int, device: torch.device) -> int:
    """What the backward pass keeps of one frame: measured on two, as batch norm needs them."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    frames = torch.zeros(1, 2, 3, size, size, device=device)
    with model.encoder.statistics_left_alone(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        held = model.encoder(frames)  # keeps the tensors alive, so that no address is used twice
    if held.shape[-1] != model.encoder.features:
        name = model.encoder.architecture.name
        raise UserError(
            f"--encoder.name {name} cannot be an encoder: it gives {held.shape[-1]} features a frame where timm says "
            f"{model.encoder.features}"
        )
    del held
    return max(1, sum(kept.values()) // 2)
