"""Does another version of vivi learn the same? Trains every -tiny recipe with both for ten steps and compares.

    python studies/same_bits/compare.py REVISION [--only vivi-ex4-tiny]

One CPU thread, one corpus and one set of labelled images, synthesized here. Compared are all values in metrics.jsonl
but times, and the bytes of the encoder's weights. Prints a line for each recipe; exits with 1 if one differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from vivi.recipes import RECIPES, Recipe

HERE = Path(__file__).parents[2]
STEPS = 10
TIMES = ("seconds", "frames_per_second")
# Beside the recipes as they are: several cores, in one micro-batch and in several, across which InfoNCE goes; frames
# decoded as they are needed and kept decoded; what else has code of its own.
VARIANTS = {
    "vivi-ex4-tiny": (
        "--batch.cores 4 --micro-batch 1",
        "--batch.cores 4 --micro-batch 4",
        "--resident on",
        "--loss.pooling attention --loss.contrastive-weight 0.5",
        "--loss.negatives videos --loss.ahead 2",
        "--loss.video shuffle",
    ),
    "vivi-ex2-tiny": ("--batch.cores 2 --micro-batch 1 --loss.both-ways",),
    "vivi-rot4-tiny": ("--batch.cores 2 --micro-batch 1",),
    "vivi-ex4-co100-tiny": ("--batch.cores 4 --micro-batch 2",),
    "semi-ex10-tiny": ("--batch.cores 4 --micro-batch 2",),
    "ex-yt-f-tiny": ("--batch.resample",),
}


def run(source: Path, *words: object) -> None:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "VIVI_FSYNC": "0"}
    command = [sys.executable, "-m", "vivi", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")


def make_data(folder: Path) -> None:
    """A corpus, and labelled images: the pictures of one of the synthesized tasks by class."""
    run(HERE / "src", "synthesize", "--out", folder / "videos", "--videos", 80, "--seconds", 20)
    run(HERE / "src", "prepare", folder / "videos", "--out", folder / "corpus", "--rate", 5, "--short-side", 96)
    task = min(path.parent for path in (folder / "videos" / "tasks").glob("*/train800val200.txt"))
    for line in (task / "train800val200.txt").read_text().splitlines():
        name, label = line.rsplit(maxsplit=1)
        target = folder / "images" / label / name.replace("/", "-")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(task / name)


def flags(recipe: Recipe, data: Path) -> list[object]:
    """What the recipe needs besides its name."""
    words: list[object] = [
        "--steps",
        STEPS,
        "--log-every",
        1,
        "--monitor-every",
        5,
        "--device",
        "cpu",
        "--threads",
        1,
    ]
    if recipe.batch.videos and recipe.batch.source != "image":
        words += ["--corpus", data / "corpus"]
    if recipe.images.count or recipe.batch.source == "image":
        words += ["--images", data / "images"]
    return words


def learned(source: Path, name: str, variant: str, data: Path, out: Path) -> tuple[list[Any], Any]:
    """metrics.jsonl without times, and the weights."""
    run(source, "train", name, "--out", out, *flags(RECIPES[name], data), *variant.split())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
    weights = {key: tensor.numpy().tobytes() for key, tensor in load_file(out / "encoder.safetensors").items()}
    return metrics, weights


def first_difference(before: list[Any], after: list[Any]) -> str:
    for old, new in zip(before, after, strict=False):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return f"step {old['step']}: {key} was {old.get(key)}, is {new.get(key)}"
    return "the weights differ" if len(before) == len(after) else f"{len(before)} lines, now {len(after)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="a git revision to compare with")
    parser.add_argument("--only", default="", help="one recipe")
    arguments = parser.parse_args()
    names = [name for name in RECIPES if name.endswith("-tiny") and arguments.only in ("", name)]
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        before = folder / "before"
        subprocess.run(
            ["git", "-C", HERE, "worktree", "add", "-q", "--detach", before, arguments.revision], check=True
        )
        try:
            make_data(folder)
            for number, (name, variant) in enumerate((n, v) for n in names for v in ("", *VARIANTS.get(n, ()))):
                old = learned(before / "src", name, variant, folder, folder / f"{number}-before")
                new = learned(HERE / "src", name, variant, folder, folder / f"{number}-after")
                different += old != new
                verdict = "the same" if old == new else first_difference(old[0], new[0])
                print(f"{name} {variant}: {verdict}", flush=True)
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", before], check=True)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
