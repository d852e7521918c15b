"""Plans: distinct videos, consecutive shots and frames, uniform; a function of (corpus, recipe, seed, step) alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from corpora import assert_same_plan, index_of
from numpy.typing import NDArray

from vivi.data.augment.uniforms import FRAME_UNIFORMS, GREY, GREY_FRAME, UNIFORMS
from vivi.data.index import Index, open_index
from vivi.data.plan import (
    Kind,
    Plan,
    eligible_videos,
    fixed_frames,
    plan_images,
    plan_videos,
    shots_of_frames,
)
from vivi.prepare.corpus import Corpus
from vivi.recipes import Batch
from vivi.runtime.errors import UserError


def random_index(seed: int, count: int = 60) -> Index:
    rng = np.random.default_rng(seed)
    videos = [rng.integers(1, 12, rng.integers(1, 9)).tolist() for _ in range(count)]
    return index_of(videos, (rng.random(count) < 0.2).tolist())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("shots", "frames"), [(1, 4), (2, 1), (3, 8)])
def test_a_plan_follows_the_rules(seed: int, shots: int, frames: int) -> None:
    index = random_index(seed)
    batch = Batch(videos=8, shots=shots, frames=frames, cores=2)
    found = eligible_videos(index, batch)
    for step in range(12):
        made = plan_videos(index, found, batch, seed, step)
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
        assert made.loss_uniforms.shape == (8, shots + 1)
        assert made.augment_uniforms.shape == (8, shots, frames, UNIFORMS)
        for numbers in (made.loss_uniforms, made.augment_uniforms):
            assert numbers.dtype == np.float32 and numbers.min() >= 0 and numbers.max() < 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shots", [1, 2, 5])
def test_eligible_videos_are_counted_as_by_hand(seed: int, shots: int) -> None:
    index = random_index(seed)
    found = eligible_videos(index, Batch(videos=4, shots=shots, cores=1))
    train = [video for video in range(len(index)) if not index.test[video]]
    good = [video for video in train if index.first_shot[video + 1] - index.first_shot[video] >= shots]
    assert found.tolist() == good


def test_an_epoch_sees_each_video_at_most_once_and_another_order_each_time() -> None:
    index = index_of([[3, 3]] * 22)
    batch = Batch(videos=4, shots=2, frames=2, cores=1)
    found = eligible_videos(index, batch)
    epochs = []
    for epoch in range(3):
        steps = range(5 * epoch, 5 * epoch + 5)  # 22 // 4 batches, 2 videos sit out
        epochs.append([int(v) for step in steps for v in plan_videos(index, found, batch, 0, step).video])
        assert len(set(epochs[-1])) == 20
    assert epochs[0] != epochs[1] != epochs[2]
    assert {frozenset(range(22)) - frozenset(epoch) for epoch in epochs} != {frozenset({20, 21})}


def test_a_plan_depends_on_seed_and_step_and_on_nothing_asked_before() -> None:
    index = random_index(0)
    batch = Batch(videos=8, shots=2, frames=3, cores=2)
    found = eligible_videos(index, batch)
    in_order = [plan_videos(index, found, batch, 5, step) for step in range(20)]
    for step in reversed(range(20)):
        assert_same_plan(plan_videos(index, found, batch, 5, step), in_order[step])
    for other in (plan_videos(index, found, batch, 6, 3), in_order[4]):
        for field in fields(Plan):
            assert not np.array_equal(getattr(other, field.name), getattr(in_order[3], field.name))


def test_random_numbers_of_different_purposes_are_different() -> None:
    index = index_of([[9] * 9] * 9)
    batch = Batch(videos=2, shots=2, frames=8, cores=1)
    made = plan_videos(index, eligible_videos(index, batch), batch, 0, 0)
    assert len(np.intersect1d(made.loss_uniforms, made.augment_uniforms)) == 0
    of_frames, grey = made.augment_uniforms[..., :FRAME_UNIFORMS], made.augment_uniforms[..., GREY]
    assert len(np.unique(of_frames)) == of_frames.size
    assert len(np.unique(grey)) == made.shot.size and (grey == grey[..., :1]).all()  # all frames of a shot alike
    assert len(np.unique(made.augment_uniforms[..., GREY_FRAME])) == made.frame.size


def test_slices_hold_the_videos_they_name_and_together_make_the_batch() -> None:
    index = random_index(1)
    batch = Batch(videos=12, shots=2, frames=3, cores=4)
    whole = plan_videos(index, eligible_videos(index, batch), batch, 0, 3)
    parts = [whole[0:3], whole[3:9], whole[9:12]]
    assert [len(part) for part in parts] == [3, 6, 3] and len(whole) == 12
    joined = Plan(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Plan)))
    assert_same_plan(joined, whole)
    assert_same_plan(parts[1][3:6], whole[6:9])
    assert len(whole[9:20]) == 3 and len(whole[12:]) == 0


def test_starts_are_uniform() -> None:
    index = index_of([[6, 9, 5, 20]])
    batch = Batch(videos=1, shots=2, frames=4, cores=1)
    found = eligible_videos(index, batch)
    plans = [plan_videos(index, found, batch, 0, step) for step in range(3000)]
    shots = Counter(int(made.shot[0, 0]) for made in plans)
    assert sorted(shots) == [0, 1, 2] and min(shots.values()) > 880
    frames = Counter(int(made.frame[0, 0, 0]) for made in plans if made.shot[0, 0] == 1)
    assert sorted(frames) == [0, 1, 2, 3, 4, 5] and min(frames.values()) > 110
    last = Counter(int(made.frame[0, 1, -1]) for made in plans if made.shot[0, 0] == 2)
    assert sorted(last) == list(range(3, 20))


FRAME = Batch(videos=6, shots=1, frames=4, cores=2, source="frame")


def test_the_frame_of_a_video_is_fixed_for_the_run() -> None:
    index = random_index(2)
    found = eligible_videos(index, FRAME)
    seen: dict[int, set[tuple[int, int]]] = {}
    for step in range(40):
        made = plan_videos(index, found, FRAME, 0, step)
        assert made.shot.shape == (6, 1) and made.frame.shape == (6, 1, 4)
        assert (made.frame == made.frame[:, :, :1]).all()
        for video, shot, frame in zip(made.video, made.shot[:, 0], made.frame[:, 0, 0], strict=True):
            assert index.first_shot[video] <= shot < index.first_shot[video + 1]
            assert 0 <= frame < index.frames[shot]
            seen.setdefault(int(video), set()).add((int(shot), int(frame)))
    assert max(map(len, seen.values())) == 1 and len(seen) == len(found)
    others = plan_videos(index, found, FRAME, 1, 0)
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

    def by_name(index: Index, found: NDArray[np.int64]) -> dict[str, tuple[int, int]]:
        result = {}
        for step in range(30):
            made = plan_videos(index, found, batch, 0, step)
            for video, shot, frame in zip(made.video, made.shot[:, 0], made.frame[:, 0, 0], strict=True):
                result[index.video_name(int(video))] = (int(shot - index.first_shot[video]), int(frame))
        return result

    few, many = by_name(small, eligible_videos(small, batch)), by_name(large, eligible_videos(large, batch))
    assert few == {name: many[name] for name in few} and len(few) == 6


@pytest.mark.parametrize("seed", range(3))
def test_the_planned_frames_are_the_fixed_ones_of_their_videos(seed: int) -> None:
    index = random_index(seed)
    found = eligible_videos(index, FRAME)
    fixed = fixed_frames(index, found, seed)
    counts = index.first_frame[found + 1] - index.first_frame[found]
    assert (fixed >= 0).all() and (fixed < counts).all()
    by_video = dict(zip(found.tolist(), fixed.tolist(), strict=True))
    for step in range(12):
        made = plan_videos(index, found, FRAME, seed, step)
        for video, shot, frame in zip(made.video.tolist(), made.shot[:, 0], made.frame[:, 0, 0], strict=True):
            before = index.frames[index.first_shot[video] : shot].sum()
            assert before + frame == by_video[video]


@pytest.mark.parametrize("seed", range(3))
def test_a_frame_number_of_a_video_gives_its_shot_and_its_number_there(seed: int) -> None:
    index = random_index(seed)
    places = [
        (video, number, shot, frame)
        for video in range(len(index))
        for number, (shot, frame) in enumerate(
            (shot, frame)
            for shot in range(index.first_shot[video], index.first_shot[video + 1])
            for frame in range(index.frames[shot])
        )
    ]
    np.random.default_rng(seed).shuffle(places)  # videos in any order, and several times
    video, number, shot, frame = np.array(places).T
    assert len(video) == index.first_frame[-1]
    for part in (slice(None), slice(0, 7), slice(3, 4), slice(0, 0)):
        found_shot, found_frame = shots_of_frames(index, video[part], number[part])
        assert np.array_equal(found_shot, shot[part]) and np.array_equal(found_frame, frame[part])


@pytest.mark.parametrize("resample", [False, True])
def test_all_frames_of_a_video_are_equally_likely(resample: bool) -> None:
    index = index_of([[2, 1, 5]])
    batch = replace(FRAME, videos=1, cores=1, resample=resample)
    found = eligible_videos(index, batch)
    # Over the seeds where the frame is fixed for a run, over the steps where it is not.
    keys = [(0, step) for step in range(4000)] if resample else [(seed, 0) for seed in range(4000)]
    counts: Counter[tuple[int, int]] = Counter()
    for seed, step in keys:
        made = plan_videos(index, found, batch, seed, step)
        counts[int(made.shot[0, 0]), int(made.frame[0, 0, 0])] += 1
    assert sorted(counts) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]
    assert min(counts.values()) > 400 and max(counts.values()) < 600


def test_too_few_videos_are_one_clear_line() -> None:
    short = index_of([[4], [4, 4], [4, 4]], [False, False, True])
    for index, batch, found, remedy in (
        (index_of([]), Batch(), "the 0 usable videos of corpus, 0 are held out, and 0", "lower --batch.shots"),
        (
            index_of([[4]], [True]),
            Batch(videos=1, shots=1),
            "1 usable videos of corpus, 1 are held out",
            "--batch.segment-minutes",
        ),
        (short, Batch(videos=1, shots=3), "1 are held out, and 0 of the others have 3 shots", "lower --batch.shots"),
        (short, Batch(videos=2, shots=2), "1 of the others have 2 shots", "prepare more"),
    ):
        with pytest.raises(UserError, match=f"--batch.videos is {batch.videos}, but .*{found}.*{remedy}") as error:
            eligible_videos(index, batch)
        assert "\n" not in str(error.value)
    assert eligible_videos(short, Batch(videos=1, shots=2)).tolist() == [1]


def test_plans_of_a_real_corpus_name_frames_that_are_there(corpus: Path) -> None:
    index = open_index(Corpus(corpus))
    assert 0 < index.test.sum() < len(index)
    batch = Batch(videos=4, shots=2, frames=6, cores=2)
    made = plan_videos(index, eligible_videos(index, batch), batch, 0, 0)
    assert (made.frame < index.frames[made.shot][:, :, None]).all()


def test_an_epoch_sees_every_image_once_and_the_two_kinds_have_random_numbers_of_their_own() -> None:
    epochs = [[plan_images(12, 4, 1, 0, step).video.tolist() for step in range(3 * e, 3 * e + 3)] for e in range(2)]
    for epoch in epochs:
        assert sorted(image for batch in epoch for image in batch) == list(range(12))
    assert epochs[0] != epochs[1]
    frames, labelled = (plan_images(12, 4, 1, 0, 0, kind) for kind in Kind)
    assert frames.video.tolist() != labelled.video.tolist()
    assert not np.array_equal(frames.augment_uniforms, labelled.augment_uniforms)
    assert not np.array_equal(frames.loss_uniforms, labelled.loss_uniforms)


def test_an_image_is_a_video_of_one_shot_of_one_frame_with_uniforms_for_every_copy() -> None:
    made = plan_images(12, 4, 3, 0, 0)
    assert made.shot.tolist() == [[0]] * 4 and made.frame.tolist() == [[[0, 0, 0]]] * 4
    assert made.loss_uniforms.shape == (4, 2) and made.augment_uniforms.shape == (4, 1, 3, UNIFORMS)
    of_frames, grey = made.augment_uniforms[..., :FRAME_UNIFORMS], made.augment_uniforms[..., GREY]
    assert len(np.unique(of_frames)) == of_frames.size
    assert len(np.unique(grey)) == made.shot.size and (grey == grey[..., :1]).all()  # all frames of a shot alike


def test_what_a_seed_means_stays_the_same() -> None:
    """The values are those of an earlier version, whose runs can be repeated."""
    index = index_of([[1 + (3 * video + shot) % 11 for shot in range(1 + video % 8)] for video in range(60)])
    batch = Batch(videos=4, shots=2, frames=3, cores=2)
    made = plan_videos(index, eligible_videos(index, batch), batch, 7, 11)
    assert made.video.tolist() == [10, 31, 4, 14]
    assert made.shot.tolist() == [[40, 41], [140, 141], [12, 13], [57, 58]]
    assert made.frame[:, :, 0].tolist() == [[3, 1], [1, 1], [1, 0], [2, 5]]
    of_frames = made.augment_uniforms[..., :FRAME_UNIFORMS]
    sums = [float(numbers.astype(np.float64).sum()) for numbers in (made.loss_uniforms, of_frames)]
    assert sums == pytest.approx([5.009670257568359, 260.8537866473198], abs=1e-9)
    made = plan_videos(index, eligible_videos(index, FRAME), FRAME, 7, 11)
    assert made.frame[:, 0, 0].tolist() == [3, 7, 0, 5, 2, 1]
    assert plan_images(100, 6, 2, 7, 11, Kind.LABELLED).video.tolist() == [81, 52, 5, 15, 69, 9]
