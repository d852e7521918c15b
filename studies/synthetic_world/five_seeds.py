"""Does learning from video pay in the demo? Five seeds, each another world and other initial weights.

    python studies/synthetic_world/five_seeds.py --demos DEMOS
    python studies/synthetic_world/five_seeds.py

The first runs `vivi demo` in a folder of DEMOS for each seed that has no file in results/, one after another, probes
colours and pixels on the same tasks, and writes results/seed-N.json. Both write the tables of README.md from these
files and results/reference.json (reference.py).
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vivi.demo.tasks import TASKS
from vivi.evaluate.probes import by_neighbours, by_regression
from vivi.evaluate.results import read_results
from vivi.evaluate.settings import Neighbours
from vivi.evaluate.tasks.examples import Examples
from vivi.evaluate.tasks.find import find_tasks
from vivi.train.metrics import read_metrics

HERE = Path(__file__).parent
ENCODERS = ("untrained", "frames", "shots", "vivi")
PROBES = {"linear": "Linear probe", "knn": "kNN"}
# By probe, by what is probed, by task: the accuracy on test images in percent.
Accuracies = dict[str, dict[str, dict[str, float]]]


# --- what colours and pixels alone tell: of images (n, 3, height, width), uint8 ---


def mean_colour(images: Tensor) -> Tensor:
    return images.float().mean((2, 3)) / 255  # (n, 3)


def colour_histogram(images: Tensor) -> Tensor:
    """Square roots of the shares of 8 x 8 x 8 colours."""
    red, green, blue = (images.long() // 32).flatten(2).unbind(1)  # (n, pixels) each
    colours = red * 64 + green * 8 + blue
    counts = torch.zeros(len(images), 512).scatter_add_(1, colours, torch.ones(colours.shape))
    return (counts / colours.shape[1]).sqrt()  # (n, 512)


def pixels(images: Tensor) -> Tensor:
    return F.interpolate(images.float() / 255, (16, 16), mode="area").flatten(1)  # (n, 768)


SIMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean colour": mean_colour,
    "colour histogram": colour_histogram,
    "pixels, 16 × 16": pixels,
}


def probe_simple(tasks: Path) -> Accuracies:
    """Both probes of the simple features, as `vivi evaluate` does them with an encoder's."""
    found: Accuracies = {probe: {name: {} for name in SIMPLE} for probe in PROBES}
    for task in find_tasks(tasks, "v2", (), {}).tasks:
        for name, describe in SIMPLE.items():

            def embedded(examples: Examples, describe: Callable[[Tensor], Tensor] = describe) -> Tensor:
                images = [np.asarray(Image.open(str(path)).convert("RGB")) for path in examples.images]
                return describe(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2))

            found["linear"][name][task.name] = 100 * by_regression(task, embedded)[0]
            found["knn"][name][task.name] = 100 * by_neighbours(task, embedded, Neighbours())[0]
    return found


# --- one seed ---


def measure(seed: int, demos: Path) -> dict[str, Any]:
    """Runs the demo of a seed, and reads what it found."""
    out = demos / f"seed-{seed}"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "vivi", "demo", "--out", str(out), "--seed", str(seed)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    accuracies = probe_simple(out / "videos" / "tasks")
    for result in read_results(out / "results")[0]:
        accuracies[result.benchmark].setdefault(result.encoder, {})[result.task] = 100 * result.score.median
    retrieval = {}
    for name in ENCODERS[1:]:
        measured = [line for line in read_metrics(out / name) if "retrieval" in line]
        retrieval["untrained"], retrieval[name] = (100 * measured[place]["retrieval"] for place in (0, -1))
        retrieval["chance"] = 100 * measured[-1]["retrieval_chance"]
    times = {"seconds": round(time.monotonic() - began), "cpu_seconds": round(cpu)}
    return {"seed": seed, **times, "retrieval": retrieval, "accuracies": accuracies}


# --- the tables ---


def with_error(values: Sequence[float], sign: str = "") -> str:
    """Mean and standard error."""
    return f"{statistics.mean(values):{sign}.1f} ± {statistics.stdev(values) / len(values) ** 0.5:.1f}"


def means(seed: Mapping[str, Any], probe: str, name: str) -> float:
    return float(statistics.mean(seed["accuracies"][probe][name].values()))


def gains(seed: Mapping[str, Any], probe: str, name: str) -> float:
    return means(seed, probe, name) - means(seed, probe, "untrained")


def gain_error(seed: Mapping[str, Any], probe: str, name: str, images: int = 500) -> float:
    """Standard error of a gain on so many test images of each task, as if both encoders had seen different ones."""
    accuracies = [share / 100 for of in ("untrained", name) for share in seed["accuracies"][probe][of].values()]
    return float(100 * sum(share * (1 - share) / images for share in accuracies) ** 0.5 / len(TASKS))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def tables(seeds: Sequence[Mapping[str, Any]], reference: Mapping[str, float] | None) -> Iterator[str]:
    tasks = [*TASKS]
    chance = {task: 100 / len(classes) for task, classes in TASKS.items()}
    for probe, title in PROBES.items():
        rows = [["chance", *(f"{chance[task]:.1f}" for task in tasks), f"{statistics.mean(chance.values()):.1f}", ""]]
        for name in (*SIMPLE, *ENCODERS):
            by_task = [with_error([seed["accuracies"][probe][name][task] for seed in seeds]) for task in tasks]
            mean = with_error([means(seed, probe, name) for seed in seeds])
            trained = name in ENCODERS[1:]
            gain = with_error([gains(seed, probe, name) for seed in seeds], "+") if trained else ""
            rows.append([f"**{name}**" if name == "vivi" else name, *by_task, mean, f"**{gain}**" if gain else ""])
        if reference and probe == "linear":
            values = [reference[task] for task in tasks]
            rows.append(["with 4,000 labels", *(f"{value:.1f}" for value in (*values, statistics.mean(values))), ""])
        yield table([title, *tasks, "mean", "gain over untrained"], rows)
    head = ["seed", *(f"{name}, {probe}" for probe in ("linear", "kNN") for name in ENCODERS[1:]), "retrieval", "CPU"]
    rows = []
    for seed in seeds:
        found = [
            f"{gains(seed, probe, name):+.1f} ± {gain_error(seed, probe, name):.1f}"
            for probe in PROBES
            for name in ENCODERS[1:]
        ]
        retrieval = f"{seed['retrieval']['untrained']:.0f} → {seed['retrieval']['vivi']:.0f}"
        rows.append([str(seed["seed"]), *found, retrieval, f"{seed['cpu_seconds']} s"])
    yield table(head, rows)


@dataclass(frozen=True)
class FiveSeeds:
    """Runs the demo for five seeds, and writes the tables."""

    demos: Path | None = None
    """Folder for the demos; without it, nothing is run."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def run(self) -> None:
        (HERE / "results").mkdir(exist_ok=True)
        files = [HERE / "results" / f"seed-{seed}.json" for seed in self.seeds]
        for seed, file in zip(self.seeds, files, strict=True):
            if self.demos and not file.exists():
                file.write_text(json.dumps(measure(seed, self.demos), indent=1) + "\n")
        reference = HERE / "results" / "reference.json"
        labelled = json.loads(reference.read_text()) if reference.exists() else None
        text = "\n".join(tables([json.loads(file.read_text()) for file in files if file.exists()], labelled))
        page = HERE / "README.md"
        between = r"(?<=<!-- tables -->\n\n).*(?=\n<!-- end of tables -->)"
        page.write_text(re.sub(between, lambda _: text, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    tyro.cli(FiveSeeds).run()
