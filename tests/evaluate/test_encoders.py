"""Models to evaluate: every kind of source, and the habits of checkpoints."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from small_models import features, line_of, random
from torch import Tensor, nn

from vivi import recipes
from vivi.evaluate.encoders import checksum, load_model
from vivi.model.encoder import build_encoder
from vivi.model.files import write_encoder

Arrays = dict[str, Any]  # of numpy


def zeros(name: str) -> dict[str, Tensor]:
    """A timm model's weights that take no time to make and no room in a file."""
    with torch.device("meta"):
        state = timm.create_model(name, num_classes=0).state_dict()
    return {key: torch.zeros(()).expand(tensor.shape) for key, tensor in state.items()}


# --- runs ---


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my-run"
    folder.mkdir()
    torch.manual_seed(0)
    encoder = build_encoder(recipes.Encoder("resnetv2_18", width=0.125), 32).eval()
    write_encoder(folder, encoder, "mine", 5)
    return folder


def test_a_run_is_loaded_by_its_folder_or_its_file(run: Path) -> None:
    model = load_model(str(run))
    assert (model.name, model.source, model.features, model.size) == ("my-run", str(run), 64, 32)
    assert (model.mean, model.std, model.learning_rates) == ((0.5,) * 3, (0.5,) * 3, (0.1, 0.01))
    assert not any(module.training for module in model.backbone.modules())
    torch.manual_seed(0)
    encoder = build_encoder(recipes.Encoder("resnetv2_18", width=0.125), 32).eval()
    images = random(2, 3, 32, 32)
    torch.testing.assert_close(features(model, images), features(encoder, images))

    again = load_model(str(run / "encoder.safetensors"), size=64, name="other")
    assert (again.name, again.size, again.checksum) == ("other", 64, model.checksum)


def test_a_run_with_a_fixed_input_size_is_resized(tmp_path: Path) -> None:
    encoder = build_encoder(recipes.Encoder("vit_tiny_patch16_224", initialisation="timm"), 32)
    write_encoder(tmp_path, encoder, "mine", 5)
    own, other = load_model(str(tmp_path)), load_model(str(tmp_path), size=64)
    assert (own.size, other.size, own.features) == (32, 64, 192)
    assert features(other, random(1, 3, 64, 64)).shape == (1, 192)
    torch.testing.assert_close(own.backbone.state_dict()["norm.weight"], other.backbone.state_dict()["norm.weight"])


def test_the_checksum_is_of_weights_layers_and_input(run: Path) -> None:
    model = load_model(str(run))
    half = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert model.checksum == load_model(str(run)).checksum == checksum(model.backbone, *half)
    assert checksum(model.backbone, half[0], (0.5, 0.5, 0.4)) != model.checksum
    assert len(model.checksum) == 64
    with torch.no_grad():
        next(model.backbone.parameters()).view(-1)[0] += 1e-3
    assert checksum(model.backbone, *half) != model.checksum
    one, two = nn.Linear(2, 3), nn.Linear(3, 2)
    with torch.no_grad():
        for module in (one, two):
            module.weight.zero_()
    assert checksum(nn.ParameterList([one.weight]), *half) != checksum(nn.ParameterList([two.weight]), *half)
    assert checksum(nn.Sequential(nn.ReLU()), *half) != checksum(nn.Sequential(nn.GELU()), *half)


# --- timm ---


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    """torchvision's ResNet-18 for 7 classes, with batch statistics that are not the initial ones."""
    torch.manual_seed(1)
    network: nn.Module = torchvision.models.resnet18(num_classes=7)
    with torch.no_grad():
        network(torch.randn(4, 3, 64, 64))
    return network.eval()


def expected_features(resnet: nn.Module, images: Tensor) -> Tensor:
    return features(nn.Sequential(*list(resnet.children())[:-1], nn.Flatten()), images)  # all but the classifier


State = dict[str, Tensor]
Wrapped = Callable[[State], Any]


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda state: state,
        lambda state: prefixed("module.", state),
        lambda state: {"state_dict": prefixed("module.", state), "epoch": 3, "args": argparse.Namespace(lr=1.0)},
        lambda state: {"model": prefixed("backbone.", state), "optimizer": {"state": {}, "param_groups": []}},
        lambda state: {
            "student": {},
            "teacher": prefixed("module.backbone.", state) | {"head.last.g": torch.ones(3)},
        },
        lambda state: {"network": prefixed("encoder.", state) | {"decoder.layer1.0.conv1.weight": torch.ones(3)}},
        lambda state: {
            "state_dict": prefixed("module.encoder_q.", state)
            | prefixed("module.encoder_k.", {name: torch.zeros_like(tensor) for name, tensor in state.items()})
            | {"module.queue": torch.zeros(128, 9)}
        },
        lambda state: {
            "classy_state_dict": {"base_model": {"model": {"trunk": prefixed("_feature_blocks.", state)}}}
        },
        lambda state: {name: tensor for name, tensor in state.items() if "fc" not in name and "num_b" not in name},
    ],
)
def test_torchvisions_weights_come_in_every_wrapping(wrapped: Wrapped, resnet: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "jigsaw.pth.tar"
    torch.save(wrapped(resnet.state_dict()), path)
    model = load_model("timm:resnet18", path, size=64)
    assert (model.features, model.size, model.name) == (512, 64, "resnet18 (jigsaw)")
    assert model.mean == pytest.approx((0.485, 0.456, 0.406))
    images = random(2, 3, 64, 64)
    torch.testing.assert_close(features(model, images), expected_features(resnet, images))


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "bin", "pt"])
def test_weights_are_read_from_every_kind_of_file(suffix: str, resnet: nn.Module, tmp_path: Path) -> None:
    path, state = tmp_path / f"weights.{suffix}", resnet.state_dict()
    if suffix == "safetensors":
        save_file(state, path)
    elif suffix == "npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()}, comment=np.array(b"text"))
    else:
        torch.save(state, path)
    images = random(1, 3, 64, 64)
    torch.testing.assert_close(
        features(load_model("timm:resnet18", path, size=64), images), expected_features(resnet, images)
    )


def test_a_classifier_beside_weights_of_the_network_is_dropped(tmp_path: Path) -> None:
    network = timm.create_model("convnext_atto", num_classes=5)  # head.norm stays, head.fc goes
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    model = load_model("timm:convnext_atto", tmp_path / "weights.pth", size=64)
    torch.testing.assert_close(
        model.backbone.state_dict()["head.norm.weight"], network.state_dict()["head.norm.weight"]
    )


def test_pretrained_weights_bring_their_input(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    create = timm.create_model

    def offline(name: str, pretrained: bool, **arguments: Any) -> Any:
        asked.append({"name": name, "pretrained": pretrained, **arguments})
        return create(name, **arguments)

    monkeypatch.setattr(timm, "create_model", offline)
    models = [
        load_model("timm:resnet10t"),
        load_model("timm:vit_tiny_patch16_384"),
        load_model("timm:resnet10t", size=64),
    ]
    assert [model.size for model in models] == [224, 384, 64]
    assert [model.mean for model in models] == [pytest.approx((0.485, 0.456, 0.406)), (0.5,) * 3, models[0].mean]
    assert [model.name for model in models] == ["resnet10t", "vit_tiny_patch16_384", "resnet10t"]
    assert all(call["pretrained"] and call["num_classes"] == 0 for call in asked)
    assert [call.get("img_size") for call in asked] == [None, 384, None]

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(timm, "create_model", unreachable)
    assert "cannot be loaded" in line_of("timm:resnet10t")


# --- untrained ---


def test_untrained_weights_depend_on_nothing() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = load_model("untrained:resnet10t", size=64)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    second = load_model("untrained:resnet10t")
    assert first.checksum == second.checksum
    assert (first.name, first.features, first.size, second.size) == ("untrained resnet10t", 512, 64, 224)


def test_an_untrained_recipe_has_its_width_size_and_initialisation(tmp_path: Path) -> None:
    model = load_model("untrained:vivi-ex4-tiny")
    assert (model.name, model.features, model.size) == ("untrained vivi-ex4-tiny", 128, 48)
    assert model.mean == (0.5, 0.5, 0.5)
    kernel = next(module for module in model.backbone.modules() if isinstance(module, nn.Conv2d)).weight
    limit = math.sqrt(6 / (kernel[0].numel() + kernel[:, 0].numel()))
    assert 0.95 * limit < float(kernel.detach().abs().max()) <= limit
    assert all(type(module).__module__.startswith(("torch.", "timm.")) for module in model.backbone.modules())

    content = {"name": "mine", "encoder": {"name": "resnet10t", "initialisation": "timm"}, "augment": {"size": 40}}
    (tmp_path / "recipe.json").write_text(json.dumps(content))
    mine = load_model(f"untrained:{tmp_path / 'recipe.json'}")
    assert (mine.name, mine.size) == ("untrained mine", 40)
    other = load_model("untrained:resnet10t", size=64).backbone.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in mine.backbone.state_dict().items())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"encoder": {"width": 1e9}}, "--encoder.width is 1000000000.0"),
        ({"augment": {"size": 10**9}}, "--augment.size is 1000000000"),
        ({"encoder": {"name": "hf-hub:x/y"}}, "timm has no model 'hf-hub:x/y': give one of its own names"),
    ],
)
def test_an_untrained_recipe_that_somebody_sent_takes_no_memory_and_fetches_nothing(
    change: dict[str, object], line: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps({"name": "theirs", **change}))
    assert line in line_of(f"untrained:{tmp_path}")


# --- errors ---


class Anything:
    """Not weights."""


def damaged(tmp_path: Path) -> dict[str, Path]:
    resnet34, resnet18 = zeros("resnet34"), zeros("resnet18")
    contents = {
        "deeper.pth": resnet34,
        "partial.pth": {name: tensor for name, tensor in resnet18.items() if not name.startswith("layer4.1.")},
        "misshapen.pth": resnet18 | {"conv1.weight": torch.zeros(64, 3, 3, 3)},
        "other.pth": {"some.weight": torch.zeros(3)},
        "objects.pth": {"state_dict": resnet18, "thing": Anything()},
        "empty.pth": {"state_dict": {}},
        "number.pth": 3,
    }
    for name, content in contents.items():
        torch.save(content, tmp_path / name)
    for name in ("noise.pth", "noise.npz", "noise.safetensors", "noise.tar", "model.ckpt", "ti.npy"):
        (tmp_path / name).write_bytes(b"noise" * 20)
    np.savez(tmp_path / "objects.npz", a=np.array([Anything()]))
    return {path.name: path for path in tmp_path.iterdir()}


def test_files_that_do_not_fit_or_cannot_be_read_get_one_line(tmp_path: Path) -> None:
    files = damaged(tmp_path)
    lines = {name: line_of("timm:resnet18", path, size=64) for name, path in files.items()}
    assert all(name in line for name, line in lines.items())
    assert "96 unexpected (the first: layer1.2.conv1.weight)" in lines["deeper.pth"]
    assert "10 missing (the first: layer4.1.conv1.weight)" in lines["partial.pth"]
    assert "1 of another shape (the first: conv1.weight)" in lines["misshapen.pth"]
    assert "missing (the first: conv1.weight); name the network" in lines["other.pth"]
    assert (
        "a pickle of more than tensors" in lines["objects.pth"]
        and "torch.save(model.state_dict(), FILE)" in lines["objects.pth"]
    )
    assert "holds no weights" in lines["empty.pth"] and "holds no weights" in lines["number.pth"]
    assert "allow_pickle" in lines["objects.npz"]
    assert "foreign.py" in lines["model.ckpt"] and "numpy.savez" in lines["ti.npy"]


@pytest.mark.parametrize(
    ("source", "options", "line"),
    [
        ("", {}, "--encoder is ''"),
        ("timm:", {}, "--encoder is 'timm:'"),
        ("nowhere", {}, "there is no run or file nowhere; a model is a run's folder, timm:NAME"),
        ("long" * 100, {}, "there is no run or file long"),
        ("resnet18", {}, "timm's model is timm:resnet18"),
        ("timm:resnet1", {}, "did you mean resnet18"),
        ("untrained:vivi-ex5", {}, "did you mean vivi-ex"),
        ("untrained:qqqqqqqqqq", {}, "neither a recipe nor a model of timm"),
        ("untrained:none.json", {}, "none.json is missing or damaged"),
        ("untrained:resnet10t", {"size": -1}, "--size is -1"),
        ("untrained:resnet10t", {"weights": Path("some.pth")}, "--weights some.pth goes with timm:NAME only"),
        ("untrained:vit_tiny_patch16_224", {"size": 9}, "9 px"),
        ("timm:resnet18", {"weights": Path("nowhere.pth")}, "there is no file of weights nowhere.pth"),
        ("timm:resnet18", {"weights": Path("nowhere.safetensors")}, "there is no file of weights nowhere"),
        ("ms:nowhere.npz", {}, "there is no file of weights nowhere.npz"),
        ("ti:nowhere.npz", {}, "there is no file of weights nowhere.npz"),
    ],
)
def test_a_model_that_cannot_be_had_gets_one_line(source: str, options: dict[str, Any], line: str) -> None:
    assert line in line_of(source, **options)


def test_weights_beside_a_run_are_refused(run: Path) -> None:
    assert "says itself where its weights are" in line_of(str(run), Path("other.pth"))
    (run / "encoder.json").unlink()
    assert "encoder.json is missing" in line_of(str(run))
