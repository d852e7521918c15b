"""One training step, as in the paper: f, p, g and the losses, however many processes and micro-batches share it.

The gradient of a step is a sum over its cores. A micro-batch is a whole number of cores; each adds its part of the
gradient. Only a video loss across all cores needs the shots of every micro-batch and process at once: its gradient
with respect to the shot embeddings is computed first, from embeddings without a graph, and then sent back through
each micro-batch. Where there are several, this takes a first pass without gradients.

Videos and labelled images go through f one after the other, so that neither sees the other's batch statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivi.model.heads import precise
from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.training.distributed import World

Metrics = dict[str, Tensor]


@dataclass(frozen=True)
class Frames:
    """The videos of some cores of a step, or the images in their place."""

    frames: Callable[[], Tensor]
    """Makes the augmented frames, (cores, shots, frames, 3, size, size)."""
    noise: Tensor
    """(cores, videos, shots + 1), uniform: what losses that draw lots take them from."""


@dataclass(frozen=True)
class Labelled:
    """The labelled images of some cores of a step."""

    images: Callable[[], Tensor]
    """Makes the augmented images, (cores, images, copies, 3, size, size)."""
    noise: Tensor
    """(cores, images, 2), uniform."""
    labels: Tensor
    """(cores, images)."""


def compute_gradients(
    model: Vivi, videos: Sequence[Frames], images: Sequence[Labelled], recipe: Recipe, world: World
) -> Metrics:
    """Adds the gradient of this process's part of the step to the parameters; their sum over processes is the
    gradient of the whole step. Both sequences are micro-batches; either may be empty. Returns losses and metrics, as
    means over all cores."""
    loss, cores = recipe.loss, recipe.batch.cores
    # L_S is the mean over videos and labelled images where it sees both.
    share = 0.5 if videos and images and loss.on_labelled else 1.0
    sums: Metrics = {}
    _learn_from_videos(model, videos, share, recipe, world, sums)

    for part in images:
        h = model.represent(part.images(), for_frame_loss=loss.on_labelled)  # (cores, copies, images, augmented, d)
        assert model.supervised_loss is not None
        L_SUP, metrics = model.supervised_loss(h, part.labels)  # (cores,)
        _add(sums, {"supervised": L_SUP, **metrics})
        total = loss.supervised_weight * L_SUP
        if loss.on_labelled and model.frame_loss is not None:
            L_S, metrics = model.frame_loss(h, part.noise)
            _add(sums, {loss.frame: L_S, **metrics}, share)
            total = total + share * L_S
        (total.sum() / cores).backward()

    return _mean_over_cores(sums, recipe, world)


def _learn_from_videos(
    model: Vivi, videos: Sequence[Frames], share: float, recipe: Recipe, world: World, sums: Metrics
) -> None:
    """Adds the gradient of L_S + λ L_V."""
    loss, cores, K = recipe.loss, recipe.batch.cores, recipe.batch.shots
    # The other video losses are means over videos, alike within cores and across.
    across_all = loss.video == "infonce" and loss.across == "all"
    shot_gradients: list[Tensor] = []
    frames: Iterator[Tensor] = (part.frames() for part in videos)

    if across_all and len(videos) > 1:
        kept = list(frames)
        frames = iter(kept)
        with torch.no_grad(), model.encoder.statistics_left_alone():
            shots = [model.shot_embeddings(model.represent(some), K) for some in kept]
        shot_gradients = video_loss_across_all(model, shots, videos, recipe, world, sums)

    for index, (part, some) in enumerate(zip(videos, frames, strict=True)):
        h = model.represent(some)  # (cores, copies, shots, frames, d)
        L_S = torch.zeros(len(h), device=h.device, dtype=h.dtype)  # (cores,)

        if model.frame_loss is not None:
            L_S, metrics = model.frame_loss(h, part.noise)
            _add(sums, {loss.frame: L_S, **metrics}, share)
            L_S = share * L_S
        if model.contrastive is not None:
            L_C, metrics = model.contrastive(h)
            _add(sums, {"contrastive": L_C, **metrics})
            L_S = L_S + loss.contrastive_weight * L_C

        if model.video_loss is None:
            (L_S.sum() / cores).backward()
            continue

        e = model.shot_embeddings(h, K)  # (cores, videos, shots, d)
        if across_all:
            shot_gradients = shot_gradients or video_loss_across_all(model, [e], videos, recipe, world, sums)
            roots = [e, L_S.sum() / cores] if L_S.requires_grad else [e]
            torch.autograd.backward(roots, [shot_gradients[index], None][: len(roots)])
        else:
            L_V, metrics = model.video_loss(e, part.noise)  # (cores,)
            _add(sums, {loss.video: L_V, **metrics})
            ((L_S + loss.video_weight * L_V).sum() / cores).backward()


def video_loss_across_all(
    model: Vivi, shots: Sequence[Tensor], videos: Sequence[Frames], recipe: Recipe, world: World, sums: Metrics
) -> list[Tensor]:
    """λ L_V on the shots of all cores: adds the gradient of g, and returns that of each micro-batch's shots.

    Every process computes the whole of it on the gathered shots, so g's gradient counts 1/size in each.
    """
    assert model.video_loss is not None
    local = torch.cat(list(shots)).detach()  # (cores here, videos, shots, d)
    everyone = world.gather(local).flatten(0, 1).unsqueeze(0).requires_grad_()  # (1, all videos, shots, d)
    noise = world.gather(torch.cat([part.noise for part in videos])).flatten(0, 1).unsqueeze(0)
    L_V, metrics = model.video_loss(everyone, noise)  # (1,)
    parameters = list(model.video_loss.parameters())
    of_shots, *of_g = torch.autograd.grad(recipe.loss.video_weight * L_V.sum(), [everyone, *parameters])
    for parameter, gradient in zip(parameters, of_g, strict=True):
        weighed = gradient / world.size
        parameter.grad = weighed if parameter.grad is None else parameter.grad + weighed
    _add(sums, {name: value.expand(len(local)) for name, value in {recipe.loss.video: L_V, **metrics}.items()})
    mine = of_shots[0].unflatten(0, (-1, local.shape[1]))[world.cores(recipe.batch.cores)]  # as local
    return list(mine.split([len(part) for part in shots]))


def _add(sums: Metrics, values: Metrics, share: float = 1.0) -> None:
    """Adds what each core has to the sums."""
    for name, value in values.items():
        total = share * precise(value.detach()).sum()
        sums[name] = sums[name] + total if name in sums else total


def _mean_over_cores(sums: Metrics, recipe: Recipe, world: World) -> Metrics:
    values = torch.stack([sums[name] for name in sorted(sums)]) / recipe.batch.cores
    world.add_up([values])
    means = dict(zip(sorted(sums), values.unbind(), strict=True))
    loss = recipe.loss
    weights = {
        loss.frame: 1.0,
        "contrastive": loss.contrastive_weight,
        loss.video: loss.video_weight,
        "supervised": loss.supervised_weight,
    }
    total = sum((weight * means[name] for name, weight in weights.items() if name in means), torch.zeros(()))
    return {"loss": total, **means}
