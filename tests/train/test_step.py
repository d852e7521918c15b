"""How a step is executed does not change its result: micro-batches and processes compute the same, for every loss."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from steps import CLASSES, LOSSES, cut, random_batch, random_images
from torch import Tensor

from vivi.data.loader import MicroBatch
from vivi.model.vivi import Vivi, build_model
from vivi.recipes import InfoNCE, Loss, Recipe
from vivi.runtime.distributed import World
from vivi.train.step import compute_gradients

CPU = World(torch.device("cpu"))


def model_of(recipe: Recipe) -> Vivi:
    return build_model(recipe, CLASSES if recipe.images.count else 0).double().train()


def take_step(recipe: Recipe, at_once: int, world: World = CPU) -> dict[str, Tensor]:
    """Losses, gradients and statistics of a step, in double precision, `at_once` cores to a micro-batch."""
    model = model_of(recipe)
    cores = world.share_of(recipe.batch.cores)
    videos = cut(random_batch(recipe), cores if recipe.batch.videos else range(0), at_once)
    labelled = cut(random_images(recipe), cores if recipe.images.count else range(0), at_once)
    metrics = compute_gradients(model, videos, labelled, recipe, world)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(gradients) == len(list(model.parameters())), "a parameter without a gradient"
    world.all_reduce([*gradients.values(), *model.encoder.collected_statistics()])
    passes = bool(recipe.batch.videos) + bool(recipe.images.count)
    model.encoder.update_statistics(passes * recipe.batch.cores)
    statistics = {name: tensor for name, tensor in model.state_dict().items() if "running" in name}
    return {**metrics, **gradients, **statistics}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("name", LOSSES)
def test_one_micro_batch_and_many_compute_the_same_step(name: str) -> None:
    whole = take_step(LOSSES[name], at_once=4)
    assert_same(whole, take_step(LOSSES[name], at_once=1))
    assert_same(whole, take_step(LOSSES[name], at_once=2))


def test_two_processes_compute_the_same_step_as_one(tmp_path: Path) -> None:
    """Real gloo processes; every loss, with and without accumulation."""
    found = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": found, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, __file__, str(tmp_path)], check=True, timeout=240, env=environment)
    for number, (name, recipe) in enumerate(LOSSES.items()):
        alone = take_step(recipe, at_once=4)
        for at_once in (1, 2):
            for rank in (0, 1):
                together = torch.load(tmp_path / f"{number}-{at_once}-{rank}.pt", weights_only=True)
                assert_same(alone, together)
        assert name


def reference_step(recipe: Recipe) -> dict[str, Tensor]:
    """The paper's loss written out: plain autograd through everything at once, core by core."""
    model, batch = model_of(recipe), random_batch(recipe)
    loss, cores = recipe.loss, recipe.batch.cores
    total = torch.zeros((), dtype=torch.float64)
    embeddings = []
    share = 0.5 if recipe.batch.videos and loss.on_labelled else 1.0
    for core in range(cores if recipe.batch.videos else 0):
        h = model.represent(batch.frames[core : core + 1])[0]  # (copies, shots, frames, d)
        if model.frame_loss is not None:
            total = total + share * _reference_frame_loss(model, h, batch.uniforms[core]) / cores
        if model.contrastive is not None:
            total = total + loss.contrastive_weight * model.contrastive(h[0]) / cores
        if model.video_loss is not None:
            embedded = model.embed_shot(model.pooling(h[0]))  # (shots, d)
            embeddings.append(embedded.unflatten(0, (-1, recipe.batch.shots)))
    total = total + loss.video_weight * _reference_video_loss(model, embeddings, batch.uniforms, loss)
    if model.supervised_loss is not None:
        total = total + _reference_labels(model, recipe, share)
    total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": total.detach(), **gradients}


def _reference_frame_loss(model: Vivi, h: Tensor, uniforms: Tensor) -> Tensor:
    """Of a core (copies, shots, frames, d): all copies where the loss makes any, or the frames as they are."""
    assert model.frame_loss is not None
    several = len(h) > 1
    assert several == (model.frame_loss.view_count > 1)
    value: Tensor = model.frame_loss(h if several else h[0], uniforms)
    return value


def _reference_labels(model: Vivi, recipe: Recipe, share: float) -> Tensor:
    """Cross-entropy of every view of every image, core by core, and the frame loss on them where it is asked for."""
    assert model.supervised_loss is not None
    loss, cores = recipe.loss, recipe.batch.cores
    images = random_images(recipe)
    assert images.labels is not None
    total = torch.zeros((), dtype=torch.float64)
    for core in range(cores):
        h = model.represent(images.frames[core : core + 1], for_frame_loss=loss.on_labelled)[0]
        logits = model.supervised_loss.head(h)  # (copies, images, augmented, classes)
        truth = images.labels[core][None, :, None].expand(logits.shape[:-1])
        entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 2), truth.flatten())
        total = total + loss.supervised_weight * entropy / cores
        if loss.on_labelled and model.frame_loss is not None:
            total = total + share * _reference_frame_loss(model, h, images.uniforms[core]) / cores
    return total


def _reference_video_loss(model: Vivi, embeddings: list[Tensor], uniforms: Tensor, loss: Loss) -> Tensor:
    """Of the embeddings (videos, K, d) of each core."""
    if model.video_loss is None:
        return torch.zeros((), dtype=torch.float64)
    if isinstance(loss.video, InfoNCE) and loss.video.across == "all":
        value: Tensor = model.video_loss(torch.cat(embeddings), uniforms.flatten(0, 1))
        return value
    return torch.stack([model.video_loss(e, uniforms[core]) for core, e in enumerate(embeddings)]).mean()


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_has_the_gradient_of_the_written_out_loss(name: str) -> None:
    expected = reference_step(LOSSES[name])
    actual = take_step(LOSSES[name], at_once=1)
    assert_same(expected, {name: actual[name] for name in expected})


def test_the_loss_is_the_weighted_sum_of_the_losses_that_are_logged() -> None:
    metrics = take_step(LOSSES["exemplar and infonce with labels"], at_once=2)
    total = metrics["exemplar"] + 0.7 * metrics["infonce"] + 0.3 * metrics["supervised"]
    torch.testing.assert_close(metrics["loss"], total)
    names = {"triplet_violations", "infonce_accuracy", "supervised_accuracy"}
    assert names <= metrics.keys() and all(0 <= metrics[name] <= 1 for name in names)


@pytest.mark.parametrize("name", ["exemplar", "infonce within a core", "labels and their rotation"])
def test_a_micro_batch_is_asked_for_when_the_previous_is_done(name: str) -> None:
    """So that a step holds a single micro-batch, unless a loss is across cores."""
    recipe, norms = LOSSES[name], []
    model = model_of(recipe)

    def watched(micro_batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        weight = next(model.encoder.parameters())
        for micro_batch in micro_batches:
            norms.append(0.0 if weight.grad is None else float(weight.grad.norm()))
            yield micro_batch

    cores = range(recipe.batch.cores)
    videos = watched(cut(random_batch(recipe), cores if recipe.batch.videos else range(0), 1))
    images = watched(cut(random_images(recipe), cores if recipe.images.count else range(0), 1))
    compute_gradients(model, videos, images, recipe, CPU)
    assert norms[0] == 0 and len({*norms}) == len(norms) == 4, "the gradient of each is there before the next"


if __name__ == "__main__":
    from vivi.runtime.distributed import join_world

    with join_world("cpu") as world:
        for number, recipe in enumerate(LOSSES.values()):
            for at_once in (1, 2):
                result = take_step(recipe, at_once, world)
                torch.save(result, Path(sys.argv[1]) / f"{number}-{at_once}-{world.rank}.pt")
