"""The metrics of a run as one picture: is it learning?"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivi.storage import write_atomically
from vivi.training.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Title of a panel, and the metrics in it, as far as the run has them.
PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("losses", ("exemplar", "rotation", "jigsaw", "location", "contrastive", "infonce", "order", "shuffle")),
    (
        "pretext tasks",
        (
            *("triplet_violations", "rotation_accuracy", "jigsaw_accuracy", "location_accuracy"),
            *("contrastive_accuracy", "infonce_accuracy", "order_accuracy"),
        ),
    ),
    ("labels", ("supervised", "supervised_accuracy", "top1", "top5")),
    ("held-out frames find their video (images: their class)", ("retrieval", "retrieval_chance")),
    ("collapse shows here", ("effective_rank",)),
)


def draw_curves(run: Path) -> None:
    """Writes curves.png into the run."""
    from matplotlib.figure import Figure  # here: it takes a second to load; and not pyplot, which keeps state

    lines = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    logged = {name for line in lines for name in line}
    panels = [(title, names) for title, names in PANELS if logged & {*names}] or [PANELS[0]]
    figure = Figure(figsize=(3.5 * len(panels), 3.2), layout="constrained")
    for axes, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, title, names, lines)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    write_atomically(run / "curves.png", content.getvalue())


def _draw(axes: Axes, title: str, names: Sequence[str], lines: Sequence[dict[str, Any]]) -> None:
    for name in names:
        points = {line["step"]: line[name] for line in lines if line.get(name) is not None}
        if points:
            colour, style = ("grey", "dotted") if name.endswith("chance") else (None, "solid")
            axes.plot([*points], [*points.values()], label=name.replace("_", " "), color=colour, linestyle=style)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize=8, frameon=False)
