"""Two detectors in turn: what is measured, beside what, and what is written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from detection import (
    DetectionOptions,
    Round,
    Trained,
    bench_detection,
    random_batch,
    summary,
    torchvision_detector,
)
from rich.console import Console
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from vivi.runtime.errors import UserError

SMALL = DetectionOptions(
    "untrained:test_resnet",
    height=64,
    width=96,
    batch=1,
    boxes=2,
    classes=3,
    measure=1,
    rounds=2,
    warm_up=1,
    device="cpu",
)


def test_both_detectors_are_measured_and_their_figures_written(tmp_path: Path) -> None:
    options = replace(SMALL, json=tmp_path / "found.json")
    said = io.StringIO()
    found = bench_detection(options, Console(file=said, width=120))
    assert len(found["rounds"]) == 2 and found["precision"] == "float32"
    assert found["ratio_least"] <= found["ratio"] <= found["ratio_most"]
    assert set(found["memory_formats_of_theirs"]) == {"default", "channels_last"}
    assert found["trained_parameters"]["theirs"] > 30e6 > found["trained_parameters"]["ours"] > 0
    assert json.loads((tmp_path / "found.json").read_text())["ratio"] == pytest.approx(found["ratio"], rel=1e-4)
    assert "torchvision's ResNet-50" in said.getvalue() and "untrained:test_resnet" in said.getvalue()


def test_theirs_trains_all_its_layers_with_the_norms_that_were_asked_for() -> None:
    plain = torchvision_detector(SMALL)
    assert all(parameter.requires_grad for parameter in plain.parameters())
    assert any(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    frozen = torchvision_detector(replace(SMALL, norm="frozen"))
    assert all(parameter.requires_grad for parameter in frozen.parameters())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in frozen.modules())
    assert any(isinstance(module, FrozenBatchNorm2d) for module in frozen.modules())


def test_a_step_is_forward_backward_and_update() -> None:
    layer = nn.Linear(2, 1)
    before, calls = layer.weight.clone(), []

    def losses() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"one": layer(torch.ones(1, 2)).sum(), "other": layer(torch.zeros(1, 2)).sum()}

    assert Trained(layer, losses, 4, torch.device("cpu")).train(3) > 0
    assert len(calls) == 3 and not torch.equal(layer.weight, before)


def test_boxes_lie_in_their_images_and_are_the_same_every_time() -> None:
    images, targets = random_batch(SMALL, torch.device("cpu"))
    again, _ = random_batch(SMALL, torch.device("cpu"))
    assert images[0].dtype == torch.uint8 and images[0].shape == (3, 64, 96) and torch.equal(images[0], again[0])
    boxes = targets[0]["boxes"]
    assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] <= torch.tensor([96, 64])).all()
    assert (boxes[:, 2:] - boxes[:, :2] > 2).all() and targets[0]["labels"].max() < 3


def test_a_ratio_is_that_of_one_round() -> None:
    rounds = [Round(10, 10), Round(30, 20), Round(8, 16)]
    found = summary(rounds)
    assert (found["ratio_least"], found["ratio"], found["ratio_most"]) == (0.5, 1.0, 1.5)
    assert (found["images_per_second"], found["theirs_per_second"]) == (10, 16)


def test_impossible_options_are_refused_at_once(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"batch": 0, "height": 8, "json": tmp_path / "no" / "such.json"}
    for name, value in changes.items():
        with pytest.raises(UserError, match=f"--{name}"):
            replace(SMALL, **{name: value}).check()
