"""How fast vivi search is on random vectors, from disk, and how much memory it takes; beside FAISS where it is there.

vivi bench search --rows 10000000 --features 512 --folder /tmp/vectors
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import tyro

from vivi.answers.embeddings import About, Embeddings, part_path, write_about, write_part
from vivi.answers.search import nearest_rows
from vivi.runtime.distributed import choose_device

_PART = 8192


@dataclass(frozen=True)
class Options:
    """What is measured."""

    folder: Path
    """Where the vectors are made; those that are there are used again."""
    rows: int = 1_000_000
    """How many vectors."""
    features: int = 512
    """How many numbers each has."""
    repeats: int = 3
    """How many times to search."""
    device: str = "auto"
    """cpu, cuda, ..."""
    faiss_rows: int = 0
    """How many of them are searched by FAISS's flat index as well, which holds them in memory as float32."""


def main(options: Options) -> None:
    make(options)
    embeddings, device = Embeddings(options.folder), choose_device(options.device)
    direction = torch.nn.functional.normalize(
        torch.randn(options.features, generator=torch.Generator().manual_seed(1)), dim=0
    )
    size = 2 * options.features * len(embeddings) / 1e9
    for _ in range(options.repeats):
        began, cpu = time.monotonic(), time.process_time()
        values, numbers = nearest_rows(embeddings, direction, 320, device)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{len(embeddings):,} vectors of {options.features} ({size:.1f} GB): {seconds:.1f} s, {cpu:.1f} s CPU, "
            f"{size / seconds:.2f} GB/s, peak memory {peak:.2f} GB; best {values[0]:.4f} in row {numbers[0]}"
        )
    if options.faiss_rows:
        beside_faiss(embeddings, direction, options.faiss_rows, device)


def make(options: Options) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    parts = -(-options.rows // _PART)
    words = ("random",) * 6  # footage, its fingerprint; encoder, where it is from, weights, checksum
    about = About(*words, size=1, features=options.features, per="frame", parts=parts, finished=True)
    for number in range(parts):
        path = part_path(options.folder, number)
        if not path.exists():
            count = min(_PART, options.rows - number * _PART)
            rows = np.arange(count) + number * _PART
            columns = {"video": [f"v{row // 1000:07d}" for row in rows], "shot": rows % 1000 // 8, "frame": rows % 8}
            columns |= {"time": rows % 1000 / 5, "path": [f"/videos/v{row // 1000:07d}.mp4" for row in rows]}
            vectors = np.random.default_rng(number).standard_normal((count, options.features), np.float32)
            write_part(path, pa.table(columns), vectors.astype(np.float16))
    write_about(options.folder, about)


def beside_faiss(embeddings: Embeddings, direction: torch.Tensor, rows: int, device: torch.device) -> None:
    import faiss

    vectors = torch.cat([embeddings.vectors(part) for part in range(-(-rows // _PART))])[:rows]
    unit = torch.nn.functional.normalize(vectors.float(), dim=1).numpy()
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    began = time.monotonic()
    values, numbers = index.search(direction[None].numpy(), 320)
    seconds = time.monotonic() - began
    print(f"FAISS, {rows:,} in memory: {seconds:.2f} s; best {values[0, 0]:.4f} in row {numbers[0, 0]}")


if __name__ == "__main__":
    main(tyro.cli(Options, prog="vivi bench search"))
