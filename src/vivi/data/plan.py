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


# What random numbers are for; the values are part of what a seed means.
ORDER, PLACE, LOSS, CROP, COLOUR, GREY, GREY_FRAME = range(7)


class Kind(IntEnum):
    """Videos (or images in their place) and labelled images have random numbers of their own; the values are part of
    what a seed means."""

    FRAMES = 0
    LABELLED = 1


def _generator(seed: int, step: int, purpose: int, kind: Kind = Kind.FRAMES) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, purpose, int(kind)])))


def with_enough_shots(index: Index, shots: int) -> NDArray[np.int64]:
    """The training videos of so many shots or more, by position in the index."""
    return np.flatnonzero(~index.test & (np.diff(index.first_shot) >= shots))


def eligible_videos(index: Index, batch: Batch) -> NDArray[np.int64]:
    """The training videos with enough shots, by position in the index; raises where they are too few for a batch."""
    videos = with_enough_shots(index, batch.shots)
    if len(videos) < batch.videos:
        raise UserError(
            f"--batch.videos is {batch.videos}, but of the {len(index)} usable videos of {index.corpus}, "
            f"{index.test.sum()} are held out, and {len(videos)} of the others have {batch.shots} shots or more: too "
            "few to learn from; vivi train auto chooses what fits a corpus; or lower --batch.shots, cut shots "
            "(--batch.max-shot-seconds), divide long videos (--batch.segment-minutes), or prepare more"
        )
    return videos


def plan_videos(index: Index, eligible: NDArray[np.int64], batch: Batch, seed: int, step: int) -> Plan:
    """What step `step` sees of a corpus."""
    video = eligible[_in_epoch(len(eligible), batch.videos, seed, step, Kind.FRAMES)]
    generator = _generator(seed, step, PLACE)
    if batch.source == "shot":
        # K consecutive shots of each video and L consecutive frames of each, from random starts.
        start = index.first_shot[video] + generator.integers(index.shots_of(video) - batch.shots + 1)
        shot = start[:, None] + np.arange(batch.shots)  # (V, K)
        count = index.frames[shot].astype(np.int64)
        start = generator.integers(np.maximum(count - batch.frames, 0) + 1)
        # A shot shorter than L starts at 0: all its frames in order, then again from the first.
        frame = (start[:, :, None] + np.arange(batch.frames)) % count[:, :, None]  # (V, K, L)
    else:  # one frame of each video, L times
        number = generator.integers(index.frames_of(video)) if batch.resample else fixed_frames(index, video, seed)
        its_shot, its_number = shots_of_frames(index, video, number)
        shot, frame = its_shot[:, None], np.repeat(its_number[:, None, None], batch.frames, axis=2)
    return _with_uniforms(video, shot, frame.astype(np.int32), seed, step, Kind.FRAMES)


def plan_images(images: int, count: int, copies: int, seed: int, step: int, kind: Kind = Kind.FRAMES) -> Plan:
    """What step `step` sees of so many images: `count` of them, each augmented `copies` times."""
    image = _in_epoch(images, count, seed, step, kind)
    shot, frame = np.zeros((count, 1), np.int64), np.zeros((count, 1, copies), np.int32)
    return _with_uniforms(image, shot, frame, seed, step, kind)


def plan_all_frames(index: Index, video: NDArray[np.int64], batch: Batch, seed: int) -> Plan:
    """Every frame that any step may see of these videos, one in a row, without random numbers."""
    if batch.source == "frame" and not batch.resample:
        shot, frame = shots_of_frames(index, video, fixed_frames(index, video, seed))
    else:
        shots = consecutive(index.first_shot[video], index.shots_of(video))
        count = index.frames[shots].astype(np.int64)
        video, shot = np.repeat(video, index.frames_of(video)), np.repeat(shots, count)
        frame = consecutive(np.zeros_like(shots), count)
    no_uniforms = np.zeros((len(video), 0), np.float32)
    return Plan(video, shot[:, None], frame.astype(np.int32)[:, None, None], no_uniforms, no_uniforms)


def _with_uniforms(
    video: NDArray[np.int64], shot: NDArray[np.int64], frame: NDArray[np.int32], seed: int, step: int, kind: Kind
) -> Plan:
    def uniforms(purpose: int, *shape: int) -> NDArray[np.float32]:
        return _generator(seed, step, purpose, kind).random(shape, np.float32)

    crop = uniforms(CROP, *frame.shape, CROP_UNIFORMS)
    colour = uniforms(COLOUR, *frame.shape, FRAME_UNIFORMS - CROP_UNIFORMS)
    grey = np.broadcast_to(uniforms(GREY, *shot.shape)[..., None, None], (*frame.shape, 1))
    grey_frame = uniforms(GREY_FRAME, *frame.shape, 1)
    loss = uniforms(LOSS, len(video), shot.shape[1] + 1)
    return Plan(video, shot, frame, loss, np.concatenate([crop, colour, grey, grey_frame], axis=-1))


def _in_epoch(total: int, count: int, seed: int, step: int, kind: Kind) -> NDArray[np.int64]:
    """The numbers below `total` that a step sees, (count,): an epoch is a permutation, cut into whole batches."""
    epoch, number = divmod(step, total // count)
    return _permutation(total, seed, epoch, kind)[number * count : (number + 1) * count]


@lru_cache(maxsize=4)  # so that the cost of a step does not grow with the corpus; two epochs of both kinds
def _permutation(count: int, seed: int, epoch: int, kind: Kind) -> NDArray[np.int64]:
    return _generator(seed, epoch, ORDER, kind).permutation(count)


def fixed_frames(index: Index, video: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The one frame of each video that frame baselines see, by its number in the video: (V,). It is a hash of seed
    and name, so that it does not depend on what else the corpus holds."""
    names = [f"{seed} {index.video_name(number)}".encode() for number in video.tolist()]
    hashes = [int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") for name in names]
    return (np.array(hashes, np.uint64) % index.frames_of(video).astype(np.uint64)).astype(np.int64)


def shots_of_frames(
    index: Index, video: NDArray[np.int64], number: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where frames lie that are given by their numbers in their videos: shot, and number in the shot, (V,) each."""
    counts = index.frames_of(video)
    position = np.cumsum(counts) - counts + number  # (V,), among all frames of these videos
    shots = consecutive(index.first_shot[video], index.shots_of(video))
    ends = np.cumsum(index.frames[shots], dtype=np.int64)
    row = np.searchsorted(ends, position, side="right")
    return shots[row], position - (ends[row] - index.frames[shots[row]])
