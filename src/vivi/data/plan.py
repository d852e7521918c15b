"""Which videos, shots and frames, or images, a step sees, and all its random numbers.

A plan is a pure function of data, recipe, seed and step. Random numbers come from counter-based generators keyed by
(seed, step, purpose), so nothing depends on which thread or process asks, or on what was asked before. Every process
plans the whole batch and takes its cores from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vivi.data.augment.uniforms import CROP_UNIFORMS, FRAME_UNIFORMS
from vivi.data.index import Index
from vivi.prepare.index import consecutive
from vivi.recipes import Batch
from vivi.runtime.errors import UserError


@dataclass(frozen=True)
class Plan:
    """What a step sees, V videos × K shots × L frames, before anything is read. An image is a video of one shot of
    one frame, which is augmented L times."""

    video: NDArray[np.int64]  # (V,) positions in the index
    shot: NDArray[np.int64]  # (V, K) positions in the index's arrays of shots
    frame: NDArray[np.int32]  # (V, K, L) numbers within the shot
    loss_uniforms: NDArray[np.float32]  # (V, K + 1) in [0, 1), for losses that need random numbers
    augment_uniforms: NDArray[np.float32]  # (V, K, L, UNIFORMS) in [0, 1)

    def __len__(self) -> int:
        return len(self.video)

    def frames(self) -> Iterator[tuple[int, int, int]]:
        """The video, shot and number of each of the V · K · L frames."""
        parts = self.video[:, None, None], self.shot[:, :, None], self.frame
        return zip(*(np.broadcast_to(part, self.frame.shape).reshape(-1).tolist() for part in parts), strict=True)

    def __getitem__(self, videos: slice) -> Plan:
        return Plan(*(getattr(self, field.name)[videos] for field in fields(Plan)))


class Purpose(IntEnum):
    """What random numbers are for; the values are part of what a seed means."""

    ORDER = 0
    PLACE = 1
    LOSS = 2
    CROP = 3
    COLOUR = 4
    GREY = 5
    GREY_FRAME = 6


class Kind(IntEnum):
    """Videos (or images in their place) and labelled images have random numbers of their own; the values are part of
    what a seed means."""

    FRAMES = 0
    LABELLED = 1


def _generator(seed: int, step: int, purpose: Purpose, kind: Kind = Kind.FRAMES) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, int(purpose), int(kind)])))


def eligible_videos(index: Index, batch: Batch) -> NDArray[np.int64]:
    """The training videos with enough shots, by position in the index; raises where they are too few for a batch."""
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
            f"--batch.videos is {batch.videos}, but the training videos of {index.corpus} that have {needs} are "
            f"{len(videos)}; lower it to {len(videos)} at most (a multiple of --batch.cores), or prepare more videos"
        )
    return videos


def plan_videos(index: Index, eligible: NDArray[np.int64], batch: Batch, seed: int, step: int) -> Plan:
    """What step `step` sees of a corpus."""
    video = eligible[_in_epoch(len(eligible), batch.videos, seed, step, Kind.FRAMES)]
    generator = _generator(seed, step, Purpose.PLACE)
    if batch.source == "shot":
        shot, frame = _consecutive_frames(index, video, batch, generator)
    else:  # one frame of each video, L times
        counts = index.first_frame[video + 1] - index.first_frame[video]
        number = _below(generator, counts) if batch.resample else fixed_frames(index, video, seed)
        its_shot, its_number = shots_of_frames(index, video, number)
        shot, frame = its_shot[:, None], np.repeat(its_number.astype(np.int32)[:, None, None], batch.frames, axis=2)
    return _with_uniforms(video, shot, frame, seed, step, Kind.FRAMES)


def plan_images(images: int, count: int, copies: int, seed: int, step: int, kind: Kind = Kind.FRAMES) -> Plan:
    """What step `step` sees of so many images: `count` of them, each augmented `copies` times."""
    image = _in_epoch(images, count, seed, step, kind)
    shot, frame = np.zeros((count, 1), np.int64), np.zeros((count, 1, copies), np.int32)
    return _with_uniforms(image, shot, frame, seed, step, kind)


def plan_all_frames(index: Index, videos: NDArray[np.int64], batch: Batch, seed: int) -> Plan:
    """Every frame that any step may see of these videos, one in a row, without random numbers."""
    if batch.source == "frame" and not batch.resample:
        shot, frame = shots_of_frames(index, videos, fixed_frames(index, videos, seed))
    else:
        shots = index.first_shot[videos + 1] - index.first_shot[videos]
        shot = consecutive(index.first_shot[videos], shots)
        frames = index.frames[shot].astype(np.int64)  # of each shot
        videos, frame = np.repeat(np.repeat(videos, shots), frames), consecutive(np.zeros_like(shot), frames)
        shot = np.repeat(shot, frames)
    nothing = np.zeros((len(videos), 0), np.float32)
    return Plan(videos, shot[:, None], frame.astype(np.int32)[:, None, None], nothing, nothing)


def _with_uniforms(
    video: NDArray[np.int64], shot: NDArray[np.int64], frame: NDArray[np.int32], seed: int, step: int, kind: Kind
) -> Plan:
    def uniforms(purpose: Purpose, *shape: int) -> NDArray[np.float32]:
        return _generator(seed, step, purpose, kind).random(shape, np.float32)

    crop = uniforms(Purpose.CROP, *frame.shape, CROP_UNIFORMS)
    colour = uniforms(Purpose.COLOUR, *frame.shape, FRAME_UNIFORMS - CROP_UNIFORMS)
    grey = np.broadcast_to(uniforms(Purpose.GREY, *shot.shape)[..., None, None], (*frame.shape, 1))
    grey_frame = uniforms(Purpose.GREY_FRAME, *frame.shape, 1)
    loss = uniforms(Purpose.LOSS, len(video), shot.shape[1] + 1)
    return Plan(video, shot, frame, loss, np.concatenate([crop, colour, grey, grey_frame], axis=-1))


def _in_epoch(total: int, count: int, seed: int, step: int, kind: Kind) -> NDArray[np.int64]:
    """`count` of `total`, (count,): the epoch's permutation is cut into batches; the rest of it is not used."""
    epoch, number = divmod(step, total // count)
    return _permutation(total, seed, epoch, kind)[number * count : (number + 1) * count]


@lru_cache(maxsize=4)  # so that the cost of a step does not grow with the corpus; two epochs of both kinds
def _permutation(count: int, seed: int, epoch: int, kind: Kind) -> NDArray[np.int64]:
    return _generator(seed, epoch, Purpose.ORDER, kind).permutation(count)


def _below(generator: np.random.Generator, limit: NDArray[np.int64]) -> NDArray[np.int64]:
    """A uniform integer from 0 to limit - 1, for each limit."""
    return generator.integers(0, limit, dtype=np.int64)


def _consecutive_frames(
    index: Index, video: NDArray[np.int64], batch: Batch, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """K consecutive shots of each video and L consecutive frames of each, from random starts: (V, K), (V, K, L)."""
    first, end = index.first_shot[video], index.first_shot[video + 1]  # (V,)
    start = first + _below(generator, end - first - batch.shots + 1)
    shot = start[:, None] + np.arange(batch.shots)  # (V, K)
    count = index.frames[shot].astype(np.int64)
    start = _below(generator, np.maximum(count - batch.frames, 0) + 1)
    # A shot shorter than L starts at 0: all its frames in order, then again from the first.
    frame = (start[:, :, None] + np.arange(batch.frames)) % count[:, :, None]  # (V, K, L)
    return shot, frame.astype(np.int32)


def fixed_frames(index: Index, video: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The one frame of each video that frame baselines see, by its number in the video: (V,).

    It is a hash of seed and name, so that it does not depend on what else the corpus holds.
    """
    names = [f"{seed} {index.video_name(number)}".encode() for number in video.tolist()]
    hashes = [int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") for name in names]
    counts = index.first_frame[video + 1] - index.first_frame[video]
    return (np.array(hashes, np.uint64) % counts.astype(np.uint64)).astype(np.int64)


def shots_of_frames(
    index: Index, video: NDArray[np.int64], number: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The shot of a frame of each video, and its number there, from its number in the video: (V,) each."""
    counts = index.first_shot[video + 1] - index.first_shot[video]
    shots = consecutive(index.first_shot[video], counts)  # of all these videos
    ends = np.cumsum(index.frames[shots], dtype=np.int64)
    before = np.concatenate([[0], ends])[np.cumsum(counts) - counts]  # frames of the videos before, (V,)
    place = np.searchsorted(ends, before + number, side="right")
    shot = shots[place]
    return shot, before + number - (ends[place] - index.frames[shot])
