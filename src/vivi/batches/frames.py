"""The frames of a corpus, for a loader: read and decoded, damaged ones replaced by their neighbours.

What stands for a frame depends on the corpus alone, not on what else a batch wants of its shot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vivi.batches.index import Index, read_frames
from vivi.batches.loader import Core, Pictures, decoded
from vivi.batches.nvjpeg import decode_jpegs
from vivi.batches.pixels import Pixels, pack
from vivi.batches.sampler import Plan, eligible, plan
from vivi.errors import first_line
from vivi.recipes import Batch
from vivi.video.jpeg import decode_jpeg, is_intact

GREY = torch.full((3, 32, 32), 128, dtype=torch.uint8)
"""Stands for a frame whose shot has none that can be decoded."""
_AT_ONCE = 1024  # frames that the device decodes together
Buffer = bytes | memoryview
_JPEG_ENDS = b"\xff\xd8", b"\xff\xd9"


class FrameStream:
    """The videos, shots and frames that a recipe's steps see of a corpus. With `encoded`, the device decodes them."""

    def __init__(self, index: Index, batch: Batch, seed: int, encoded: bool = False) -> None:
        self.index, self.batch, self.seed, self.encoded = index, batch, seed, encoded
        self.cores = batch.cores
        self.eligible = eligible(index, batch)

    def plan(self, step: int) -> Plan:
        return plan(self.index, self.eligible, self.batch, self.seed, step)

    def read(self, plan: Plan, item: int) -> Pictures:
        """The frames of one video of a plan, each once."""
        read = Pictures([], [], [])
        for shot, numbers in zip(plan.shot[item].tolist(), plan.frame[item].tolist(), strict=True):
            wanted = sorted(set(numbers))
            frames, damaged = self.read_shot(int(plan.video[item]), shot, wanted)
            read.which.extend(len(read.pictures) + wanted.index(number) for number in numbers)
            read.pictures.extend(frames)
            read.damaged.extend(damaged)
        return read

    def read_shot(self, video: int, shot: int, numbers: Sequence[int]) -> tuple[list[Tensor], list[str]]:
        """Some frames of a shot, or their files if the device decodes them; and a line for each damaged one."""
        jpegs = read_frames(self.index, video, shot, numbers)
        if self.encoded:
            # Of a damaged file a device decodes what it can, and does not say so: it gets none.
            good = (jpeg if jpeg and is_intact(jpeg) else bytearray(b"?") for jpeg in jpegs)
            return [torch.frombuffer(jpeg, dtype=torch.uint8) for jpeg in good], []
        frames, damaged = [], []
        for number, jpeg in zip(numbers, jpegs, strict=True):
            frame, line = self.decode_here(video, shot, number, jpeg)
            frames.append(frame)
            damaged.extend(line)
        return frames, damaged

    def decode_here(self, video: int, shot: int, number: int, jpeg: Buffer) -> tuple[Tensor, list[str]]:
        """A frame, or the nearest of its shot that can be decoded (or grey), and then a line that says so."""
        try:
            return decode(jpeg), []
        except ValueError as error:
            within = shot - int(self.index.first_shot[video])
            where = f"video {self.index.video_name(video)} shot {within} frame {number}"
            line = f"damaged, its neighbour takes its place: {where}: {first_line(error)}"
            return _nearest(self.index, video, shot, number), [line]

    def decode(self, cores: Sequence[Core], device: torch.device) -> tuple[Pixels, list[str]]:
        """What was read of some cores, on the device; and a line for each damaged frame."""
        here = decoded(cores, device)
        if here is not None:
            return here, []
        assert all(isinstance(core.pictures, list) for core in cores)
        jpegs = [jpeg for core in cores if isinstance(core.pictures, list) for jpeg in core.pictures]
        frames, damaged = self.decode_files(jpegs, [one for core in cores for one in _wanted(core.plan)], device)
        return pack(frames), damaged

    def decode_files(
        self, jpegs: Sequence[Tensor], where: Sequence[tuple[int, int, int]], device: torch.device
    ) -> tuple[list[Tensor], list[str]]:
        """The frames in some files on the device, whose video, shot and number `where` says; and a line for each
        damaged one."""
        frames, unknown = decode_there(jpegs, device)
        damaged: list[str] = []
        for number in unknown:
            video, shot, within = where[number]
            [jpeg] = read_frames(self.index, video, shot, [within])  # as it is, which says what is wrong with it
            frame, line = self.decode_here(video, shot, within, jpeg)
            frames[number] = frame.to(device)
            damaged.extend(line)
        return frames, damaged


def _wanted(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Video, shot and number of each frame that `read` reads, in its order."""
    for video, shots, frames in zip(plan.video.tolist(), plan.shot.tolist(), plan.frame.tolist(), strict=True):
        for shot, numbers in zip(shots, frames, strict=True):
            yield from ((video, shot, number) for number in sorted(set(numbers)))


def decode_there(jpegs: Sequence[Tensor], device: torch.device) -> tuple[list[Tensor], list[int]]:
    """The files decoded on a GPU, uint8 (3, height, width) each, and the numbers of those that it cannot decode."""
    frames: list[Tensor] = []
    unknown: list[int] = []
    for start in range(0, len(jpegs), _AT_ONCE):
        some = jpegs[start : start + _AT_ONCE]
        whole = [number for number, jpeg in enumerate(some) if _is_whole(jpeg)]
        there = decode_jpegs([some[number] for number in whole], device) if device.type == "cuda" else []
        found = dict(zip(whole, there, strict=False))
        for number in range(len(some)):
            frame = found.get(number)
            if frame is None:
                unknown.append(start + number)
            frames.append(GREY if frame is None else frame)
    return frames, unknown


def _is_whole(jpeg: Tensor) -> bool:
    """Whether both ends are there: of a file that was cut, a GPU decodes what there is, and does not say so."""
    return (jpeg[:2].numpy().tobytes(), jpeg[-2:].numpy().tobytes()) == _JPEG_ENDS


def _nearest(index: Index, video: int, shot: int, number: int) -> Tensor:
    """The decodable frame of a shot that is nearest to a damaged one, of two the earlier, or grey."""
    for other in sorted(range(int(index.frames[shot])), key=lambda other: (abs(other - number), other))[1:]:
        try:
            return decode(read_frames(index, video, shot, [other])[0])
        except ValueError:
            continue
    return GREY


def decode(jpeg: Buffer) -> Tensor:
    """A JPEG file, also a grey or CMYK one, as RGB: uint8 (3, height, width).

    Raises for one that cannot be decoded, and for one whose checksum says that it was altered.
    """
    if not jpeg:
        raise ValueError("empty")
    if not is_intact(jpeg):
        raise ValueError("its checksum is wrong")
    return torch.from_numpy(decode_jpeg(jpeg)).permute(2, 0, 1)
