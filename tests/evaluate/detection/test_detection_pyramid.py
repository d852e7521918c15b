"""Maps of stride 8, 16 and 32: which, from where, and what is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from vivi.evaluate.detection.pyramid import CHANNELS, STRIDES, Maps, Pyramid
from vivi.evaluate.foreign import SlimResNet, caffe_vgg
from vivi.model.architecture import Architecture
from vivi.runtime.errors import UserError


def make(name: str, **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **arguments)
    return model


def sizes(maps: dict[int, Tensor]) -> dict[int, tuple[int, ...]]:
    return {stride: tuple(one.shape) for stride, one in maps.items()}


ENCODERS = {
    "resnetv2 with batch norm": (lambda: make("resnetv2_18"), (128, 256, 512)),
    "resnetv2 with group norm": (
        lambda: Architecture("resnetv2_18", {}, 64, group_norm=True).create(),
        (128, 256, 512),
    ),
    "resnetv2 ×3": (lambda: make("resnetv2_18", width_factor=3, channels=(16, 24, 32, 48)), (72, 96, 144)),
    "resnetv2 with bottlenecks": (lambda: make("resnetv2_50", layers=(1, 1, 1, 1)), (512, 1024, 2048)),
    "resnet": (lambda: make("resnet18"), (128, 256, 512)),
    "convnext": (lambda: make("convnext_atto"), (80, 160, 320)),
    "efficientnet": (lambda: make("test_efficientnet"), (32, 48, 64)),
    "vit": (lambda: make("test_vit"), (32, 64, 64)),
    "vit for one size": (lambda: make("vit_tiny_patch16_224", depth=2), (96, 192, 192)),
    "vit of large patches": (lambda: make("vit_tiny_patch16_224", depth=2, patch_size=32), (48, 96, 192)),
    "swin": (lambda: make("swin_tiny_patch4_window7_224", depths=(1, 1, 2, 1)), (192, 384, 768)),
    "MS and MT-SSL": (lambda: SlimResNet((2, 2, 2), 8), (32, 64, 128)),
    "TI": (lambda: caffe_vgg({}, 8), (64, 64, 64)),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_every_kind_of_encoder_gives_maps_of_three_strides_for_images_of_any_size(kind: str) -> None:
    encoder, channels = ENCODERS[kind]
    maps = Maps(encoder(), kind)
    assert tuple(maps.channels[stride] for stride in STRIDES) == channels
    for height, width in ((96, 64), (128, 160)):
        found = maps(torch.randn(1, 3, height, width))
        assert tuple(found) == STRIDES
        assert sizes(found) == {s: (1, maps.channels[s], height // s, width // s) for s in STRIDES}


def test_patches_of_14_pixels_stand_for_a_stride_of_16() -> None:
    maps = Maps(make("vit_small_patch14_dinov2", depth=1, embed_dim=48, num_heads=2, img_size=56), "dinov2")
    assert maps.multiple == 28
    assert sizes(maps(torch.randn(1, 3, 56, 84))) == {8: (1, 24, 8, 12), 16: (1, 48, 4, 6), 32: (1, 48, 2, 3)}


def test_an_encoder_that_ends_early_is_pooled_further() -> None:
    maps = Maps(Architecture("resnetv2_18", {}, 64, patch_strides=True).create(), "jigsaw")  # its last stride is 8
    found = maps(torch.randn(1, 3, 64, 96))
    assert maps.channels == {8: 512, 16: 512, 32: 512}
    assert torch.equal(found[32], nn.functional.max_pool2d(found[8], 4))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["resnetv2_18", "resnetv2_50"])
def test_maps_of_pre_activation_are_the_stages_sums_after_the_next_norm(name: str, norm: str) -> None:
    torch.manual_seed(0)
    backbone: Any = Architecture(name, {"layers": (1, 2, 1, 1)}, 64, group_norm=norm == "group").create()
    for parameter in backbone.parameters():  # norms that do something
        parameter.data += 0.1 * torch.randn_like(parameter)
    maps = Maps(backbone, name)
    images = torch.randn(2, 3, 64, 96)
    sums = backbone.forward_intermediates(images, intermediates_only=True)[2:]  # of the stages of stride 8, 16, 32
    norms = [backbone.stages[2].blocks[0].norm1, backbone.stages[3].blocks[0].norm1, backbone.norm]
    for found, total, following in zip(maps(images).values(), sums, norms, strict=True):
        torch.testing.assert_close(found, following(total))
        assert found.min() == 0, "they went through a ReLU"
    torch.testing.assert_close(maps(images)[32], backbone.forward_features(images))


def test_the_last_map_of_an_encoder_is_what_its_representation_averages() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 96)
    for backbone in (make("resnetv2_18"), make("resnet18"), SlimResNet((2, 2, 2), 8), caffe_vgg({}, 8)):
        maps = Maps(backbone, "one of them")
        torch.testing.assert_close(maps(images)[32].mean((2, 3)), backbone(images))


def test_maps_of_ms_are_activated_and_those_of_ti_precede_its_poolings() -> None:
    torch.manual_seed(0)
    images = torch.randn(1, 3, 64, 96)
    slim: Any = SlimResNet((2, 3, 2), 8)
    maps = Maps(slim, "MS")
    caught: list[Tensor] = []
    for unit in (slim.block2.unit_1, slim.block3.unit_1):
        unit.conv1.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    slim(images)
    expected = list(caught)
    found = maps(images)
    torch.testing.assert_close([found[8], found[16]], expected)

    vgg: Any = caffe_vgg({}, 8)
    maps = Maps(vgg, "TI")
    names = list(dict(vgg.named_children()))
    found = maps(images)
    for stride, last in ((8, "relu4_3"), (16, "relu5_3"), (32, "pool5")):
        torch.testing.assert_close(found[stride], vgg[: names.index(last) + 1](images))


def test_parameters_behind_the_last_map_get_no_gradient_and_all_others_do() -> None:
    fc = {"fc6.weight": torch.zeros(16, 64, 3, 3), "fc7.weight": torch.zeros(16, 16, 1, 1)}
    for encoder, behind in (
        (make("convnext_atto"), "maps.backbone.head."),
        (caffe_vgg(fc, 8), "maps.backbone.fc"),
        (make("vit_tiny_patch16_224", depth=2), "none"),
        (Architecture("resnetv2_18", {}, 64, group_norm=True).create(), "none"),
    ):
        pyramid = Pyramid(Maps(encoder, "one of them"))
        torch.stack([level.sum() for level in pyramid(torch.randn(1, 3, 64, 96)).values()]).sum().backward()
        assert all((p.grad is None) == name.startswith(behind) for name, p in pyramid.named_parameters()), behind


def test_the_pyramid_has_five_levels_of_one_width() -> None:
    levels = Pyramid(Maps(make("test_resnet"), "test_resnet"))(torch.randn(1, 3, 128, 160))
    shapes = [tuple(level.shape[1:]) for level in levels.values()]
    assert shapes == [(CHANNELS, 16, 20), (CHANNELS, 8, 10), (CHANNELS, 4, 5), (CHANNELS, 2, 3), (CHANNELS, 1, 2)]


@pytest.mark.parametrize(
    ("backbone", "reason"),
    [(lambda: nn.Flatten(), "Flatten"), (lambda: make("mixer_s16_224"), "224")],
    ids=["no intermediate maps", "one size only"],
)
def test_an_encoder_without_maps_is_one_line_that_says_what_to_choose(
    backbone: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(UserError) as error:
        Maps(backbone(), "timm:some_model")
    said = str(error.value)
    assert "timm:some_model" in said and reason in said and "choose" in said and "\n" not in said
