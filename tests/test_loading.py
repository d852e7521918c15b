"""Where pictures come from: who decodes, and whether a corpus is kept in memory."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from test_index import make_corpus
from test_loader import jpeg

from vivi.batches.frames import FrameStream
from vivi.batches.index import Index, open_index
from vivi.batches.loader import Loader
from vivi.batches.resident import ResidentLoader, Store, frames_in_use
from vivi.errors import UserError
from vivi.machine import available_memory
from vivi.recipes import Batch, Recipe
from vivi.training.data import Data
from vivi.training.distributed import World
from vivi.training.loading import (
    MOST_THREADS,
    decoding_rates,
    gpu_decodes,
    keep_resident,
    open_batches,
    reading_threads,
    rooms,
)
from vivi.training.machine import Machine
from vivi.video.corpus import Corpus

CPU = torch.device("cpu")
RECIPE = Recipe("test", batch=Batch(videos=4, shots=2, frames=3, cores=2))  # 24 frames a step
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


def said() -> Console:
    return Console(file=io.StringIO(), width=10_000)


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def keep(
    index: Index, resident: str, steps: int, recipe: Recipe = RECIPE, world: World | None = None
) -> tuple[Store | None, list[str]]:
    """The store, if there is one, and what is said."""
    console, machine = said(), Machine(resident=resident, threads=1)  # type: ignore[arg-type]
    stream = FrameStream(index, recipe.batch, 0)
    return keep_resident(stream, recipe, machine, world or World(CPU), steps, console), lines(console)


def refusal(index: Index) -> str:
    with pytest.raises(UserError) as caught:
        keep(index, "on", 1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_corpus_is_not_kept_if_that_is_switched_off(index: Index) -> None:
    assert keep(index, "off", 10**6) == (None, [])


def test_a_corpus_is_kept_if_a_run_sees_as_many_frames_as_it_has(index: Index) -> None:
    frames = frames_in_use(index, FrameStream(index, RECIPE.batch, 0).eligible)
    enough = -(-frames // 24)  # steps
    assert enough > 2
    assert keep(index, "auto", enough - 1) == (None, [])
    store, output = keep(index, "auto", enough)
    assert store is not None and len(store.pixels) == frames
    assert output == [f"all {frames} frames are kept in memory, decoded: 0.0 GiB"]
    # Each of two processes would decode half of what is seen, but all of what is kept.
    assert keep(index, "auto", enough, RECIPE, World(CPU, 0, 2)) == (None, [])
    assert keep(index, "auto", 2 * enough, RECIPE, World(CPU, 0, 2))[0] is not None
    assert keep(index, "on", 1)[0] is not None


def test_where_one_frame_of_each_video_is_seen_the_others_are_not_kept_unless_asked_for(index: Index) -> None:
    recipe = replace(RECIPE, batch=replace(RECIPE.batch, source="frame", shots=1))
    assert keep(index, "auto", 10**6, recipe) == (None, [])
    assert keep(index, "on", 1, recipe)[0] is not None


def test_a_corpus_that_is_too_large_is_not_kept_or_one_line(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = keep(index, "on", 1)
    assert store is not None
    needed = len(store.pixels.memory)
    monkeypatch.setattr("vivi.training.loading.rooms", lambda device: (0, needed))
    assert keep(index, "auto", 10**6)[0] is not None
    monkeypatch.setattr("vivi.training.loading.rooms", lambda device: (needed // 2, needed - 1))
    assert keep(index, "auto", 10**6) == (None, [])
    assert refusal(index) == (
        f"--resident on: the {len(store.pixels)} frames of {index.corpus} take more than the 0.0 GiB that can be "
        "spared when they are decoded; leave it out"
    )


def test_a_corpus_whose_size_cannot_be_told_is_not_kept_or_one_line(tmp_path: Path) -> None:
    # Of one video the second frame is larger than the first.
    videos = {name: [[jpeg(50, (16, 16)), jpeg(60, (48, 48))]] * 2 for name in "abcde"}
    index = open_index(make_corpus(tmp_path, videos))
    store, output = keep(index, "auto", 10**6)
    assert store is None and not [line for line in output if "kept" in line]
    assert "have frames of several sizes" in refusal(index)


def test_memory_is_to_be_had_and_less_than_there_is() -> None:
    described = Path("/proc/meminfo")
    if not described.exists():
        pytest.skip("there is no /proc/meminfo")
    (total,) = (int(line.split()[1]) * 1024 for line in described.read_text().splitlines() if "MemTotal" in line)
    assert 0 < available_memory() < total
    on_gpu, on_host = rooms(CPU)
    assert on_gpu == 0 and 0 < on_host < total


def test_processes_of_a_machine_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivi.training.loading.available_cores", lambda: 6)
    monkeypatch.setattr("vivi.training.loading.available_memory", lambda: 1000)
    assert reading_threads(Machine()) == MOST_THREADS and rooms(CPU) == (0, 500)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert reading_threads(Machine()) == 2 and rooms(CPU) == (0, 166)
    assert reading_threads(Machine(threads=7)) == 7
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert reading_threads(Machine()) == 1


def test_threads_have_a_rate_and_without_a_gpu_it_has_none(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivi.training.loading._TRIED", 50)
    stream = FrameStream(index, RECIPE.batch, 0)
    rates = decoding_rates(stream, CPU, 2)
    assert rates.threads > 0 and rates.gpu == 0
    assert not stream.encoded


def test_damaged_frames_have_a_rate_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivi.training.loading._TRIED", 50)
    index = open_index(make_corpus(tmp_path, {name: [[jpeg(9), b"", b"?", jpeg(8)[:200]]] * 2 for name in "abcde"}))
    assert decoding_rates(FrameStream(index, RECIPE.batch, 0), CPU, 1).threads > 0


@pytest.mark.parametrize("decode", ["auto", "cpu"])
def test_where_there_is_no_gpu_the_threads_decode_and_nothing_is_tried(index: Index, decode: str) -> None:
    console, machine = said(), Machine(decode=decode)  # type: ignore[arg-type]
    assert not gpu_decodes(FrameStream(index, RECIPE.batch, 0), machine, CPU, 2, console)
    assert lines(console) == []


@pytest.mark.parametrize(("resident", "kind"), [("on", ResidentLoader), ("off", Loader), ("auto", Loader)])
def test_batches_come_from_memory_or_from_disk(index: Index, resident: str, kind: type) -> None:
    machine = Machine(resident=resident, threads=1)  # type: ignore[arg-type]
    recipe = replace(RECIPE, steps=5)
    with open_batches(Data(index, None, None, None), recipe, machine, World(CPU), 3, said()) as batches:
        assert isinstance(batches.videos, kind) and batches.images is None
        assert [videos.step for videos, _ in batches if videos is not None] == [3, 4]
        assert batches.damaged() == set()


@needs_gpu
def test_a_gpu_has_a_rate_and_decodes_if_it_is_told_to(index: Index) -> None:
    gpu = torch.device("cuda", 0)
    stream = FrameStream(index, RECIPE.batch, 0)
    rates = decoding_rates(stream, gpu, 2)
    assert rates.gpu > 0 and rates.threads > 0
    console = said()
    assert gpu_decodes(stream, Machine(decode="gpu"), gpu, 2, console) and lines(console) == []
    assert not gpu_decodes(stream, Machine(decode="cpu"), gpu, 2, console) and lines(console) == []
    faster = gpu_decodes(stream, Machine(), gpu, 2, console)
    (line,) = lines(console)
    assert line.startswith("frames are decoded by the GPU (beside training, ") == faster
    on_gpu, on_host = rooms(gpu)
    assert on_gpu > 0 and on_host > 0


@needs_gpu
@pytest.mark.parametrize("decode", ["gpu", "cpu"])
def test_a_corpus_is_kept_on_the_gpu_if_it_fits_there(
    index: Index, decode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = torch.device("cuda", 0)
    stream = FrameStream(index, RECIPE.batch, 0, encoded=decode == "gpu")
    for room, kind in (((10**8, 10**8), "cuda"), ((1000, 10**8), "cpu")):
        monkeypatch.setattr("vivi.training.loading.rooms", lambda device, room=room: room)
        console = said()
        store = keep_resident(stream, RECIPE, Machine(resident="on"), World(gpu), 1, console)
        assert store is not None and store.pixels.memory.device.type == kind
        assert ("on the GPU" if kind == "cuda" else "in memory") in lines(console)[-1]
