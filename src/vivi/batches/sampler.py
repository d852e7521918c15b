"""Which videos, shots and frames, or images, a step sees, and its random numbers: a function of data, recipe, seed
and step.

Random numbers come from counter-based generators keyed by (seed, step, purpose), so nothing depends on which thread
or process asks, or on what was asked before. Every process plans the whole batch and takes its cores from it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vivi.batches.draws import DRAWS, FIRST_DRAWS
from vivi.batches.index import Index
from vivi.errors import UserError
from vivi.recipes import Batch


@dataclass(frozen=True)
class Eligible:
    """The training videos a recipe can use."""

    videos: NDArray[np.int64]  # positions in the index
    dropped: int  # training videos with too few shots


@dataclass(frozen=True)
class Plan:
    """One step's batch, V videos × K shots × L frames, before anything is read. An image is a video of one shot of
    one frame, which is augmented L times."""

    video: NDArray[np.int64]  # (V,) positions in the index
    shot: NDArray[np.int64]  # (V, K) positions in the index's arrays of shots
    frame: NDArray[np.int32]  # (V, K, L) numbers within the shot
    noise: NDArray[np.float32]  # (V, K + 1) in [0, 1), for losses that draw lots
    draws: NDArray[np.float32]  # (V, K, L, DRAWS) in [0, 1), for the augmentation

    def cores(self, first: int, last: int, cores: int) -> Plan:
        """The part of the batch that belongs to the cores from `first` up to `last`, of `cores`."""
        videos = len(self.video) // cores
        part = slice(first * videos, last * videos)
        return Plan(*(getattr(self, field.name)[part] for field in fields(Plan)))


class _Purpose(IntEnum):
    """What a stream of random numbers is for; the numbers are part of what a seed means."""

    ORDER = 0
    PLACE = 1
    NOISE = 2
    AUGMENT = 3
    COLOUR = 4


class StreamNumber(IntEnum):
    """Streams of a step draw their own random numbers; the numbers are part of what a seed means."""

    FRAMES = 0
    LABELLED = 1


def _generator(
    seed: int, step: int, purpose: _Purpose, stream: StreamNumber = StreamNumber.FRAMES
) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, int(purpose), int(stream)])))


def eligible(index: Index, batch: Batch) -> Eligible:
    """The training videos with enough shots, or the one line that says there are too few."""
    if not len(index):
        raise UserError(f"{index.corpus} holds no usable video; see vivi inspect, and prepare others")
    train = ~index.test
    enough = np.diff(index.first_shot) >= batch.shots  # a shot has at least one frame
    videos = np.flatnonzero(train & enough)
    needs = "a frame" if batch.source == "frame" else f"{batch.shots} shots" if batch.shots > 1 else "a shot"
    if not train.any():
        raise UserError(f"all videos of {index.corpus} are held out; prepare with a lower --test-fraction")
    if not len(videos):
        raise UserError(
            f"none of the {train.sum()} training videos of {index.corpus} has {needs}; "
            "lower --batch.shots, or prepare with a lower --shot-threshold or a --max-shot-seconds"
        )
    if len(videos) < batch.videos:
        raise UserError(
            f"--batch.videos is {batch.videos}, but only {len(videos)} training videos of {index.corpus} "
            f"have {needs}; lower it to {len(videos)} at most (a multiple of --batch.cores), or prepare more videos"
        )
    return Eligible(videos, int(train.sum()) - len(videos))


def plan(index: Index, eligible: Eligible, batch: Batch, seed: int, step: int) -> Plan:
    """What step `step` sees."""
    video = eligible.videos[_in_epoch(len(eligible.videos), batch.videos, seed, step)]
    place = _generator(seed, step, _Purpose.PLACE)
    if batch.source == "frame":
        shot, frame = _one_frame(index, video, batch, seed, place)
    else:
        shot, frame = _consecutive(index, video, batch, place)
    return _with_lots(video, shot, frame, seed, step, StreamNumber.FRAMES)


def plan_images(
    images: int, count: int, copies: int, seed: int, step: int, stream: StreamNumber = StreamNumber.FRAMES
) -> Plan:
    """What step `step` sees of so many images: `count` of them, each augmented `copies` times."""
    image = _in_epoch(images, count, seed, step, stream)
    shot, frame = np.zeros((count, 1), np.int64), np.zeros((count, 1, copies), np.int32)
    return _with_lots(image, shot, frame, seed, step, stream)


def _with_lots(
    video: NDArray[np.int64],
    shot: NDArray[np.int64],
    frame: NDArray[np.int32],
    seed: int,
    step: int,
    stream: StreamNumber,
) -> Plan:
    """The plan with its random numbers."""

    def uniform(purpose: _Purpose, *shape: int) -> NDArray[np.float32]:
        return _generator(seed, step, purpose, stream).random(shape, np.float32)

    draws = (
        uniform(_Purpose.AUGMENT, *frame.shape, FIRST_DRAWS),
        uniform(_Purpose.COLOUR, *frame.shape, DRAWS - FIRST_DRAWS),
    )
    noise = uniform(_Purpose.NOISE, len(video), shot.shape[1] + 1)
    return Plan(video, shot, frame, noise, np.concatenate(draws, axis=-1))


def _in_epoch(
    total: int, count: int, seed: int, step: int, stream: StreamNumber = StreamNumber.FRAMES
) -> NDArray[np.int64]:
    """`count` of `total`, (count,): the epoch's permutation is cut into batches, what is left over sits it out."""
    epoch, number = divmod(step, total // count)
    return _permutation(total, seed, epoch, stream)[number * count : (number + 1) * count]


@lru_cache(maxsize=4)  # so that the cost of a step does not grow with the corpus; two epochs of two streams
def _permutation(count: int, seed: int, epoch: int, stream: StreamNumber) -> NDArray[np.int64]:
    return _generator(seed, epoch, _Purpose.ORDER, stream).permutation(count)


def _below(generator: np.random.Generator, limit: NDArray[np.int64]) -> NDArray[np.int64]:
    """A uniform integer from 0 to limit - 1, for each limit."""
    return generator.integers(0, limit, dtype=np.int64)


def _consecutive(
    index: Index, video: NDArray[np.int64], batch: Batch, place: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """K consecutive shots of each video and L consecutive frames of each, from random starts: (V, K), (V, K, L)."""
    first, end = index.first_shot[video], index.first_shot[video + 1]  # (V,)
    start = first + _below(place, end - first - batch.shots + 1)
    shot = start[:, None] + np.arange(batch.shots)  # (V, K)
    count = index.frames[shot].astype(np.int64)
    start = _below(place, np.maximum(count - batch.frames, 0) + 1)
    # A shot shorter than L starts at 0: all its frames in order, then again from the first.
    frame = (start[:, :, None] + np.arange(batch.frames)) % count[:, :, None]  # (V, K, L)
    return shot, frame.astype(np.int32)


def _one_frame(
    index: Index, video: NDArray[np.int64], batch: Batch, seed: int, place: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """One frame of each video, L times: (V, 1), (V, 1, L). Fixed by seed and name, or drawn from `place`."""
    count = index.first_frame[video + 1] - index.first_frame[video]  # (V,)
    if batch.resample:
        number = _below(place, count)
    else:
        hashes = [_hash(seed, index.video_name(int(one))) for one in video]
        number = (np.array(hashes, np.uint64) % count.astype(np.uint64)).astype(np.int64)
    shot, frame = np.empty_like(video), np.empty_like(video)
    for i, one in enumerate(video):
        first, end = index.first_shot[one], index.first_shot[one + 1]
        ends = np.cumsum(index.frames[first:end])
        inside = np.searchsorted(ends, number[i], side="right")
        shot[i] = first + inside
        frame[i] = number[i] - (ends[inside] - index.frames[first + inside])
    return shot[:, None], np.broadcast_to(frame[:, None, None], (len(video), 1, batch.frames)).astype(np.int32)


def _hash(seed: int, name: str) -> int:
    """64 bits that belong to a video in this run, whatever else the corpus holds."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")
