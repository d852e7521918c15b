"""Tells whether training works, from frames of held-out videos and from test images: how far features spread, how
often a frame finds its video (an image its class), and how often the classifier is right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from vivi.data.augment import unaugmented
from vivi.data.decode import decode_frame
from vivi.data.images import LabelledImages
from vivi.data.index import Index, read_frames
from vivi.data.packed import Image, pack
from vivi.data.squares import sample_squares
from vivi.model.features import encode, top_k
from vivi.model.vivi import Vivi
from vivi.runtime.console import warn

_BATCH = 256  # frames that the encoder sees at once
_MOST_IMAGES = 1000  # test images that are watched: they stay in memory
_ENOUGH = 20  # held-out frames, to be compared with training frames


# --- what is measured ---


def spread(features: Tensor) -> Tensor:
    """How far the directions of features (n, d) differ: 1 as much as random ones, 0 not at all (collapse).

    It is the standard deviation of the L2-normalised features, mean over dimensions, times √d.
    """
    directions = F.normalize(features.float(), dim=1)
    return directions.std(dim=0).mean() * math.sqrt(features.shape[1])


def effective_rank(features: Tensor) -> Tensor:
    """How many dimensions the features (n, d) use, from 0 (all alike) to min(n - 1, d).

    RankMe (Garrido et al., 2023): exp of the entropy of the singular values of the centred features, divided by
    their sum.
    """
    exact = features.double()
    if not exact.isfinite().all():
        return features.new_full((), math.nan)
    centred = exact - exact.mean(dim=0)
    smaller = centred @ centred.T if len(centred) <= centred.shape[1] else centred.T @ centred
    values = torch.linalg.eigvalsh(smaller).clamp(min=0).sqrt()  # the singular values; min(n, d)
    # What lies below the rounding of float32 features is noise, which would look like many dimensions.
    values = values[values > exact.norm() * torch.finfo(torch.float32).eps]
    if not len(values):
        return features.new_zeros(())
    shares = values / values.sum()
    return torch.exp(-(shares * shares.log()).sum()).to(features.dtype)


def retrieval(features: Tensor, videos: Tensor, shots: Tensor) -> tuple[float, float, int] | None:
    """How often a frame's nearest neighbour from another shot, by cosine, is of its own video; how often it would be
    by chance; and of how many frames.

    `features` (n, d); `videos` and `shots` (n,) say where the frames are from, a shot by its number in its video or
    in all. Frames whose video has no other shot are no queries; None if no frame can be one.
    """
    directions = F.normalize(features.float(), dim=1)
    videos, shots = videos.to(features.device), shots.to(features.device)
    own_video = videos[:, None] == videos  # (n, n)
    own_shot = own_video & (shots[:, None] == shots)
    right = own_video & ~own_shot
    nearest = (directions @ directions.T).masked_fill(own_shot, -math.inf).argmax(dim=1, keepdim=True)
    chance = right.sum(dim=1) / (~own_shot).sum(dim=1).clamp(min=1)
    is_query = right.any(dim=1)
    queries, hits = int(is_query.sum()), int(right.gather(1, nearest).squeeze(1)[is_query].sum())
    return (hits / queries, float(chance[is_query].double().sum()) / queries, queries) if queries else None


# --- on which frames and images ---


def choose_shots(
    first_shot: NDArray[np.int64], test: NDArray[np.bool_], videos: int, shots_per_video: int = 4
) -> tuple[list[tuple[int, int]], str]:
    """Chooses up to `videos` held-out videos of two shots or more, evenly over the index, and shots evenly in each:
    the positions of both in the index, and what is unusual about them, or nothing.

    `first_shot` (videos + 1) are the positions of each video's first shot, `test` (videos,) which are held out.
    """
    counts = np.diff(first_shot)
    # One video alone would always find itself.
    for eligible, most, note in (
        (np.asarray(test, bool) & (counts >= 2), shots_per_video, ""),
        (counts >= 2, shots_per_video, "too few held-out videos have two shots: training videos are watched as well"),
        (counts >= 1, 1, "too few videos have two shots: retrieval is left out"),
    ):
        chosen = _evenly(np.flatnonzero(eligible).tolist(), videos)
        if len(chosen) >= 2:
            shots = {video: range(int(first_shot[video]), int(first_shot[video + 1])) for video in chosen}
            return [(video, shot) for video in chosen for shot in _evenly(shots[video], most)], note
    return [], "there are too few videos to watch"


def _evenly(values: Sequence[int], most: int) -> list[int]:
    count = min(len(values), most)
    return [values[number * len(values) // count] for number in range(count)]


@dataclass(frozen=True)
class Watched:
    """Frames or images that are watched, decoded once."""

    frames: Tensor  # uint8 (n, 3, size, size)
    groups: Tensor  # (n,): their videos; of test images, their classes
    shots: Tensor  # (n,): of test images, each is a shot of its own
    note: str = ""


def middle_frames(
    index: Index, watched: NDArray[np.bool_], videos: int = 128
) -> tuple[dict[tuple[int, int], Image], str]:
    """The middle frame of each shot that `choose_shots` chooses, by the positions of video and shot, and its note."""
    chosen, note = choose_shots(index.first_shot, watched, videos)
    images: dict[tuple[int, int], Image] = {}
    for video, shot in chosen:
        [jpeg] = read_frames(index, video, shot, [int(index.frames[shot]) // 2])
        with suppress(ValueError):  # a damaged frame is left out
            images[video, shot] = decode_frame(jpeg)
    return images, note


def held_out_frames(index: Index, size: int) -> Watched:
    """Frames of held-out videos."""
    return _watched(*middle_frames(index, index.test), size)


def training_frames(index: Index, size: int, held_out: Watched) -> Watched | None:
    """Frames of as many training videos, if what is held out can be compared with them."""
    if held_out.note or len(held_out.frames) < _ENOUGH:
        return None
    images, note = middle_frames(index, ~index.test, videos=len(held_out.groups.unique()))
    return None if note else _watched(images, "", size)


def _watched(images: Mapping[tuple[int, int], Image], note: str, size: int) -> Watched:
    """Frames by the positions of their videos and shots: their middle squares, resized."""
    videos, shots = torch.tensor([*images], dtype=torch.long).view(-1, 2).unbind(1)
    return Watched(middle_squares([*images.values()], size), videos, shots, note)


def middle_squares(images: Sequence[Image], size: int) -> Tensor:
    """The middle squares of frames of any size, resized: uint8 (n, 3, size, size)."""
    if not images:
        return torch.zeros(0, 3, size, size, dtype=torch.uint8)
    seen = unaugmented(pack(images), size)  # (n, 3, size, size) in [-1, 1]
    return ((seen + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def watched_images(images: LabelledImages, size: int) -> Watched:
    """Some images, evenly over all."""
    squares, labels, unreadable = sample_squares(images, size, _MOST_IMAGES)
    first = f"{len(unreadable):,}; the first is {unreadable[0]}" if unreadable else ""
    note = f"unreadable test images, left out: {first}" if first else ""
    return Watched(squares, labels, torch.arange(len(labels)), note)


# --- what, on which ---


@dataclass(frozen=True)
class Monitor:
    """What a run is watched on; any may be missing."""

    held_out: Watched | None
    test: Watched | None
    training: Watched | None = None

    def measure(self, model: Vivi) -> dict[str, float]:
        """Retrieval, spread and rank of the features, retrieval of training frames, and top-1 and top-5 of the
        classifier."""
        # Where there are no videos, an image is to find one of its class.
        frames = self.held_out or self.test
        values = measure_features(model.encoder, frames) if frames else {}
        if self.training is not None:
            seen = measure_features(model.encoder, self.training)
            values |= {"retrieval_train": seen["retrieval"]} if "retrieval" in seen else {}
        if model.supervised_loss is not None and self.test is not None:
            head = model.supervised_loss.head
            top1, top5 = top_k(_encode(nn.Sequential(model.encoder, head), self.test.frames), self.test.groups)
            values["top1"] = top1 / len(self.test.frames)
            if head.out_features > 5:  # else it is always right
                values["top5"] = top5 / len(self.test.frames)
        return values


def open_monitor(index: Index | None, test: LabelledImages | None, size: int, console: Console) -> Monitor:
    """For a corpus, for test images, or for both; what is unusual about them is said."""
    held_out = held_out_frames(index, size) if index is not None else None
    monitor = Monitor(
        held_out,
        watched_images(test, size) if test is not None else None,
        training_frames(index, size, held_out) if index is not None and held_out is not None else None,
    )
    for watched in (monitor.held_out, monitor.test):
        if watched is not None and watched.note:
            warn(console, watched.note)
    return monitor


def measure_features(encoder: nn.Module, watched: Watched) -> dict[str, float]:
    """The encoder's retrieval on the frames, beside chance, and the spread and rank of its features.

    What cannot be told is left out.
    """
    if len(watched.frames) < 2:
        return {}
    features = _encode(encoder, watched.frames)
    rates = retrieval(features, watched.groups, watched.shots)
    values: dict[str, float] = {}
    if rates is not None:
        values = dict(zip(("retrieval", "retrieval_chance", "retrieval_queries"), rates, strict=True))
    return {**values, "spread": float(spread(features)), "effective_rank": float(effective_rank(features))}


def _encode(network: nn.Module, frames: Tensor) -> Tensor:
    """What a network makes of frames; it is in evaluation mode meanwhile, and unchanged afterwards."""
    half = (0.5, 0.5, 0.5)  # pixels in [-1, 1], as in training
    # Not worth compiling once more: it runs seldom, and in other shapes.
    with torch.compiler.set_stance("force_eager"):
        return encode(network, frames.split(_BATCH), half, half, next(network.parameters()).device)
