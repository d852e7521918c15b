"""Pictures of a run: what the encoder sees, and the metrics as curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vivi.losses import Loss, Supervised
from vivi.runtime.storage import write_atomically
from vivi.train.metrics import read_metrics

_GAP = 4  # rows of white pixels between two videos


def picture_of_shots(shots: Tensor, shots_per_video: int) -> NDArray[np.uint8]:
    """The first shots of a core, (shots, frames, 3, size, size) in [-1, 1], or patches of images, with one dimension
    more."""
    if shots.ndim == 6:  # patches (images, 1, 9, 3, size, size): an image's are a row
        shots = shots[:, 0] / 2  # standardised: two deviations are white
    return grid(shots[:16], shots_per_video)


def picture_of_images(images: Tensor) -> NDArray[np.uint8]:
    """The first labelled images of a core, (images, copies, 3, size, size) in [-1, 1]."""
    images = images.flatten(0, 1)[:64]  # (images, 3, size, size)
    across = min(8, len(images))
    return grid(images[: len(images) // across * across].unflatten(0, (-1, across)))


def grid(frames: Tensor, shots_per_video: int = 1) -> NDArray[np.uint8]:
    """The frames of some shots, (shots, frames, 3, size, size) in [-1, 1], as one picture (height, width, 3).

    Each shot is a row; between the shots of one video and those of the next there is a thin white gap.
    """
    shots, columns, _, size, _ = frames.shape
    pixels = ((frames.detach().float().cpu() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    rows = pixels.permute(0, 3, 1, 4, 2).reshape(shots * size, columns * size, 3).numpy()
    videos = np.split(rows, range(shots_per_video * size, len(rows), shots_per_video * size))
    gap = np.full((_GAP, columns * size, 3), 255, np.uint8)
    return np.concatenate([part for video in videos for part in (gap, video)][1:])


def write_png(path: Path, picture: NDArray[np.uint8]) -> None:
    """Writes a picture (height, width, 3) as a whole; raises StorageError where it cannot."""
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "PNG")
    write_atomically(path, content.getvalue())


def draw_curves(run: Path, losses: Sequence[Loss]) -> None:
    """Writes curves.png into a run with these losses."""
    from matplotlib.figure import Figure  # here: it takes a second to load; and not pyplot, which keeps state

    pretext = [loss for loss in losses if not isinstance(loss, Supervised)]
    # Title of a panel, and the metrics in it, as far as the run has them.
    all_panels = [
        ("losses", [loss.name for loss in pretext]),
        ("pretext tasks", [metric for loss in pretext for metric in loss.metrics]),
        ("labels", ["supervised", *Supervised.metrics, "top1", "top5"]),
        (
            "held-out frames find their video (images: their class)",
            ["retrieval", "retrieval_train", "retrieval_chance"],
        ),
        ("collapse shows here", ["effective_rank"]),
    ]
    lines = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    logged = {name for line in lines for name in line}
    panels = [(title, names) for title, names in all_panels if logged & {*names}] or all_panels[:1]
    figure = Figure(figsize=(3.5 * len(panels), 3.2), layout="constrained")
    for axes, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in names:
            points = {line["step"]: line[name] for line in lines if line.get(name) is not None}
            if points:
                colour, style = ("grey", "dotted") if name.endswith("chance") else (None, "solid")
                axes.plot([*points], [*points.values()], label=name.replace("_", " "), color=colour, linestyle=style)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        if axes.get_ylim()[0] > 0:
            axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8, frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    write_atomically(run / "curves.png", content.getvalue())
