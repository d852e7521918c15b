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
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

HERE = Path(__file__).parents[2]
STEPS = 10
TIMES = ("seconds", "frames_per_second")
RENAMED = {"shuffle": "order"}  # metrics that had another name
FLAGS = f"--steps {STEPS} --log-every 1 --monitor-every 5 --device cpu --threads 1"


@dataclass(frozen=True)
class Variant:
    """Flags to train a recipe with."""

    now: str
    before: str = ""  # the same for versions in which they had other names


# Beside the recipes as they are: several cores, in one micro-batch and in several, across which InfoNCE goes; frames
# decoded as they are needed and kept decoded; what else has code of its own.
VARIANTS = {
    "vivi-ex4-tiny": (
        Variant("--batch.cores 4 --micro-batch 1"),
        Variant("--batch.cores 4 --micro-batch 4"),
        Variant("--resident on"),
        Variant("--loss.pooling attention --loss.contrastive-weight 0.5"),
        Variant(
            "--loss.frame.negatives videos --loss.video.ahead 2",
            before="--loss.negatives videos --loss.ahead 2",
        ),
        Variant(
            "--loss.frame.triplets batch-hard --loss.frame.dimension 64",
            before="--loss.triplets batch-hard --loss.exemplar-features 64",
        ),
        Variant("--loss.video order", before="--loss.video shuffle"),
    ),
    "vivi-ex2-tiny": (
        Variant(
            "--batch.cores 2 --micro-batch 1 --loss.video.both-ways",
            before="--batch.cores 2 --micro-batch 1 --loss.both-ways",
        ),
    ),
    "vivi-rot4-tiny": (Variant("--batch.cores 2 --micro-batch 1"),),
    "vivi-ex4-co100-tiny": (Variant("--batch.cores 4 --micro-batch 2"),),
    "semi-ex10-tiny": (Variant("--batch.cores 4 --micro-batch 2"),),
    "ex-yt-f-tiny": (Variant("--batch.resample"),),
}
# What each -tiny recipe needs: videos, images.
RECIPES = """
import json
from vivi.recipes import RECIPES
def needs(batch, images):
    return bool(batch.videos and batch.source != "image"), bool(images.count or batch.source == "image")
print(json.dumps({name: needs(one.batch, one.images) for name, one in RECIPES.items() if name.endswith("-tiny")}))
"""


def run(source: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Python with a version of the package."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "VIVI_FSYNC": "0"}
    return subprocess.run([sys.executable, *map(str, words)], env=environment, capture_output=True, text=True)


def python(source: Path, *words: object) -> str:
    """What it prints."""
    done = run(source, *words)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, done.args))}: {done.stderr}")
    return done.stdout


def write_source(revision: str, folder: Path) -> Path:
    """The package as it was in a revision."""
    archive = folder / "before.tar"
    subprocess.run(["git", "-C", HERE, "archive", "--output", archive, revision, "src"], check=True)
    with tarfile.open(archive) as content:
        content.extractall(folder / "before", filter="data")
    return folder / "before" / "src"


def make_data(folder: Path) -> None:
    """A corpus, and labelled images: the pictures of one of the synthesized tasks by class."""
    vivi = (HERE / "src", "-m", "vivi")
    python(*vivi, "synthesize", "--out", folder / "videos", "--videos", 80, "--seconds", 20)
    python(*vivi, "prepare", folder / "videos", "--out", folder / "corpus", "--rate", 5, "--short-side", 96)
    task = min(path.parent for path in (folder / "videos" / "tasks").glob("*/train800val200.txt"))
    for line in (task / "train800val200.txt").read_text().splitlines():
        name, label = line.rsplit(maxsplit=1)
        target = folder / "images" / label / name.replace("/", "-")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(task / name)


def learned(source: Path, name: str, variant: Variant, data: list[object], out: Path) -> tuple[list[Any], Any]:
    """metrics.jsonl without times, and the weights."""
    words = ["-m", "vivi", "train", name, "--out", out, *data, *FLAGS.split()]
    if not variant.before or run(source, *words, *variant.now.split()).returncode != 0:
        python(source, *words, *(variant.before or variant.now).split())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    metrics = [{RENAMED.get(key, key): value for key, value in line.items() if key not in TIMES} for line in lines]
    weights = {key: tensor.numpy().tobytes() for key, tensor in load_file(out / "encoder.safetensors").items()}
    return metrics, weights


def first_difference(before: list[Any], after: list[Any]) -> str:
    for old, new in zip(before, after, strict=False):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return f"step {old['step']}: {key} was {old.get(key)}, is {new.get(key)}"
    return "the weights differ" if len(before) == len(after) else f"{len(before)} lines, now {len(after)}"


def compare(before: Path, now: Path, only: str, folder: Path) -> int:
    """How many runs differ."""
    make_data(folder)
    old_recipes, recipes = (json.loads(python(source, "-c", RECIPES)) for source in (before, now))
    for name in sorted({*recipes} ^ {*old_recipes}):
        print(f"{name} is a recipe of one version only")
    runs = [
        (name, variant)
        for name in recipes
        if name in old_recipes and only in ("", name)
        for variant in (Variant(""), *VARIANTS.get(name, ()))
    ]
    different = 0
    for number, (name, variant) in enumerate(runs):
        videos, images = recipes[name]
        data: list[object] = ["--corpus", folder / "corpus"] if videos else []
        data += ["--images", folder / "images"] if images else []
        old = learned(before, name, variant, data, folder / f"{number}-before")
        new = learned(now, name, variant, data, folder / f"{number}-now")
        different += old != new
        verdict = "the same" if old == new else first_difference(old[0], new[0])
        print(f"{name} {variant.now}: {verdict}", flush=True)
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="a git revision to compare with")
    parser.add_argument("--only", default="", help="one recipe")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        before = write_source(arguments.revision, folder)
        return int(compare(before, HERE / "src", arguments.only, folder) > 0)


if __name__ == "__main__":
    sys.exit(main())
