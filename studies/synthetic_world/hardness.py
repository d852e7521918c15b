"""How hard are the synthesized tasks? Chance, colour histograms, an untrained network, and a trained one.

    python studies/synthetic_world/hardness.py [--reference-images 4000] [--out studies/synthetic_world/hardness.md]

The probes see the tasks' own 1000 training images and choose their setting on the 200 of them that are for
validation. The reference is one small network trained with labels on more images of all five tasks: it shows
that the labels can be read off the pictures. All of it runs on two idle CPU cores in about ten minutes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from vivi.demo.synthesize import SynthesizeSettings, synthesize
from vivi.demo.tasks import TASKS

SIDE = 64  # what the reference network sees
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
NEIGHBOURS = (1.0, 5.0, 20.0)


def load(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, side, side) uint8 and labels (n) of a task's list."""
    images, labels = [], []
    for line in (folder / f"{split}.txt").read_text().splitlines():
        name, label = line.rsplit(" ", 1)
        images.append(np.asarray(Image.open(folder / name)).transpose(2, 0, 1))
        labels.append(int(label))
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


def histogram(images: Tensor) -> Tensor:
    """8 x 8 x 8 colour histograms, square-rooted."""
    bins = (images.long() // 32).flatten(2)  # (n, 3, pixels)
    flat = bins[:, 0] * 64 + bins[:, 1] * 8 + bins[:, 2]
    counts = torch.zeros(len(images), 512).scatter_add_(1, flat, torch.ones(flat.shape))
    return (counts / flat.shape[1]).sqrt()


def untrained(images: Tensor) -> Tensor:
    """Pooled features of a ResNet-18 with random weights, its batch norms set to this data's statistics."""
    torch.manual_seed(0)
    model = timm.create_model("resnet18", pretrained=False, num_classes=0)
    batches = [(batch.float() / 255 - 0.5) / 0.25 for batch in images.split(100)]
    with torch.inference_mode():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # plain averages
        for batch in batches[:4]:
            model(batch)
        model.eval()
        return torch.cat([model(batch) for batch in batches])


def logistic(train: Tensor, labels: Tensor, test: Tensor, classes: int, strength: float) -> Tensor:
    """Predictions of L2-regularised logistic regression on standardised features."""
    mean, deviation = train.mean(0), train.std(0) + 1e-3
    train, test = (train - mean) / deviation, (test - mean) / deviation
    weight = torch.zeros(classes, train.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = functional.cross_entropy(train @ weight.T + bias, labels) + strength * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return (test @ weight.T + bias).argmax(1).detach()


def nearest(train: Tensor, labels: Tensor, test: Tensor, classes: int, neighbours: float) -> Tensor:
    """Predictions by vote of the most similar training images (cosine)."""
    similarity = functional.normalize(test, dim=1) @ functional.normalize(train, dim=1).T
    votes = functional.one_hot(labels[similarity.topk(int(neighbours)).indices], classes).sum(1)
    return votes.argmax(1)


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    return 100 * (predicted == labels).float().mean().item()


def probe(features: dict[str, Tensor], labels: dict[str, Tensor], classes: int) -> dict[str, float]:
    """Test accuracy of both probes, their settings chosen on val200, then fitted on all 1000."""
    both = torch.cat([features["train800"], features["val200"]])
    both_labels = torch.cat([labels["train800"], labels["val200"]])
    scores = {}
    for name, method, settings in (("linear", logistic, STRENGTHS), ("kNN", nearest, NEIGHBOURS)):
        tried = {
            setting: accuracy(
                method(features["train800"], labels["train800"], features["val200"], classes, setting),
                labels["val200"],
            )
            for setting in settings
        }
        best = max(tried, key=lambda setting: tried[setting])
        predicted = method(both, both_labels, features["test"], classes, best)
        scores[name] = accuracy(predicted, labels["test"])
    return scores


class Reference(nn.Module):
    """A small convolutional network with one head for each task."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 32, 64, 64, 128, 128, 192)
        layers: list[nn.Module] = []
        for k, (before, after) in enumerate(pairwise(widths)):
            stride = 2 - k % 2
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3))
        self.heads = nn.ModuleList(nn.Linear(192 * (SIDE // 16) ** 2, len(names)) for names in TASKS.values())
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images (n, 3, SIDE, SIDE) uint8 to the logits of every task."""
        pixels = (images.float() / 255 - 0.5) / 0.25
        features = self.trunk(pixels.contiguous(memory_format=torch.channels_last))
        return [head(features) for head in self.heads]


def shrink(images: Tensor) -> Tensor:
    batches = [functional.interpolate(batch.float(), (SIDE, SIDE), mode="area") for batch in images.split(500)]
    return torch.cat([batch.round().byte() for batch in batches])


def train_reference(folder: Path, epochs: int) -> Reference:
    """Train one network on the images of all tasks; each image has the label of its own task only."""
    torch.manual_seed(0)
    model = Reference()
    parts = [load(folder / task, "train800") for task in TASKS]
    images = torch.cat([shrink(part[0]) for part in parts])
    labels = torch.cat([part[1] for part in parts])
    tasks = torch.cat([torch.full_like(part[1], k) for k, part in enumerate(parts)])
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    steps = len(images) // 64
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps * epochs)
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.randperm(len(images))[: steps * 64].split(64):
            optimiser.zero_grad()
            loss = torch.zeros(())
            for k, logits in enumerate(model(images[batch])):
                own = tasks[batch] == k
                loss = loss + functional.cross_entropy(logits[own], labels[batch][own], reduction="sum") / 64
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item() / steps
        print(f"reference: epoch {epoch + 1} of {epochs}, loss {total:.3f}", flush=True)
    return model.eval()


def study(folder: Path, reference_images: int, epochs: int) -> str:
    """Generate the tasks, run everything, and lay the accuracies out as a table."""
    settings = SynthesizeSettings(videos=0)
    synthesize(folder / "tasks", settings)
    if reference_images:
        # Another seed: none of these images is in the tasks.
        more = replace(settings, seed=1, task_train=reference_images, task_val=1, task_test=1)
        synthesize(folder / "reference", more)
        model = train_reference(folder / "reference/tasks", epochs)
    columns = ("chance", "histogram linear", "histogram kNN", "untrained linear", "untrained kNN", "trained")
    rows = ["| task | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for task, names in TASKS.items():
        started = time.time()
        data = {split: load(folder / "tasks/tasks" / task, split) for split in ("train800", "val200", "test")}
        labels = {split: pair[1] for split, pair in data.items()}
        scores = [100 / len(names)]
        for describe in (histogram, untrained):
            features = {split: describe(pair[0]) for split, pair in data.items()}
            scores += probe(features, labels, len(names)).values()
        if reference_images:
            with torch.inference_mode():
                logits = model(shrink(data["test"][0]))[list(TASKS).index(task)]
            scores.append(accuracy(logits.argmax(1), labels["test"]))
        rows.append(f"| {task} | " + " | ".join(f"{score:.1f}" for score in scores) + " |")
        print(rows[-1], f"({time.time() - started:.0f} s)", flush=True)
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference-images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--data", type=Path, help="keep the images here for the next time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        table = study(options.data or Path(folder), options.reference_images, options.epochs)
    print(table)
    if options.out:
        options.out.write_text(
            "# How hard the synthesized tasks are\n\n"
            "Test accuracy in percent, printed by `python studies/synthetic_world/hardness.py "
            f"--threads {options.threads} --reference-images {options.reference_images} "
            f"--epochs {options.epochs}`. One run, one seed; 500 test images, so about ±4 points.\n"
            "Probes: 1000 labelled images. Trained: one small convolutional network, with labels, on "
            f"{options.reference_images} images of each task at {SIDE} px.\n\n" + table
        )


if __name__ == "__main__":
    main()
