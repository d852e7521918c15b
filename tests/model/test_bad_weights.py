"""Weights that no network should have: not finite, of another type, pickles that are more than weights."""

from __future__ import annotations

import io
import pickle
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vivi import load_encoder
from vivi.evaluate.encoders import load_weights, read_weights
from vivi.model.encoder import build_encoder
from vivi.model.files import Classifier, read_classifier, write_classifier, write_encoder
from vivi.recipes import Encoder
from vivi.runtime.errors import UserError


def refusal(action: Any) -> str:
    with warnings.catch_warnings(action="error"), pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def spoilt(state: dict[str, Tensor], name: str, kind: str) -> dict[str, Tensor]:
    """The state with one tensor that is of this kind."""
    tensor = state[name].clone()
    if kind == "wide":
        tensor = tensor.double()
        tensor.view(-1)[0] = 1e200  # infinite as float32
    elif kind in ("nan", "inf"):
        tensor.view(-1)[0] = float(kind)
    else:
        tensor = tensor.to(getattr(torch, kind))
    return {**state, name: tensor}


KINDS = {
    **dict.fromkeys(("nan", "inf", "wide"), "holds values that are not finite (tensor {})"),
    **{kind: f"no plain floating numbers (tensor {{}}, {kind})" for kind in ("int8", "complex64")},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_takes_finite_floating_numbers_alone(kind: str, tmp_path: Path) -> None:
    write_encoder(tmp_path, build_encoder(Encoder("resnetv2_18", 0.125), 32), "vivi", 1)
    weights = tmp_path / "encoder.safetensors"
    good, name = load_file(weights), "stages.0.blocks.0.conv1.weight"
    save_file(spoilt(good, name, kind), weights)
    assert KINDS[kind].format(name) in refusal(lambda: load_encoder(tmp_path))
    save_file({key: tensor.half() if "conv" in key else tensor for key, tensor in good.items()}, weights)
    load_encoder(tmp_path)  # fewer bits are no other kind of number

    network = timm.create_model("resnet10t", num_classes=0)
    state = spoilt(network.state_dict(), "conv1.0.weight", kind)
    assert KINDS[kind].format("conv1.0.weight") in refusal(lambda: load_weights(network, state, "w.pth", "it"))

    write_classifier(tmp_path, Classifier(torch.ones(2, 3), torch.ones(2), ("a", "b")), 1)
    classifier = tmp_path / "classifier.safetensors"
    save_file(spoilt(load_file(classifier), "bias", kind), classifier)
    assert KINDS[kind].format("bias") in refusal(lambda: read_classifier(tmp_path))


@pytest.mark.timeout(60)
def test_a_pickle_that_contains_itself_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "loop.pth"
    content: dict[str, Any] = {"conv1.weight": torch.ones(1)}
    content["state_dict"] = content
    torch.save(content, path)
    assert [*read_weights(path)] == ["conv1.weight"]


def test_other_pickles_are_refused_in_our_own_words(tmp_path: Path) -> None:
    path = tmp_path / "raw.pth"
    path.write_bytes(pickle.dumps({"a": Path("x")}, protocol=4))
    words = "a pickle of more than tensors, which is never loaded; convert it to safetensors"
    assert words in refusal(lambda: read_weights(path))
    with tarfile.open(path, "w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert words in refusal(lambda: read_weights(path))


def test_an_encoder_without_counters_is_loaded_without_a_word(tmp_path: Path) -> None:
    write_encoder(tmp_path, build_encoder(Encoder("resnetv2_18", 0.125), 32), "vivi", 1)
    weights = tmp_path / "encoder.safetensors"
    state = load_file(weights)
    save_file({name: tensor for name, tensor in state.items() if "num_batches" not in name}, weights)
    with warnings.catch_warnings(action="error"):
        load_encoder(tmp_path)


def test_a_class_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    classifier = Classifier(torch.ones(2, 3), torch.ones(2), ("a", "caf\udce9"))  # of a folder named in Latin-1
    write_classifier(tmp_path, classifier, 1)
    assert read_classifier(tmp_path).classes == classifier.classes
