"""A corpus in memory: micro-batches are those that streaming gives, bit for bit, and its size is known beforehand."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import altered, assert_same_micro_batches, jpeg, make_corpus
from runs import assert_same_run, run_here

from vivi.data.augment import augment
from vivi.data.index import Index, open_index
from vivi.data.loader import Loader
from vivi.data.packed import on_device
from vivi.data.resident import ResidentSource, decoded_bytes, load_resident
from vivi.data.sources import CorpusSource, Source
from vivi.prepare.corpus import Corpus
from vivi.recipes import Augment, Batch

CPU = torch.device("cpu")
ENOUGH = 10**9
SHOTS = Batch(videos=4, shots=2, frames=6, cores=2)
BATCHES = {
    "shots": SHOTS,
    "a fixed frame": Batch(videos=6, shots=1, frames=3, cores=2, source="frame"),
    "any frame": Batch(videos=6, shots=1, frames=3, cores=2, source="frame", resample=True),
}


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


def keep(source: CorpusSource, threads: int = 2) -> tuple[ResidentSource, list[str]]:
    """All frames in use, in as many bytes as they are said to need, and the lines about damaged ones."""
    frames, size = int(source.frame_counts().sum()), decoded_bytes(source, ENOUGH)
    assert size is not None
    seen: list[int] = []
    lines: list[str] = []

    def progress(done: int, damaged: tuple[str, ...]) -> None:
        seen.append(done)
        lines.extend(damaged)

    resident = load_resident(source, size, threads, CPU, CPU, progress)
    assert resident is not None
    assert seen == sorted(seen) and seen[-1] == frames == len(resident.images)
    assert len(resident.images.memory) == size
    return resident, lines


def loader_of(source: Source, cores: range = range(2), cores_each: int = 1, device: torch.device = CPU) -> Loader:
    threads = 0 if isinstance(source, ResidentSource) else 2
    return Loader(source, partial(augment, settings=Augment(size=12)), cores, 2, cores_each, device, threads)


# What is kept.


@pytest.mark.parametrize("cores", [range(2), range(1, 2)], ids=str)
@pytest.mark.parametrize("name", BATCHES)
def test_micro_batches_are_those_that_streaming_gives(index: Index, name: str, cores: range) -> None:
    source = CorpusSource(index, BATCHES[name], 3)
    resident, lines = keep(source)
    for steps in (range(6), range(7, 9), range(9, 9)):
        for cores_each in {1, len(cores)}:
            streamed = list(loader_of(source, cores, cores_each).load(steps))
            assert_same_micro_batches(list(loader_of(resident, cores, cores_each).load(steps)), streamed)
            assert len(streamed) == len(steps) * len(cores) // cores_each
    assert not lines


def test_of_a_fixed_frame_a_video_only_that_frame_is_kept(index: Index) -> None:
    fixed = CorpusSource(index, BATCHES["a fixed frame"], 3)
    resident, _ = keep(fixed)
    assert len(resident.images) == len(fixed.eligible)
    of_any, _ = keep(CorpusSource(index, BATCHES["any frame"], 3))
    videos = fixed.eligible
    assert len(of_any.images) == (index.first_frame[videos + 1] - index.first_frame[videos]).sum()
    assert len(resident.images.memory) < len(of_any.images.memory)


def frames_in_use(source: CorpusSource) -> set[tuple[int, int, int]]:
    """Video, shot and number of each frame."""
    frames = [frame for plan in source.plans_of_all_frames() for frame in plan.frames()]
    assert len(frames) == len(set(frames)) == source.frame_counts().sum()
    return set(frames)


@pytest.mark.parametrize("name", BATCHES)
def test_the_frames_in_use_are_those_that_steps_see(index: Index, name: str) -> None:
    source = CorpusSource(index, BATCHES[name], 3)
    seen = set()
    for step in range(300):
        plan = source.plan(step)
        for video, shots, numbers in zip(plan.video, plan.shot, plan.frame, strict=True):
            for shot, frames in zip(shots, numbers, strict=True):
                seen |= {(int(video), int(shot), int(frame)) for frame in frames}
    assert seen == frames_in_use(source)


def damaged_index(folder: Path) -> Index:
    """Two videos with damaged frames, one shot without a good frame, and a held-out video."""
    good = [jpeg(10 * level, (40, 32)) for level in range(12)]
    videos = {
        "a": [[good[1], b"", good[3], b"no JPEG", good[4][:-20], good[6]], [good[7]] * 3],
        "b": [[b"?", b"!"], [good[8], good[9][:150], b"?"], [good[10]]],
        "c": [[good[11], good[2]], [good[5], b""]],
        "d": [[good[0]] * 5, [good[0]] * 5],
    }
    return open_index(make_corpus(folder, videos))


@pytest.mark.parametrize("kind", ["shot", "frame"])
def test_damaged_frames_have_the_same_stand_ins_and_are_named_once(tmp_path: Path, kind: str) -> None:
    batch = Batch(videos=2, shots=2, frames=6, cores=2)
    if kind == "frame":
        batch = Batch(videos=2, shots=1, frames=2, cores=2, source="frame", resample=True)
    source = CorpusSource(damaged_index(tmp_path), batch, 0)
    resident, lines = keep(source)
    streamed = list(loader_of(source).load(range(40)))
    kept = list(loader_of(resident).load(range(40)))
    assert_same_micro_batches(kept, streamed)
    assert sorted(line.split(": ")[1] for line in lines) == [
        *(f"video a shot 0 frame {frame}" for frame in (1, 3, 4)),
        *(f"video b shot 0 frame {frame}" for frame in (0, 1)),
        *(f"video b shot 1 frame {frame}" for frame in (1, 2)),
        "video c shot 1 frame 1",
    ]
    # In 40 steps streaming has met all of them.
    assert {line for micro_batch in streamed for line in micro_batch.damaged} == set(lines)
    assert all(micro_batch.damaged == () for micro_batch in kept)


def test_a_fixed_frame_that_is_damaged_is_replaced_from_its_shot(tmp_path: Path) -> None:
    index = open_index(make_corpus(tmp_path, {name: [[b"?", jpeg(50)], [jpeg(90), b"?"]] for name in "abcefghi"}))
    source = CorpusSource(index, Batch(videos=2, shots=1, frames=2, cores=2, source="frame"), 0)
    resident, lines = keep(source)
    assert_same_micro_batches(list(loader_of(resident).load(range(9))), list(loader_of(source).load(range(9))))
    assert 0 < len(lines) < len(source.eligible) == len(resident.images)


@pytest.mark.parametrize("threads", [0, 1, 5])
def test_threads_do_not_matter(index: Index, threads: int) -> None:
    resident, expected = keep(CorpusSource(index, SHOTS, 0), threads)[0], keep(CorpusSource(index, SHOTS, 0))[0]
    assert torch.equal(resident.images.memory, expected.images.memory)
    assert np.array_equal(resident.images.starts, expected.images.starts)
    assert np.array_equal(resident.first, expected.first)


@pytest.mark.parametrize("name", BATCHES)
def test_many_shots_are_loaded_some_at_a_time_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("vivi.data.sources._FRAMES_PER_READ", 3)
    monkeypatch.setattr("vivi.data.sources._VIDEOS_PER_PLAN", 4)
    videos = {
        f"v{number}": [
            [jpeg(10 * shot + frame, (16, 16)) for frame in range(1 + (number + shot) % 4)] for shot in (0, 1)
        ]
        for number in range(9)
    }
    source = CorpusSource(open_index(make_corpus(tmp_path, videos)), BATCHES[name], 0)
    size, seen = decoded_bytes(source, ENOUGH), list[int]()
    assert size is not None
    assert load_resident(source, size, 2, CPU, CPU, lambda done, _: seen.append(done))
    assert len(seen) > 2
    resident, _ = keep(source)
    assert_same_micro_batches(list(loader_of(resident).load(range(6))), list(loader_of(source).load(range(6))))


# How much it is.


@pytest.mark.parametrize("name", BATCHES)
def test_the_size_is_known_before_anything_is_decoded(index: Index, name: str) -> None:
    source = CorpusSource(index, BATCHES[name], 0)
    expected = sum(
        image.size
        for video, shot, number in frames_in_use(source)
        for image in source.read_shot(video, shot, [number], [])
    )
    assert decoded_bytes(source, ENOUGH) == expected == decoded_bytes(source, expected)
    assert decoded_bytes(source, expected - 1) is None
    resident, _ = keep(source)
    ends = resident.images.starts + 3 * resident.images.sizes.prod(axis=1)
    assert ends.max() == expected


def test_of_a_corpus_that_is_far_too_large_only_some_videos_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus(tmp_path, {f"v{number:02d}": [[jpeg(50, (16, 16))] * 2] for number in range(40)}, 1)
    source = CorpusSource(open_index(corpus), Batch(videos=4, shots=1, frames=2, cores=2), 0)
    expected = decoded_bytes(source, ENOUGH)
    assert expected == 30 * 2 * 3 * 16 * 16
    monkeypatch.setattr("vivi.data.resident._SAMPLE", 5)
    assert decoded_bytes(source, expected) == expected
    videos = source.eligible
    for video in videos[videos > videos[6]]:  # these cannot be looked at any more
        (tmp_path / "shards" / f"{int(source.index.shard[video]):05d}.arrow").unlink()
    assert decoded_bytes(source, expected // 2 - 1) is None


def test_a_video_of_damaged_frames_alone_is_counted_as_grey(tmp_path: Path) -> None:
    index = open_index(make_corpus(tmp_path, {"a": [[jpeg(50)] * 3], "b": [[b"?", b""]]}))
    source = CorpusSource(index, Batch(videos=2, shots=1, frames=2, cores=2), 0)
    assert decoded_bytes(source, ENOUGH) == 3 * (3 * 24 * 16 + 2 * 32 * 32)
    resident, lines = keep(source)
    assert_same_micro_batches(list(loader_of(resident).load(range(2))), list(loader_of(source).load(range(2))))
    assert len(lines) == 2


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_frames_that_are_not_ours_are_counted_too(tmp_path: Path, mode: str) -> None:
    videos = {name: [[jpeg(level, (20, 10), mode) for level in (50, 90)]] for name in "ab"}
    source = CorpusSource(open_index(make_corpus(tmp_path, videos)), Batch(videos=2, shots=1, frames=2, cores=2), 0)
    assert decoded_bytes(source, ENOUGH) == 4 * 3 * 20 * 10
    keep(source)


def test_the_size_is_not_taken_from_an_altered_frame(tmp_path: Path) -> None:
    videos = {name: [[altered(50, (48, 48)), jpeg(60, (16, 16))]] for name in "ab"}
    source = CorpusSource(open_index(make_corpus(tmp_path, videos)), Batch(videos=2, shots=1, frames=2, cores=2), 0)
    assert decoded_bytes(source, ENOUGH) == 4 * 3 * 16 * 16
    resident, lines = keep(source)
    assert_same_micro_batches(list(loader_of(resident).load(range(2))), list(loader_of(source).load(range(2))))
    assert len(lines) == 2


def test_frames_that_need_more_than_was_said_are_not_kept(tmp_path: Path) -> None:
    mixed = {"a": [[jpeg(50, (16, 16)), jpeg(60, (48, 48))]], "b": [[jpeg(70, (16, 16))]]}
    source = CorpusSource(open_index(make_corpus(tmp_path, mixed)), Batch(videos=2, shots=1, frames=2, cores=1), 0)
    assert decoded_bytes(source, ENOUGH) == 3 * 3 * 16 * 16  # as if all were like the first of their video
    enough = 3 * (16 * 16 + 48 * 48 + 16 * 16)
    for size, fits in ((3 * 3 * 16 * 16, False), (enough - 1, False), (enough, True)):
        resident = load_resident(source, size, 2, CPU, CPU, lambda done, damaged: None)
        assert (resident is not None) == fits


# Training.


def test_training_is_the_same_with_the_corpus_in_memory(corpus: Path, tmp_path: Path) -> None:
    """Also where a frame is damaged, which is then named once."""
    shutil.copytree(corpus, tmp_path / "corpus")
    index = open_index(Corpus(corpus))
    video = int(np.flatnonzero(~index.test & (np.diff(index.first_shot) >= 4))[0])
    shot = int(index.first_shot[video])
    shard = tmp_path / "corpus" / "shards" / f"{int(index.shard[video]):05d}.arrow"
    content = bytearray(shard.read_bytes())
    start = int(index.data_at[shot]) + int(np.frombuffer(content, "<i4", 1, int(index.offsets_at[shot]))[0])
    content[start : start + 64] = bytes(64)
    shard.write_bytes(content)
    runs_of = {
        how: run_here(tmp_path / "corpus", tmp_path / how, "--steps", 2, "--log-every", 1, "--resident", how)
        for how in ("on", "off")
    }
    assert re.search(r"are kept (in memory|on the GPU), decoded", runs_of["on"]) and "are kept" not in runs_of["off"]
    line = f"its neighbour takes its place: video {index.video_name(video)} shot 0 frame 0: "
    assert runs_of["on"].count(line) == 1
    assert_same_run(tmp_path / "on", tmp_path / "off")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("keep_on", ["cuda", "cpu"])
def test_a_gpu_sees_the_same_of_a_corpus_in_memory(index: Index, keep_on: str) -> None:
    """Frames on the GPU stay there; of those on the host a micro-batch's are copied."""
    gpu = torch.device("cuda")
    source = CorpusSource(index, SHOTS, 0)
    size = decoded_bytes(source, ENOUGH)
    assert size is not None
    resident = load_resident(source, size, 2, gpu, torch.device(keep_on), lambda *_: None)
    assert resident is not None and resident.images.memory.device.type == keep_on
    if keep_on == "cpu":
        assert resident.images.memory.is_pinned()
    decoded = resident.read(resident.plan(0))
    there = on_device([decoded.images], gpu)
    assert there.memory.is_cuda and (there.memory is resident.images.memory) == (keep_on == "cuda")
    for cores_each in (1, 2):
        streamed = list(loader_of(source, range(2), cores_each, gpu).load(range(3)))
        kept = list(loader_of(resident, range(2), cores_each, gpu).load(range(3)))
        assert all(tensor.is_cuda for micro_batch in kept for tensor in micro_batch.tensors())
        assert_same_micro_batches(kept, streamed)
