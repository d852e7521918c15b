"""vivi embed: what an encoder makes of every frame, or shot, of a corpus or of images.

    footage ──threads: read, decode, resize──▶ batches ──encoder──▶ features ──mean over a shot──▶ part-NNNNN.parquet

A part is some consecutive shots, and batches never cross its ends: parts that are there already are passed over, and
the others get the bytes that they would have without a stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from vivi.answers.embeddings import About, Embeddings, Per, part_path, read_about, write_about, write_part
from vivi.answers.footage import PLACE, Footage, open_footage
from vivi.evaluate.encoders import Model, load_model
from vivi.evaluate.features import square
from vivi.model.features import encode
from vivi.runtime.console import warn
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.machine import available_cores
from vivi.runtime.progress import ProgressLine
from vivi.runtime.read_ahead import map_ahead
from vivi.runtime.storage import StorageError, locked

PART_FRAMES = 8192  # enough for a file, few enough to be lost when the process is killed
FRAMES_PER_READ = 32
BATCH_GPU, BATCH_CPU = 256, 32


def embed(
    source: Path | str,
    encoder: str,
    out: Path | str,
    *,
    per: Per = "frame",
    weights: Path | None = None,
    size: int = 0,
    device: str = "auto",
    console: Console | None = None,
) -> Embeddings:
    """Writes the embeddings of a corpus, or of images in a folder or a list, into the folder `out`. Those parts that
    are there already are kept."""
    out, console = Path(out), console or Console(quiet=True)
    footage = open_footage(Path(source))
    model = load_model(encoder, weights, size)
    place = choose_device(device)
    parts = plan_parts(footage.frames)
    about = About(
        footage=str(footage.path),
        fingerprint=footage.fingerprint,
        encoder=model.name,
        source=encoder,
        weights=str(weights or ""),
        checksum=model.checksum,
        size=model.size,
        features=model.features,
        per=per,
        parts=len(parts),
    )
    with locked(out, "vivi embed"):
        _check_same(out, about)
        missing = {number: part for number, part in enumerate(parts) if not part_path(out, number).exists()}
        total = sum(int(footage.frames[part.start : part.stop].sum()) for part in missing.values())
        damaged: list[str] = []
        try:
            write_about(out, about)
            with ProgressLine("embed", total, console) as progress:
                for number, places, features in encoded_parts(footage, model, missing, place, progress, damaged):
                    if per == "shot":
                        places, features = mean_over_shots(places, features)
                    write_part(part_path(out, number), place_table(footage, places), as_float16(features, model))
            write_about(out, replace(about, finished=True))
        except StorageError as error:
            raise UserError(f"the embeddings cannot be written: {error}; the same command goes on") from None
    if damaged:
        warn(console, f"left out {len(damaged):,} of {total:,} frames that cannot be read: the first is {damaged[0]}")
    return Embeddings(out)


def _check_same(out: Path, about: About) -> None:
    """Raises where the folder holds other embeddings, or other files."""
    if not (out / "embeddings.json").exists():
        if any(out.iterdir()):
            raise UserError(f"{out} holds other files and no embeddings; choose another --out")
        return
    there = read_about(out)
    differences = {
        "footage": f"of {there.footage}",
        "fingerprint": f"of {there.footage} as it was before it changed",
        "checksum": f"by other weights, those of {there.encoder}",
        "size": f"at {there.size} px",
        "per": f"per {there.per}",
    }
    for name, what in differences.items():
        if getattr(there, name) != getattr(about, name):
            raise UserError(f"{out} holds embeddings {what}; choose another --out, or delete it")


def plan_parts(frames: NDArray[np.int32]) -> list[range]:
    """The shots of each part: as many as have PART_FRAMES together, at least one. `frames` (shots,) says how many
    each shot has."""
    ends = np.cumsum(frames, dtype=np.int64)
    parts, first = [], 0
    while first < len(frames):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + PART_FRAMES, side="right")))
        parts.append(range(first, last))
        first = last
    return parts


# --- from frames to features ---


@dataclass(frozen=True)
class _Read:
    """Frames of a shot that are read in one go."""

    part: int
    shot: int
    numbers: range


@dataclass(frozen=True)
class _Squares:
    """What the encoder sees of some frames of a shot."""

    read: _Read
    numbers: list[int]  # without those that cannot be read
    images: list[Tensor]  # uint8 (3, size, size)
    damaged: list[str]  # a line for each that cannot be read


Places = NDArray[np.int64]  # (n, 2): shot and frame


def encoded_parts(
    footage: Footage,
    model: Model,
    parts: Mapping[int, range],
    device: torch.device,
    progress: ProgressLine,
    damaged: list[str],
) -> Iterator[tuple[int, Places, Tensor]]:
    """For each part, given as its shots: its number, and the features (n, d) of its frames, float32 on the CPU.

    Frames that cannot be read are left out; a line for each is added to `damaged`.
    """
    backbone = model.backbone.to(device)
    batch = BATCH_GPU if device.type == "cuda" else BATCH_CPU
    threads, done = available_cores(), 0
    reads_ahead = 2 * threads + 2 * batch // FRAMES_PER_READ
    read = partial(_read, footage, model.size)
    with closing(map_ahead(read, _reads(footage, parts), threads, reads_ahead)) as squares:
        for part, its_squares in groupby(squares, key=lambda each: each.read.part):
            places: list[tuple[int, int]] = []
            features: list[Tensor] = []
            waiting: list[Tensor] = []
            for each in its_squares:
                places += [(each.read.shot, number) for number in each.numbers]
                waiting += each.images
                damaged += each.damaged
                done += len(each.read.numbers)
                while len(waiting) >= batch:
                    features.append(_encode(backbone, waiting[:batch], model, device))
                    del waiting[:batch]
                    progress.show(done, f"{done:,} of {progress.total:,.0f} frames")
            if waiting:
                features.append(_encode(backbone, waiting, model, device))
            progress.show(done, f"{done:,} of {progress.total:,.0f} frames")
            whole = torch.cat(features) if features else torch.empty(0, model.features)
            yield part, np.array(places, np.int64).reshape(-1, 2), whole


def _encode(backbone: torch.nn.Module, images: list[Tensor], model: Model, device: torch.device) -> Tensor:
    return encode(backbone, [torch.stack(images)], model.mean, model.std, device)


def _reads(footage: Footage, parts: Mapping[int, range]) -> Iterator[_Read]:
    for part, shots in parts.items():
        for shot in shots:
            count = int(footage.frames[shot])
            for first in range(0, count, FRAMES_PER_READ):
                yield _Read(part, shot, range(first, min(first + FRAMES_PER_READ, count)))


def _read(footage: Footage, size: int, read: _Read) -> _Squares:
    numbers, images, damaged = [], [], []
    for number, image in zip(read.numbers, footage.read(read.shot, read.numbers), strict=True):
        if isinstance(image, str):
            video, shot = footage.video(read.shot)
            damaged.append(f"{video!r} shot {shot} frame {number}: {image}")
        else:
            numbers.append(number)
            images.append(square(torch.from_numpy(image).permute(2, 0, 1), size))
    return _Squares(read, numbers, images, damaged)


# --- from features to rows ---


def mean_over_shots(places: Places, features: Tensor) -> tuple[Places, Tensor]:
    """The mean of the features of each shot, and its middle frame as its place."""
    shots, starts, counts = np.unique(places[:, 0], return_index=True, return_counts=True)
    means = [part.mean(dim=0) for part in features.split(counts.tolist())]
    whole = torch.stack(means) if means else features
    return np.stack([shots, places[starts + counts // 2, 1]], axis=1) if len(shots) else places, whole


def place_table(footage: Footage, places: Places) -> pa.Table:
    """The columns that say where frames are from."""
    rows: dict[str, list[object]] = {name: [] for name in (*PLACE.names, "path")}
    for shot, frames in groupby(places.tolist(), key=lambda place: place[0]):
        video, number = footage.video(shot)
        times, path = footage.times(shot), footage.file(video)
        for _, frame in frames:
            for name, value in zip(rows, (video, number, frame, times[frame], path), strict=True):
                rows[name].append(value)
    return pa.table(rows, schema=pa.schema([*PLACE, pa.field("path", pa.string())]))


def as_float16(features: Tensor, model: Model) -> NDArray[np.float16]:
    half = features.half()
    if not half.isfinite().all():
        raise UserError(f"{model.name} gives features that are not finite, or beyond 65,504, as float16 is")
    vectors: NDArray[np.float16] = half.numpy()
    return vectors
