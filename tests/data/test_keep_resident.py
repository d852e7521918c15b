"""Whether a corpus is kept in memory, how many threads read, and which loaders a run has."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from corpora import jpeg, make_corpus, write_images
from rich.console import Console

from vivi.data.images import find_images
from vivi.data.index import Index, open_index
from vivi.data.loader import Prefetch
from vivi.data.plan import Kind
from vivi.data.resident import ResidentSource
from vivi.data.sources import CorpusSource, ImageSource
from vivi.prepare.corpus import Corpus
from vivi.recipes import Batch, Images, Recipe
from vivi.runtime.distributed import World
from vivi.runtime.errors import UserError
from vivi.runtime.machine import available_memory
from vivi.train.data import (
    MOST_THREADS,
    TrainingData,
    keep_resident,
    memory_to_spare,
    prefetch_steps,
    reading_threads,
)
from vivi.train.micro_batch import MicroBatchSize
from vivi.train.settings import Execution

CPU = torch.device("cpu")
RECIPE = Recipe("test", batch=Batch(videos=4, shots=2, frames=3, cores=2))  # 24 frames a step
FRAME = replace(RECIPE, batch=replace(RECIPE.batch, source="frame", shots=1))
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
Resident = Literal["auto", "on", "off"]


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


def recording() -> Console:
    return Console(file=io.StringIO(), width=10_000)


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def keep(
    index: Index, resident: Resident, steps: int, recipe: Recipe = RECIPE, world: World | None = None
) -> tuple[ResidentSource | None, list[str]]:
    """The frames in memory, if they are kept, and what is said."""
    console, execution = recording(), Execution(resident=resident, threads=1)
    source = CorpusSource(index, recipe.batch, 0)
    return keep_resident(source, execution, world or World(CPU), steps, console), lines(console)


def refusal(index: Index) -> str:
    with pytest.raises(UserError) as caught:
        keep(index, "on", 1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_corpus_is_not_kept_if_that_is_switched_off(index: Index) -> None:
    assert keep(index, "off", 10**6) == (None, [])


def test_a_corpus_is_kept_if_a_run_sees_as_many_frames_as_it_has(index: Index) -> None:
    frames = int(CorpusSource(index, RECIPE.batch, 0).frame_counts().sum())
    enough = -(-frames // 24)  # steps
    assert enough > 2
    assert keep(index, "auto", enough - 1) == (None, [])
    resident, output = keep(index, "auto", enough)
    assert resident is not None and len(resident.images) == frames
    assert output == [f"all {frames} frames are kept in memory, decoded: 0.0 GiB"]
    # Each of two processes would decode half of what is seen, but all of what is kept.
    assert keep(index, "auto", enough, RECIPE, World(CPU, 0, 2)) == (None, [])
    assert keep(index, "auto", 2 * enough, RECIPE, World(CPU, 0, 2))[0] is not None
    assert keep(index, "on", 1)[0] is not None


def test_where_one_frame_of_each_video_is_seen_only_those_are_kept(index: Index) -> None:
    source = CorpusSource(index, FRAME.batch, 0)
    videos = len(source.eligible)
    resident, output = keep(index, "auto", 10**6, FRAME)
    assert resident is not None and len(resident.images) == videos
    assert output == [f"all {videos} frames are kept in memory, decoded: 0.0 GiB"]
    resampled = replace(FRAME, batch=replace(FRAME.batch, resample=True))
    resident, _ = keep(index, "auto", 10**6, resampled)
    eligible = source.eligible
    assert resident is not None
    assert len(resident.images) == (index.first_frame[eligible + 1] - index.first_frame[eligible]).sum() > videos


def test_a_corpus_that_is_too_large_is_not_kept_or_one_line(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    resident, _ = keep(index, "on", 1)
    assert resident is not None
    needed = len(resident.images.memory)
    monkeypatch.setattr("vivi.train.data.memory_to_spare", lambda device: (0, needed))
    assert keep(index, "auto", 10**6)[0] is not None
    monkeypatch.setattr("vivi.train.data.memory_to_spare", lambda device: (needed // 2, needed - 1))
    assert keep(index, "auto", 10**6) == (None, [])
    assert refusal(index) == (
        f"--resident on: decoded, the {len(resident.images)} frames of {index.corpus} take more than the 0.0 GiB "
        "to spare; remove it"
    )


def test_a_corpus_whose_size_cannot_be_told_is_not_kept_or_one_line(tmp_path: Path) -> None:
    # Of each video the second frame is larger than the first.
    videos = {name: [[jpeg(50, (16, 16)), jpeg(60, (48, 48))]] * 2 for name in "abcde"}
    index = open_index(make_corpus(tmp_path, videos))
    resident, output = keep(index, "auto", 10**6)
    assert resident is None and not [line for line in output if "kept" in line]
    assert "have frames of several sizes" in refusal(index)


def test_damaged_frames_are_named_when_they_are_kept(tmp_path: Path) -> None:
    videos = {name: [[jpeg(50), b"?"], [jpeg(60)]] for name in "abcde"}
    resident, output = keep(open_index(make_corpus(tmp_path, videos)), "on", 1)
    assert resident is not None
    assert output[0] == "all 12 frames are kept in memory, decoded: 0.0 GiB"  # of the four that are not held out
    assert [line.split(": ")[1] for line in output[1:]] == [f"video {name} shot 0 frame 1" for name in "abce"]


def test_memory_can_be_had_and_less_than_there_is() -> None:
    described = Path("/proc/meminfo")
    if not described.exists():
        pytest.skip("there is no /proc/meminfo")
    (total,) = (int(line.split()[1]) * 1024 for line in described.read_text().splitlines() if "MemTotal" in line)
    assert 0 < available_memory() < total
    on_gpu, on_host = memory_to_spare(CPU)
    assert on_gpu == 0 and 0 < on_host < total


def test_processes_of_a_machine_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivi.train.data.available_cores", lambda: 6)
    monkeypatch.setattr("vivi.train.data.available_memory", lambda: 1000)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert reading_threads(Execution()) == MOST_THREADS and memory_to_spare(CPU) == (0, 500)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert reading_threads(Execution()) == 2 and memory_to_spare(CPU) == (0, 166)
    assert reading_threads(Execution(threads=7)) == 7
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert reading_threads(Execution()) == 1


# The loaders of a run.


def prefetched(data: TrainingData, recipe: Recipe, execution: Execution, world: World | None = None) -> Prefetch:
    size, steps = MicroBatchSize(1, 2), range(3, 5)
    return prefetch_steps(data, recipe, execution, world or World(CPU), size, steps, torch.float32, recording())


@pytest.mark.parametrize(
    ("resident", "kind"), [("on", ResidentSource), ("off", CorpusSource), ("auto", CorpusSource)]
)
def test_frames_come_from_memory_or_from_disk(index: Index, resident: Resident, kind: type) -> None:
    data = TrainingData(RECIPE, index, None, None, None, CorpusSource(index, RECIPE.batch, 0))
    with prefetched(data, RECIPE, Execution(resident=resident, threads=3)) as steps:
        assert steps.videos is not None and steps.images is None
        assert type(steps.videos.source) is kind
        assert steps.videos.threads == (0 if kind is ResidentSource else 3)
        assert [step.number for step in steps if len(list(step.videos)) == 2] == [3, 4]


def test_a_process_loads_its_own_cores(index: Index) -> None:
    data = TrainingData(RECIPE, index, None, None, None, CorpusSource(index, RECIPE.batch, 0))
    for rank in range(2):
        with prefetched(data, RECIPE, Execution(resident="off", threads=1), World(CPU, rank, 2)) as steps:
            assert steps.videos is not None
            assert steps.videos.cores == range(rank, rank + 1) and steps.videos.all_cores == 2


def test_labelled_images_beside_videos_have_half_of_the_threads_unless_told(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivi.train.data.available_cores", lambda: 4)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    images = find_images(write_images(tmp_path))
    both = replace(RECIPE, images=Images(count=4))
    alone = replace(both, batch=replace(both.batch, videos=0))
    videos = CorpusSource(index, RECIPE.batch, 0)
    for recipe, source, threads, expected in (
        (both, videos, 0, (4, 2)),
        (both, videos, 3, (3, 3)),
        (alone, None, 0, (None, 4)),
    ):
        data = TrainingData(recipe, index, images, images, None, source, ImageSource(images, recipe, Kind.LABELLED))
        with prefetched(data, recipe, Execution(resident="off", threads=threads)) as steps:
            assert steps.images is not None and steps.images.cores_per_micro_batch == 2
            assert (steps.videos.threads if steps.videos else None, steps.images.threads) == expected


def test_without_videos_nothing_can_be_kept(tmp_path: Path) -> None:
    images = find_images(write_images(tmp_path))
    labelled = replace(RECIPE, batch=replace(RECIPE.batch, videos=0), images=Images(count=4))
    instead = replace(RECIPE, batch=replace(RECIPE.batch, shots=1, source="image"))
    for recipe, sources in (
        (labelled, (None, ImageSource(images, labelled, Kind.LABELLED))),
        (instead, (ImageSource(images, instead, Kind.FRAMES), None)),
    ):
        data = TrainingData(recipe, None, images, images, None, *sources)
        with pytest.raises(UserError, match="test learns from no videos: remove --resident"):
            Execution(resident="on").check(recipe)
        with prefetched(data, recipe, Execution(resident="auto", threads=1)) as steps:
            assert [step.number for step in steps if list(step.videos) + list(step.images)] == [3, 4]


@needs_gpu
def test_a_gpu_has_memory_to_spare() -> None:
    on_gpu, on_host = memory_to_spare(torch.device("cuda", 0))
    assert on_gpu > 0 and on_host > 0


@needs_gpu
def test_a_corpus_is_kept_on_the_gpu_if_it_fits_there(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    source = CorpusSource(index, RECIPE.batch, 0)
    for room, kind in (((10**8, 10**8), "cuda"), ((1000, 10**8), "cpu")):
        monkeypatch.setattr("vivi.train.data.memory_to_spare", lambda device, room=room: room)
        console = recording()
        resident = keep_resident(source, Execution(resident="on"), World(gpu), 1, console)
        assert resident is not None and resident.images.memory.device.type == kind
        assert ("on the GPU" if kind == "cuda" else "in memory") in lines(console)[-1]
