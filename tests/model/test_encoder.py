"""The encoder: batch statistics within cores, its weights, and the files it is exported to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import vivi
from vivi import recipes
from vivi.model.architecture import architecture_of
from vivi.model.core_norm import CoreBatchNorm, Cores
from vivi.model.encoder import Encoder, build_encoder
from vivi.model.files import write_encoder
from vivi.runtime.errors import UserError

SMALL = recipes.Encoder("resnetv2_18", width=0.125, bn_momentum=0.3)


def build(settings: recipes.Encoder = SMALL, size: int = 32, seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    return build_encoder(settings, size)


WAYS: list[Callable[[CoreBatchNorm, Tensor, int], Tensor]] = [
    lambda norm, x, cores: norm(x),
    lambda norm, x, cores: norm._many_cores(x),
    lambda norm, x, cores: torch.cat([norm._one_core(part) for part in x.chunk(cores)]),
]


@pytest.mark.parametrize(("cores", "frames"), [(1, 5), (3, 2), (4, 7)])
@pytest.mark.parametrize("compute", WAYS)
def test_each_core_is_normalised_by_its_own_statistics(
    cores: int, frames: int, compute: Callable[[CoreBatchNorm, Tensor, int], Tensor]
) -> None:
    generator = torch.Generator().manual_seed(cores)
    x = torch.randn(cores * frames, 6, 4, 5, generator=generator, dtype=torch.float64)
    references = [nn.BatchNorm2d(6, momentum=1.0).double() for _ in range(cores)]
    expected = torch.cat([norm(part) for norm, part in zip(references, x.chunk(cores), strict=True)])
    norm = CoreBatchNorm(nn.BatchNorm2d(6), 0.25, Cores(cores)).double()
    torch.testing.assert_close(compute(norm, x, cores), expected)
    mean = torch.stack([norm.running_mean for norm in references if norm.running_mean is not None]).mean(0)
    var = torch.stack([norm.running_var for norm in references if norm.running_var is not None]).mean(0)
    torch.testing.assert_close(norm.mean_sum / cores, mean)
    torch.testing.assert_close(norm.var_sum / cores, var)


def test_statistics_of_several_cores_at_once_have_the_same_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 5, 3, 3, generator=generator, dtype=torch.float64)
    target = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    gradients = []
    for at_once in (True, False):
        norm = CoreBatchNorm(nn.BatchNorm2d(5), 0.1, Cores(4)).double()
        leaf = x.clone().requires_grad_()
        y = norm._many_cores(leaf) if at_once else torch.cat([norm._one_core(part) for part in leaf.chunk(4)])
        (y * target).sum().backward()
        gradients.append((leaf.grad, norm.weight.grad, norm.bias.grad))
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("offset", [0.0, 3.0, 60.0])
def test_statistics_of_sixteen_bits_are_those_of_double_precision(offset: float) -> None:
    """Also of values that are far from zero beside their deviation."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(3 * 8, 6, 16, 16, generator=generator) + offset).bfloat16()
    norm = CoreBatchNorm(nn.BatchNorm2d(6), 0.25, Cores(3))
    actual = norm._many_cores(x)
    exact = x.double().unflatten(0, (3, 8))
    torch.testing.assert_close(norm.mean_sum.double(), exact.mean(dim=(1, 3, 4)).sum(0), rtol=1e-5, atol=1e-5)
    count = exact[0, :, 0].numel()
    var = exact.var(dim=(1, 3, 4), correction=0).sum(0) * count / (count - 1)
    torch.testing.assert_close(norm.var_sum.double(), var, rtol=2e-3, atol=1e-5)
    reference = nn.BatchNorm2d(6).double()
    expected = torch.cat([reference(core.double()) for core in x.chunk(3)])
    torch.testing.assert_close(actual.double(), expected, rtol=0.02, atol=0.02)


def test_running_statistics_move_once_a_step_by_the_mean_over_cores() -> None:
    encoder = build().train()
    frames = torch.rand(3, 4, 3, 32, 32) * 2 - 1
    norm = encoder.norms[0]
    norm.running_mean.fill_(0.5)
    with torch.no_grad(), encoder.without_collecting_statistics():
        encoder(frames)
    assert not norm.mean_sum.any()
    encoder(frames)
    assert (norm.running_mean == 0.5).all(), "a forward pass alone must not move them"
    expected = 0.5 + 0.3 * (norm.mean_sum / 3 - 0.5)
    encoder.update_statistics(3)
    torch.testing.assert_close(norm.running_mean, expected)
    assert not norm.mean_sum.any() and not norm.var_sum.any()


def test_all_norms_share_the_number_of_cores_and_whether_to_collect() -> None:
    encoder = build().train()
    assert encoder.norms and all(norm.cores is encoder.cores for norm in encoder.norms)
    encoder._forward_cores(torch.rand(3, 4, 3, 32, 32))
    assert encoder.cores == Cores(3, True)
    with pytest.raises(ValueError, match="inside"), encoder.without_collecting_statistics():
        assert encoder.cores == Cores(3, False)
        raise ValueError("inside")
    assert encoder.cores == Cores(3, True), "also after an error"


def test_several_cores_at_once_are_computed_as_core_by_core() -> None:
    """At once as on a GPU, core by core as on a CPU: representations, gradients and statistics."""
    frames = torch.rand(3, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    found: list[list[Tensor]] = []
    for at_once in (True, False):
        encoder = build().double().train()
        h = encoder._forward_cores(frames) if at_once else encoder(frames)
        gradients = torch.autograd.grad(h.square().sum(), list(encoder.parameters()))
        found.append([h, *gradients, *encoder.collected_statistics()])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second)


def test_frames_without_cores_are_a_core_of_their_own() -> None:
    encoder = build().double().train()
    frames = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    h = encoder(frames)
    assert h.shape == (5, encoder.features)
    torch.testing.assert_close(h, encoder(frames[None])[0])


def test_an_architecture_is_named_in_words() -> None:
    named = [
        recipes.Encoder("resnetv2_50"),
        recipes.Encoder("resnetv2_50", width=3),
        recipes.Encoder("resnetv2_18", width=0.25, norm="group"),
        recipes.Encoder("vit_tiny_patch16_224"),
    ]
    assert [str(architecture_of(settings, 96)) for settings in named] == [
        "resnetv2_50",
        "resnetv2_50 ×3",
        "resnetv2_18 ×0.25 with group norm",
        "vit_tiny_patch16_224 for 96 px",
    ]


def test_the_initial_weights_are_glorot_uniform_or_timms() -> None:
    for encoder, bound in ((build(), 1.0), (build(replace(SMALL, initialisation="timm")), None)):
        weight = next(module for module in encoder.modules() if isinstance(module, nn.Conv2d)).weight
        fan_in, fan_out = weight[0].numel(), weight[:, 0].numel()
        limit = (6 / (fan_in + fan_out)) ** 0.5
        largest = float(weight.detach().abs().max())
        assert (0.95 * limit < largest <= limit) if bound else largest > limit


def test_initial_weights_depend_on_the_seed_alone() -> None:
    states = [build(seed=seed).state_dict() for seed in (0, 0, 1)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_an_exported_encoder_computes_the_same_in_plain_timm(tmp_path: Path) -> None:
    encoder = build().train()
    for _ in range(3):
        encoder(torch.rand(2, 8, 3, 32, 32) * 2 - 1)
        encoder.update_statistics(2)
    write_encoder(tmp_path, encoder, "mine", 3)
    about = json.loads((tmp_path / "encoder.json").read_text())
    assert (about["recipe"], about["step"], about["input_size"]) == ("mine", 3, 32)

    from safetensors.torch import load_file

    plain = timm.create_model(about["timm_name"], **about["timm_arguments"])
    plain.load_state_dict(load_file(tmp_path / "encoder.safetensors"))
    loaded, transform = vivi.load_encoder(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    image = transform(Image.fromarray(pixels))
    assert image.shape == (3, 32, 32) and image.min() >= -1 and image.max() <= 1
    with torch.no_grad():
        expected = encoder.eval()(image[None])
        torch.testing.assert_close(plain.eval()(image[None]), expected)
        torch.testing.assert_close(loaded(image[None]), expected)
    assert expected.shape == (1, about["features"]) and expected.std() > 0


@pytest.mark.parametrize("width", [0.125, 0.5])
def test_with_group_norm_an_image_does_not_depend_on_the_others(width: float, tmp_path: Path) -> None:
    encoder = build(replace(SMALL, width=width, norm="group")).train()
    norms = [module for module in encoder.modules() if isinstance(module, nn.GroupNorm)]
    assert norms and not encoder.norms
    assert all(norm.num_groups <= 32 and norm.num_channels // norm.num_groups >= 8 for norm in norms)
    write_encoder(tmp_path, encoder, "mine", 3)
    images = torch.rand(6, 3, 32, 32, dtype=torch.float64) * 2 - 1
    together = encoder.double()(images)
    torch.testing.assert_close(together[:1], encoder(images[:1]))
    loaded, _ = vivi.load_encoder(tmp_path)
    torch.testing.assert_close(loaded.double()(images), together)
    from_it = build(replace(SMALL, width=width, norm="group", start=str(tmp_path)))
    torch.testing.assert_close(from_it.double()(images), together)
    with pytest.raises(UserError, match=r"with group norm, the recipe wants .*--encoder\.norm"):
        build(replace(SMALL, width=width, start=str(tmp_path)))


def test_convolutions_beside_group_norm_have_standardised_weights() -> None:
    encoder = build(replace(SMALL, norm="group")).double()
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64) * 2 - 1
    before = encoder(images)
    with torch.no_grad():
        for module in encoder.modules():
            if isinstance(module, nn.Conv2d):  # neither the scale of a kernel nor its mean is seen
                module.weight.mul_(3).add_(0.1)
    torch.testing.assert_close(encoder(images), before, rtol=1e-3, atol=1e-3)  # but for the eps in its division


@pytest.mark.parametrize("name", ["resnetv2_50x1_bit", "resnetv2_50"])
def test_the_papers_norms_are_those_of_the_named_models(name: str) -> None:
    architecture = architecture_of(recipes.Encoder(name, norm="group"), 224)
    assert architecture.group_norm == (name == "resnetv2_50"), "BiT's models have theirs already"


def test_an_encoder_starts_from_an_earlier_run(tmp_path: Path) -> None:
    first = build(seed=1)
    write_encoder(tmp_path, first, "mine", 5)
    for start in (tmp_path, tmp_path / "encoder.safetensors"):
        second = build(replace(SMALL, start=str(start)), seed=2)
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    with pytest.raises(UserError, match=r"holds resnetv2_18 ×0.125, the recipe wants resnetv2_18"):
        build(replace(SMALL, start=str(tmp_path), width=1.0))


def change_fields(run: Path, **changes: object) -> None:
    """Changes encoder.json and means it: without its checksum."""
    about = json.loads((run / "encoder.json").read_text()) | changes
    del about["checksum"]
    (run / "encoder.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda run: (run / "encoder.safetensors").unlink(), "there is no encoder at"),
        (lambda run: (run / "encoder.safetensors").write_bytes(b"\0" * 20), "cannot be read"),
        (lambda run: (run / "encoder.json").unlink(), "is missing or damaged"),
        (lambda run: (run / "encoder.json").write_text("{}"), "is missing or damaged"),
        (
            lambda run: (run / "encoder.json").write_text(
                (run / "encoder.json").read_text().replace('"width_factor": 0.125', '"width_factor": 0.25')
            ),
            "was altered or damaged",
        ),
        (lambda run: change_fields(run, timm_arguments={"width_factor": 0.25}), "does not fit"),
    ],
)
def test_a_damaged_export_gets_one_line(damage: Callable[[Path], object], line: str, tmp_path: Path) -> None:
    write_encoder(tmp_path, build(), "mine", 1)
    damage(tmp_path)
    with pytest.raises(UserError) as caught:
        vivi.load_encoder(tmp_path)
    assert line in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"timm_arguments": []},
        {"timm_arguments": {"width_factor": "a"}},
        {"timm_name": 5},
        {"mean": ["a", "b", "c"]},
        {"mean": [0.5]},
        {"std": [0.5, 0.5, 0]},
        {"input_size": "x"},
        {"input_size": -3},
        {"input_size": 32.5},
    ],
    ids=str,
)
def test_an_export_with_impossible_fields_gets_one_line(change: dict[str, object], tmp_path: Path) -> None:
    write_encoder(tmp_path, build(), "mine", 1)
    change_fields(tmp_path, **change)
    with pytest.raises(UserError, match=r"encoder\.json is missing or damaged") as caught:
        vivi.load_encoder(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (recipes.Encoder("resnetv2_5"), "timm has no model 'resnetv2_5'; did you mean resnetv2_50?"),
        (recipes.Encoder("levit_128s"), "BatchNorm1d"),
        (recipes.Encoder("xyz"), "timm has no model 'xyz'"),
        (recipes.Encoder("resnet18", width=2), "add --encoder.width 1"),
        (recipes.Encoder("resnetv2_18", start="nowhere"), "there is no encoder at nowhere"),
        (recipes.Encoder("resnetv2_18", start="long" * 100), "File name too long"),
    ],
)
def test_an_encoder_that_cannot_be_had_gets_one_line(settings: recipes.Encoder, line: str) -> None:
    with pytest.raises(UserError) as caught:
        build(settings)
    assert line in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "CMYK", "1"])
def test_the_transform_takes_images_of_every_kind(mode: str, tmp_path: Path) -> None:
    write_encoder(tmp_path, build(), "mine", 1)
    _, transform = vivi.load_encoder(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    torch.testing.assert_close(transform(image), transform(image.convert("RGB")))


def test_the_transform_takes_images_of_sixteen_bits(tmp_path: Path) -> None:
    write_encoder(tmp_path, build(), "mine", 1)
    _, transform = vivi.load_encoder(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    deep = Image.fromarray(pixels.astype(np.uint16) * 256 + 255)
    torch.testing.assert_close(transform(deep), transform(Image.fromarray(pixels).convert("RGB")))


def test_encoders_with_strided_1x1_convolutions_of_three_channels_train_on_a_cpu() -> None:
    """Torch would corrupt its memory here, with channels last."""
    encoder = build(recipes.Encoder("repvgg_a0"))
    for _ in range(5):
        encoder(torch.randn(2, 4, 3, 64, 64)).sum().backward()


@pytest.mark.parametrize(
    "name", ["resnet18", "resnetv2_50x1_bit", "mobilenetv3_small_050", "vit_tiny_patch16_224", "convnext_atto"]
)
def test_other_timm_models_can_be_the_encoder(name: str, tmp_path: Path) -> None:
    encoder = build(recipes.Encoder(name), size=64).train()
    features = encoder(torch.rand(2, 3, 3, 64, 64) * 2 - 1)
    assert features.shape == (2, 3, encoder.features)
    write_encoder(tmp_path, encoder, "mine", 1)
    loaded, _ = vivi.load_encoder(tmp_path)
    assert loaded(torch.rand(1, 3, 64, 64)).shape == (1, encoder.features)


def test_mean_and_standard_deviation_of_the_weights_are_kept(tmp_path: Path) -> None:
    """An encoder with other input statistics sees the same frames through both doors."""
    write_encoder(tmp_path, build(), "mine", 1)
    change_fields(tmp_path, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.4])
    encoder = build(replace(SMALL, start=str(tmp_path))).eval()
    loaded, transform = vivi.load_encoder(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    frames = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        torch.testing.assert_close(encoder(frames), loaded(transform(Image.fromarray(pixels))[None]))
