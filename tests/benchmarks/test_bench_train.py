"""The benchmarks of training and of the loader: what they count and compare, and that they run from end to end."""

from __future__ import annotations

import fcntl
import io
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run
from loader import LoaderOptions, bench_loader
from PIL import Image
from rich.console import Console
from train import Round, TrainOptions, Work, bench_train, micro_batches_ahead, steps_ahead, summary, work_of

from vivi.cli.train import recipe_options
from vivi.model.vivi import build_model
from vivi.recipes import RECIPES, Batch, Encoder, Images, InfoNCE, Recipe
from vivi.runtime.distributed import World
from vivi.runtime.errors import UserError
from vivi.train.data import open_data, prefetch_steps
from vivi.train.micro_batch import MicroBatchSize
from vivi.train.settings import DataPaths, Execution

QUIET = Console(quiet=True)
SMALL = [
    *("--batch.videos", "2", "--batch.shots", "2", "--encoder.width", "0.125", "--augment.size", "32"),
    *("--device", "cpu", "--measure", "1", "--steps", "3"),
]


def small(recipe: Recipe, batch: Batch) -> Recipe:
    encoder = Encoder("resnetv2_18", width=0.125)
    return replace(recipe, encoder=encoder, batch=batch, augment=replace(recipe.augment, size=32))


def quick(recipe: Recipe, paths: DataPaths, **changes: Any) -> TrainOptions:
    """One step in each of two rounds, on a CPU."""
    options = TrainOptions(**recipe_options([recipe.name]) | {"named": recipe.name}, measure=1, rounds=2, warm_up=1)
    execution = Execution(device="cpu", micro_batch=changes.pop("micro_batch", 0))
    return replace(options, recipe=recipe, paths=paths, execution=execution, **changes)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        # 128 cores of 16 shots × 8 frames, 16 at once.
        ("vivi-ex4", MicroBatchSize(16, 16), Work(8, 2048, 0, 0, True)),
        ("vivi-ex4", MicroBatchSize(128, 128), Work(1, 16384, 0, 0, False)),
        ("vivi-ex2", MicroBatchSize(16, 16), Work(8, 2048, 0, 0, False)),  # InfoNCE within cores
        # 4 frames of 2,048 shots, turned four ways.
        ("vivi-rot4", MicroBatchSize(32, 32), Work(4, 8192, 0, 0, True)),
        ("vivi-ex4-co100", MicroBatchSize(16, 128), Work(8, 2048, 1, 2048, True)),
        ("sup100", MicroBatchSize(8, 8), Work(0, 0, 1, 256, False)),
        ("sup-rot100", MicroBatchSize(8, 8), Work(0, 0, 1, 1024, False)),
    ],
)
def test_what_the_encoder_sees_of_a_step_is_counted(name: str, size: MicroBatchSize, expected: Work) -> None:
    recipe = RECIPES[name]
    thin = replace(recipe, encoder=Encoder("resnetv2_18", width=0.125), augment=replace(recipe.augment, size=32))
    work = work_of(build_model(thin, 3 if recipe.images.count else 0), recipe, size)
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


def test_no_more_is_read_ahead_than_is_used_up_before_the_clock_starts(corpus: Path) -> None:
    recipe = small(RECIPES["vivi-ex4-tiny"], Batch(videos=2, shots=2, frames=2, cores=1))
    world, size = World(torch.device("cpu")), MicroBatchSize(1, 1)
    data = open_data(recipe, DataPaths(corpus))
    execution = Execution(resident="off", threads=3)
    with prefetch_steps(data, recipe, execution, world, size, range(50), torch.float32, QUIET) as prefetch:
        assert prefetch.videos is not None
        source = prefetch.videos.source
        begun: list[int] = []
        read = source.read

        def counted(*words: Any, **flags: Any) -> Any:
            begun.append(1)  # a step is one read: 2 videos
            return read(*words, **flags)

        source.read = counted  # type: ignore[method-assign]
        next(prefetch.videos.load(range(50)))
        time.sleep(0.3)
        assert 1 < len(begun) <= micro_batches_ahead(prefetch.videos) < steps_ahead(prefetch)


def test_a_benchmark_prints_and_writes_what_it_found(vivi: Run, corpus: Path, tmp_path: Path) -> None:
    flags = [*SMALL, "--corpus", str(corpus), "--rounds", "2", "--warm-up", "1"]
    done = vivi("bench", "train", "vivi-ex4-tiny", *flags, "--json", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    assert "of the encoder alone" in done.stdout and "s a step" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["command"].startswith("vivi bench train vivi-ex4-tiny --batch.videos 2")
    assert found["recipe"] == "vivi-ex4-tiny" and found["overridden"]["batch.videos"] == 2
    assert len(found["rounds"]) == 2 and found["work"]["frames"] == 16
    assert 0 < found["ratio_least"] <= found["ratio"] <= found["ratio_most"]
    assert found["alone"]["decoded"] > 0 and found["alone"]["augmented"] > 0


def test_the_loader_is_measured_part_by_part(vivi: Run, corpus: Path, tmp_path: Path) -> None:
    flags = [*SMALL, "--corpus", str(corpus), "--json", tmp_path / "loader.json"]
    done = vivi("bench", "loader", "vivi-ex4-tiny", *flags)
    assert done.returncode == 0, done.stderr
    rates = json.loads((tmp_path / "loader.json").read_text())["rates"]
    assert list(rates) == ["read", "decoded", "augmented", "streaming", "resident"]
    assert all(rate > 0 for rate, _ in rates.values())
    assert rates["read"][0] > rates["decoded"][0]


def test_two_passes_are_measured_beside_the_first_pass_alone(corpus: Path, tmp_path: Path) -> None:
    recipe = small(RECIPES["vivi-ex4-tiny"], Batch(videos=4, shots=2, frames=2, cores=2))
    recipe = replace(recipe, loss=replace(recipe.loss, video=InfoNCE(across="all")))
    found = bench_train(quick(recipe, DataPaths(corpus), micro_batch=1, profile=tmp_path / "profile"), QUIET)
    assert found["work"]["two_passes"] and found["ratio_with_first_pass"] > found["ratio"]
    assert "aten::" in (tmp_path / "profile").read_text()


def test_a_benchmark_waits_for_the_lock_after_it_has_warmed_up(corpus: Path, tmp_path: Path) -> None:
    recipe = small(RECIPES["vivi-ex4-tiny"], Batch(videos=2, shots=2, frames=2, cores=1))
    options = quick(recipe, DataPaths(corpus), rounds=1, lock=tmp_path / "lock")
    said = io.StringIO()
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        running = threading.Thread(target=bench_train, args=(options, Console(file=said)))
        running.start()
        while "waiting for its turn" not in said.getvalue():
            assert running.is_alive()
            time.sleep(0.05)
        running.join(timeout=0.5)
        assert running.is_alive() and "warming up" in said.getvalue() and "round 1" not in said.getvalue()
        fcntl.flock(file, fcntl.LOCK_UN)
    running.join(timeout=60)
    assert "round 1" in said.getvalue()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"measure": 0}, "--measure is 0"),
        ({"rounds": -1}, "--rounds is -1"),
        ({"peer_seconds": 0.0}, "--peer-seconds is 0.0"),
        ({"json": Path("missing/x.json")}, "--json missing/x.json cannot be written"),
        ({"lock": Path("missing/lock")}, "--lock missing/lock cannot be written"),
        ({"peers": True, "peer_batch": 2}, "--peer-batch"),
        ({"defaults_of": "vivi-ex4"}, "name the recipe right after bench train"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_measured(changes: dict[str, Any], said: str) -> None:
    options = replace(quick(RECIPES["vivi-ex4-tiny"], DataPaths()), **changes)
    with pytest.raises(UserError, match=said):
        bench_train(options, QUIET)


def test_the_loader_says_so_too() -> None:
    options = LoaderOptions(**recipe_options(["vivi-ex4-tiny"]) | {"named": "vivi-ex4-tiny"})
    for changes, said in (
        ({"execution": Execution(micro_batch=3)}, "--micro-batch 3 does not divide --batch.cores 1 evenly"),
        ({"recipe": RECIPES["sup100-tiny"]}, "sup100-tiny learns from no videos"),
        ({"measure": 0}, "--measure is 0"),
    ):
        with pytest.raises(UserError, match=said):
            bench_loader(replace(options, **changes), QUIET)


def test_labels_alone_are_measured_without_videos(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (15, 40, 40, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        path = tmp_path / "images" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    recipe = small(RECIPES["sup100-tiny"], RECIPES["sup100-tiny"].batch)
    recipe = replace(recipe, images=Images(count=4))
    found = bench_train(quick(recipe, DataPaths(images=tmp_path / "images")), QUIET)
    assert found["work"]["images"] == 4 and found["work"]["frames"] == 0 and found["ratio"] > 0
