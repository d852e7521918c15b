"""The frames of a corpus, for a loader: read and decoded, damaged ones replaced by their neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from vivi.batches.augment import Canvas
from vivi.batches.index import Index, read_frames
from vivi.batches.loader import Encoded, Pictures
from vivi.batches.sampler import Plan, eligible, plan
from vivi.errors import first_line
from vivi.recipes import Batch

_GREY = torch.full((3, 32, 32), 128, dtype=torch.uint8)


class FrameStream:
    """The videos, shots and frames that a recipe's steps see of a corpus."""

    def __init__(self, index: Index, batch: Batch, seed: int) -> None:
        self.index, self.batch, self.seed = index, batch, seed
        self.cores = batch.cores
        self.copies = batch.frames if batch.source == "frame" else 1
        self.eligible = eligible(index, batch)

    def plan(self, step: int) -> Plan:
        return plan(self.index, self.eligible, self.batch, self.seed, step)

    def read(self, plan: Plan, item: int) -> Pictures:
        """The K × L frames of one video of a plan, or the one that is augmented L times."""
        read = Pictures([], [])
        index, video = self.index, int(plan.video[item])
        for shot, numbers in zip(plan.shot[item].tolist(), plan.frame[item].tolist(), strict=True):
            frames, reasons = _decode_shot(index, video, shot, numbers[: len(numbers) // self.copies])
            read.frames.extend(frames)
            if reasons:
                within = shot - int(index.first_shot[video])
                where = f"video {index.video_name(video)} shot {within}"
                read.damaged.extend(
                    f"damaged, its neighbour takes its place: {where} frame {n}: {why}" for n, why in reasons.items()
                )
        return read

    def decode(
        self, cores: Sequence[Canvas | Encoded], items: Tensor, device: torch.device
    ) -> tuple[list[Canvas], list[str]]:
        """Frames come decoded."""
        return [core for core in cores if isinstance(core, Canvas)], []


def _decode_shot(index: Index, video: int, shot: int, numbers: list[int]) -> tuple[list[Tensor], dict[int, str]]:
    """The frames of a shot with these numbers, some possibly more than once; and why some could not be decoded.

    A damaged one is replaced by the nearest of the others; if there is none, by the nearest of the shot, or by grey.
    """
    wanted = sorted(set(numbers))
    good: dict[int, Tensor] = {}
    reasons: dict[int, str] = {}
    for number, jpeg in zip(wanted, read_frames(index, video, shot, wanted), strict=True):
        try:
            good[number] = decode(jpeg)
        except (RuntimeError, ValueError) as error:
            reasons[number] = first_line(error)
    stand_ins: dict[int, Tensor] = {}
    for number in reasons:
        nearest = next(iter(_by_distance(good, number)), None)
        stand_ins[number] = _nearest_in_shot(index, video, shot, number) if nearest is None else good[nearest]
    frames = good | stand_ins
    return [frames[number] for number in numbers], reasons


def _by_distance(numbers: Iterable[int], number: int) -> list[int]:
    """Nearest first; of two at the same distance, the earlier first."""
    return sorted(numbers, key=lambda other: (abs(other - number), other))


def _nearest_in_shot(index: Index, video: int, shot: int, number: int) -> Tensor:
    """The decodable frame of a shot that is nearest to a damaged one, or grey."""
    for other in _by_distance(range(int(index.frames[shot])), number)[1:]:
        try:
            return decode(read_frames(index, video, shot, [other])[0])
        except (RuntimeError, ValueError):
            continue
    return _GREY


def decode(jpeg: bytes) -> Tensor:
    """A JPEG file, also a grey or CMYK one, as RGB: uint8 (3, height, width)."""
    if not jpeg:
        raise ValueError("empty")
    frame: Tensor = decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), mode=ImageReadMode.RGB)
    return frame
