"""The model: the poolings against loops, which copies of the frames each loss sees, and losses by their settings."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import pytest
import torch
from losscheck import randomise
from torch import Tensor, nn

from vivi import losses, recipes
from vivi.model import AttentionPooling, MeanPooling, Vivi, build_model
from vivi.model.vivi import build_loss
from vivi.recipes import RECIPES, Augment, Batch, Encoder, Exemplar, InfoNCE, LossSettings, Recipe, Rotation

SMALL = Recipe(
    "test",
    encoder=Encoder("resnetv2_18", width=0.125),
    batch=Batch(videos=4, shots=4, frames=2, cores=2),
    augment=Augment(size=32),
    loss=recipes.Loss(frame=Exemplar(dimension=8), shot_features=6),
)
SHAPES = [(3, 4), (2, 3, 5, 4), (2, 1, 3, 1, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_mean_pooling_is_the_mean_over_frames(shape: tuple[int, ...]) -> None:
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = sum(h[..., frame, :] for frame in range(shape[-2])) / shape[-2]
    torch.testing.assert_close(MeanPooling()(h), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_pooling_agrees_with_loops_over_frames(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    pooling = randomise(AttentionPooling(4, hidden=6))
    h = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    pooled = []
    for shot in h.reshape(-1, *shape[-2:]):
        weights = [pooling.score(frame).exp() for frame in shot]
        pooled.append(sum(weight * frame for weight, frame in zip(weights, shot, strict=True)) / sum(weights))
    expected = torch.stack(pooled).reshape(*shape[:-2], shape[-1])
    torch.testing.assert_close(pooling(h), expected)
    if shape[-2] > 1:
        assert (pooling(h) - h.mean(-2)).abs().max() > 1e-3  # it does weigh
    towards = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad((pooling(h) * towards).sum(), [h, *pooling.parameters()]),
        torch.autograd.grad((expected * towards).sum(), [h, *pooling.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("pooling", [MeanPooling(), AttentionPooling(4)])
def test_pooling_of_bf16_frames_is_float32(pooling: nn.Module) -> None:
    h = torch.randn(2, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        pooled = pooling(h.bfloat16())
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, pooling(h), rtol=0.02, atol=0.02)


# --- what each part sees ---


def frames_of(recipe: Recipe) -> Tensor:
    batch, size = recipe.batch, recipe.augment.size
    shots = batch.videos // batch.cores * batch.shots
    generator = torch.Generator().manual_seed(0)
    shape = (batch.cores, shots, batch.frames, 3, size, size)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("copies", [1, 4])
def test_frames_are_represented_with_the_copies_of_the_frame_loss(copies: int) -> None:
    """A copy is seen beside the others of its core: with group norm it does not depend on them."""
    frame = Rotation() if copies == 4 else Exemplar(dimension=8)
    recipe = replace(
        SMALL, encoder=replace(SMALL.encoder, norm="group"), loss=replace(SMALL.loss, frame=frame, video=None)
    )
    model, frames = build_model(recipe).double(), frames_of(recipe)
    h = model.represent(frames)
    assert h.shape == (2, copies, 8, 2, model.encoder.features)
    for copy in range(copies):
        turned = torch.rot90(frames, copy, (-2, -1)).flatten(1, 2)
        torch.testing.assert_close(h[:, copy].flatten(1, 2), model.encoder(turned))
    plain = model.represent(frames, for_frame_loss=False)
    torch.testing.assert_close(plain, h[:, :1])
    seen = model.frame_loss_input(h)
    assert torch.equal(seen, h if copies == 4 else h[:, 0])


def test_shots_are_embedded_from_the_copy_that_is_not_rotated() -> None:
    recipe = replace(SMALL, loss=replace(SMALL.loss, frame=Rotation()))
    model = randomise(build_model(recipe))
    h = torch.randn(2, 4, 8, 3, model.encoder.features, dtype=torch.float64, requires_grad=True)
    e = model.embed_shots(h)
    assert e.shape == (2, 2, 4, 6)
    for core in range(2):
        for video in range(2):
            for shot in range(4):
                seen = [h[core, 0, 4 * video + shot, frame] for frame in range(3)]
                pooled = (seen[0] + seen[1] + seen[2]) / 3
                expected = model.embed_shot.weight @ pooled + model.embed_shot.bias
                torch.testing.assert_close(e[core, video, shot], expected)
    (gradient,) = torch.autograd.grad(e.sum(), h)
    assert gradient[:, 0].any() and not gradient[:, 1:].any()


def test_a_model_has_the_parts_that_its_losses_need() -> None:
    def parts(classes: int = 0, **loss: object) -> set[str]:
        model = Vivi(build_model(SMALL).encoder, replace(SMALL.loss, **loss), 4, classes)  # type: ignore[arg-type]
        return {name for name, _ in model.named_children()}

    assert parts() == {"encoder", "frame_loss", "pooling", "embed_shot", "video_loss"}
    assert parts(video=None) == {"encoder", "frame_loss"}
    assert parts(video=None, contrastive_weight=0.5) == {"encoder", "frame_loss", "contrastive"}
    assert parts(frame=None) == {"encoder", "pooling", "embed_shot", "video_loss"}
    assert parts(classes=3, frame=None, video=None) == {"encoder", "supervised_loss"}


def test_the_losses_of_a_model_have_the_weights_of_the_recipe() -> None:
    loss = replace(SMALL.loss, contrastive_weight=0.25, video_weight=0.5, supervised_weight=3.0)
    model = Vivi(build_model(SMALL).encoder, loss, 4, classes=3)
    weights = [(part.name, weight) for part, weight in model.weighted_losses(loss)]
    assert weights == [("exemplar", 1.0), ("contrastive", 0.25), ("infonce", 0.5), ("supervised", 3.0)]


# --- losses by their settings ---


@pytest.mark.parametrize(
    ("settings", "features"),
    [
        (Exemplar(dimension=5, triplets="batch-hard", margin=0.3, negatives="videos"), 6),
        (Exemplar(), 6),
        (Rotation(), 6),
        (recipes.Jigsaw(dimension=5, hidden=7), 6),
        (recipes.Location(dimension=5, hidden=7), 6),
        (InfoNCE(across="core", ahead=2), 6),
        (recipes.Order(), 6),
    ],
    ids=str,
)
def test_settings_make_the_loss_of_their_name(settings: LossSettings, features: int) -> None:
    loss = build_loss(settings, features, shots=3)
    assert loss is not None and type(loss) is getattr(losses, type(settings).__name__)
    assert loss.name == settings.name
    sees_patches = isinstance(loss, losses.Jigsaw | losses.Location)
    assert settings.patches == sees_patches


def test_settings_reach_the_loss() -> None:
    exemplar = build_loss(Exemplar(dimension=5, triplets="batch-hard", margin=0.3, negatives="videos"), 6, shots=3)
    assert isinstance(exemplar, losses.Exemplar) and exemplar.head.weight.shape == (5, 6)
    assert (exemplar.triplets, exemplar.margin, exemplar.group) == ("batch-hard", 0.3, 3)
    infonce = build_loss(InfoNCE(across="all", ahead=2), 6, shots=3)
    assert isinstance(infonce, losses.InfoNCE) and infonce.across_cores
    jigsaw = build_loss(recipes.Jigsaw(dimension=5, hidden=7), 6, shots=1)
    assert isinstance(jigsaw, losses.Jigsaw) and jigsaw.head.hidden.weight.shape == (7, 45)
    assert build_loss(None, 6, 3) is None


def test_the_defaults_of_settings_are_those_of_their_losses() -> None:
    for settings in (Exemplar(), recipes.Jigsaw(), recipes.Location(), InfoNCE()):
        loss = getattr(losses, type(settings).__name__)
        plain, built = loss(6, 4), build_loss(settings, 6, 4)
        assert {name: p.shape for name, p in plain.named_parameters()} == {
            name: p.shape
            for name, p in built.named_parameters()  # type: ignore[union-attr]
        }
        for name in ("triplets", "margin", "group", "across_cores"):
            assert getattr(plain, name, None) == getattr(built, name, None)
        assert fields(settings)


class Nearest(losses.FrameLoss):
    """A loss that somebody else wrote: without metrics, it implements forward alone."""

    def __init__(self, features: int, shots: int, power: float) -> None:
        super().__init__()
        self.power = power

    def forward(self, h: Tensor, uniforms: Tensor | None = None) -> Tensor:
        return (h - h.mean(-2, keepdim=True)).abs().pow(self.power).mean((-3, -2, -1))


@dataclass(frozen=True)
class NearestSettings(LossSettings):
    power: float = 2.0
    module: ClassVar[type] = Nearest


def test_a_loss_of_ones_own_is_used_like_the_others() -> None:
    recipe = replace(SMALL, loss=replace(SMALL.loss, frame=NearestSettings(power=3.0), video=None))
    model = build_model(recipe)
    loss = model.frame_loss
    assert isinstance(loss, Nearest) and (loss.power, loss.name) == (3.0, "nearest")
    h = torch.rand(2, 8, 2, 5)
    value, metrics = loss.measure(h)
    assert metrics == {} and torch.equal(value, loss(h)) and value.shape == (2,)


def test_initial_weights_depend_on_the_seed_of_the_recipe_alone() -> None:
    states = []
    for seed, global_seed in ((0, 1), (0, 2), (3, 1)):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        states.append(build_model(replace(SMALL, seed=seed)).state_dict())
        assert torch.equal(torch.get_rng_state(), before), "torch's own random numbers are left alone"
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith("-tiny")])
def test_every_tiny_recipe_makes_its_model(name: str) -> None:
    recipe = RECIPES[name]
    model = build_model(recipe, classes=3 if recipe.images.count else 0)
    for loss, settings in ((model.frame_loss, recipe.loss.frame), (model.video_loss, recipe.loss.video)):
        assert (loss.name if loss else None) == (settings.name if settings else None)
    assert model.encoder.architecture.patch_strides == recipe.sees_patches
