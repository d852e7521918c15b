"""One step: the gradient of L_S + λ L_V + γ L_SUP, as in equations 1 and 2 of the paper.

The gradient is a sum over cores, so micro-batches, each a whole number of cores, and processes add up their parts.
Only a video loss across all cores needs the shots of all of them at once. Its gradient with respect to the shot
embeddings, ∂λL_V/∂e, is computed first, and enters the loss of each micro-batch as the term ⟨e, ∂λL_V/∂e⟩, which has
the same gradient. Where there are several micro-batches, this takes a first pass without gradients.

Videos and labelled images go through f one after the other, so that neither sees the other's batch statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from vivi.data.loader import MicroBatch
from vivi.losses import Loss
from vivi.losses.layers import at_least_float32
from vivi.model.vivi import Vivi
from vivi.recipes import Recipe
from vivi.runtime.distributed import World

Metrics = dict[str, Tensor]


def compute_gradients(
    model: Vivi, videos: Iterable[MicroBatch], images: Iterable[MicroBatch], recipe: Recipe, world: World
) -> Metrics:
    """Adds the gradient of this process's part of the step to the parameters; the sum over processes is the gradient
    of the whole step. Returns losses and metrics, as means over all cores."""
    loss, totals = recipe.loss, Totals(recipe.batch.cores)
    λ, γ = loss.video_weight, loss.supervised_weight
    # L_S is the mean over videos and labelled images where it sees both.
    share = 0.5 if recipe.batch.videos and recipe.learns_from_labels and loss.on_labelled else 1.0
    across_cores = model.video_loss is not None and model.video_loss.across_cores
    dL_V: list[Tensor] = []  # ∂λL_V/∂e of each micro-batch

    if across_cores:
        videos = list(videos)
        if len(videos) > 1:
            with torch.no_grad(), model.encoder.without_collecting_statistics():
                shots = [model.embed_shots(model.represent(batch.frames)) for batch in videos]
            dL_V = video_loss_across_cores(model, shots, videos, recipe, world, totals)

    for number, batch in enumerate(videos):
        h = model.represent(batch.frames)  # f: (cores, views, shots, frames, d)
        L_S = totals.term(model.frame_loss, model.frame_loss_input(h), batch.uniforms, share=share)
        L_S = L_S + totals.term(model.contrastive, h[:, 0], None, loss.contrastive_weight)
        λ_L_V = torch.zeros(())
        if model.video_loss is not None:
            e = model.embed_shots(h)  # p: (cores, videos, K, d)
            if across_cores:
                if not dL_V:  # of the only micro-batch; of several it is known, see above
                    dL_V = video_loss_across_cores(model, [e], [batch], recipe, world, totals)
                λ_L_V = (e * dL_V[number]).sum()
            else:  # g predicts within each core
                λ_L_V = totals.term(model.video_loss, e, batch.uniforms, λ)
        (L_S + λ_L_V).backward()

    for batch in images:
        h = model.represent(batch.frames, for_frame_loss=loss.on_labelled)  # (cores, views, images, copies, d)
        γ_L_SUP = totals.term(model.supervised_loss, h, batch.labels, γ)
        on_labelled = model.frame_loss if loss.on_labelled else None
        L_S = totals.term(on_labelled, model.frame_loss_input(h), batch.uniforms, share=share)
        (L_S + γ_L_SUP).backward()

    return totals.means(model, recipe, world)


def video_loss_across_cores(
    model: Vivi, shots: Sequence[Tensor], videos: Sequence[MicroBatch], recipe: Recipe, world: World, totals: Totals
) -> list[Tensor]:
    """Computes λ L_V once, on the shots of all cores. `shots` are their embeddings e in each micro-batch of this
    process, (cores, videos, K, d). Gives g its gradient, and returns ∂λL_V/∂e of each micro-batch.

    Every process computes the whole of it on the gathered shots, so g's gradient counts 1 / world.size in each.
    """
    assert model.video_loss is not None
    local = torch.cat(list(shots)).detach()  # (cores here, videos, K, d)
    e = world.all_gather(local).flatten(0, 1)[None].requires_grad_()  # (1, all videos, K, d)
    uniforms = world.all_gather(torch.cat([batch.uniforms for batch in videos])).flatten(0, 1)[None]
    L_V, metrics = model.video_loss.measure(e, uniforms)  # (1,)
    parameters = list(model.video_loss.parameters())
    dL_V, *g_gradients = torch.autograd.grad(recipe.loss.video_weight * L_V.sum(), [e, *parameters])
    for parameter, gradient in zip(parameters, g_gradients, strict=True):
        parameter.grad = gradient / world.size  # nothing else in a step gives g a gradient
    totals.add({name: value.expand(len(local)) for name, value in {model.video_loss.name: L_V, **metrics}.items()})
    by_core = dL_V[0].unflatten(0, (-1, local.shape[1]))  # (all cores, videos, K, d)
    # Indices that are made on the device: a list would be copied there, and the host would wait for the forward pass.
    cores = world.share_of(recipe.batch.cores)
    own_cores = torch.arange(cores.start, cores.stop, device=e.device)
    return list(by_core[own_cores].split([len(part) for part in shots]))


class Totals:
    """Sums of losses and metrics over cores; `cores` is how many a whole step has."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.sums: Metrics = {}

    def term(
        self, loss: Loss | None, x: Tensor, extra: Tensor | None, weight: float = 1.0, share: float = 1.0
    ) -> Tensor:
        """Computes a loss on some cores, and what it contributes to the mean over all cores; 0 where there is no such
        loss. `extra` is what it takes beside x: uniforms, or labels."""
        if loss is None:
            return torch.zeros(())
        value, metrics = loss.measure(x, extra)  # (cores,)
        self.add({loss.name: value, **metrics}, share)
        return weight * share * value.sum() / self.cores

    def add(self, values: Metrics, share: float = 1.0) -> None:
        """Adds losses or metrics, each with a value for each core, (cores,)."""
        for name, value in values.items():
            total = share * at_least_float32(value.detach()).sum()
            self.sums[name] = self.sums[name] + total if name in self.sums else total

    def means(self, model: Vivi, recipe: Recipe, world: World) -> Metrics:
        """The means over the cores of all processes, and `loss`, the weighted sum of the losses."""
        names = sorted(self.sums)
        values = torch.stack([self.sums[name] for name in names]) / self.cores
        world.all_reduce([values])
        means = dict(zip(names, values.unbind(), strict=True))
        weighted = (weight * means[loss.name] for loss, weight in model.weighted_losses(recipe.loss))
        return {"loss": sum(weighted, torch.zeros(())), **means}
