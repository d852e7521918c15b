"""What vivi train says to wrong input: one line, and nothing is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import timm
from conftest import Run
from runs import (
    SMALL,
    command,
    error_line,
    refusal,
    run_here,
    steps_logged,
    train,
    vivi_here,
)
from torch import nn

from vivi.train.metrics import read_metrics


def test_an_empty_corpus_is_one_line(tmp_path: Path, vivi: Run) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    vivi("prepare", tmp_path / "broken.mp4", "--out", tmp_path / "corpus")
    assert "but of the 0 usable videos" in refusal(tmp_path / "corpus", tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_a_folder_that_is_no_corpus_is_one_line_and_leaves_no_run(tmp_path: Path) -> None:
    assert "is no corpus" in error_line(train(tmp_path, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_recipe_may_stand_anywhere(corpus: Path, tmp_path: Path, vivi: Run) -> None:
    vivi_here("train", "--corpus", corpus, "ex-yt-s-tiny", "--out", tmp_path / "run", "--steps", 1, *SMALL)
    path = tmp_path / "run" / "recipe.json"
    vivi_here("train", path, "--corpus", corpus, "--out", tmp_path / "again")
    assert (tmp_path / "again" / "recipe.json").read_bytes() == path.read_bytes()
    # Not even a folder with a recipe's name changes what is trained.
    vivi_here("train", path, "--corpus", corpus, "--out", tmp_path / "vivi-ex4")
    assert (tmp_path / "vivi-ex4" / "recipe.json").read_bytes() == path.read_bytes()
    elsewhere = vivi("train", "--corpus", corpus, path, "--out", tmp_path / "other")
    assert "right after train" in error_line(elsewhere)


def test_too_few_shots_or_videos_name_the_flag(corpus: Path, tmp_path: Path) -> None:
    assert "vivi train auto chooses what fits" in refusal(corpus, tmp_path / "run", "--batch.shots", 9)
    assert "1 of the others have 6 shots or more: too few" in refusal(corpus, tmp_path / "run", "--batch.shots", 6)


def test_a_batch_larger_than_the_corpus_shrinks(corpus: Path, tmp_path: Path) -> None:
    run, flags = tmp_path / "run", ("--batch.videos", 64, "--batch.cores", 16, "--batch.shots", 2)
    printed = run_here(corpus, run, *flags, "--steps", 2)
    assert "too little for the batch: batch.videos is 8 instead of 64, batch.cores is 2 instead of 16" in printed
    used = json.loads((run / "recipe.json").read_text())["batch"]
    assert (used["videos"], used["cores"]) == (8, 2)
    # It goes on with the flags that began it, and with its own recipe.json; not with others.
    assert "going on after step 2" in run_here(corpus, run, *flags, "--steps", 3)
    vivi_here("train", run / "recipe.json", "--corpus", corpus, "--out", run, "--steps", 4)
    assert [line["step"] for line in read_metrics(run)] == [0, 2, 3, 4]
    other = refusal(corpus, run, *flags, "--batch.videos", 32, "--steps", 4)
    assert "was begun with --batch.videos 8, not 32" in other


def test_a_field_that_does_not_exist_is_said(corpus: Path, tmp_path: Path) -> None:
    done = train(corpus, tmp_path / "run", "--loss.video-wieght", 1)
    assert done.returncode != 0 and "--loss.video-wieght" in done.stderr and "--loss.video-weight" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_recipe_or_corpus_is_refused(whole: Path, corpus: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    other = refusal(corpus, whole, "--steps", 30, recipe="ex-yt-s-tiny")
    assert "begun with the recipe vivi-ex4-tiny, not ex-yt-s-tiny" in other
    changed = refusal(corpus, whole, "--steps", 30, "--loss.frame.margin", 0.3)
    assert "begun with --loss.frame.margin 0.5, not 0.3" in changed
    replaced = refusal(corpus, whole, "--steps", 30, "--loss.video", "order")
    assert "begun with --loss.video infonce, not order" in replaced
    grown = tmp_path / "grown"
    shutil.copytree(corpus, grown)
    settings = json.loads((grown / "corpus.json").read_text())
    (grown / "corpus.json").write_text(json.dumps({**settings, "rate": 6.0}))
    assert f"was begun on another corpus than {grown}: give {corpus}" in refusal(grown, whole, "--steps", 31)
    moved = tmp_path / "moved"
    shutil.copytree(whole, moved)
    about = json.loads((moved / "run.json").read_text())
    (moved / "run.json").write_text(json.dumps({**about, "corpus": str(grown)}))
    line = refusal(grown, moved, "--steps", 31)
    assert f"was begun on another corpus than {grown}: give {grown} as it was then" in line
    assert before == {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}


def test_a_run_without_its_checkpoints_is_not_begun_anew(whole: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "checkpoints")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "checkpoints is gone: put it back" in refusal(corpus, out, "--steps", 30)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_run_is_continued_without_the_weights_that_it_started_from(
    whole: Path, corpus: Path, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    shutil.copytree(whole, start)
    flags = ("--encoder.start", start, "--checkpoint-every", 1)
    assert train(corpus, tmp_path / "run", *flags, "--steps", 1).returncode == 0
    shutil.rmtree(start)
    assert train(corpus, tmp_path / "run", *flags, "--steps", 2).returncode == 0
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [0, 1, 2]
    assert "there is no encoder at" in refusal(corpus, tmp_path / "another", *flags, "--steps", 1)


def test_too_little_memory_of_the_machine_is_one_line(corpus: Path, tmp_path: Path) -> None:
    words = command(corpus, tmp_path / "run", "--steps", 1, "--augment.size", 4096, "--device", "cpu")
    limited = ["bash", "-c", 'ulimit -v 9000000; exec "$@"', "bash", *map(str, words)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "the machine has too little memory: try a smaller" in done.stderr


def test_weights_that_are_not_finite_are_not_saved(corpus: Path, tmp_path: Path) -> None:
    flags = ("--steps", 1, "--optimiser.lr", 1e30, "--optimiser.weight-decay", 1e30, "--optimiser.warmup", 0)
    assert "is no longer finite; nothing of it was saved" in refusal(corpus, tmp_path / "run", *flags)
    assert not (tmp_path / "run" / "encoder.safetensors").exists()


def test_a_folder_with_other_files_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tmp").write_text("mine")
    assert "holds other files and is no run" in refusal(corpus, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tmp"]


def test_two_runs_do_not_share_a_folder(corpus: Path, tmp_path: Path) -> None:
    running = subprocess.Popen(command(corpus, tmp_path / "run", "--steps", 100000), stdout=subprocess.DEVNULL)
    try:
        while steps_logged(tmp_path / "run") < 1:
            time.sleep(0.05)
        assert "another vivi train" in refusal(corpus, tmp_path / "run", "--steps", 100000)
    finally:
        running.kill()
        running.wait()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--device cuda:77", "--device cuda:77 cannot be used"),
        ("--device gpu", "--device gpu cannot be used; give auto, cpu, cuda, cuda:1, ..."),
        ("--device meta", "no kind of device to compute on"),
        ("--log-every 0", "--log-every is 0"),
        ("--seed 99999999999999999999", "--seed"),
        ("--micro-batch 3", "--micro-batch 3"),
        ("--optimiser.momentum 7", "--optimiser.momentum"),
        ("--encoder.name vit_tiny_patch16_224", "add --encoder.width 1"),
        ("--encoder.name crossvit_9_240 --encoder.width 1", "cannot take frames of 32 px"),
        ("--sweep loss.video_weight=0.04,-1", "--loss.video-weight is -1"),
        ("--sweep batch.shots=4,40", "0 of the others have 40 shots or more"),
        ("--sweep encoder.name=resnetv2_18,nonsense", "timm has no model 'nonsense'"),
        ("--sweep augment.crop_area=[0.1,1]", "only fields of one value"),
    ],
)
def test_what_cannot_work_is_one_line_and_leaves_no_run(flags: str, line: str, corpus: Path, tmp_path: Path) -> None:
    assert line in refusal(corpus, tmp_path / "run", *flags.split())
    assert not (tmp_path / "run").exists()


def test_a_model_that_says_another_number_of_features_than_it_gives_is_one_line(corpus: Path, tmp_path: Path) -> None:
    def tells_wrong(**arguments: Any) -> nn.Module:
        model: Any = timm.create_model("resnet10t", **arguments)
        model.num_features = model.head_hidden_size = 7
        return cast(nn.Module, model)

    timm.models.register_model(tells_wrong)
    line = refusal(corpus, tmp_path / "run", "--encoder.name", "tells_wrong", "--encoder.width", 1)
    assert "--encoder.name tells_wrong gives 512 features where timm says 7: choose another" in line


def test_damaged_frames_are_named_and_training_goes_on(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy, ignore=shutil.ignore_patterns("index"))
    for shard in (copy / "shards").iterdir():
        content = shard.read_bytes()
        # The start of every fifth JPEG file.
        places = [i for i in range(len(content)) if content.startswith(b"\xff\xd8\xff\xe0", i)]
        damaged = bytearray(content)
        for place in places[::5]:
            damaged[place : place + 4] = b"oops"
        shard.write_bytes(damaged)
    printed = run_here(copy, tmp_path / "run", "--steps", 5)
    assert "damaged, its neighbour takes its place: video v" in printed
    assert np.isfinite(read_metrics(tmp_path / "run")[-1]["loss"])


def test_a_damaged_or_missing_shard_is_one_line_before_any_work(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy, ignore=shutil.ignore_patterns("index"))
    shard = sorted((copy / "shards").iterdir())[1]
    content = shard.read_bytes()
    for damage in (content[: len(content) // 2], b""):
        shard.write_bytes(damage)
        assert str(shard) in refusal(copy, tmp_path / "run")
    shard.unlink()
    assert f"{shard} is missing" in refusal(copy, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_good_checkpoints(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ("--optimiser.lr", 1e30, "--optimiser.warmup", 0, "--log-every", 100, "--checkpoint-every", 1)
    line = refusal(corpus, out, "--steps", 100, *flags)
    assert "step 2: " in line and " is nan" in line and "--optimiser.lr" in line
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000001.safetensors"]
