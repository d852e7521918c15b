"""timm's own weights where there is no network: from the cache of their hub, or one line at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from vivi.model.pretrained import create_pretrained
from vivi.runtime.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which nobody answers for."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_weights_that_cannot_be_fetched_are_one_line_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with pytest.raises(
        UserError, match=r"timm's weights of test_resnet cannot be loaded \(there is no network, .*--weights"
    ):
        create_pretrained("test_resnet", num_classes=0)
    assert time.monotonic() - began < 5 and capfd.readouterr() == ("", "")
    assert not constants.HF_HUB_OFFLINE


def test_weights_in_the_cache_need_no_network(cache: Path) -> None:
    network: Any = timm.create_model("test_resnet")
    source = cache / f"models--{network.pretrained_cfg['hf_hub_id'].replace('/', '--')}"
    (source / "refs").mkdir(parents=True)
    (source / "refs" / "main").write_text("abc")
    (source / "snapshots" / "abc").mkdir(parents=True)
    save_file(network.state_dict(), source / "snapshots" / "abc" / "model.safetensors")
    loaded = create_pretrained("test_resnet", num_classes=0).state_dict()
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in loaded.items())
