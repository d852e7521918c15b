"""The detector beside torchvision's RetinaNet, and what training may and may not change."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models.detection import RetinaNet
from torchvision.models.detection._utils import Matcher, encode_boxes
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import box_iou, sigmoid_focal_loss
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from vivi.evaluate.detection.batches import Target
from vivi.evaluate.detection.network import Detector, FocalLoss, encode, losses, match
from vivi.evaluate.detection.settings import Norm, Tuned
from vivi.evaluate.encoders import Model, load_model
from vivi.model.architecture import Architecture

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def some_images() -> tuple[list[Tensor], list[Target]]:
    """Two of different sizes, the second without objects; and one with a tiny object."""
    torch.manual_seed(1)
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in ((60, 90), (80, 50), (64, 64))]
    targets = [
        {"boxes": torch.tensor([[5.0, 6, 45, 50], [30, 10, 88, 58]]), "labels": torch.tensor([2, 0])},
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)},
        {"boxes": torch.tensor([[10.0, 10, 14, 15], [0, 0, 64, 64]]), "labels": torch.tensor([1, 2])},
    ]
    return images, targets


def small(name: str = "untrained:test_resnet", norm: Norm = "synchronised") -> Detector:
    torch.manual_seed(0)
    return Detector(load_model(name, size=64), 3, Tuned(norm=norm, min_size=48, max_size=64))


# --- beside torchvision ---


def both() -> tuple[Detector, RetinaNet]:
    """timm's resnet18 and torchvision's have the same layers: the same weights in both detectors."""
    torch.manual_seed(0)
    backbone = timm.create_model("resnet18", num_classes=0)
    architecture = Architecture("resnet18", {}, 64, MEAN, STD)
    model = Model("resnet18", "timm:resnet18", backbone, 512, 64, MEAN, STD, (), "", architecture)
    ours = Detector(model, 3, Tuned(min_size=96, max_size=128))
    extra = LastLevelP6P7(256, 256)
    pyramid = resnet_fpn_backbone(
        backbone_name="resnet18",
        weights=None,
        norm_layer=nn.BatchNorm2d,
        trainable_layers=5,
        returned_layers=[2, 3, 4],
        extra_blocks=extra,
    )
    theirs = RetinaNet(pyramid, 3, min_size=96, max_size=128, detections_per_img=100)
    pyramid.body.load_state_dict({name: t for name, t in backbone.state_dict().items() if not name.startswith("fc")})
    pyramid.fpn.load_state_dict(ours.retina.backbone.fpn.state_dict())
    for parameter in ours.retina.head.parameters():  # scores that differ, as those of a trained detector do
        parameter.data += 0.03 * torch.randn_like(parameter)
    theirs.head.load_state_dict(ours.retina.head.state_dict())
    return ours, theirs.train()


def test_losses_are_those_of_torchvision() -> None:
    ours, theirs = both()
    images, targets = some_images()
    found, expected = ours(images, targets), theirs([image / 255 for image in images], targets)
    assert list(found) == list(expected)
    torch.testing.assert_close(found, expected)


def test_gradients_of_the_losses_are_those_of_torchvision() -> None:
    torch.manual_seed(0)
    retina = small().retina
    corners, sides = torch.rand(500, 2) * 80, 4 + torch.rand(500, 2) * 40
    anchors = torch.cat([corners, corners + sides], dim=1)
    targets = [
        {"boxes": anchors[:6] + torch.rand(6, 4), "labels": torch.randint(0, 3, (6,))},
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)},
    ]
    logits, offsets = (3 * torch.randn(2, 500, 3)).requires_grad_(), torch.randn(2, 500, 4, requires_grad=True)
    outputs = {"cls_logits": logits, "bbox_regression": offsets}
    found = losses(outputs, anchors, [t["boxes"] for t in targets], [t["labels"] for t in targets])
    expected = retina.compute_loss(targets, outputs, [anchors, anchors])
    slopes = [
        torch.autograd.grad(one["classification"] + 2 * one["bbox_regression"], (logits, offsets))
        for one in (found, expected)
    ]
    torch.testing.assert_close(slopes[0], slopes[1])


def test_detections_are_those_of_torchvision() -> None:
    ours, theirs = both()
    images, _ = some_images()
    found = ours.detect(images)
    expected = theirs.eval()([image / 255 for image in images])
    assert sum(len(one["scores"]) for one in expected) > 100
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine["scores"], other["scores"], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(mine["boxes"], other["boxes"], rtol=1e-3, atol=0.05)
        assert torch.equal(mine["labels"], other["labels"])


def test_the_focal_loss_and_its_slope_are_torchvisions() -> None:
    torch.manual_seed(0)
    logits = (5 * torch.randn(2, 50, 4)).requires_grad_()
    labels, positive = torch.randint(0, 4, (2, 50)), torch.rand(2, 50) < 0.3
    weight = torch.rand(2, 50) * (torch.rand(2, 50) < 0.8)
    wanted = nn.functional.one_hot(labels, 4) * positive[..., None]
    reference = (sigmoid_focal_loss(logits, wanted.float()) * weight[..., None]).sum()
    (expected,) = torch.autograd.grad(3 * reference, logits)
    loss = FocalLoss.apply(logits, labels, positive, weight)
    (found,) = torch.autograd.grad(3 * loss, logits)
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(found, expected)


def test_the_focal_loss_of_extreme_logits_is_finite() -> None:
    logits = torch.tensor([[[-1e4, 1e4], [90.0, -90.0]]], requires_grad=True)
    loss = FocalLoss.apply(logits, torch.tensor([[0, 1]]), torch.tensor([[True, True]]), torch.ones(1, 2))
    loss.backward()
    assert loss.isfinite() and logits.grad is not None and logits.grad.isfinite().all()


def test_boxes_are_matched_and_encoded_as_by_torchvision() -> None:
    torch.manual_seed(0)
    corners, sides = torch.rand(2000, 2) * 80, 4 + torch.rand(2000, 2) * 40
    anchors = torch.cat([corners, corners + sides], dim=1)
    boxes = anchors[:20] + torch.rand(20, 4)
    expected = Matcher(0.5, 0.4, allow_low_quality_matches=True)(box_iou(boxes, anchors))
    found = match(boxes, anchors)
    assert torch.equal(found, expected) and {-2, -1} < set(found.tolist())
    torch.testing.assert_close(encode(boxes, anchors[:20]), encode_boxes(boxes, anchors[:20], torch.ones(4)))


def test_a_box_that_no_anchor_overlaps_takes_none() -> None:
    anchors = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]])
    assert match(torch.tensor([[50.0, 50, 60, 60]]), anchors).tolist() == [-1, -1]
    assert match(torch.tensor([[50.0, 50, 60, 60], [1, 1, 3, 3]]), anchors).tolist() == [1, -1]
    assert match(torch.zeros(0, 4), anchors).tolist() == [-1, -1]


# --- images ---


def test_images_lie_normalised_in_the_corner_of_a_batch_and_keep_their_shape() -> None:
    detector = Detector(load_model("untrained:test_resnet", size=64), 3, Tuned(min_size=96, max_size=128))
    images, _ = some_images()
    batch, sizes = detector._batch(images, ())
    assert sizes == [(85, 128), (128, 80), (96, 96)], "short side 96 unless the long one would exceed 128"
    assert batch.shape == (3, 3, 128, 128)
    assert batch[0, :, 85:].eq(0).all() and batch[2, :, :, 96:].eq(0).all()
    mean, std = (values.view(3, 1, 1) for values in (detector.mean, detector.std))
    alone, _ = detector._batch(images[2:], [(85, 128), (128, 80)])
    assert torch.equal(alone[0], batch[2]), "padded as with those beside it"
    slow = nn.functional.interpolate(((images[2] - mean) / std)[None], (96, 96), mode="bilinear")[0]
    torch.testing.assert_close(batch[2, :, :96, :96], slow, rtol=1e-4, atol=1e-4)


def test_detections_are_in_the_pixels_of_the_image_and_at_most_a_hundred() -> None:
    detector = small()
    nn.init.constant_(detector.retina.head.classification_head.cls_logits.bias, 0.0)  # everything is an object
    images, _ = some_images()
    large = nn.functional.interpolate(images[0][None].float(), scale_factor=4, mode="nearest").to(torch.uint8)[0]
    for image, found in zip([images[0], large], detector.detect([images[0], large]), strict=True):
        height, width = image.shape[1:]
        assert len(found["boxes"]) == len(found["labels"]) == len(found["scores"]) == 100
        assert (found["scores"].diff() <= 0).all() and found["boxes"].min() >= 0
        assert found["boxes"][:, 2].max() == pytest.approx(width, abs=0.01)
        assert found["boxes"][:, 3].max() == pytest.approx(height, abs=0.01)
    assert detector.training, "as it was before"


def test_a_detector_learns_one_image() -> None:
    torch.manual_seed(0)
    detector = Detector(load_model("untrained:test_resnet", size=64), 2, Tuned(min_size=64, max_size=64))
    image = torch.full((3, 64, 64), 60, dtype=torch.uint8)
    image[:, 12:40, 20:54] = 220
    targets = [{"boxes": torch.tensor([[20.0, 12, 54, 40]]), "labels": torch.tensor([1])}]
    optimiser = torch.optim.Adam([p for p in detector.parameters() if p.requires_grad], lr=3e-4)
    history = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = torch.stack(list(detector([image], targets).values())).sum()
        loss.backward()
        optimiser.step()
        history.append(loss.item())
    assert history[-1] < 0.3 * history[0]
    best = {name: value[0] for name, value in detector.detect([image])[0].items()}
    assert best["labels"] == 1 and best["scores"] > 0.2
    assert box_iou(best["boxes"][None], targets[0]["boxes"]).item() > 0.5


# --- norms, weights, precision ---


def step(detector: Detector) -> None:
    """Of SGD with weight decay, which moves everything that is trained."""
    trained = [p for p in detector.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1, weight_decay=0.1)
    torch.stack(list(detector(*some_images()).values())).sum().backward()
    optimiser.step()


def encoder_of(detector: Detector) -> nn.Module:
    backbone: nn.Module = detector.retina.backbone.maps.backbone
    return backbone


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def norm_names(backbone: nn.Module) -> set[str]:
    """Of all statistics, scales and shifts."""
    norms = {name: module for name, module in backbone.named_modules() if isinstance(module, _BatchNorm)}
    return {f"{name}.{part}" for name, module in norms.items() for part in module.state_dict()}


def moved(backbone: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in backbone.state_dict().items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("name", ["untrained:test_resnet", "untrained:resnetv2_18"])
def test_frozen_norms_never_move_and_all_else_of_the_encoder_does(name: str) -> None:
    detector = small(name, norm="frozen")
    backbone = encoder_of(detector)
    for layer in backbone.modules():  # a shift of zero would hide that weight decay moves it
        if isinstance(layer, _BatchNorm):
            nn.init.constant_(layer.bias, 0.1)
    norms, before = norm_names(backbone), state(backbone)
    step(detector.eval().train())
    assert norms and moved(backbone, before) == set(before) - norms


def test_synchronised_norms_of_one_process_use_and_learn_the_statistics_of_the_batch() -> None:
    detector = small()
    backbone = encoder_of(detector)
    before = state(backbone)
    step(detector)
    assert {name for name in norm_names(backbone) if "running" in name} <= moved(backbone, before)


def test_several_processes_share_statistics() -> None:
    torch.manual_seed(0)
    model = load_model("untrained:test_resnet", size=64)
    for processes, kind in ((1, nn.BatchNorm2d), (2, nn.SyncBatchNorm)):
        detector = Detector(model, 3, Tuned(min_size=48, max_size=64), processes)
        assert detector.norms and all(isinstance(norm, kind) for norm in detector.norms)


def test_group_norm_ignores_the_choice() -> None:
    architecture = Architecture("resnetv2_18", {}, 64, group_norm=True)
    model = Model("group norm", "a run", architecture.create(), 512, 64, MEAN, STD, (), "", architecture)
    found = []
    choices: tuple[Norm, ...] = ("synchronised", "frozen")
    for norm in choices:
        torch.manual_seed(0)
        detector = Detector(model, 3, Tuned(norm=norm, min_size=32, max_size=32))
        assert not detector.norms
        found.append(detector(*some_images()))
    assert found[0] == found[1]


def test_the_model_keeps_its_weights_and_the_seed_decides_the_rest() -> None:
    model = load_model("untrained:test_resnet", size=64)
    before = state(model.backbone)
    detectors = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        detectors.append(Detector(model, 3, Tuned(min_size=48, max_size=64)))
    first, again, other = (state(detector) for detector in copy.deepcopy(detectors))
    step(detectors[0])
    assert not moved(model.backbone, before) and not model.backbone.training
    assert all(torch.equal(first[name], again[name]) for name in first)
    different = {name for name in first if not torch.equal(first[name], other[name])}
    assert different and not any("maps" in name for name in different)
    step(detectors[1])
    assert not moved(detectors[0], state(detectors[1])), "the same step on a CPU, bit for bit"


def test_in_bfloat16_the_losses_and_boxes_are_float32_and_near() -> None:
    torch.manual_seed(0)
    tuned = Tuned(norm="frozen", min_size=32, max_size=32)
    detector = Detector(load_model("untrained:test_resnet", size=64), 3, tuned)
    images, targets = some_images()
    images, targets = images[2:], targets[2:]
    exact = detector(images, targets)
    detector.precision = torch.bfloat16
    rough = detector(images, targets)
    assert all(loss.dtype == torch.float32 for loss in rough.values())
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.01)
    torch.stack(list(rough.values())).sum().backward()
    nn.init.constant_(detector.retina.head.classification_head.cls_logits.bias, 0.0)
    assert detector.detect(images)[0]["boxes"].dtype == torch.float32


def test_all_gets_a_gradient_but_the_head_of_the_encoder() -> None:
    detector = small("untrained:convnext_atto")
    torch.stack(list(detector(*some_images()).values())).sum().backward()
    assert all((p.grad is None) == (".backbone.head." in name) for name, p in detector.named_parameters())


def test_the_protocol_is_that_of_torchvisions_retinanet_resnet50_fpn() -> None:
    theirs = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None)
    ours = small().retina
    assert ours.anchor_generator.sizes == theirs.anchor_generator.sizes
    assert ours.anchor_generator.aspect_ratios == theirs.anchor_generator.aspect_ratios
    for name in ("score_thresh", "nms_thresh", "topk_candidates"):
        assert getattr(ours, name) == getattr(theirs, name)
