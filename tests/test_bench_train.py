"""vivi bench train and loader: what they count and compare, and that they run from end to end."""

from __future__ import annotations

import fcntl
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Run
from rich.console import Console
from runs import vivi_here

from vivi.bench.options import BenchOptions
from vivi.bench.train import Round, Work, bench_train, summary, work_of
from vivi.errors import UserError
from vivi.model.vivi import build_model
from vivi.recipes import RECIPES, Batch, Encoder, Images, Recipe
from vivi.training.machine import Machine
from vivi.training.memory import AtOnce
from vivi.training.sources import Sources

QUICK = BenchOptions(measure=1, rounds=2, warm_up=1)


def small(recipe: Recipe, batch: Batch) -> Recipe:
    encoder = Encoder("resnetv2_18", width=0.125)
    return replace(recipe, encoder=encoder, batch=batch, augment=replace(recipe.augment, size=32))


@pytest.mark.parametrize(
    ("name", "at_once", "expected"),
    [
        # 128 cores of 16 shots × 8 frames, 16 at once.
        ("vivi-ex4", AtOnce(16, 16), Work(8, 2048, 0, 0, True)),
        ("vivi-ex4", AtOnce(128, 128), Work(1, 16384, 0, 0, False)),
        ("vivi-ex2", AtOnce(16, 16), Work(8, 2048, 0, 0, False)),  # InfoNCE within cores
        # 4 frames of 2,048 shots, turned four ways.
        ("vivi-rot4", AtOnce(32, 32), Work(4, 8192, 0, 0, True)),
        ("vivi-ex4-co100", AtOnce(16, 128), Work(8, 2048, 1, 2048, True)),
        ("sup100", AtOnce(8, 8), Work(0, 0, 1, 256, False)),
        ("sup-rot100", AtOnce(8, 8), Work(0, 0, 1, 1024, False)),
    ],
)
def test_what_the_encoder_sees_of_a_step_is_counted(name: str, at_once: AtOnce, expected: Work) -> None:
    recipe = RECIPES[name]
    thin = replace(recipe, encoder=Encoder("resnetv2_18", width=0.125), augment=replace(recipe.augment, size=32))
    work = work_of(build_model(thin, 3 if recipe.images.count else 0), recipe, at_once)
    assert work == expected
    batch, images = recipe.batch, recipe.images
    turned = 4 if "rot" in name else 1
    frames = batch.videos * batch.shots * batch.frames * turned
    assert work.total == frames + images.count * images.copies * (turned if recipe.loss.on_labelled else 1)


def test_ratios_are_of_each_round_and_their_median_is_reported() -> None:
    rounds = [
        Round(step=2.0, waiting=0.5, encoder=1.0, cores=1.1, forward=0.4),
        Round(step=4.0, waiting=0.0, encoder=3.6, cores=3.6, forward=0.4),
        Round(step=1.0, waiting=0.1, encoder=0.8, cores=0.9, forward=0.1),
    ]
    found = summary(rounds, Work(2, 50, 0, 0, True), RECIPES["vivi-ex4"])
    assert found["seconds_per_step"] == 2.0 and found["frames_per_second"] == 50
    assert found["encoder_alone_per_second"] == 100
    assert (found["ratio_least"], found["ratio"], found["ratio_most"]) == pytest.approx((0.5, 0.8, 0.9))
    assert found["ratio_with_first_pass"] == pytest.approx(0.9)
    assert found["waiting"] == pytest.approx(0.1) and found["cores_cost"] == pytest.approx(0.1)
    assert found["days"] == pytest.approx(2 * 120_000 / 86_400)


def test_a_bench_prints_and_writes_what_it_found(vivi: Run, corpus: Path, tmp_path: Path) -> None:
    flags = ["--batch.videos", "2", "--encoder.width", "0.125", "--augment.size", "32", "--batch.shots", "2"]
    flags += ["--corpus", str(corpus), "--measure", "1", "--device", "cpu", "--steps", "3"]
    rounds = ["--rounds", "2", "--warm-up", "1"]
    done = vivi("bench", "train", "vivi-ex4-tiny", *flags, *rounds, "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr
    assert "of the encoder alone" in done.stdout and "s a step" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["recipe"] == "vivi-ex4-tiny" and found["overridden"]["batch.videos"] == 2
    assert len(found["rounds"]) == 2 and found["work"]["frames"] == 16
    assert 0 < found["ratio_least"] <= found["ratio"] <= found["ratio_most"]
    assert found["alone"]["decoded_by_threads"] > 0 and found["alone"]["augmented"] > 0
    done = vivi("bench", "loader", "vivi-ex4-tiny", *flags, "--json", str(tmp_path / "loader.json"))
    assert done.returncode == 0, done.stderr
    rates = json.loads((tmp_path / "loader.json").read_text())["rates"]
    assert all(rates[name][0] > 0 for name in ("read", "decoded by threads", "augmented", "streaming", "resident"))


def test_two_passes_are_measured_beside_the_first_pass_alone(corpus: Path) -> None:
    recipe = small(RECIPES["vivi-ex4-tiny"], Batch(videos=4, shots=2, frames=2, cores=2))
    recipe = replace(recipe, loss=replace(recipe.loss, across="all"))
    machine = Machine(device="cpu", micro_batch=1)
    found = bench_train(recipe, "vivi-ex4-tiny", Sources(corpus), machine, QUICK, Console(quiet=True))
    assert found["work"]["two_passes"] and found["ratio_with_first_pass"] > found["ratio"]


def test_a_bench_waits_for_the_lock_after_it_has_warmed_up(corpus: Path, tmp_path: Path) -> None:
    recipe = small(RECIPES["vivi-ex4-tiny"], Batch(videos=2, shots=2, frames=2, cores=1))
    options = replace(QUICK, rounds=1, lock=tmp_path / "lock")
    console = Console(record=True, quiet=True)
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        arguments = (recipe, "vivi-ex4-tiny", Sources(corpus), Machine(device="cpu"), options, console)
        bench = threading.Thread(target=bench_train, args=arguments)
        bench.start()
        bench.join(timeout=4)
        assert bench.is_alive()
        released = time.monotonic()
        fcntl.flock(file, fcntl.LOCK_UN)
    bench.join()
    assert time.monotonic() > released


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["train", "vivi-ex4-tiny", "--json", "missing/x.json"], "--json missing/x.json cannot be written"),
        (["train", "vivi-ex4-tiny", "--lock", "missing/lock"], "--lock missing/lock cannot be written"),
        (["train", "vivi-ex4-tiny", "--peers", "--peer-batch", "2"], "--peer-batch"),
        (["train", "vivi-ex4-tiny", "--decode", "gpu", "--device", "cpu"], "--decode gpu"),
        (["loader", "vivi-ex4-tiny", "--json", "missing/x.json"], "--json missing/x.json cannot be written"),
        (["loader", "vivi-ex4-tiny", "--micro-batch", "3"], "--micro-batch 3 does not divide"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_measured(corpus: Path, flags: list[str], said: str) -> None:
    small_batch = ["--batch.videos", "2", "--batch.shots", "2", "--encoder.width", "0.125", "--augment.size", "32"]
    with pytest.raises(UserError) as refused:
        vivi_here("bench", *flags, "--corpus", corpus, *small_batch)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"measure": 0}, "--measure"), ({"rounds": -1}, "--rounds"), ({"peer_seconds": 0.0}, "--peer-seconds")],
)
def test_impossible_options_are_refused_before_any_work(change: dict[str, int], said: str) -> None:
    options = replace(QUICK, **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=said):
        bench_train(RECIPES["vivi-ex4-tiny"], "vivi-ex4-tiny", Sources(), Machine(), options, Console(quiet=True))


def test_labels_alone_are_measured_without_videos(tmp_path: Path) -> None:
    from test_image_stream import write_images

    write_images(tmp_path / "images", classes=3, each=5)
    recipe = replace(
        small(RECIPES["sup100-tiny"], RECIPES["sup100-tiny"].batch), images=Images(count=4), steps=10_000
    )
    sources = Sources(images=tmp_path / "images")
    found = bench_train(recipe, "sup100-tiny", sources, Machine(device="cpu"), QUICK, Console(quiet=True))
    assert found["work"]["images"] == 4 and found["work"]["frames"] == 0 and found["ratio"] > 0
