"""What a run logs reads back bit for bit, and a resumed run goes on where its checkpoint was."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Disk
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError
from vivi.train.metrics import MetricsLog, read_metrics
from vivi.train.pictures import grid, write_png


def events(run: Path) -> EventAccumulator:
    """What TensorBoard shows of a run."""
    shown = EventMultiplexer().AddRunsFromDirectory(str(run)).Reload()
    accumulator: EventAccumulator = shown.GetAccumulator("tensorboard")
    return accumulator


def scalars(run: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(run).Scalars(name)]


def lines(run: Path) -> list[bytes]:
    return (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def log_steps(run: Path, restored_step: int, steps: range) -> None:
    with MetricsLog(run, restored_step) as log:
        for step in steps:
            log.log(step, {"loss": 1 / (step + 1)})


def test_numbers_read_back_with_the_same_bits(tmp_path: Path) -> None:
    dice = random.Random(0)
    doubles = [struct.unpack("d", dice.randbytes(8))[0] for _ in range(2000)]
    numbers = [value for value in doubles if math.isfinite(value)] + [0.0, -0.0, 5e-324, 0.1, 1e308]
    floats = [float(value) for value in np.random.default_rng(0).standard_normal(100).astype(np.float32)]
    with MetricsLog(tmp_path, -1) as log:
        for step, value in enumerate(numbers + floats):
            log.log(step, {"loss": value})
    read = read_metrics(tmp_path)
    assert [line["step"] for line in read] == list(range(len(read)))
    assert [struct.pack("d", line["loss"]) for line in read] == [struct.pack("d", v) for v in numbers + floats]


def test_a_line_begins_with_its_step_and_keeps_the_order_given(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, -1) as log:
        log.log(3, {"loss": 0.5, "a": math.nan, "b": math.inf, "c": -math.inf, "seconds": 2})
    assert lines(tmp_path) == [b'{"step": 3, "loss": 0.5, "a": null, "b": null, "c": null, "seconds": 2}\n']


def test_each_line_is_there_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, -1) as log:
        log.log(1, {"loss": 0.5})
        assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}]
        assert scalars(tmp_path, "loss") == [(1, 0.5)]


@pytest.mark.parametrize(
    "tail", [b"", b'{"step": 6, "lo', b'{"step": 3}', b"\x00\x00\x00\n", b"[]\n", b"\xff\n", b"7"]
)
def test_resuming_cuts_later_and_torn_lines_and_keeps_the_rest_as_it_is(tmp_path: Path, tail: bytes) -> None:
    log_steps(tmp_path, -1, range(6))
    before = lines(tmp_path)
    # Other spacing, as another version may write: it must stay as it is.
    before[1] = b'{"step":1,   "loss": 0.50}\n'
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(before) + tail)
    log_steps(tmp_path, 3, range(4, 8))
    assert lines(tmp_path)[:4] == before[:4]
    assert [line["step"] for line in read_metrics(tmp_path)] == list(range(8))
    assert len(lines(tmp_path)) == 8
    assert [path.name for path in tmp_path.glob("*.tmp")] == []


def test_a_new_run_in_the_place_of_one_without_checkpoints_begins_empty(tmp_path: Path) -> None:
    log_steps(tmp_path, -1, range(3))
    log_steps(tmp_path, -1, range(2))
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1]
    assert [step for step, _ in scalars(tmp_path, "loss")] == [0, 1]


def test_tensorboard_shows_each_step_once_after_resuming_several_times(tmp_path: Path) -> None:
    log_steps(tmp_path, -1, range(6))
    log_steps(tmp_path, 3, range(4, 9))
    log_steps(tmp_path, 5, range(6, 8))
    expected = [(step, pytest.approx(1 / (step + 1))) for step in range(8)]
    assert scalars(tmp_path, "loss") == expected


def test_a_torn_last_line_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2')
    assert read_metrics(tmp_path) == [{"step": 1}]


def test_a_folder_without_metrics_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics.jsonl cannot be read \(No such file"):
        read_metrics(tmp_path)


def test_a_full_disk_is_one_clear_line_and_what_was_logged_stays(
    disk: Disk, capfd: pytest.CaptureFixture[str]
) -> None:
    small_disk = disk(64 << 10)
    logged = 0
    with MetricsLog(small_disk, -1) as log, pytest.raises(StorageError, match="No space left on device") as raised:
        for step in range(10_000):
            log.log(step, {"loss": step / 3})
            logged = step + 1
    assert "\n" not in str(raised.value) and str(small_disk) in str(raised.value)
    assert capfd.readouterr() == ("", "")
    read = read_metrics(small_disk)
    assert logged > 100 and read[:logged] == [{"step": step, "loss": step / 3} for step in range(logged)]
    next(iter((small_disk / "tensorboard").iterdir())).unlink()
    log_steps(small_disk, logged - 2, range(logged - 1, logged))
    assert [line["step"] for line in read_metrics(small_disk)] == list(range(logged))


def test_a_picture_is_shown_as_it_is(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    with MetricsLog(tmp_path, -1) as log:
        log.picture("augmented", 0, picture)
    [image] = events(tmp_path).Images("augmented")
    (tmp_path / "shown.png").write_bytes(image.encoded_image_string)
    assert np.array_equal(np.array(Image.open(tmp_path / "shown.png")), picture)


def test_the_grid_has_a_row_for_each_shot_and_a_gap_between_videos(tmp_path: Path) -> None:
    shots, columns, size, per_video = 6, 3, 4, 2
    pixels = torch.randint(0, 256, (shots, columns, 3, size, size), generator=torch.Generator().manual_seed(0))
    write_png(tmp_path / "augmented.png", grid(pixels / 127.5 - 1, per_video))
    picture = np.array(Image.open(tmp_path / "augmented.png"))
    gap = 4
    assert picture.shape == (shots * size + 2 * gap, columns * size, 3)
    for shot in range(shots):
        top = shot * size + shot // per_video * gap
        for column in range(columns):
            frame = picture[top : top + size, column * size : (column + 1) * size]
            assert np.array_equal(frame, pixels[shot, column].permute(1, 2, 0).numpy())
    assert (picture[2 * size : 2 * size + gap] == 255).all()


def test_the_grid_clips_what_lies_outside_the_range() -> None:
    frames = torch.tensor([-3.0, 3.0]).view(1, 2, 1, 1, 1).expand(1, 2, 3, 1, 1)
    assert grid(frames).tolist() == [[[0, 0, 0], [255, 255, 255]]]
