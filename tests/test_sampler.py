"""Plans: distinct videos, consecutive shots and frames, uniform; a function of (corpus, recipe, seed, step) alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from vivi.batches.draws import DRAWS
from vivi.batches.index import Index, open_index
from vivi.batches.sampler import Eligible, Plan, eligible, plan
from vivi.errors import UserError
from vivi.recipes import Batch
from vivi.video.corpus import Corpus


def index_of(videos: list[list[int]], test: list[bool] | None = None, names: list[str] | None = None) -> Index:
    """An index of videos given as the numbers of frames of their shots; nothing of it can be read."""
    names = names or [f"v{number:05d}" for number in range(len(videos))]
    encoded = [name.encode() for name in names]
    shots = [count for video in videos for count in video]
    return Index(
        first_shot=np.cumsum([0, *map(len, videos)]),
        first_frame=np.cumsum([0, *map(sum, videos)]),
        shard=np.zeros(len(videos), np.int32),
        test=np.array(test if test is not None else [False] * len(videos), bool),
        frames=np.array(shots, np.int32),
        offsets_at=np.zeros(len(shots), np.int64),
        data_at=np.zeros(len(shots), np.int64),
        name_at=np.cumsum([0, *map(len, encoded)]),
        names=np.frombuffer(b"".join(encoded), np.uint8),
        corpus=Path("corpus"),
        fingerprint="",
    )


def random_index(seed: int, count: int = 60) -> Index:
    rng = np.random.default_rng(seed)
    videos = [rng.integers(1, 12, rng.integers(1, 9)).tolist() for _ in range(count)]
    return index_of(videos, (rng.random(count) < 0.2).tolist())


def assert_equal(a: Plan, b: Plan) -> None:
    for field in fields(Plan):
        assert np.array_equal(getattr(a, field.name), getattr(b, field.name)), field.name


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("shots", "frames"), [(1, 4), (2, 1), (3, 8)])
def test_a_plan_follows_the_rules(seed: int, shots: int, frames: int) -> None:
    index = random_index(seed)
    batch = Batch(videos=8, shots=shots, frames=frames, cores=2)
    found = eligible(index, batch)
    for step in range(12):
        made = plan(index, found, batch, seed, step)
        assert len(set(made.video.tolist())) == 8
        for video, its_shots, its_frames in zip(made.video, made.shot, made.frame, strict=True):
            assert not index.test[video]
            first, end = index.first_shot[video], index.first_shot[video + 1]
            assert first <= its_shots[0] and its_shots[-1] < end
            assert its_shots.tolist() == list(range(its_shots[0], its_shots[0] + shots))
            for shot, numbers in zip(its_shots, its_frames.tolist(), strict=True):
                count = int(index.frames[shot])
                if count < frames:  # all in order, then again from the first
                    assert numbers == [number % count for number in range(frames)]
                else:
                    assert numbers == list(range(numbers[0], numbers[0] + frames)) and numbers[-1] < count
        assert made.noise.shape == (8, shots + 1) and made.draws.shape == (8, shots, frames, DRAWS)
        for numbers in (made.noise, made.draws):
            assert numbers.dtype == np.float32 and numbers.min() >= 0 and numbers.max() < 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shots", [1, 2, 5])
def test_eligible_videos_are_counted_as_by_hand(seed: int, shots: int) -> None:
    index = random_index(seed)
    found = eligible(index, Batch(videos=4, shots=shots, cores=1))
    train = [video for video in range(len(index)) if not index.test[video]]
    good = [video for video in train if index.first_shot[video + 1] - index.first_shot[video] >= shots]
    assert found.videos.tolist() == good
    assert found.dropped == len(train) - len(good)


def test_an_epoch_sees_each_video_at_most_once_and_another_order_each_time() -> None:
    index = index_of([[3, 3]] * 22)
    batch = Batch(videos=4, shots=2, frames=2, cores=1)
    found = eligible(index, batch)
    epochs = []
    for epoch in range(3):
        steps = range(5 * epoch, 5 * epoch + 5)  # 22 // 4 batches, 2 videos sit out
        epochs.append([int(v) for step in steps for v in plan(index, found, batch, 0, step).video])
        assert len(set(epochs[-1])) == 20
    assert epochs[0] != epochs[1] != epochs[2]
    assert {frozenset(range(22)) - frozenset(epoch) for epoch in epochs} != {frozenset({20, 21})}


def test_a_plan_depends_on_seed_and_step_and_on_nothing_asked_before() -> None:
    index = random_index(0)
    batch = Batch(videos=8, shots=2, frames=3, cores=2)
    found = eligible(index, batch)
    in_order = [plan(index, found, batch, 5, step) for step in range(20)]
    for step in reversed(range(20)):
        assert_equal(plan(index, found, batch, 5, step), in_order[step])
    for other in (plan(index, found, batch, 6, 3), in_order[4]):
        for field in fields(Plan):
            assert not np.array_equal(getattr(other, field.name), getattr(in_order[3], field.name))


def test_random_numbers_of_different_purposes_are_different() -> None:
    index = index_of([[9] * 9] * 9)
    batch = Batch(videos=2, shots=2, frames=8, cores=1)
    made = plan(index, eligible(index, batch), batch, 0, 0)
    assert len(np.intersect1d(made.noise, made.draws)) == 0
    assert len(np.unique(made.draws)) == made.draws.size


def test_cores_are_contiguous_and_together_make_the_batch() -> None:
    index = random_index(1)
    batch = Batch(videos=12, shots=2, frames=3, cores=4)
    whole = plan(index, eligible(index, batch), batch, 0, 3)
    parts = [whole.cores(first, last, 4) for first, last in [(0, 1), (1, 3), (3, 4)]]
    assert [len(part.video) for part in parts] == [3, 6, 3]
    joined = Plan(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Plan)))
    assert_equal(joined, whole)
    assert_equal(parts[1].cores(1, 2, 2), whole.cores(2, 3, 4))


def test_starts_are_uniform() -> None:
    index = index_of([[6, 9, 5, 20]])
    batch = Batch(videos=1, shots=2, frames=4, cores=1)
    found = eligible(index, batch)
    plans = [plan(index, found, batch, 0, step) for step in range(3000)]
    shots = Counter(int(made.shot[0, 0]) for made in plans)
    assert sorted(shots) == [0, 1, 2] and min(shots.values()) > 880
    frames = Counter(int(made.frame[0, 0, 0]) for made in plans if made.shot[0, 0] == 1)
    assert sorted(frames) == [0, 1, 2, 3, 4, 5] and min(frames.values()) > 110
    last = Counter(int(made.frame[0, 1, -1]) for made in plans if made.shot[0, 0] == 2)
    assert sorted(last) == list(range(3, 20))


FRAME = Batch(videos=6, shots=1, frames=4, cores=2, source="frame")


def test_the_frame_of_a_video_is_fixed_for_the_run() -> None:
    index = random_index(2)
    found = eligible(index, FRAME)
    seen: dict[int, set[tuple[int, int]]] = {}
    for step in range(40):
        made = plan(index, found, FRAME, 0, step)
        assert made.shot.shape == (6, 1) and made.frame.shape == (6, 1, 4)
        assert (made.frame == made.frame[:, :, :1]).all()
        for video, shot, frame in zip(made.video, made.shot[:, 0], made.frame[:, 0, 0], strict=True):
            assert index.first_shot[video] <= shot < index.first_shot[video + 1]
            assert 0 <= frame < index.frames[shot]
            seen.setdefault(int(video), set()).add((int(shot), int(frame)))
    assert max(map(len, seen.values())) == 1 and len(seen) == len(found.videos)
    others = plan(index, found, FRAME, 1, 0)
    fixed = [
        seen[int(video)] == {(int(shot), int(frame))}
        for video, shot, frame in zip(others.video, others.shot[:, 0], others.frame[:, 0, 0], strict=True)
    ]
    assert not all(fixed)  # another seed, other frames


def test_the_fixed_frame_belongs_to_the_name_not_to_the_place_in_the_corpus() -> None:
    videos = [[5, 9, 3]] * 12
    names = [f"name {number}" for number in range(12)]
    small = index_of(videos[:6], names=names[:6])
    large = index_of([[2], *videos], names=["a first one", *names])
    batch = replace(FRAME, videos=6)

    def by_name(index: Index, found: Eligible) -> dict[str, tuple[int, int]]:
        result = {}
        for step in range(30):
            made = plan(index, found, batch, 0, step)
            for video, shot, frame in zip(made.video, made.shot[:, 0], made.frame[:, 0, 0], strict=True):
                result[index.video_name(int(video))] = (int(shot - index.first_shot[video]), int(frame))
        return result

    few, many = by_name(small, eligible(small, batch)), by_name(large, eligible(large, batch))
    assert few == {name: many[name] for name in few} and len(few) == 6


@pytest.mark.parametrize("resample", [False, True])
def test_all_frames_of_a_video_are_equally_likely(resample: bool) -> None:
    index = index_of([[2, 1, 5]])
    batch = replace(FRAME, videos=1, cores=1, resample=resample)
    found = eligible(index, batch)
    # Over the seeds where the frame is fixed for a run, over the steps where it is not.
    keys = [(0, step) for step in range(4000)] if resample else [(seed, 0) for seed in range(4000)]
    counts: Counter[tuple[int, int]] = Counter()
    for seed, step in keys:
        made = plan(index, found, batch, seed, step)
        counts[int(made.shot[0, 0]), int(made.frame[0, 0, 0])] += 1
    assert sorted(counts) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]
    assert min(counts.values()) > 400 and max(counts.values()) < 600


def test_too_few_videos_are_one_clear_line() -> None:
    with pytest.raises(UserError, match="corpus holds no usable video"):
        eligible(index_of([]), Batch())
    short = index_of([[4], [4, 4], [4, 4]], [False, False, True])
    with pytest.raises(UserError, match=r"none of the 2 training videos of corpus has 3 shots; lower --batch.shots"):
        eligible(short, Batch(videos=1, shots=3))
    with pytest.raises(UserError, match=r"--batch.videos is 2, but only 1 training videos of corpus have 2 shots"):
        eligible(short, Batch(videos=2, shots=2))
    assert eligible(short, Batch(videos=1, shots=2)).dropped == 1


def test_plans_of_a_real_corpus_name_frames_that_are_there(corpus: Path) -> None:
    index = open_index(Corpus(corpus))
    assert 0 < index.test.sum() < len(index)
    batch = Batch(videos=4, shots=2, frames=6, cores=2)
    made = plan(index, eligible(index, batch), batch, 0, 0)
    assert (made.frame < index.frames[made.shot][:, :, None]).all()
