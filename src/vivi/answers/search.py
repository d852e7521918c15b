"""vivi search: the shots that are nearest to some examples, exactly, whatever the number of embeddings.

The examples become one direction: the mean of their unit vectors, minus that of the examples of what is not wanted.
Vectors are read from the disk part by part, by threads, and compared in blocks that fit into the processor's cache.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import torch
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from vivi.answers.embeddings import Embeddings, Row
from vivi.data.image_lists import has_image_name
from vivi.data.images import find_images
from vivi.evaluate.encoders import load_model
from vivi.evaluate.features import embed as embed_images
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError

_BLOCK = 2048  # vectors that are compared at once
_AT_A_TIME = re.compile(r"(?P<video>.+)@(?P<time>\d+(\.\d*)?|\.\d+)")
QUERIES = "an image, a folder of images, or VIDEO@SECOND with the name or the path of a video that was embedded"


@dataclass(frozen=True)
class Hit:
    """A shot that was found: where its nearest frame is from, and how similar that is, from -1 to 1."""

    row: Row
    similarity: float


@dataclass(frozen=True)
class Query:
    """The direction that is looked for, a unit vector (features,), and the shots that the examples are from, which
    are not to be found themselves."""

    direction: Tensor
    own_shots: frozenset[tuple[str, int]] = frozenset()


def search(
    embeddings: Embeddings | Path | str,
    examples: Sequence[str],
    *,
    unlike: Sequence[str] = (),
    count: int = 20,
    device: str = "auto",
) -> list[Hit]:
    """The shots most similar to the examples, and least to those in `unlike`, the best first.

    An example is an image, a folder of images, or VIDEO@SECOND.
    """
    opened = embeddings if isinstance(embeddings, Embeddings) else Embeddings(embeddings)
    return nearest_shots(opened, make_query(opened, examples, unlike, device), count, device)


def hit_table(hits: Sequence[Hit]) -> Table:
    """The hits for a terminal."""
    table = Table("", "video", "shot", "second", "similarity")
    for column in table.columns[2:]:
        column.justify = "right"
    for number, hit in enumerate(hits, start=1):
        row = hit.row
        table.add_row(str(number), row.video, str(row.shot + 1), f"{row.time:.1f}", f"{hit.similarity:.3f}")
    return table


# --- examples → a direction ---


def make_query(embeddings: Embeddings, examples: Sequence[str], unlike: Sequence[str], device: str = "auto") -> Query:
    if not examples:
        raise UserError(f"there is nothing to look for; give {QUERIES}")
    parts, rows = example_vectors(embeddings, [*examples, *unlike], device)
    direction = _direction(parts[: len(examples)])
    if unlike:
        direction = direction - _direction(parts[len(examples) :])
    return Query(F.normalize(direction, dim=0), frozenset((row.video, row.shot) for row in rows))


def example_vectors(
    embeddings: Embeddings, examples: Sequence[str], device: str = "auto"
) -> tuple[list[Tensor], list[Row]]:
    """The vectors of each example (images, features), float32; and the rows of those that are embedded frames."""
    frames = {example: row for example in examples if (row := _embedded_frame(embeddings, example))}
    images = {example: _images(example) for example in examples if example not in frames}
    embedded = _embed(embeddings, [path for paths in images.values() for path in paths], device)
    by_example = dict(zip(images, embedded.split([len(paths) for paths in images.values()]), strict=True))
    by_example |= {example: embeddings.take([row.number]).float() for example, row in frames.items()}
    return [by_example[example] for example in examples], [*frames.values()]


def _embedded_frame(embeddings: Embeddings, example: str) -> Row | None:
    """The frame that VIDEO@SECOND means."""
    at = _AT_A_TIME.fullmatch(example)
    return find_frame(embeddings, at["video"], float(at["time"])) if at and not Path(example).exists() else None


def _direction(vectors: Sequence[Tensor]) -> Tensor:
    return F.normalize(F.normalize(torch.cat(list(vectors)), dim=1).mean(dim=0), dim=0)


def _images(example: str) -> list[Path]:
    path = Path(example)
    if path.is_dir():
        images = find_images(path, labels=False)
        return [images.path(number) for number in range(len(images))]
    if not path.is_file():
        raise UserError(f"{example} does not exist; give {QUERIES}")
    if not has_image_name(example):
        raise UserError(f"{example} is no image; give {QUERIES}")
    return [path]


def _embed(embeddings: Embeddings, images: Sequence[Path], device: str) -> Tensor:
    """The features of images by the encoder of the embeddings."""
    about = embeddings.about
    if not images:
        return torch.empty(0, about.features)
    model = load_model(about.source, Path(about.weights) if about.weights else None, about.size)
    if model.checksum != about.checksum:
        raise UserError(
            f"{about.source} has other weights than when {embeddings.folder} was made; "
            "make the embeddings again with vivi embed"
        )
    place = choose_device(device)
    return embed_images(model.backbone.to(place), images, model.size, model.mean, model.std, place)


def find_frame(embeddings: Embeddings, video: str, time: float) -> Row:
    """The embedded frame of a video that is nearest to a time. The video is given by its name or its path."""
    path = str(Path(video).resolve())
    best: tuple[float, int] | None = None
    for part in range(embeddings.about.parts):
        table = embeddings.columns(part, ["video", "path", "time"])
        same = pc.or_(pc.equal(table["video"], video), pc.equal(table["path"], path))
        rows = np.flatnonzero(same.to_numpy())
        if len(rows):
            distances = np.abs(table["time"].to_numpy()[rows] - time)
            nearest = int(distances.argmin())
            found = float(distances[nearest]), int(embeddings.first_rows[part]) + int(rows[nearest])
            best = min(best or found, found)
    if best is None:
        raise UserError(f"{embeddings.folder} has no video {video}; name it as in the column 'video', or by its path")
    return embeddings.rows([best[1]])[0]


# --- a direction → shots ---


def nearest_shots(embeddings: Embeddings, query: Query, count: int = 20, device: str = "auto") -> list[Hit]:
    """The shots with the most similar frames, the best first, without those of the examples."""
    if count < 1:
        raise UserError(f"--count is {count}; it must be at least 1")
    wanted = count
    while True:
        # Frames of the same shot are alike: more frames are kept than shots are wanted.
        wanted = min(16 * wanted, len(embeddings))
        similarity, numbers = nearest_rows(embeddings, query.direction, wanted, choose_device(device))
        hits: dict[tuple[str, int], Hit] = {}
        for row, value in zip(embeddings.rows(numbers.tolist()), similarity.tolist(), strict=True):
            shot = row.video, row.shot
            if shot not in query.own_shots and shot not in hits:
                hits[shot] = Hit(row, value)
            if len(hits) == count:
                return [*hits.values()]
        if wanted == len(embeddings):
            return [*hits.values()]


def nearest_rows(
    embeddings: Embeddings, direction: Tensor, count: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The `count` largest cosine similarities to a direction, and the numbers of their rows; of equal ones the first
    rows. The arithmetic is float32."""
    direction = direction.to(device)
    best = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    first = 0
    for similarity in embeddings.map_parts(partial(cosine, direction=direction)):
        numbers = torch.arange(first, first + len(similarity), device=device)
        best = _largest(torch.cat([best[0], similarity]), torch.cat([best[1], numbers]), count)
        first += len(similarity)
    order = np.lexsort((best[1].cpu().numpy(), -best[0].cpu().numpy()))
    return best[0].cpu()[order], best[1].cpu()[order]


def _largest(values: Tensor, numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if len(values) <= count:
        return values, numbers
    values, chosen = values.topk(count)
    return values, numbers[chosen]


def cosine(vectors: Tensor, direction: Tensor) -> Tensor:
    """The cosine similarities of float16 vectors (n, d) to a unit vector (d,), on its device; 0 for a vector of
    zeros."""
    similarity = torch.empty(len(vectors), device=direction.device)
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK].to(direction.device).float()
        norms = torch.linalg.vector_norm(block, dim=1)
        torch.div(block @ direction, norms.clamp_min(1e-12), out=similarity[start : start + len(block)])
    return similarity
