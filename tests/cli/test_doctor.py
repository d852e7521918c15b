"""vivi doctor: what it finds here, and what it says about what is missing."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from vivi.cli import doctor
from vivi.cli.doctor import Doctor
from vivi.cli.main import run
from vivi.runtime.errors import UserError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivi.model.pretrained.hub_answers", lambda: False)


def examined(folder: Path) -> tuple[dict[str, tuple[str, str, str]], str]:
    """State, finding and advice of each thing, and what is printed."""
    console = Console(file=io.StringIO(), width=300)
    found = Doctor(folder).run(console)
    assert isinstance(console.file, io.StringIO)
    return {one["what"]: (one["state"], one["found"], one["advice"]) for one in found}, console.file.getvalue()


def test_here_is_all_that_vivi_needs(tmp_path: Path) -> None:
    found, said = examined(tmp_path)
    for name in ("Python", "torch", "video", "JPEG", "cores"):
        assert found[name][0] == "ok", found[name]
    assert "H.264, HEVC, VP8, VP9, AV1" in found["video"][1]
    assert "MB/s" in found[f"disk at {tmp_path}"][1] and not [*tmp_path.iterdir()]
    assert found["network"][::2] == (
        "could be better",
        "timm:NAME works from the hub's cache only, or with --weights FILE",
    )
    assert "all that vivi needs is there" in said


def test_what_is_missing_comes_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.DECODERS, "HEVC", ("no-such-decoder",))
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "available_memory", lambda: 10**9)
    monkeypatch.setattr(doctor, "EXTRAS", {"no_such_package": ("it", "vivi something")})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**8, free=10**9))
    found, _ = examined(tmp_path)
    advice = {name: (state, what) for name, (state, _, what) in found.items() if what}
    better = "could be better"
    assert advice["video"] == (better, "videos in HEVC would be skipped: pip install --force-reinstall av")
    assert advice["GPU"][0] == better and "install torch for CUDA" in advice["GPU"][1]
    assert advice["memory"][0] == better and "--workers 1" in advice["memory"][1]
    assert advice["/dev/shm"][0] == better and advice[f"disk at {tmp_path}"][0] == better
    assert advice["no_such_package"] == ("optional", "for vivi something: pip install 'vivi-video[it]'")


def test_a_gpu_is_named_with_its_memory_and_one_that_fails_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none here: torch's answers are those of a machine with one, but for the computation."""
    for name, answer in (("is_available", True), ("device_count", 1), ("get_device_name", "GPU X")):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70 * 10**9, 80 * 10**9))
    monkeypatch.setattr(torch, "ones", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no kernel image\nmore")))
    found = doctor.gpu()
    assert found.found.startswith("GPU X, 70 of 80 GB free; CUDA ") and found.found.endswith(": no kernel image")
    assert found.state == "could be better" and "--device cpu" in found.advice


def test_without_a_part_of_it_vivi_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(UserError, match="vivi does not work here without jpeg"):
        examined(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    found, _ = examined(tmp_path / "nowhere")
    state, what, advice = found[f"disk at {tmp_path}/nowhere"]
    assert (state, what) == ("could be better", "No such file or directory") and "vivi doctor FOLDER" in advice


def test_the_command_prints_json_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in ("stdout", "stderr"):  # run() puts others in their place
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    monkeypatch.setattr(sys, "argv", ["vivi", "doctor", str(tmp_path), "--json"])
    run()
    said = capsys.readouterr()
    assert {"what", "state", "found", "advice"} == {*json.loads(said.out)[0]} and said.err == ""
