"""vivi select: the frames that are worth labelling: unlike each other and unlike those that are labelled already,
typical of much footage, and no outliers.

    embeddings ──outliers off──▶ k-means, a cluster for each frame that is wanted ──nearest to its centre──▶ frames

Labelled examples are clusters of their own whose centres stay: what is like them is not chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from vivi.answers.embeddings import Embeddings, Row
from vivi.answers.page import Section, open_shown, write_shots_page
from vivi.answers.search import example_vectors
from vivi.answers.settings import SelectSettings
from vivi.report.table import Cells, csv_text
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError, write_atomically

_MOST_BYTES = 1 << 30  # of vectors in memory, as float32
_REFERENCES, _NEAREST = 4096, 10  # outliers have few neighbours among so many frames
_ITERATIONS = 20
_BLOCK = 8192


def select(
    embeddings: Embeddings | Path | str,
    settings: SelectSettings | None = None,
    *,
    exclude: Sequence[str] = (),
    device: str = "auto",
    console: Console | None = None,
) -> list[Row]:
    """The frames to label, in the order of their rows. `exclude` names what is labelled already: images, folders of
    images, or VIDEO@SECOND."""
    settings = settings or SelectSettings()
    settings.check()
    opened = embeddings if isinstance(embeddings, Embeddings) else Embeddings(embeddings)
    place = choose_device(device)
    numbers = sampled_rows(opened)
    if console is not None and len(numbers) < len(opened):
        console.print(f"looking at {len(numbers):,} of {len(opened):,} frames, evenly over all", soft_wrap=True)
    vectors = F.normalize(opened.take(numbers).float(), dim=1).to(place)  # (n, features)
    known = torch.empty(0, opened.about.features, device=place)
    if exclude:
        parts, _ = example_vectors(opened, exclude, device)
        known = F.normalize(torch.cat(parts), dim=1).to(place)
    chosen = choose(vectors, known, settings)
    if not chosen:
        raise UserError(
            f"all {len(numbers):,} frames are near-duplicates of those in --exclude: there is nothing to label"
        )
    if console is not None and len(chosen) < settings.count:
        console.print(
            f"{len(chosen):,} frames instead of {settings.count:,}: all others are near-duplicates of them",
            style="yellow",
            soft_wrap=True,
        )
    return opened.rows(sorted(numbers[index] for index in chosen))


def sampled_rows(embeddings: Embeddings) -> list[int]:
    """All rows, or as many, evenly over all, as fit into memory."""
    most = max(1, _MOST_BYTES // (4 * embeddings.about.features))
    numbers: list[int] = np.linspace(0, len(embeddings) - 1, min(most, len(embeddings))).round().astype(int).tolist()
    return numbers


def choose(vectors: Tensor, known: Tensor, settings: SelectSettings) -> list[int]:
    """The indices of the chosen ones of some unit vectors (n, d), given those that are known (m, d)."""
    loneliness = lonely(vectors)
    if settings.only_outliers:
        order = loneliness.argsort(descending=True, stable=True)
    else:
        kept = loneliness.argsort(stable=True)[: max(1, len(vectors) - int(settings.outliers * len(vectors)))]
        kept = kept.sort().values
        centres = k_means(vectors[kept], known, settings.count, settings.seed)
        distance, cluster = _nearest(vectors[kept], centres)
        # First the frame nearest to each centre, then the second nearest of each, ...; last those of known clusters.
        turns = _by_turns(distance, cluster)
        order = kept[turns[(cluster[turns] < len(known)).long().argsort(stable=True)]]
    return without_near_duplicates(vectors, known, order.tolist(), settings)


def without_near_duplicates(
    vectors: Tensor, known: Tensor, order: Sequence[int], settings: SelectSettings
) -> list[int]:
    """The first of an order that are no near-duplicates of those before them, nor of the known ones."""
    taken = known
    chosen: list[int] = []
    for index in order:
        if len(chosen) == settings.count:
            break
        if not len(taken) or float((taken @ vectors[index]).max()) < settings.near_duplicate:
            chosen.append(index)
            taken = torch.cat([taken, vectors[index : index + 1]])
    return chosen


def lonely(vectors: Tensor) -> Tensor:
    """How few others are like each unit vector (n, d): 1 minus the mean cosine similarity of the nearest ten of some
    thousand, which lie evenly over all. The vector itself does not count."""
    places = torch.linspace(0, len(vectors) - 1, min(_REFERENCES, len(vectors))).round().long().unique()
    references, values = vectors[places.to(vectors.device)], []
    for start in range(0, len(vectors), _BLOCK):
        similarity = vectors[start : start + _BLOCK] @ references.T  # (block, references)
        own = torch.arange(start, start + len(similarity))[:, None] == places
        similarity = similarity.masked_fill(own.to(vectors.device), -1.0)
        values.append(1 - similarity.topk(min(_NEAREST, max(1, len(places) - 1)), dim=1).values.mean(dim=1))
    return torch.cat(values)


def k_means(vectors: Tensor, known: Tensor, count: int, seed: int) -> Tensor:
    """Centres of clusters of unit vectors (n, d): those that are known (m, d), which stay, then `count` others."""
    generator = torch.Generator().manual_seed(seed)
    centres = known
    squared = torch.full((len(vectors),), 4.0, device=vectors.device)
    if len(known):
        squared = _nearest(vectors, known)[0]
    candidates = 2 + int(math.log(count))
    for _ in range(min(count, len(vectors))):
        # k-means++: the farther from all centres, the likelier; of some candidates the one that covers most.
        sums = squared.double().clamp_min(0).cumsum(0).cpu()
        draws = torch.rand(candidates, generator=generator).double() * sums[-1]
        tried = torch.searchsorted(sums, draws, right=True).clamp_max(len(vectors) - 1)
        after = torch.minimum(squared[:, None], 2 - 2 * vectors @ vectors[tried].T)  # (n, candidates)
        best = int(after.sum(dim=0).argmin())
        centres, squared = torch.cat([centres, vectors[tried[best]][None]]), after[:, best]
    for _ in range(_ITERATIONS):
        _, cluster = _nearest(vectors, centres)
        sums = torch.zeros_like(centres).index_add_(0, cluster, vectors)
        moved = F.normalize(sums, dim=1)
        full = torch.bincount(cluster, minlength=len(centres)) > 0
        full[: len(known)] = False
        centres = torch.where(full[:, None], moved, centres)
    return centres


def _nearest(vectors: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Of each unit vector the squared distance to the nearest centre, and which it is."""
    best = [(part @ centres.T).max(dim=1) for part in vectors.split(_BLOCK)]
    return 2 - 2 * torch.cat([each.values for each in best]), torch.cat([each.indices for each in best])


def _by_turns(distance: Tensor, cluster: Tensor) -> Tensor:
    """Indices: the nearest of each cluster, then the second nearest of each, and so on."""
    by_cluster = np.lexsort((distance.cpu().numpy(), cluster.cpu().numpy()))
    sorted_clusters = cluster.cpu().numpy()[by_cluster]
    starts = np.searchsorted(sorted_clusters, sorted_clusters)  # where the cluster of each begins
    turn = np.arange(len(by_cluster)) - starts
    return torch.from_numpy(by_cluster[np.argsort(turn, kind="stable")]).to(cluster.device)


def write_selection(embeddings: Embeddings, rows: Sequence[Row], settings: SelectSettings, out: Path) -> Path:
    """Writes images/, selected.csv and the page; returns its index.html."""
    frames = open_shown(embeddings, out)
    try:
        (out / "images").mkdir(parents=True, exist_ok=True)
        files = [frames.copy(row, out / "images") for row in rows]
        records: list[Cells] = []
        for file, row in zip(files, rows, strict=True):
            place: Cells = {"video": row.video, "shot": row.shot, "frame": row.frame, "time": row.time}
            records.append({"file": file.relative_to(out).as_posix(), **place, "path": row.path})
        write_atomically(out / "selected.csv", csv_text(records).encode("utf-8", "replace"), sync=False)
    except (StorageError, OSError) as error:
        raise UserError(f"the frames cannot be written: {error}; choose another --out") from None
    what = "Frames that least others are like" if settings.only_outliers else "Frames to label"
    intro = f"{len(rows):,} of {len(embeddings):,}, from {len({row.video for row in rows}):,} videos."
    shown = [frames.show(row, frames=1) for row in rows]
    return write_shots_page(out, "vivi select", what, intro, [Section("", "", shown)])
