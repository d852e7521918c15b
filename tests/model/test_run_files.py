"""The files of a run that somebody sent, or that a disk has altered: they run nothing, fetch nothing, and say so."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import vivi
from vivi import recipes
from vivi.evaluate.encoders import load_model
from vivi.model.encoder import build_encoder
from vivi.model.files import Classifier, read_classifier, read_encoder, write_classifier, write_encoder
from vivi.runtime.errors import UserError

SMALL = recipes.Encoder("resnetv2_18", width=0.125)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    write_encoder(tmp_path, build_encoder(SMALL, 32), "mine", 3)
    write_classifier(tmp_path, Classifier(torch.randn(3, 64), torch.randn(3), ("a", "b", "c")), 3)
    return tmp_path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        pytest.fail("the network is used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def edit(path: Path, **changes: object) -> None:
    """Changes fields of a JSON file as whoever forges it would: without its checksum."""
    facts = json.loads(path.read_text()) | changes
    facts.pop("checksum", None)
    path.write_text(json.dumps(facts))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_a_run_that_names_a_pickle_does_not_load_it(run: Path) -> None:
    marker, bomb = run / "it-ran", run / "weights.pth"
    bomb.write_bytes(pickle.dumps(Bomb(marker)))
    edit(run / "encoder.json", timm_arguments={"num_classes": 0, "width_factor": 0.125, "checkpoint_path": str(bomb)})
    assert "unknown field `checkpoint_path`" in refusal(lambda: vivi.load_encoder(run))
    for name in ("weights.pth", "encoder.safetensors"):  # as the file that training starts from
        (run / name).write_bytes(bomb.read_bytes())
        start = recipes.Encoder("resnetv2_18", start=str(run / name))
        refusal(partial(build_encoder, start, 32))
    assert not marker.exists()


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "name",
    [
        "hf-hub:timm/resnet18",
        "hf_hub:x/y",
        "local-dir:/tmp/x",
        "resnet18.hf-hub:x/y",
        "/resnet18",
        "file:///x",
        "x\ny",
    ],
)
def test_a_name_with_a_source_is_not_looked_up(name: str, run: Path) -> None:
    edit(run / "encoder.json", timm_name=name)
    assert f"timm has no model {name!r}" in refusal(lambda: vivi.load_encoder(run))
    assert f"timm has no model {name!r}" in refusal(lambda: build_encoder(recipes.Encoder(name), 32))
    assert f"timm has no model {name!r}" in refusal(lambda: load_model(f"timm:{name}"))


@pytest.mark.parametrize(
    "change",
    [
        {"timm_arguments": {"layers": [10**9] * 4}},
        {"timm_arguments": {"pretrained_cfg": {"file": "x"}}},
        {"timm_arguments": {"num_classes": 10**9}},
        {"timm_arguments": {"width_factor": 1e9}},
        {"timm_arguments": {"width_factor": float("nan")}},
        {"timm_arguments": {"img_size": 10**9}},
        {"timm_arguments": {"img_size": [32, 32]}},
        {"input_size": 10**9},
        {"input_size": float("inf")},
        {"mean": [float("nan")] * 3},
        {"std": [0.5, 0.5, float("inf")]},
        {"std": [1e-30] * 3},
        {"group_norm": "yes"},
        {"patch_strides": 1},
    ],
    ids=str,
)
def test_fields_out_of_range_are_refused(change: dict[str, object], run: Path) -> None:
    edit(run / "encoder.json", **change)
    assert "encoder.json is missing or damaged (" in refusal(lambda: vivi.load_encoder(run))


def test_a_large_network_of_small_weights_takes_no_memory(run: Path) -> None:
    edit(run / "encoder.json", timm_name="vit_large_patch16_224", timm_arguments={"num_classes": 0, "img_size": 224})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "does not fit vit_large_patch16_224" in refusal(lambda: vivi.load_encoder(run))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB; its weights have 1.2 GB


def test_random_numbers_after_loading_are_those_without_the_check_of_shapes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_number() -> float:
        torch.manual_seed(7)
        vivi.load_encoder(run)
        return float(torch.rand(1))

    checked = next_number()
    monkeypatch.setattr("vivi.model.files._check_shapes", lambda *_: None)
    assert next_number() == checked


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "encoder.safetensors")  # reading it would wait for ever
    assert "is not a regular file" in refusal(lambda: read_encoder(tmp_path))
    assert "is not a regular file" in refusal(lambda: read_encoder(Path("/dev/zero")))


# --- altered files ---


def altered(content: bytes, dice: random.Random) -> bytes:
    """With one byte changed."""
    position = dice.randrange(len(content))
    byte = (content[position] + dice.randrange(1, 256)) % 256
    return content[:position] + bytes([byte]) + content[position + 1 :]


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


def alter(path: Path, read: Callable[[], bool], times: int, first: int = 0) -> int:
    """Reads the file with one byte altered, many times; returns how often that was refused. `read` tells whether it
    got what was written. `first`: only the first so many bytes are altered."""
    good, refused = path.read_bytes(), 0
    first = first or len(good)
    for seed in range(times):
        path.write_bytes(altered(good[:first], random.Random(seed)) + good[first:])
        try:
            assert read(), f"seed {seed} of {path.name} went unnoticed"
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
    path.write_bytes(good)
    assert read()
    return refused


def test_no_altered_byte_of_an_encoder_goes_unnoticed(run: Path) -> None:
    architecture, state = read_encoder(run)

    def unchanged() -> bool:
        found = read_encoder(run)
        return found[0] == architecture and same(found[1], state)

    weights = run / "encoder.safetensors"
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    assert alter(weights, unchanged, 60) > 50
    alter(weights, unchanged, 300, first=header)
    assert alter(run / "encoder.json", unchanged, 300) > 100


def test_no_altered_byte_of_a_classifier_goes_unnoticed(run: Path) -> None:
    written = read_classifier(run)

    def unchanged() -> bool:
        found = read_classifier(run)
        right = found.classes == written.classes
        return right and torch.equal(found.weight, written.weight) and torch.equal(found.bias, written.bias)

    assert alter(run / "classifier.safetensors", unchanged, 300) > 200
    assert alter(run / "classifier.json", unchanged, 300) > 100


def test_altered_weights_are_said_to_be(run: Path) -> None:
    weights = run / "encoder.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    for read in (lambda: vivi.load_encoder(run), lambda: load_model("timm:resnetv2_18", weights)):
        assert f"{weights} was altered or damaged: it does not match its checksum" in refusal(read)
    edit(run / "encoder.json", step=4)
    about = run / "classifier.json"
    about.write_text(about.read_text().replace('"step": 3', '"step": 4'))
    assert f"{about} was altered or damaged: it does not match its checksum" in refusal(lambda: read_classifier(run))


def test_files_of_older_runs_have_no_checksum_and_load(run: Path) -> None:
    _, state = read_encoder(run)
    classifier = read_classifier(run)
    for part in ("encoder", "classifier"):
        save_file(load_file(run / f"{part}.safetensors"), run / f"{part}.safetensors", {"format": "pt"})
        edit(run / f"{part}.json")
    assert same(read_encoder(run)[1], state)
    assert torch.equal(read_classifier(run).weight, classifier.weight)
    vivi.load_encoder(run)


def test_the_same_encoder_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(SMALL, 32)
    contents = set()
    for _ in range(8):
        write_encoder(tmp_path, encoder, "mine", 3)
        contents.add(tuple((tmp_path / f"encoder.{kind}").read_bytes() for kind in ("safetensors", "json")))
    assert len(contents) == 1
