"""Can the labels be read off the images? One small network learns all tasks of another world with 4,000 labels each,
at 64 px, and is tested on those of seed 0.

    python studies/synthetic_world/reference.py --folder IMAGES

Two idle cores take about ten minutes. It writes results/reference.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import tyro
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from vivi.demo.demo import WORLD
from vivi.demo.synthesize import SynthesizeSettings, synthesize
from vivi.demo.tasks import TASKS

SIDE = 64
WIDTHS = (3, 32, 32, 64, 64, 128, 128, 192)


class Network(nn.Module):
    """A small convolutional network with one head for each task."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k, (before, after) in enumerate(pairwise(WIDTHS)):
            layers += [nn.Conv2d(before, after, 3, 2 - k % 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3))
        self.heads = nn.ModuleList(nn.Linear(WIDTHS[-1] * (SIDE // 16) ** 2, len(names)) for names in TASKS.values())

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images (n, 3, SIDE, SIDE) uint8 to the logits of every task."""
        features = self.trunk((images.float() / 255 - 0.5) / 0.25)
        return [head(features) for head in self.heads]


def load(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, SIDE, SIDE) uint8 and labels (n) of a task's list."""
    lines = [line.rsplit(" ", 1) for line in (folder / f"{split}.txt").read_text().splitlines()]
    images = [np.asarray(Image.open(folder / name).resize((SIDE, SIDE), Image.Resampling.BOX)) for name, _ in lines]
    labels = torch.tensor([int(label) for _, label in lines])
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), labels


def train(tasks: Path, epochs: int) -> Network:
    """Each image has the label of its own task only."""
    torch.manual_seed(0)
    model = Network()
    parts = [load(tasks / task, "train800") for task in TASKS]
    images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    of_task = torch.arange(len(TASKS)).repeat_interleave(len(labels) // len(TASKS))
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    steps = len(images) // 64
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps * epochs)
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(images))[: steps * 64].split(64):
            optimiser.zero_grad()
            loss = torch.zeros(())
            for k, logits in enumerate(model(images[batch])):
                own = of_task[batch] == k
                loss = loss + F.cross_entropy(logits[own], labels[batch][own], reduction="sum") / 64
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch} of {epochs}, loss {loss.item():.3f}", flush=True)
    return model.eval()


@dataclass(frozen=True)
class Reference:
    """Trains with labels and tests."""

    folder: Path
    """Folder for the images."""
    images: int = 4000
    epochs: int = 6

    def run(self) -> None:
        settings = SynthesizeSettings(videos=0, seed=1000, task_train=self.images, task_val=1, task_test=1)
        synthesize(self.folder / "training", settings, Console())
        synthesize(self.folder / "test", SynthesizeSettings(**{**vars(WORLD), "videos": 0}), Console())
        model = train(self.folder / "training" / "tasks", self.epochs)
        accuracies = {}
        for k, task in enumerate(TASKS):
            images, labels = load(self.folder / "test" / "tasks" / task, "test")
            with torch.inference_mode():
                logits = torch.cat([model(part)[k] for part in images.split(100)])
            accuracies[task] = round(100 * (logits.argmax(1) == labels).float().mean().item(), 1)
        path = Path(__file__).parent / "results" / "reference.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(accuracies, indent=1) + "\n")
        print(accuracies)


if __name__ == "__main__":
    tyro.cli(Reference).run()
