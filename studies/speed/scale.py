"""What training costs as the corpus grows to the paper's 3.7 million videos with 94 million shots.

    python studies/speed/scale.py --json scale.json --figure scale.png -- --device cpu

So many videos cannot be had here, so a corpus of them is simulated around a small real one. Each of its shards is a
link to a real shard, and holds real videos under new names, their shots repeated until there are as many as in the
paper. What `index_shard` would read of a shard is put together from the index of the real corpus. From there on
everything is the real thing: assembling, writing and opening the index, and `vivi train` in a fresh process, which
reads and decodes real frames. Not measured is the disk: the few real shards, and the index, are in the page cache.

What follows `--` goes to vivi train. Of several rounds over all sizes, each size's runs show what the machine's other
users do to the figures; the smallest corpus is also measured last.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vivi.data.index import Index, open_index
from vivi.data.plan import eligible_videos, plan_videos
from vivi.prepare import index as index_module
from vivi.prepare.corpus import VIDEO_SCHEMA, Corpus, ShotWriter, shard_path
from vivi.prepare.index import IndexTables, build_index, consecutive, index_shard, write_index
from vivi.recipes import Batch
from vivi.train.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = [1000, 10_000, 100_000, 1_000_000, 3_700_000]
SHOTS = 94 / 3.7  # per video, in the paper
VIDEOS_PER_SHARD = 45  # so many fill 256 MB
BYTES_PER_VIDEO = 700  # of the index and videos.parquet, with some to spare
NEVER = 10**9
LOOK = 0.02  # seconds between two looks at a training process

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a real corpus; without it, 40 videos are synthesized")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of videos")
    parser.add_argument("--rounds", type=int, default=3, help="trainings on each size")
    parser.add_argument("--recipe", default="vivi-ex4-tiny")
    parser.add_argument("--steps", type=int, default=30, help="of each training")
    parser.add_argument("--skip", type=int, default=5, help="first steps that are not timed")
    parser.add_argument("--log-every", type=int, default=1, help="steps; on a GPU each look makes it wait")
    parser.add_argument(
        "--work", type=Path, help="where the corpora lie meanwhile, 3.4 GB; default: a temporary folder"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--simulate", nargs=3, help=argparse.SUPPRESS)  # corpus, folder, videos: the work of a child
    parser.add_argument("--use", type=Path, help=argparse.SUPPRESS)  # likewise
    parser.add_argument("flags", nargs="*", help="of vivi train, after --")
    arguments = parser.parse_args()
    if arguments.simulate:
        corpus, folder, videos = arguments.simulate
        print(json.dumps(simulate(Path(corpus), Path(folder), int(videos))))
    elif arguments.use:
        print(json.dumps(use(arguments.use)))
    else:
        with tempfile.TemporaryDirectory(dir=arguments.work) as work:
            measure(arguments, Path(work).resolve())


def measure(arguments: argparse.Namespace, work: Path) -> None:
    sizes: list[int] = sorted(arguments.sizes)
    free = shutil.disk_usage(work).free
    if free < BYTES_PER_VIDEO * sum(sizes) + 2**30:
        sys.exit(f"{work} has {free / 2**30:.1f} GB free, too little for these sizes; see --work and --sizes")
    shard = one_shard(work)
    print(f"one real shard of {shard['shard_mb']:.0f} MB is indexed in {shard['index_shard_ms']:.1f} ms", flush=True)
    real = arguments.corpus.resolve() if arguments.corpus else synthesize(work)
    folders = {size: work / f"corpus-{size}" for size in sizes}
    costs = {size: in_a_new_process("--simulate", real, folders[size], size) for size in sizes}
    runs = []
    for size in [*sizes * arguments.rounds, sizes[0]]:
        runs.append({"videos": size} | use_and_train(folders[size], work / "run", arguments))
        said = ", ".join(f"{name} {value:.3g}" for name, value in runs[-1].items() if name != "videos")
        print(f"{size:,} videos: {said}", flush=True)
    rows = [costs[size] | summary([run for run in runs if run["videos"] == size]) for size in sizes]
    print("\n" + table(rows) + "\n\n" + drift(runs))
    if arguments.json:
        about = {
            "recipe": arguments.recipe,
            "flags": arguments.flags,
            "steps": arguments.steps,
            "skip": arguments.skip,
        }
        about |= {"log_every": arguments.log_every, "cores": os.cpu_count(), "processor": platform.machine()}
        content = {**about, "shard": shard, "sizes": rows, "runs": runs}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    if arguments.figure:
        draw(rows, runs, arguments.figure)


# The corpora.


def synthesize(work: Path) -> Path:
    """A small real corpus in a dozen shards."""
    videos, corpus = work / "videos", work / "real"
    make = ["synthesize", "--out", videos, "--videos", 40, "--size", 96, "--no-tasks"]
    prepare = ["prepare", videos, "--out", corpus, "--rate", 5, "--short-side", 96, "--shard-megabytes", 1]
    for command in (make, prepare):
        subprocess.run([sys.executable, "-m", "vivi", *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return corpus


def simulate(real: Path, folder: Path, videos: int) -> Row:
    """Writes a corpus of so many videos around a real one, and its index where training looks for it."""
    shards = make_up(real, folder, videos)
    corpus = Corpus(folder)
    assembling, tables = seconds(lambda: build_made_up_index(corpus, shards))
    writing, _ = seconds(lambda: write_index(folder, tables))
    return {
        "videos": videos,
        "shots": tables.shots.num_rows,
        "shards": len(shards),
        "assemble_s": assembling,
        "write_s": writing,
        "index_mb": sum(path.stat().st_size for path in (folder / "index").glob("*/*")) / 2**20,
        "build_peak_mb": memory(os.getpid())["VmHWM"],
    }


def build_made_up_index(corpus: Corpus, shards: dict[Path, pa.RecordBatch]) -> IndexTables:
    """The real `build_index`, which is given what its shards would hold."""

    def made_up(path: Path, videos: pa.Table) -> pa.RecordBatch:
        return shards[path]

    index_module.index_shard = made_up
    try:
        return build_index(corpus)
    finally:
        index_module.index_shard = index_shard


def make_up(real: Path, folder: Path, videos: int) -> dict[Path, pa.RecordBatch]:
    """Writes all of a corpus but its index, packed in the order of names; returns what its shards would hold."""
    rng = np.random.default_rng(0)
    few = open_index(Corpus(real))
    by_shard = np.argsort(few.shard, kind="stable")
    numbers, start, count = np.unique(few.shard[by_shard], return_index=True, return_counts=True)
    (folder / "shards").mkdir(parents=True)
    shutil.copy(real / "corpus.json", folder)
    shots = rng.geometric(1 / SHOTS, videos).astype(np.int64)
    frames, first_row = np.zeros(videos, np.int64), np.zeros(videos, np.int64)
    shards = {}
    for number, first in enumerate(range(0, videos, VIDEOS_PER_SHARD)):
        some = slice(first, min(first + VIDEOS_PER_SHARD, videos))
        which = number % len(numbers)  # of the real shards
        path = shard_path(folder, number)
        # Not hard links: a file cannot have as many of them as the paper's corpus has shards.
        path.symlink_to(shard_path(real, int(numbers[which])))
        chosen = by_shard[start[which] + np.arange(some.stop - first) % count[which]]
        shards[path] = repeated_shots(few, chosen, shots[some])
        first_row[some] = np.cumsum(shots[some]) - shots[some]
        frames[some] = np.add.reduceat(shards[path].column("frames").to_numpy(), first_row[some])
    numbered = np.arange(videos) // VIDEOS_PER_SHARD
    write_table(folder, {"shots": shots, "frames": frames, "shard": numbered, "first_row": first_row}, rng)
    return shards


def repeated_shots(index: Index, videos: NDArray[np.int64], counts: NDArray[np.int64]) -> pa.RecordBatch:
    """Where the shots of these videos lie, each video's over and over until there are `count` of them."""
    own = np.diff(index.first_shot)[videos]
    within = consecutive(np.zeros_like(counts), counts) % np.repeat(own, counts)
    chosen = np.repeat(index.first_shot[videos], counts) + within
    names = ("frames", "offsets_at", "data_at")
    return pa.RecordBatch.from_arrays([pa.array(getattr(index, name)[chosen]) for name in names], names)


def write_table(folder: Path, columns: dict[str, NDArray[Any]], rng: np.random.Generator) -> None:
    """Writes videos.parquet: random names in order, a tenth of the videos held out."""
    videos = len(columns["shots"])
    alike: Row = {"path": "/videos", "status": "ok", "reason": "", "codec": "h264"}
    alike |= {
        "seconds": 230.0,
        "width": 455,
        "height": 256,
        "file_bytes": 1,
        "file_changed": 1,
        "file_hash": "0" * 32,
    }
    nought = pa.array(np.zeros(videos, np.int8))
    content: dict[str, Any] = {name: pa.array([value]).take(nought) for name, value in alike.items()} | columns
    names = np.sort(rng.integers(0, 2**63, videos)).tolist()
    content["video"] = pa.array([f"videos/{name:016x}.mp4" for name in names])
    content["split"] = pa.array(["train", "test"]).take(pa.array((rng.random(videos) < 0.1).astype(np.int8)))
    table = pa.table([pa.array(content[field.name]).cast(field.type) for field in VIDEO_SCHEMA], VIDEO_SCHEMA)
    pq.write_table(table, folder / "videos.parquet", compression="zstd")


# What is measured.


def one_shard(work: Path) -> Row:
    """The time to read the places in a real shard of ordinary size, its bytes in the page cache."""
    rng = np.random.default_rng(0)
    frame, names, shots, first, counts = rng.bytes(25_000), [], [], [], []
    path = work / "shard.arrow"
    with ShotWriter(path) as writer:
        for video in range(VIDEOS_PER_SHARD):
            names.append(f"videos/{video:016x}.mp4")
            shots.append(int(rng.geometric(1 / SHOTS)))
            first.append(writer.rows)
            counts.append(0)
            for shot in range(shots[-1]):
                frames = int(rng.geometric(1 / 9))  # a video of some 230 s, sampled at 1 Hz
                counts[-1] += frames
                writer.add(names[-1], shot, [float(time) for time in range(frames)], [frame] * frames)
        writer.commit()
    videos = pa.table({"video": names, "shots": shots, "first_row": first, "frames": counts})
    times = [seconds(lambda: index_shard(path, videos))[0] for _ in range(20)]
    size = path.stat().st_size / 2**20
    path.unlink()
    return {"shard_mb": size, "index_shard_ms": 1000 * statistics.median(times)}


def use(folder: Path) -> Row:
    """Opens a corpus and plans batches, as a training process does."""
    reading, corpus = seconds(lambda: Corpus(folder))
    opening, index = seconds(functools.partial(open_index, corpus))
    batch = Batch(videos=256)  # of the paper's 512, so that the smallest corpus here holds two batches
    choosing, found = seconds(lambda: eligible_videos(index, batch))
    first, _ = seconds(lambda: plan_videos(index, found, batch, 0, 0))
    times = [seconds(functools.partial(plan_videos, index, found, batch, 0, step))[0] for step in range(1, 301)]
    batches = len(found.videos) // batch.videos
    inside = [time for step, time in enumerate(times, 1) if step % batches]  # a new epoch is permuted anew
    return {
        "open_s": reading + opening,
        "eligible_ms": 1000 * choosing,
        "first_plan_ms": 1000 * first,
        "plan_ms": 1000 * statistics.median(inside),
    }


def use_and_train(folder: Path, out: Path, arguments: argparse.Namespace) -> Row:
    try:
        return in_a_new_process("--use", folder) | train(folder, out, arguments)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def train(folder: Path, out: Path, arguments: argparse.Namespace) -> Row:
    """Runs vivi train, and watches its memory from outside."""
    options = {"corpus": folder, "out": out, "steps": arguments.steps, "log-every": arguments.log_every}
    options |= {"monitor-every": NEVER, "checkpoint-every": NEVER}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "vivi", "train", arguments.recipe, *flags, *arguments.flags]
    began, first, peak = time.monotonic(), 0.0, 0.0
    seen: Row = {}  # the last look before the last step
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        while process.poll() is None:
            step, now = last_step(out), memory(process.pid)
            if step and not first:
                first = time.monotonic() - began
            if step < arguments.steps and now:  # afterwards it draws its curves
                seen, peak = now, max(peak, now["RssAnon"])
            time.sleep(LOOK)
        said.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{said.read()[-2000:]}")
    lines = [line for line in read_metrics(out) if line["step"] > arguments.skip]
    steps = np.diff([line["seconds"] for line in lines]) / np.diff([line["step"] for line in lines])
    fast, median = np.percentile(steps, [10, 50]).tolist()
    return {
        "step_s": median,
        "step_fast_s": fast,  # a tenth of its steps were faster: what other users of the machine disturb least
        "first_step_s": first,
        "own_mb": seen["RssAnon"],
        "own_peak_mb": peak,
        "mapped_mb": seen["RssFile"],
    }


def last_step(run: Path) -> int:
    """The last step that a run has logged; 0 before the first."""
    lines = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    return int(lines[-1]["step"]) if lines else 0


def memory(process: int) -> dict[str, float]:
    """Megabytes, as Linux counts them: RssAnon is its own, RssFile is mapped and can be dropped, VmHWM is the most of
    both together that it ever had. Nothing of a process that has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    values = {name: value for name, value in (line.split(":", 1) for line in lines)}
    return {name: int(values[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile", "VmHWM") if name in values}


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def in_a_new_process(*arguments: object) -> Row:
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], check=True, stdout=subprocess.PIPE)
    result: Row = json.loads(done.stdout)
    return result


# What is shown.


def summary(runs: Sequence[Row]) -> Row:
    """Medians over the runs of one size, and the range of the steps' times."""
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0] if name != "videos"}
    steps = [run["step_s"] for run in runs]
    return {**medians, "step_least_s": min(steps), "step_most_s": max(steps)}


def table(rows: Sequence[Row]) -> str:
    names = ["videos", "shots", "step", "of its runs", "fastest tenth", "first step after", "open", "plan"]
    names += ["own memory", "peak", "mapped", "index"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---:|" * len(names)]
    for row in rows:
        cells = [f"{row['videos']:,}", f"{row['shots']:,}", f"{1000 * row['step_s']:.0f} ms"]
        cells += [
            f"{1000 * row['step_least_s']:.0f}–{1000 * row['step_most_s']:.0f}",
            f"{1000 * row['step_fast_s']:.0f} ms",
        ]
        cells += [f"{row['first_step_s']:.1f} s", f"{row['open_s']:.2f} s", f"{row['plan_ms']:.2f} ms"]
        cells += [f"{row[name]:,.0f} MB" for name in ("own_mb", "own_peak_mb", "mapped_mb", "index_mb")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def drift(runs: Sequence[Row]) -> str:
    """How far runs on the same corpus differ, and those on the largest from those on the smallest."""
    small, large = min(run["videos"] for run in runs), max(run["videos"] for run in runs)

    def times(size: int, name: str) -> list[float]:
        return [run[name] for run in runs if run["videos"] == size]

    def share(name: str) -> float:
        return statistics.median(times(large, name)) / statistics.median(times(small, name)) - 1

    same = ", ".join(f"{1000 * step:.0f}" for step in times(small, "step_s"))
    beside = f"{share('step_s'):+.1%} a step, {share('step_fast_s'):+.1%} by the fastest tenth"
    return f"{small:,} videos, first to last run: {same} ms a step\n{large:,} videos beside it: {beside}"


def draw(rows: Sequence[Row], runs: Sequence[Row], path: Path) -> None:
    """Three panels over the number of videos: points are runs, lines their medians."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    def show(axes: Axes, name: str, label: str, colour: str, unit: float = 1.0) -> None:
        axes.plot([row["videos"] for row in rows], [row[name] * unit for row in rows], color=colour, label=label)
        axes.plot([run["videos"] for run in runs], [run[name] * unit for run in runs], ".", color=colour, alpha=0.6)

    figure, (steps, opening, held) = pyplot.subplots(1, 3, figsize=(10, 3), layout="constrained")
    show(steps, "step_s", "a training step", "#0072b2")
    show(steps, "step_fast_s", "its fastest tenth", "#56b4e9")
    show(opening, "first_step_s", "command to first step", "#0072b2")
    show(opening, "open_s", "opening the corpus, by itself", "#d55e00")
    show(held, "own_peak_mb", "own memory, peak", "#56b4e9", 1 / 1024)
    show(held, "own_mb", "own memory, training", "#0072b2", 1 / 1024)
    show(held, "mapped_mb", "mapped files", "#d55e00", 1 / 1024)
    for axes, unit in ((steps, "seconds"), (opening, "seconds"), (held, "GB")):
        axes.set(xscale="log", xlabel="videos", ylabel=unit)
        axes.set_ylim(
            0, 1.35 * axes.get_ylim()[1]
        )  # from 0, so that what looks flat is, and with room for the legend
        axes.legend(frameon=False, loc="upper left", fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
