"""Does `vivi prepare` survive damaged files? Makes damaged copies of real videos, prepares them, and checks.

    python studies/damage/damage.py FILES_OR_FOLDERS... --copies 200 --seed 0 --workers 1 2 4

Every copy must end up in videos.parquet as ok or skipped with a reason, the command must end with exit code 0, no
traceback may be printed, and every number of workers must give the same bytes. Prints the counts as a Markdown table;
exits with 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from media import damage

SUFFIXES = {".mp4", ".avi", ".mkv", ".mov", ".webm", ".ts", ".mpg", ".flv", ".wmv"}


def damaged_copies(sources: list[Path], count: int, seed: int, folder: Path) -> list[str]:
    """Writes damaged copies of files drawn at random, and returns their names."""
    rng = np.random.default_rng(seed)
    names = []
    for i in range(count):
        source = sources[int(rng.integers(len(sources)))]
        names.append(f"{i:05d}-{source.name}")
        (folder / names[-1]).write_bytes(damage(source.read_bytes(), rng))
    return names


def kind_of(reason: str) -> str:
    """The reason without its numbers, for counting."""
    return "; ".join(re.sub(r"\d+(\.\d+)?", "N", part) for part in reason.split("; "))


def prepare(copies: Path, corpus: Path, workers: int) -> tuple[dict[str, dict[str, Any]], list[str], float]:
    """The rows of videos.parquet by name, what went wrong, and the seconds it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "vivi", "prepare", str(copies), "--out", str(corpus), "--workers", str(workers)]
    run = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - began
    found = corpus / "videos.parquet"
    rows = {row["video"]: row for row in pq.read_table(found).to_pylist()} if found.exists() else {}
    problems = [f"exit code {run.returncode}: {run.stderr[-2000:]}"] * (run.returncode != 0)
    problems += ["a traceback was printed: " + run.stderr[-2000:]] * ("Traceback" in run.stdout + run.stderr)
    return rows, problems, seconds


def content(corpus: Path) -> dict[str, bytes]:
    """All files of a corpus."""
    files = [corpus / "videos.parquet", *sorted((corpus / "shards").iterdir())]
    return {path.name: path.read_bytes() for path in files}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--copies", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    files = [f for path in arguments.videos for f in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    sources = [file for file in files if file.suffix.lower() in SUFFIXES]

    problems: list[str] = []
    times: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        copies = Path(scratch) / "copies"
        copies.mkdir()
        names = damaged_copies(sources, arguments.copies, arguments.seed, copies)
        corpora = [Path(scratch) / f"{workers}-workers" for workers in arguments.workers]
        for workers, corpus in zip(arguments.workers, corpora, strict=True):
            rows, wrong, seconds = prepare(copies, corpus, workers)
            problems += wrong
            times.append(seconds)
        if not problems and any(content(corpus) != content(corpora[0]) for corpus in corpora):
            problems.append("the corpora differ with the number of workers")

    problems += [f"{name} is missing" for name in names if name not in rows]
    problems += [
        f"{name} is skipped without a reason" for name, row in rows.items() if not (row["frames"] or row["reason"])
    ]
    took = ", ".join(f"{seconds:.0f} s" for seconds in times)
    print(f"{len(names)} damaged copies of {len(sources)} files, seed {arguments.seed}: {took}")
    if len(corpora) > 1:
        frames = sum(row["frames"] for row in rows.values())
        print(f"with {', '.join(map(str, arguments.workers))} workers: the same {frames} frames")
    print("\n| copies | status | reason |\n|---:|---|---|")
    counts = Counter((row["status"], kind_of(row["reason"] or "")) for row in rows.values())
    for (status, reason), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1])):
        print(f"| {count} | {status} | {reason} |")
    print("\nchecks passed" if not problems else "\n" + "\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
