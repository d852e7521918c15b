"""The metrics of training runs over their steps, which static/curves.js draws, several runs over each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MOST_POINTS = 400  # of a line
TITLES = {
    "loss": "Total loss",
    "exemplar": "Exemplar loss",
    "triplet_violations": "Triplets that violate the margin",
    "infonce": "InfoNCE loss",
    "infonce_accuracy": "Next shot found among all",
    "retrieval": "Retrieval",
    "spread": "Spread of the features (0: all alike)",
    "effective_rank": "Dimensions that the features use",
    "top1": "Top-1 accuracy on test images",
    "top5": "Top-5 accuracy on test images",
}
_BESIDE = ("retrieval_chance", "retrieval_queries")  # part of the panel of retrieval
_FOLDED = ("gradient_norm", "learning_rate", "frames_per_second")
_LEFT_OUT = ("step", "seconds", *_BESIDE)


def run_names(runs: Sequence[Path]) -> list[str]:
    """The names of their folders; where several are called alike, with the folder that each is in."""
    paths = [run.resolve() for run in runs]
    names = [path.name for path in paths]
    return [path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}" for path in paths]


def curves(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """A panel for each metric that any of the runs has, those that are folded last."""
    from vivi.train.metrics import read_metrics

    logs = [read_metrics(run) if (run / "metrics.jsonl").exists() else [] for run in runs]
    metrics = dict.fromkeys(name for log in logs for values in log for name in values if name not in _LEFT_OUT)
    panels = []
    for name in sorted(metrics, key=_FOLDED.__contains__):
        lines = [{"run": run, **_line(log, name)} for run, log in enumerate(logs)]
        title = TITLES.get(name, name.replace("_", " ").capitalize())
        panels.append({"title": title, "folded": name in _FOLDED, "lines": [line for line in lines if line["steps"]]})
    return [panel for panel in panels if panel["lines"]]


def _line(log: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Steps and values; of retrieval also how it would be by chance, and over how many frames it is."""
    points = [(values["step"], values[name]) for values in log if _is_number(values.get(name))]
    size = -(-len(points) // MOST_POINTS) or 1
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    line: dict[str, Any] = {
        "steps": [part[-1][0] for part in parts],
        "values": [float(f"{sum(value for _, value in part) / len(part):.5g}") for part in parts],
    }
    last: dict[str, Any] = next((values for values in reversed(log) if name in values), {})
    for beside in _BESIDE if name == "retrieval" else ():
        if _is_number(last.get(beside)):
            line[beside.removeprefix("retrieval_")] = last[beside]
    return line


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
