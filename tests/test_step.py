"""The machine does not change the result: micro-batches and processes compute the same step, for every loss."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from vivi.model.vivi import Vivi, build_model
from vivi.recipes import Augment, Batch, Encoder, Images, Loss, Recipe
from vivi.training.distributed import World
from vivi.training.step import Frames, Labelled, compute_gradients

CPU = World(torch.device("cpu"))
BASE = Recipe(
    "test",
    encoder=Encoder("resnetv2_18", width=0.125),
    batch=Batch(videos=8, shots=4, frames=2, cores=4),
    augment=Augment(size=32),
    loss=Loss(exemplar_features=16, shot_features=12, video_weight=0.7),
)


def variant(shots: int = 4, **loss: object) -> Recipe:
    return replace(BASE, batch=replace(BASE.batch, shots=shots), loss=replace(BASE.loss, **loss))  # type: ignore[arg-type]


def with_labels(recipe: Recipe, videos: int = 8, norm: Literal["own", "group"] = "own") -> Recipe:
    return replace(
        recipe,
        encoder=replace(recipe.encoder, norm=norm),
        batch=replace(recipe.batch, videos=videos),
        images=Images(count=12, copies=2),
        loss=replace(recipe.loss, supervised_weight=0.3),
    )


def patches(frame: Literal["jigsaw", "location"]) -> Recipe:
    recipe = variant(shots=1, frame=frame, video="none", patch_hidden=24)
    return replace(recipe, augment=replace(recipe.augment, size=16))


LOSSES = {
    "exemplar": variant(video="none"),
    "exemplar with negatives from other videos": variant(negatives="videos"),
    "rotation": variant(frame="rotation", video="none"),
    "contrastive": variant(video="none", contrastive_weight=0.5),
    "infonce across all": variant(),
    "infonce within a core": variant(across="core"),
    "infonce two ahead": variant(ahead=2),
    "infonce of two shots": variant(shots=2, across="core"),
    "infonce of two shots across all, both ways": variant(shots=2, both_ways=True),
    "order": variant(shots=2, video="order", across="core"),
    "order across all": variant(shots=2, video="order"),
    "shuffle": variant(video="shuffle", across="core"),
    "rotation and infonce, attention pooling": variant(frame="rotation", pooling="attention"),
    "infonce alone": variant(frame="none"),
    "labels alone": with_labels(variant(frame="none", video="none"), videos=0),
    "labels and their rotation": with_labels(variant(frame="rotation", video="none", on_labelled=True), videos=0),
    "exemplar and infonce with labels": with_labels(variant()),
    "rotation and infonce with labels, group norm": with_labels(variant(frame="rotation"), norm="group"),
    "hardest exemplars of images with and without labels": with_labels(
        variant(shots=1, video="none", triplets="batch-hard", on_labelled=True)
    ),
    "jigsaw": patches("jigsaw"),
    "location": patches("location"),
}
CLASSES = 5


def random_batch(recipe: Recipe, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Frames (cores, shots, frames, 3, size, size) and noise (cores, videos, shots + 1) of a whole step."""
    generator = torch.Generator().manual_seed(seed)
    batch, size = recipe.batch, recipe.augment.size
    videos = batch.videos // batch.cores
    of_patches = (9,) if recipe.loss.frame in ("jigsaw", "location") else ()
    shape = (batch.cores, videos * batch.shots, batch.frames, *of_patches, 3, size, size)
    frames = torch.rand(*shape, generator=generator) * 2 - 1
    return frames.double(), torch.rand(batch.cores, videos, batch.shots + 1, generator=generator)


def random_images(recipe: Recipe, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Images (cores, images, copies, 3, size, size), noise (cores, images, 2), labels (cores, images)."""
    generator = torch.Generator().manual_seed(seed)
    images, cores, size = recipe.images, recipe.batch.cores, recipe.augment.size
    count = images.count // cores
    pixels = torch.rand(cores, count, images.copies, 3, size, size, generator=generator) * 2 - 1
    noise = torch.rand(cores, count, 2, generator=generator)
    return pixels.double(), noise, torch.randint(CLASSES, (cores, count), generator=generator)


def model_of(recipe: Recipe) -> Vivi:
    return build_model(recipe, CLASSES if recipe.images.count else 0).double().train()


def take_step(recipe: Recipe, at_once: int, world: World = CPU) -> dict[str, Tensor]:
    """Losses, gradients and statistics of one step, in double precision, `at_once` cores to a micro-batch."""
    model = model_of(recipe)
    frames, noise = random_batch(recipe)
    images, image_noise, labels = random_images(recipe)
    mine = world.cores(recipe.batch.cores)
    parts = [slice(first, first + at_once) for first in range(mine.start, mine.stop, at_once)]
    videos = [Frames(partial(frames.__getitem__, part), noise[part]) for part in parts]
    labelled = [Labelled(partial(images.__getitem__, part), image_noise[part], labels[part]) for part in parts]
    videos, labelled = videos if recipe.batch.videos else [], labelled if recipe.images.count else []
    metrics = compute_gradients(model, videos, labelled, recipe, world)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(gradients) == len(list(model.parameters())), "a parameter without a gradient"
    world.add_up([*gradients.values(), *model.encoder.collected_statistics()])
    model.encoder.update_statistics((bool(videos) + bool(labelled)) * recipe.batch.cores)
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
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
    model = model_of(recipe)
    frames, noise = random_batch(recipe)
    loss, cores = recipe.loss, recipe.batch.cores
    total = torch.zeros((), dtype=torch.float64)
    embeddings = []
    share = 0.5 if recipe.batch.videos and loss.on_labelled else 1.0
    for core in range(cores if recipe.batch.videos else 0):
        h = model.represent(frames[core : core + 1])
        if model.frame_loss is not None:
            total = total + share * model.frame_loss(h, noise[core : core + 1])[0][0] / cores
        if model.contrastive is not None:
            total = total + loss.contrastive_weight * model.contrastive(h)[0][0] / cores
        if model.video_loss is not None:
            embeddings.append(model.shot_embeddings(h, recipe.batch.shots))
    total = total + loss.video_weight * _reference_video_loss(model, embeddings, noise, loss)
    if model.supervised_loss is not None:
        total = total + _reference_labels(model, recipe, share)
    total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": total.detach(), **gradients}


def _reference_labels(model: Vivi, recipe: Recipe, share: float) -> Tensor:
    """Cross-entropy of every view of every image, core by core, and the frame loss on them where it is asked for."""
    assert model.supervised_loss is not None
    loss, cores = recipe.loss, recipe.batch.cores
    images, noise, labels = random_images(recipe)
    total = torch.zeros((), dtype=torch.float64)
    for core in range(cores):
        h = model.represent(images[core : core + 1], for_frame_loss=loss.on_labelled)
        logits = model.supervised_loss.head(h[0])  # (copies, images, augmented, classes)
        truth = labels[core][None, :, None].expand(logits.shape[:-1])
        entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 2), truth.flatten())
        total = total + loss.supervised_weight * entropy / cores
        if loss.on_labelled and model.frame_loss is not None:
            total = total + share * model.frame_loss(h, noise[core : core + 1])[0][0] / cores
    return total


def _reference_video_loss(model: Vivi, embeddings: list[Tensor], noise: Tensor, loss: Loss) -> Tensor:
    if model.video_loss is None:
        return torch.zeros((), dtype=torch.float64)
    if loss.across == "all":
        everyone, all_noise = torch.cat(embeddings, dim=1), noise.flatten(0, 1)[None]
        value: Tensor = model.video_loss(everyone, all_noise)[0][0]
        return value
    each = [model.video_loss(e, noise[core : core + 1])[0][0] for core, e in enumerate(embeddings)]
    return torch.stack(each).mean()


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_has_the_gradient_of_the_written_out_loss(name: str) -> None:
    expected = reference_step(LOSSES[name])
    actual = take_step(LOSSES[name], at_once=1)
    assert_same(expected, {name: actual[name] for name in expected})


if __name__ == "__main__":
    from vivi.training.distributed import join_world

    with join_world("cpu") as world:
        for number, recipe in enumerate(LOSSES.values()):
            for at_once in (1, 2):
                result = take_step(recipe, at_once, world)
                torch.save(result, Path(sys.argv[1]) / f"{number}-{at_once}-{world.rank}.pt")
