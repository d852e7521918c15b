"""A step of the Trainer: the gradient, clipped where the recipe says so, the update, and the statistics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vivi.data.loader import MicroBatch, StepInput
from vivi.model.vivi import Vivi, build_model
from vivi.recipes import Augment, Batch, Encoder, Exemplar, Images, Loss, Optimiser, Recipe
from vivi.runtime.distributed import World
from vivi.train.loop import Clock, Trainer
from vivi.train.optimiser import learning_rate
from vivi.train.step import compute_gradients

CPU = World(torch.device("cpu"))
RECIPE = Recipe(
    "test",
    seed=3,
    encoder=Encoder("resnetv2_18", width=0.125, bn_momentum=0.25),
    batch=Batch(videos=4, shots=2, frames=2, cores=2),
    augment=Augment(size=32),
    loss=Loss(frame=Exemplar(dimension=8), video=None),
    optimiser=Optimiser(lr=0.5, warmup=10, weight_decay=0.1),
)


def videos() -> MicroBatch:
    generator = torch.Generator().manual_seed(0)
    frames = torch.rand(2, 4, 2, 3, 32, 32, generator=generator, dtype=torch.float64) * 2 - 1
    return MicroBatch(frames, torch.rand(2, 2, 3, generator=generator))


def labelled() -> MicroBatch:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(2, 3, 1, 3, 32, 32, generator=generator, dtype=torch.float64) * 2 - 1
    return MicroBatch(images, torch.rand(2, 3, 2, generator=generator), torch.tensor([[0, 1, 2], [2, 0, 1]]))


def model_of(recipe: Recipe) -> Vivi:
    return build_model(recipe, 3 if recipe.images.count else 0).double().train()


@pytest.mark.parametrize("clip", [0.0, 0.01, 1e6])
@pytest.mark.parametrize("number", [1, 7, 30])
def test_a_step_updates_by_the_clipped_gradient_at_its_own_rate(number: int, clip: float) -> None:
    recipe = replace(RECIPE, optimiser=replace(RECIPE.optimiser, clip=clip))
    reference, model = model_of(recipe), model_of(recipe)
    compute_gradients(reference, [videos()], [], recipe, CPU)
    gradients = [parameter.grad for parameter in reference.parameters() if parameter.grad is not None]
    norm = float(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt())
    scale = min(1, clip / (norm + 1e-6)) if clip else 1
    metrics = Trainer(model, recipe, CPU).step(StepInput(number, iter([videos()]), iter([])))
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-9), "as it was before it was clipped"
    rate = learning_rate(number, recipe.steps, recipe.optimiser)
    for before, after in zip(reference.parameters(), model.parameters(), strict=True):
        assert before.grad is not None
        decay = 0.1 * before if before.ndim > 1 else 0
        torch.testing.assert_close(after, before - rate * (scale * before.grad + decay))


def test_a_step_adds_to_nothing_of_the_step_before() -> None:
    """At a rate of 0 the second is the first again."""
    model = model_of(RECIPE)
    trainer = Trainer(model, replace(RECIPE, optimiser=replace(RECIPE.optimiser, lr=0.0)), CPU)
    first, second = (trainer.step(StepInput(number, iter([videos()]), iter([]))) for number in (20, 21))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("with_images", [False, True])
def test_running_statistics_move_by_the_mean_over_all_passes_of_all_cores(with_images: bool) -> None:
    recipe = RECIPE
    if with_images:
        recipe = replace(recipe, images=Images(count=6), loss=replace(recipe.loss, supervised_weight=1.0))
    model = model_of(recipe)
    stem = model.encoder.norms[0]
    seen: list[torch.Tensor] = []
    handle = stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    Trainer(model, recipe, CPU).step(StepInput(0, iter([videos()]), iter([labelled()] if with_images else [])))
    handle.remove()
    assert len(seen) == (4 if with_images else 2), "core by core"
    expected = 0.25 * torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0)
    torch.testing.assert_close(stem.running_mean, expected)
    assert stem.num_batches_tracked == 1 and not stem.mean_sum.any()


def test_layers_that_need_random_numbers_get_those_of_the_seed_and_the_step() -> None:
    trainer = Trainer(model_of(RECIPE), RECIPE, CPU)
    states = []
    for number, seed in ((4, 1), (4, 2), (5, 1)):
        torch.manual_seed(seed)
        trainer.step(StepInput(number, iter([videos()]), iter([])))
        states.append(torch.rand(3).tolist())
    assert states[0] == states[1] != states[2]


def test_the_clock_counts_the_frames_of_videos_and_of_labelled_images() -> None:
    recipe = replace(RECIPE, images=Images(count=6, copies=2))
    clock = Clock(recipe, start=10)
    assert clock.frames == 4 * 2 * 2 + 6 * 2
    clock.last = 10, clock.began - 2  # as if two seconds had passed
    clock.began -= 2
    values = clock.read(14)
    assert values["frames_per_second"] == pytest.approx(4 * 28 / 2, rel=0.05)
    assert values["seconds"] == pytest.approx(2, rel=0.05)
    assert clock.last[0] == 14
