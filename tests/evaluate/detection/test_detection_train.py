"""vivi evaluate detection: runs that are halved, killed, shared between processes, or refused."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moments import start_signalled
from runs import vivi_here
from small_detection import write_detection_set

from vivi.evaluate.detection.evaluate import check_machine
from vivi.evaluate.detection.settings import DetectionExecution, Tuned
from vivi.evaluate.detection.train import optimiser_settings, trouble
from vivi.evaluate.encoders import load_model
from vivi.evaluate.results import DetectionResult, read_all
from vivi.runtime.distributed import World
from vivi.runtime.errors import UserError
from vivi.train.metrics import read_metrics
from vivi.train.optimiser import learning_rate

ENCODER = "untrained:test_resnet"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_detection_set(tmp_path_factory.mktemp("detection") / "boxes")


def words(data: Path, out: Path, *flags: object, encoder: str = ENCODER) -> list[str]:
    """As small as it gets: batches of two images of 64 px."""
    small = ["--schedule", "short", "--steps", 4, "--batch", 2, "--min-size", 48, "--max-size", 96, "--seeds", 1]
    own = ["--lr", 0.005, "--warmup", 2, "--device", "cpu", "--threads", 1]
    named = ["evaluate", "detection", "--encoder", encoder, "--data", data, "--out", out, *small, *own, *flags]
    return [str(word) for word in named]


def result_of(out: Path) -> DetectionResult:
    (result,) = read_all(out)[0]
    assert isinstance(result, DetectionResult)
    return result


def lines_of(out: Path) -> list[dict[str, Any]]:
    (run,) = out.glob("runs/*/detection-*")
    return [line for attempt in sorted(run.glob("attempt-*")) for line in read_metrics(attempt)]


def refusal(data: Path, out: Path, *flags: object, encoder: str = ENCODER) -> str:
    with pytest.raises(UserError) as caught:
        vivi_here(*words(data, out, *flags, encoder=encoder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    vivi_here(*words(data, out))
    return out


# --- the learning rate ---


def test_the_schedule_of_90_000_steps_rises_and_falls_where_the_standard_one_does() -> None:
    settings = optimiser_settings(Tuned().resolved(), 0.01)
    rates = [learning_rate(step, 90_000, settings) for step in (500, 1_000, 59_999, 60_000, 79_999, 80_000, 89_999)]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])


@pytest.mark.parametrize("seed", range(4))
def test_a_loss_that_has_risen_by_step_500_is_trouble(seed: int) -> None:
    random = np.random.default_rng(seed)
    losses = (random.random(520) + np.linspace(0, random.normal(), 520)).tolist()
    expected = statistics.mean(losses[400:500]) > statistics.mean(losses[:100])
    seen = [bool(trouble(losses[:looked], looked - 20)) for looked in range(20, 521, 20)]
    assert any(seen) == expected
    assert seen.index(True) == 24 if expected else not any(seen)  # at step 500, and at no other


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_trouble_and_its_step_is_named(value: float) -> None:
    assert trouble([1.0] * 30, 20) == ""
    assert f"step 27 is {value}" in trouble([1.0] * 26 + [value] + [1.0] * 3, 20)


def test_the_learning_rate_is_halved_until_the_loss_is_finite_and_each_time_is_logged(
    data: Path, tmp_path: Path
) -> None:
    said = vivi_here(*words(data, tmp_path, "--lr", 32, "--clip", 0))
    (run,) = result_of(tmp_path).runs
    assert len(run.restarts) >= 1 and run.lr == 32 / 2 ** len(run.restarts)
    assert said.count("the learning rate is halved, as the ") == len(run.restarts)
    assert run.restarts[0] in said and run.restarts[0].endswith("from 32 to 16")
    (folder,) = tmp_path.glob("runs/*/detection-*")
    assert json.loads((folder / "attempts.json").read_text()) == list(run.restarts)
    assert len(list(folder.glob("attempt-*"))) == len(run.restarts) + 1


def test_a_loss_that_never_decays_ends_in_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivi.evaluate.detection.train.MOST_HALVINGS", 1)
    for _ in range(2):  # also when it is tried again
        said = refusal(data, tmp_path, "--lr", 1000, "--clip", 0)
        assert "does not decay at any learning rate down to 500 " in said and "--clip 10" in said


# --- resuming ---


def test_a_run_that_is_stopped_and_killed_goes_on_to_the_same_bits(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    stopped = start_signalled(signal.SIGTERM, Path("*metrics.jsonl"), 1, *words(data, tmp_path))
    out, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 130 and re.search(r"saved step \d of 4", out), errors
    assert "the same command goes on" in errors
    # While testing: before that, a test image is opened once, for its size.
    stopped = start_signalled(signal.SIGINT, Path("*val0.png"), 2, *words(data, tmp_path))
    _, errors = stopped.communicate(timeout=120)
    assert stopped.returncode == 130 and not list(tmp_path.glob("runs/*/*/run.json")), errors
    killed = start_signalled(signal.SIGKILL, Path("*run.json*"), 2, *words(data, tmp_path))  # 1: is it there?
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL and not list(tmp_path.glob("*.json"))
    vivi_here(*words(data, tmp_path))
    for folder in (tmp_path, undisturbed):
        assert not list(folder.glob("runs/*/*/attempt-*/checkpoints/*"))  # they are large
    assert result_of(tmp_path).runs[0].precision == result_of(undisturbed).runs[0].precision
    assert lines_of(tmp_path) == lines_of(undisturbed)


def test_finished_runs_are_not_repeated_and_more_seeds_are_added(data: Path, tmp_path: Path) -> None:
    vivi_here(*words(data, tmp_path, "--steps", 2))
    (first,) = result_of(tmp_path).runs
    said = vivi_here(*words(data, tmp_path, "--steps", 2, "--seeds", 2))
    result = result_of(tmp_path)
    assert result.runs[0] == first and len(result.runs) == 2 and "run 1: " not in said
    assert result.median.ap == statistics.median(run.precision.ap for run in result.runs)
    vivi_here(*words(data, tmp_path, "--steps", 2))
    assert result_of(tmp_path).runs == result.runs  # none is lost where fewer are asked for


def test_two_calls_at_once_do_not_write_into_one_run(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    first = start_signalled(signal.SIGSTOP, Path("*metrics.jsonl"), 1, *words(data, tmp_path))
    os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
    for flags in ([], ["--seeds", 2]):
        said = refusal(data, tmp_path, *flags)
        assert re.match(r"another vivi evaluate detection is writing to .*/detection-\w+; wait for it to end$", said)
    vivi_here(*words(data, tmp_path, "--steps", 2, "--name", "other"))  # another encoder is no rival
    first.send_signal(signal.SIGCONT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 0, errors
    (folder,) = (path.parent for path in tmp_path.glob("runs/*/detection-*/run.json") if "other" not in str(path))
    assert read_metrics(folder / "attempt-0") == lines_of(undisturbed)


# --- machines ---


def test_micro_batches_and_processes_compute_the_same_steps(data: Path, tmp_path: Path) -> None:
    flags = ("--norm", "frozen", "--steps", 2)
    one = words(data, tmp_path / "one", *flags)
    vivi_here(*one)
    vivi_here(*words(data, tmp_path / "pieces", *flags, "--micro-batch", 1))
    both = words(data, tmp_path / "two", *flags)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, "-m", "vivi", *both], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("see them: vivi report") == 1
    expected = lines_of(tmp_path / "one")
    for out in ("pieces", "two"):
        found = lines_of(tmp_path / out)
        assert [line["step"] for line in found] == [line["step"] for line in expected] == [2]
        for name, value in expected[0].items():
            assert found[0][name] == pytest.approx(value, rel=1e-5), name
        one_ap, other = (result_of(tmp_path / o).runs[0].precision.ap for o in ("one", out))
        assert other == pytest.approx(one_ap, abs=1e-3)


def test_what_the_machine_cannot_do_is_refused_before_any_work(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "--norm frozen" in refusal(data, out, "--micro-batch", 1)
    assert "--batch is 0" in refusal(data, out, "--batch", 0)
    assert "--max-size is 40" in refusal(data, out, "--max-size", 40)
    assert "there is no run or file" in refusal(data, out, encoder=str(tmp_path / "nowhere"))
    assert "is no folder" in refusal(tmp_path / "nowhere", out)
    assert "maps" in refusal(data, out, encoder="untrained:mixer_s32_224")
    assert not out.exists()


def test_processes_that_cannot_share_a_batch_are_refused() -> None:
    world, model = World(torch.device("cpu"), 0, 2), load_model(ENCODER)
    check_machine(model, Tuned(batch=4, norm="frozen"), DetectionExecution(micro_batch=1), world)
    with pytest.raises(UserError, match="2 processes cannot share 3 images evenly"):
        check_machine(model, Tuned(batch=3, norm="frozen"), DetectionExecution(), world)
    with pytest.raises(UserError, match="can be synchronised on GPUs only"):
        check_machine(model, Tuned(batch=4), DetectionExecution(), world)


# --- results ---


def test_other_settings_or_images_never_replace_a_result(data: Path, undisturbed: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in undisturbed.glob("*.json")}
    assert "that differs in batch: give --name or another --out" in refusal(data, undisturbed, "--batch", 3)
    other = write_detection_set(tmp_path / "boxes", train=5)
    assert "on boxes that differs in images: give --name or another --out" in refusal(other, undisturbed)
    assert {path: path.read_bytes() for path in undisturbed.glob("*.json")} == before


def test_the_result_says_all_that_it_depends_on_and_has_a_picture(data: Path, undisturbed: Path) -> None:
    result = result_of(undisturbed)
    assert (result.schedule, result.classes, result.images) == ("own", 2, {"train": 12, "test": 6})
    wanted = {"steps": 4, "warmup": 2, "batch": 2, "lr": 0.005, "norm": "synchronised", "clip": 10.0}
    assert {name: result.settings[name] for name in wanted} == wanted
    assert (undisturbed / result.picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("tuned", "label"),
    [
        (Tuned(), "standard"),
        (Tuned(steps=90_000, norm="frozen", seeds=5), "standard"),
        (Tuned(schedule="short", clip=10), "short"),
        (Tuned(schedule="short", steps=90_000), "own"),
        (Tuned(min_size=400), "own"),
        (Tuned(seeds=1), "standard"),
    ],
)
def test_only_a_schedule_that_was_left_as_it_is_has_its_name(tuned: Tuned, label: str) -> None:
    assert tuned.label == label


def test_bad_rows_and_files_are_named_in_the_result_and_lose_nothing_else(tmp_path: Path) -> None:
    data = write_detection_set(tmp_path / "boxes", train=6, test=3)
    content = json.loads((data / "instances_train.json").read_text())
    content["images"].append({"id": 99, "file_name": "gone.png", "width": 64, "height": 48})
    content["annotations"] += [
        {"id": 901, "image_id": 99, "category_id": 1, "bbox": [1, 1, 5, 5]},
        {"id": 902, "image_id": 12345, "category_id": 1, "bbox": [1, 1, 5, 5]},
        {"id": 903, "image_id": 1, "category_id": 1, "bbox": [70, 1, 5, 5]},
        {"id": 904, "image_id": 1, "category_id": 1, "bbox": [1, 1, 0, 5]},
        {"id": 905, "image_id": 1, "category_id": 7, "bbox": [1, 1, 5, 5]},
    ]
    (data / "instances_train.json").write_text(json.dumps(content))
    torn = data / "images" / "train0.png"
    torn.write_bytes(torn.read_bytes()[:2000])  # its header is whole
    said = vivi_here(*words(data, tmp_path / "out", "--steps", 3))
    notes = "\n".join(result_of(tmp_path / "out").notes)
    for word in ("gone.png", "12345", "903", "904", "905", "train0.png"):
        assert word in notes and word in said, word
