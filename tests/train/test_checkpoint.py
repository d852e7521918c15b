"""Checkpoints survive what disks and people do to them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Disk
from safetensors.torch import save_file
from torch import Tensor

from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError
from vivi.train import checkpoint
from vivi.train.checkpoint import restore, save


def some_tensors(seed: int) -> dict[str, Tensor]:
    """One tensor of each awkward kind: strided, a single number, empty, of other types."""
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, 3, 5, 5, generator=random).to(memory_format=torch.channels_last)
    return {
        "model.weight": weight,
        "model.bias": torch.randn(7, generator=random).bfloat16(),
        "model.steps": torch.tensor(seed),
        "model.empty": torch.zeros(0, 3),
        "optimiser.weight": torch.randn(5, 8, generator=random).T,
        "optimiser.flag": torch.tensor([True, False]),
    }


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name]), name


def no_warning(line: str) -> None:
    raise AssertionError(line)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_restored_bit_for_bit(tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 30, some_tensors(1))
    assert path == tmp_path / "checkpoints" / "step-00000030.safetensors"
    restored = restore(tmp_path / "checkpoints", no_warning)
    assert restored is not None
    assert restored[0] == 30
    assert_same(restored[1], some_tensors(1))


def test_the_same_tensors_are_saved_as_the_same_bytes(tmp_path: Path) -> None:
    assert len({save(tmp_path, 1, some_tensors(1)).read_bytes() for _ in range(20)}) == 1


def test_a_folder_that_cannot_be_read_is_no_new_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(UserError, match="checkpoints cannot be read"):
        restore(tmp_path / "checkpoints", no_warning)


def test_tensors_that_share_their_bytes_are_restored_apart(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    save(tmp_path, 1, {"all": flat, "head": flat[:4], "tail": flat[8:], "tied": flat})
    restored = restore(tmp_path, no_warning)
    assert restored is not None
    assert_same(restored[1], {"all": flat, "head": flat[:4], "tail": flat[8:], "tied": flat})


def test_a_new_run_has_nothing_to_restore(tmp_path: Path) -> None:
    assert restore(tmp_path / "not there", no_warning) is None
    assert restore(tmp_path, no_warning) is None


def test_the_newest_few_are_kept_and_leavings_of_killed_runs_removed(tmp_path: Path) -> None:
    (tmp_path / "step-00000007.safetensors.123.tmp").write_bytes(b"half")
    for step in (5, 10, 99_999_999, 100_000_000):
        save(tmp_path, step, some_tensors(step), keep=2)
    assert names(tmp_path) == ["step-100000000.safetensors", "step-99999999.safetensors"]
    restored = restore(tmp_path, no_warning)
    assert restored is not None and restored[0] == 100_000_000


Damage = Callable[[bytes, random.Random], bytes]


def empty(content: bytes, _: random.Random) -> bytes:
    return b""


def garbage(content: bytes, dice: random.Random) -> bytes:
    return dice.randbytes(len(content))


def zeros_at_the_end(content: bytes, dice: random.Random) -> bytes:
    length = dice.randrange(len(content) - 16)
    return content[:length] + bytes(len(content) - length)


def truncated(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content))]


def flipped(content: bytes, dice: random.Random) -> bytes:
    position = dice.randrange(len(content))
    return content[:position] + bytes([content[position] ^ (1 << dice.randrange(8))]) + content[position + 1 :]


@pytest.mark.parametrize("damage", [empty, garbage, truncated, zeros_at_the_end])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path: Path, damage: Damage) -> None:
    for seed in range(5):
        folder = tmp_path / str(seed)
        save(folder, 10, some_tensors(10))
        newest = save(folder, 20, some_tensors(20))
        broken = damage(newest.read_bytes(), random.Random(seed))
        newest.write_bytes(broken)
        lines: list[str] = []
        restored = restore(folder, lines.append)
        assert restored is not None and restored[0] == 10
        assert_same(restored[1], some_tensors(10))
        assert len(lines) == 1 and "\n" not in lines[0]
        assert str(newest) in lines[0] and "step-00000010.safetensors" in lines[0]
        assert names(folder) == ["step-00000010.safetensors", "step-00000020.safetensors.damaged"]
        assert (folder / "step-00000020.safetensors.damaged").read_bytes() == broken
        # It is not reported twice, nor removed when the run goes on.
        restored = restore(folder, no_warning)
        assert restored is not None and restored[0] == 10
        save(folder, 20, some_tensors(20), keep=1)
        assert names(folder) == ["step-00000020.safetensors", "step-00000020.safetensors.damaged"]


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    good = save(tmp_path / "good", 20, some_tensors(20)).read_bytes()
    for seed in range(500):
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = folder / "step-00000020.safetensors"
        path.write_bytes(flipped(good, random.Random(seed)))
        # All there is is damaged: never silently from scratch, now or at the next start.
        for _ in range(2):
            with pytest.raises(UserError, match=r"step-00000020.*(damaged|has format version)") as raised:
                restore(folder, no_warning)
            assert "\n" not in str(raised.value)
            aside = "" if "has format version" in str(raised.value) else ".damaged"
            assert names(folder) == [f"step-00000020.safetensors{aside}"]


def test_two_damaged_ones_are_each_named(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step, some_tensors(step))
    for step in (20, 30):
        os.truncate(tmp_path / f"step-{step:08d}.safetensors", 100)
    lines: list[str] = []
    restored = restore(tmp_path, lines.append)
    assert restored is not None and restored[0] == 10
    assert ["step-00000030" in lines[0], "step-00000020" in lines[1], len(lines)] == [True, True, 2]


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken(tmp_path: Path) -> None:
    path = save(tmp_path, 10, some_tensors(10))
    shutil.copy(path, tmp_path / "step-00000020.safetensors")
    lines: list[str] = []
    restored = restore(tmp_path, lines.append)
    assert restored is not None and restored[0] == 10
    assert "it holds step 10" in lines[0]


def test_a_checkpoint_of_another_format_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(checkpoint, "FORMAT_VERSION", 2)
        save(tmp_path, 10, some_tensors(10))
    with pytest.raises(UserError, match="has format version 2; this vivi reads version 1"):
        restore(tmp_path, no_warning)
    assert names(tmp_path) == ["step-00000010.safetensors"]


@pytest.mark.parametrize("about", [{}, {"step": "ten", "checksum": "sha256:abc"}])
def test_a_format_yet_to_come_is_left_alone_whatever_else_it_says(about: dict[str, str], tmp_path: Path) -> None:
    save(tmp_path, 10, some_tensors(10))
    later = tmp_path / "step-00000020.safetensors"
    save_file({"model.weight": torch.zeros(2)}, later, {"vivi": json.dumps({"format_version": 2, **about})})
    with pytest.raises(UserError, match=r"step-00000020\.safetensors has format version 2; this vivi"):
        restore(tmp_path, no_warning)
    assert names(tmp_path) == ["step-00000010.safetensors", "step-00000020.safetensors"]


def test_a_full_disk_is_one_clear_line_and_older_checkpoints_stay(disk: Disk) -> None:
    small_disk = disk(1 << 20)
    tensors = {"model.weight": torch.randn(100_000)}  # 400 kB: two fit, three do not
    save(small_disk / "checkpoints", 1, tensors)
    save(small_disk / "checkpoints", 2, tensors)
    for _ in range(2):
        with pytest.raises(StorageError, match="No space left on device") as raised:
            save(small_disk / "checkpoints", 3, tensors)
        assert "step-00000003.safetensors" in str(raised.value) and "\n" not in str(raised.value)
        assert names(small_disk / "checkpoints") == ["step-00000001.safetensors", "step-00000002.safetensors"]
    restored = restore(small_disk / "checkpoints", no_warning)
    assert restored is not None and restored[0] == 2
    assert_same(restored[1], tensors)


SAVES_FOR_EVER = """
import sys
from pathlib import Path
import torch
from vivi.train.checkpoint import restore, save
restored = restore(Path(sys.argv[1]), lambda line: sys.exit(line))
step = restored[0] if restored else 0
while True:
    step += 1
    save(Path(sys.argv[1]), step, {"model.weight": torch.full((200_000,), float(step))}, keep=2)
    print(step, flush=True)
"""


def test_a_run_killed_while_saving_always_has_a_whole_checkpoint(tmp_path: Path) -> None:
    dice = random.Random(0)
    done = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVES_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        assert int(first) == done + 1
        time.sleep(dice.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        printed = [int(line) for line in [first, *process.stdout] if line.endswith("\n")]
        process.wait()
        restored = restore(tmp_path, no_warning)
        assert restored is not None
        done, tensors = restored
        # What was reported as saved is there; at most the one being saved is there as well.
        assert done - printed[-1] in (0, 1)
        assert_same(tensors, {"model.weight": torch.full((200_000,), float(done))})
        assert len(list(tmp_path.glob("step-*.safetensors"))) <= 3
    save(tmp_path, done + 1, {}, keep=1)
    assert names(tmp_path) == [f"step-{done + 1:08d}.safetensors"]
