"""What the index costs as the corpus grows to the paper's 3.7 million videos with 94 million shots.

    python studies/index_scale/measure.py --out studies/index_scale/results.json

So many shards cannot be had here, so their rows are made up: what `index_shard` would read of each is drawn at
random, and an empty file stands for it. From there on everything is the real thing: sorting, assembling, writing,
opening in a fresh process, planning batches of half the paper's size. `index_shard` itself is timed on a real shard.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vivi.batches.index import Piece, _key, assemble, fingerprint, index_shard, open_index, save, usable_videos
from vivi.batches.sampler import eligible, plan
from vivi.recipes import Batch
from vivi.video.corpus import VIDEO_SCHEMA, Corpus, ShotWriter, shard_path, write_settings

SHOTS = 94 / 3.7  # per video, in the paper
FRAMES = 9  # per shot: videos of some 230 s, sampled at 1 Hz
VIDEOS_PER_SHARD = 45  # so many fill 256 MB
FRAME_BYTES = 25_000


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def memory(field: str) -> float:
    """Megabytes of this process, as Linux counts them: RssAnon is its own, RssFile is mapped and can be dropped."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def make_up(folder: Path, videos: int) -> dict[int, Piece]:
    """Writes a corpus without frames, packed in the order of names; returns what its shards would hold."""
    rng = np.random.default_rng(0)
    shots = rng.geometric(1 / SHOTS, videos).astype(np.int32)
    number = np.arange(videos) // VIDEOS_PER_SHARD
    before = np.cumsum(shots) - shots
    first_row = before - before[number * VIDEOS_PER_SHARD]
    names = pa.array([f"videos/{name:016x}.mp4" for name in np.sort(rng.integers(0, 2**63, videos)).tolist()])
    fixed = {"path": "/videos", "status": "ok", "reason": "", "codec": "h264"}
    numbers = {"seconds": 230.0, "width": 455, "height": 256}
    columns: dict[str, Any] = {
        name: pa.array([value]).take(pa.array(np.zeros(videos, np.int8))) for name, value in fixed.items()
    }
    columns |= {name: np.full(videos, value) for name, value in numbers.items()}
    columns |= {"video": names, "shots": shots, "frames": shots * FRAMES, "shard": number, "first_row": first_row}
    columns["split"] = pa.array(["train", "test"]).take(pa.array((rng.random(videos) < 0.1).astype(np.int8)))
    table = pa.table([pa.array(columns[field.name]).cast(field.type) for field in VIDEO_SCHEMA], VIDEO_SCHEMA)
    (folder / "shards").mkdir(parents=True)
    pq.write_table(table, folder / "videos.parquet", compression="zstd")
    write_settings(folder, {"rate": 1.0})
    pieces = {}
    for shard, rows in enumerate(np.add.reduceat(shots, np.arange(0, videos, VIDEOS_PER_SHARD)).tolist()):
        shard_path(folder, shard).touch()
        frames = rng.geometric(1 / FRAMES, rows).astype(np.int32)
        pieces[shard] = Piece(frames, 4 * np.cumsum(frames, dtype=np.int64), np.full(rows, 4096))
    return pieces


def build(folder: Path, videos: int) -> dict[str, float]:
    pieces = make_up(folder, videos)
    corpus = Corpus(folder)
    sorting, table = seconds(lambda: usable_videos(corpus))
    assembling, arrays = seconds(lambda: assemble(table, pieces))
    index = folder / "index" / _key(folder, table, fingerprint(corpus))
    writing, _ = seconds(lambda: save(arrays, index))
    return {
        "videos": videos,
        "shots": len(arrays.frames),
        "shards": len(pieces),
        "assemble_s": sorting + assembling,
        "write_s": writing,
        "index_mb": sum(path.stat().st_size for path in index.iterdir()) / 2**20,
        "build_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def use(folder: Path) -> dict[str, float]:
    """Opens a corpus and plans batches, as a training process does."""
    reading, corpus = seconds(lambda: Corpus(folder))
    opening, index = seconds(functools.partial(open_index, corpus))
    del corpus
    pa.default_memory_pool().release_unused()
    before = memory("RssAnon")
    batch = Batch(videos=256)  # of the paper's 512, so that the smallest corpus here holds two batches
    choosing, found = seconds(lambda: eligible(index, batch))
    first, _ = seconds(lambda: plan(index, found, batch, 0, 0))
    times = [seconds(functools.partial(plan, index, found, batch, 0, step))[0] for step in range(1, 301)]
    batches = len(found.videos) // batch.videos
    inside = [time for step, time in enumerate(times, 1) if step % batches]  # a new epoch is permuted anew
    return {
        "read_table_s": reading,
        "open_s": opening,
        "eligible_s": choosing,
        "first_plan_ms": 1000 * first,
        "plan_ms": 1000 * float(np.median(inside)),
        "open_anon_mb": before,
        "anon_mb": memory("RssAnon"),
        "mapped_mb": memory("RssFile"),
    }


def one_shard(folder: Path) -> dict[str, float]:
    """The time to read a real shard's places, its bytes in the page cache."""
    rng = np.random.default_rng(0)
    frame, names, shots, first = rng.bytes(FRAME_BYTES), [], [], []
    path = folder / "shard.arrow"
    with ShotWriter(path) as writer:
        for video in range(VIDEOS_PER_SHARD):
            names.append(f"videos/{video:016x}.mp4")
            shots.append(int(rng.geometric(1 / SHOTS)))
            first.append(writer.rows)
            for shot in range(shots[-1]):
                frames = int(rng.geometric(1 / FRAMES))
                writer.add(names[-1], shot, [float(time) for time in range(frames)], [frame] * frames)
        writer.commit()
    videos = pa.table({"video": names, "shots": shots, "first_row": first})
    times = [seconds(lambda: index_shard(path, videos))[0] for _ in range(20)]
    return {"shard_mb": path.stat().st_size / 2**20, "index_shard_ms": 1000 * float(np.median(times))}


def in_a_new_process(*arguments: object) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], check=True, stdout=subprocess.PIPE)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000, 3_700_000])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--build", nargs=2, help=argparse.SUPPRESS)  # folder, videos: the work of a child
    parser.add_argument("--use", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        print(json.dumps(build(Path(arguments.build[0]), int(arguments.build[1]))))
    elif arguments.use:
        print(json.dumps(use(Path(arguments.use))))
    else:
        measure(arguments.sizes, arguments.out)


def measure(sizes: list[int], out: Path | None) -> None:
    with tempfile.TemporaryDirectory() as work:
        shard = one_shard(Path(work))
    print(f"one real shard of {shard['shard_mb']:.0f} MB is read in {shard['index_shard_ms']:.1f} ms\n")
    columns = ["videos", "shots", "assemble_s", "write_s", "build_peak_mb", "index_mb", "read_table_s", "open_s"]
    columns += ["anon_mb", "mapped_mb", "eligible_s", "first_plan_ms", "plan_ms"]
    print("| " + " | ".join(columns) + " |\n|" + "---:|" * len(columns))
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work) / "corpus"
            rows.append(in_a_new_process("--build", folder, size) | in_a_new_process("--use", folder))
        values = [f"{rows[-1][name]:,.0f}" if rows[-1][name] >= 100 else f"{rows[-1][name]:.3g}" for name in columns]
        print("| " + " | ".join(values) + " |", flush=True)
    if out:
        out.write_text(json.dumps({"cores": os.cpu_count(), "shard": shard, "sizes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
