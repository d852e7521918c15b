"""Does `vivi prepare` survive damaged files? Makes damaged copies of real videos, prepares them, and checks.

    python studies/damage/damage.py FILES_OR_FOLDERS... --copies 200 --seed 0

Every copy must end up in videos.parquet as ok or skipped with a reason, the command must end with exit code 0, and no
traceback may be printed. Prints the counts as a Markdown table; exits with 1 if any of this fails.
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", nargs="+", type=Path)
    parser.add_argument("--copies", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    files = [f for path in arguments.videos for f in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    sources = [file for file in files if file.suffix.lower() in SUFFIXES]

    with tempfile.TemporaryDirectory() as scratch:
        copies, corpus = Path(scratch) / "copies", Path(scratch) / "corpus"
        copies.mkdir()
        names = damaged_copies(sources, arguments.copies, arguments.seed, copies)
        began = time.monotonic()
        command = [sys.executable, "-m", "vivi", "prepare", str(copies), "--out", str(corpus)]
        run = subprocess.run(command, capture_output=True, text=True)
        seconds = time.monotonic() - began
        found = corpus / "videos.parquet"
        rows = {row["video"]: row for row in pq.read_table(found).to_pylist()} if found.exists() else {}

    problems = [f"{name} is missing" for name in names if name not in rows]
    problems += [
        f"{name} is skipped without a reason" for name, row in rows.items() if not (row["frames"] or row["reason"])
    ]
    problems += [f"exit code {run.returncode}: {run.stderr[-2000:]}"] * (run.returncode != 0)
    problems += ["a traceback was printed: " + run.stderr[-2000:]] * ("Traceback" in run.stdout + run.stderr)

    print(f"{len(names)} damaged copies of {len(sources)} files, seed {arguments.seed}: {seconds:.0f} s\n")
    print("| copies | status | reason |\n|---:|---|---|")
    counts = Counter((row["status"], kind_of(row["reason"] or "")) for row in rows.values())
    for (status, reason), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1])):
        print(f"| {count} | {status} | {reason} |")
    print("\nchecks passed" if not problems else "\n" + "\n".join(problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
