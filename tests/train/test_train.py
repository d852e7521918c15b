"""vivi train: whole runs, resumed after any kind of death. Real processes, real signals."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Disk
from moments import start_signalled
from PIL import Image
from runs import (
    OFTEN,
    assert_same_run,
    command,
    error_line,
    refusal,
    run_here,
    train,
    vivi_here,
    without_timing,
)

import vivi as package
from vivi.runtime.errors import UserError
from vivi.train.checkpoint import restore
from vivi.train.metrics import read_metrics


def test_a_run_leaves_what_it_promises(whole: Path) -> None:
    lines = read_metrics(whole)
    assert [line["step"] for line in lines] == list(range(31))
    assert {"loss", "exemplar", "infonce", "infonce_accuracy", "triplet_violations", "gradient_norm"} < set(lines[1])
    assert {"retrieval", "retrieval_chance", "spread", "effective_rank"} < set(lines[0]) & set(lines[4]) & set(
        lines[30]
    )
    recipe = json.loads((whole / "recipe.json").read_text())
    assert recipe["steps"] == 30
    assert recipe["loss"]["frame"]["kind"] == "exemplar" and recipe["loss"]["video"]["across"] == "all"
    about = json.loads((whole / "run.json").read_text())
    assert about["overridden"]["steps"] == {"from": 800, "to": 30}
    assert (about["recipe"]["loss.frame"], about["recipe"]["loss.video.ahead"]) == ("exemplar", 1)
    assert len(list((whole / "checkpoints").iterdir())) == 3
    assert list((whole / "tensorboard").iterdir())
    with Image.open(whole / "augmented.png") as picture:
        assert picture.size == (2 * 32, 8 * 32 + 4), "eight shots of two frames, two videos"
    encoder, transform = package.load_encoder(whole)
    assert encoder(transform(Image.new("RGB", (40, 30)))[None]).shape == (1, 64)


@pytest.mark.timeout(600)  # five processes, on whatever else the machine has to do
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # other tests run beside it, and spinning threads crawl
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert train(corpus, whole, "--steps", 30, *OFTEN).returncode == 0
    seed = time.time_ns()
    print(f"seed {seed}")  # pytest shows it if the test fails
    moments = random.Random(seed)
    for threads in (1, 3, 4):
        # While it starts, writes, or takes one of the next few steps.
        moment, seconds = moments.randint(1, 15), moments.uniform(0, 0.1)
        words = command(corpus, out, "--steps", 30, "--threads", threads, *OFTEN)[3:]
        running = start_signalled(signal.SIGKILL, out / "*", moment, *words, seconds=seconds)
        running.communicate()
        assert running.returncode == -signal.SIGKILL
    assert train(corpus, out, "--steps", 30, *OFTEN).returncode == 0
    assert_same_run(whole, out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_and_it_goes_on(
    number: int, whole: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    flags = ("--steps", 30, "--log-every", 1, "--monitor-every", 4, "--checkpoint-every", 1000)
    running = start_signalled(number, out / "augmented.png", 1, *command(corpus, out, *flags)[3:])  # in step 1
    output, errors = running.communicate(timeout=120)
    assert running.returncode == 130
    assert errors.strip() == "stopped; the same command goes on from here"
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000001.safetensors"]
    assert read_metrics(out)[-1]["step"] == 1
    assert "saved step 1 of 30" in output
    package.load_encoder(out)
    assert train(corpus, out, *flags).returncode == 0
    assert_same_run(whole, out)


def test_a_run_is_made_longer_and_not_shorter(whole: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_here(corpus, out, "--steps", 12, *OFTEN)
    assert "has its 12 steps already" in run_here(corpus, out, "--steps", 12, *OFTEN)
    assert "has --steps 12" in refusal(corpus, out, "--steps", 5)
    assert "going on after step 12" in run_here(corpus, out, "--steps", 30, *OFTEN)
    assert_same_run(whole, out)


def test_a_run_killed_before_its_encoder_was_written_gets_it(whole: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "encoder.safetensors").unlink()
    (tmp_path / "run" / "encoder.json").write_text("old")
    (tmp_path / "run" / "encoder.safetensors.123.tmp").write_text("half")
    (tmp_path / "run" / "notes.tmp").write_text("not ours")
    run_here(corpus, tmp_path / "run", "--steps", 30)
    assert_same_run(whole, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").glob("*.tmp")] == ["notes.tmp"]


def test_a_run_killed_before_its_recipe_was_written_begins(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "recipe.json.123.tmp").write_text("{")
    run_here(corpus, tmp_path, "--steps", 1)
    assert (tmp_path / "encoder.safetensors").exists() and not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("sink", ["nobody reads", "a full disk", "ASCII"])
def test_training_goes_on_whatever_becomes_of_its_output(
    sink: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sink == "nobody reads":
        reader, writer = os.pipe()
        os.close(reader)
    elif sink == "a full disk":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        writer = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
        monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = subprocess.run(command(corpus, tmp_path / "run", "--steps", 2), stdout=writer, timeout=120, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert (tmp_path / "run" / "encoder.safetensors").exists()


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(whole: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_here(corpus, out, "--steps", 20, *OFTEN)
    newest = out / "checkpoints" / "step-00000020.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    output = run_here(corpus, out, "--steps", 30, *OFTEN)
    assert "step-00000020.safetensors is damaged" in output and "going on after step 18" in output
    newest.with_name(newest.name + ".damaged").unlink()
    assert_same_run(whole, out)


def test_two_processes_train_the_same_as_one(whole: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*run, *command(corpus, out, "--steps", 3, "--device", "cpu", *OFTEN)[1:]],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "in 2 processes" in " ".join(done.stdout.split())
    for one, two in zip(without_timing(whole)[:4], without_timing(out), strict=True):
        assert one.keys() - {"retrieval", "retrieval_chance", "spread", "effective_rank"} <= two.keys()
        for name in ("loss", "exemplar", "infonce", "gradient_norm"):
            if name in one:
                assert one[name] == pytest.approx(two[name], rel=1e-3)


def test_a_number_of_processes_that_does_not_divide_the_cores_is_one_line(corpus: Path, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    done = subprocess.run(
        [*run, *command(corpus, tmp_path / "run", "--device", "cpu")[1:]],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.count("error: 3 processes cannot share 2 cores evenly") == 1


def test_a_sweep_makes_a_run_for_each_value(corpus: Path, tmp_path: Path) -> None:
    run_here(corpus, tmp_path / "sweep", "--steps", 1, "--sweep", "loss.video_weight=0.5,0.25")
    for value in (0.5, 0.25):
        run = tmp_path / "sweep" / f"loss.video_weight={value}"
        assert json.loads((run / "recipe.json").read_text())["loss"]["video_weight"] == value
        assert (run / "encoder.safetensors").exists()
        line = read_metrics(run)[-1]
        assert line["loss"] == pytest.approx(line["exemplar"] + value * line["infonce"], rel=1e-5)


def test_a_sweep_over_losses_trains_each_of_them(corpus: Path, tmp_path: Path) -> None:
    flags = ("--steps", 1, "--loss.video.across", "core", "--sweep", "loss.video=infonce,order,none")
    run_here(corpus, tmp_path / "sweep", *flags)
    for name, kind in (("infonce", "infonce"), ("order", "order"), ("none", None)):
        run = tmp_path / "sweep" / f"loss.video={name}"
        video = json.loads((run / "recipe.json").read_text())["loss"]["video"]
        assert (video and video["kind"]) == kind
        assert {"exemplar", *([kind] if kind else [])} == {"exemplar", "infonce", "order"} & {*read_metrics(run)[-1]}
    of_infonce = json.loads((tmp_path / "sweep" / "loss.video=infonce" / "recipe.json").read_text())
    assert of_infonce["loss"]["video"]["across"] == "core", "the loss that the command has keeps its settings"


def test_a_signal_during_the_last_step_of_a_run_ends_the_sweep(corpus: Path, tmp_path: Path) -> None:
    words = command(corpus, tmp_path, "--steps", 1, "--sweep", "seed=0,1,2")[3:]
    running = start_signalled(signal.SIGINT, tmp_path / "seed=0" / "augmented.png", 1, *words)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert (tmp_path / "seed=0" / "encoder.safetensors").exists() and not (tmp_path / "seed=1").exists()


@pytest.mark.parametrize(
    "recipe", ["ex-yt-f", "ex-yt-s", "vivi-ex2-ord", "vivi-ex2", "vivi-ex4-big", "rot-yt-f", "vivi-rot2", "vivi-rot4"]
)
def test_every_recipe_trains(recipe: str, corpus: Path, tmp_path: Path) -> None:
    frames = ["--batch.frames", "1"] if recipe == "rot-yt-f" else []
    run_here(corpus, tmp_path / "run", "--steps", 2, *frames, recipe=f"{recipe}-tiny")
    assert np.isfinite(read_metrics(tmp_path / "run")[-1]["loss"])


def test_a_chosen_loss_is_trained_and_said_to_be(corpus: Path, tmp_path: Path) -> None:
    flags = ("--steps", 1, "--loss.frame=rotation", "--loss.video", "infonce", "--loss.video.across", "core")
    printed = run_here(corpus, tmp_path / "run", *flags)
    assert "overridden: loss.frame = rotation (was exemplar)" in printed
    assert "overridden: loss.video.across = core (was all)" in printed
    line = read_metrics(tmp_path / "run")[-1]
    assert (
        line["loss"] == pytest.approx(line["rotation"] + 0.2 * line["infonce"], rel=1e-5) and "exemplar" not in line
    )


def test_the_losses_beyond_the_paper_are_flags(corpus: Path, tmp_path: Path) -> None:
    flags = ("--steps", 2, "--loss.contrastive-weight", 0.5, "--loss.video", "order", "--loss.pooling", "attention")
    run_here(corpus, tmp_path / "run", *flags)
    line = read_metrics(tmp_path / "run")[-1]
    total = line["exemplar"] + 0.5 * line["contrastive"] + 0.2 * line["order"]
    assert line["loss"] == pytest.approx(total, rel=1e-5)


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(
    whole: Path, corpus: Path, disk: Disk
) -> None:
    room = 5 * (whole / "checkpoints" / "step-00000030.safetensors").stat().st_size
    small_disk = disk(room)
    (small_disk / "filler").write_bytes(bytes(room // 2))
    out, flags = small_disk / "run", ("--steps", 30, *OFTEN)
    line = error_line(train(corpus, out, *flags))
    assert "No space left on device" in line and "make room" in line
    assert restore(out / "checkpoints", pytest.fail) is not None
    assert not list(out.rglob("*.tmp"))
    (small_disk / "filler").unlink()
    run_here(corpus, out, *flags)
    assert_same_run(whole, out)


def test_a_recipe_that_was_altered_after_the_run_began_is_named(corpus: Path, tmp_path: Path) -> None:
    run_here(corpus, tmp_path, "--steps", 1)
    path, about = tmp_path / "recipe.json", tmp_path / "run.json"
    whole, rate = path.read_text(), json.loads(path.read_text())["optimiser"]["lr"]
    path.write_text(whole.replace(f'"lr": {rate}', f'"lr": {rate / 2}'))
    words = ["train", path, "--corpus", corpus, "--out", tmp_path, "--steps", 2]
    with pytest.raises(UserError) as caught:
        vivi_here(*words)
    assert f"begun with --optimiser.lr {rate}, not {rate / 2}" in str(caught.value)
    path.write_text(whole)
    vivi_here(*words)
    facts = json.loads(about.read_text())
    del facts["recipe"]  # a run of an older version
    about.write_text(json.dumps(facts))
    vivi_here(*words[:-1], 3)
    about.write_text(json.dumps({**facts, "recipe": 3}))
    with pytest.raises(UserError, match=r"run\.json is missing or damaged"):
        vivi_here(*words[:-1], 4)


def test_a_run_goes_on_that_was_begun_before_a_field_existed(corpus: Path, tmp_path: Path) -> None:
    run_here(corpus, tmp_path, "--steps", 1)
    path, about = tmp_path / "recipe.json", tmp_path / "run.json"
    older, facts = json.loads(path.read_text()), json.loads(about.read_text())
    del older["augment"]["grey_frames"], older["loss"]["frame"]["negatives"]
    del facts["recipe"]["augment.grey_frames"], facts["recipe"]["loss.frame.negatives"]
    path.write_text(json.dumps(older))
    about.write_text(json.dumps(facts))
    flag = ("--loss.frame.negatives", "videos")
    line = error_line(train(corpus, tmp_path, "--steps", 2, *flag))
    assert "begun with --loss.frame.negatives shots, not videos" in line
    line = error_line(train(corpus, tmp_path, "--steps", 2, "--loss.frame", "rotation"))
    assert "begun with --loss.frame exemplar, not rotation" in line
    run_here(corpus, tmp_path, "--steps", 2)
    assert json.loads(path.read_text())["augment"]["grey_frames"] == 0
    run_here(corpus, tmp_path, "--steps", 3)


@pytest.mark.parametrize("steps", ["many", None, [1]])
def test_a_number_of_steps_that_is_none_is_named(corpus: Path, tmp_path: Path, steps: object) -> None:
    run_here(corpus, tmp_path, "--steps", 1)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "steps": steps}))
    line = error_line(train(corpus, tmp_path, "--steps", 2))
    assert f"{path}: steps is {'none' if steps is None else steps}; it must be a whole number" in line
