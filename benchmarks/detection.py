"""Our detector beside torchvision's own, in training, in one run: is an encoder of vivi any slower as a backbone?

    vivi bench detection --encoder runs/vivi-ex4

Theirs is retinanet_resnet50_fpn as torchvision makes it without weights: plain batch norm, all layers trained, as in
ours. (With weights it freezes batch norm, the stem and the first stage, and so leaves out work that ours does.
`--norm frozen` freezes the norms of both, and nothing else.) It gets its images as floats, as it wants them, ours as
bytes; and it runs in the memory format in which it is faster. Both have the same images, boxes and optimiser:
forward, backward and update, in turn, several rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
import tyro
from common import about_machine, check_file, command, median, now, one_process, start, table, write_json
from rich.console import Console
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet, retinanet_resnet50_fpn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from vivi.evaluate.detection.batches import Target
from vivi.evaluate.detection.network import Detector
from vivi.evaluate.detection.settings import Norm, Tuned
from vivi.evaluate.encoders import load_model
from vivi.runtime.console import SafeConsole
from vivi.runtime.errors import check_ranges

FORMATS = {"default": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class DetectionOptions:
    """Measure training steps of RetinaNet on an encoder beside torchvision's own, on random images."""

    encoder: str = "untrained:resnetv2_50"
    """A run's folder, timm:NAME or untrained:NAME."""
    height: int = 800
    """Of the images, in pixels."""
    width: int = 1333
    """Of the images, in pixels."""
    batch: int = 16
    """Images of a step."""
    boxes: int = 10
    """Objects in each image."""
    classes: int = 91
    """Kinds of objects; torchvision counts 91 for COCO."""
    norm: Norm = "synchronised"
    """Batch norm in training, or frozen: in both detectors."""
    measure: int = 20
    """Steps of each round."""
    rounds: int = 3
    """Both detectors are measured in turn, so many times."""
    warm_up: int = 5
    """Steps of each before the first round."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: a GPU if there is one. A GPU computes in bfloat16, a CPU in float32."""
    json: Path | None = None
    """Also write the figures to this file."""

    def check(self) -> None:
        whole, side = (1, 10**6), (32, 10**4)
        check_ranges(self, {"height": side, "width": side, "batch": whole, "boxes": (0, 1000), "classes": whole})
        check_ranges(self, {"measure": whole, "rounds": whole, "warm_up": whole})
        check_file("--json", self.json)


@dataclass(frozen=True)
class Round:
    """Images a second."""

    ours: float
    theirs: float


class Trained:
    """A detector in training on one batch that lies on the device."""

    def __init__(
        self, detector: nn.Module, losses: Callable[[], dict[str, Tensor]], images: int, device: torch.device
    ) -> None:
        self.detector, self.losses, self.images, self.device = detector, losses, images, device
        self.parameters = [parameter for parameter in detector.parameters() if parameter.requires_grad]
        self.trained = sum(parameter.numel() for parameter in self.parameters)
        self.peak = 0.0  # GiB, with the weights of the other detector
        self.start()

    def start(self, layout: torch.memory_format = torch.preserve_format) -> None:
        """With a new optimiser, as the old one's momenta lie in memory as the weights did."""
        if layout is not torch.preserve_format:
            self.detector.to(memory_format=layout)
        fused = self.device.type == "cuda"
        self.optimiser = torch.optim.SGD(self.parameters, lr=1e-4, momentum=0.9, weight_decay=1e-4, fused=fused)

    def train(self, steps: int) -> float:
        """Images a second over so many steps."""
        began = now(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        for _ in range(steps):
            self.optimiser.zero_grad(set_to_none=True)
            torch.stack(list(self.losses().values())).sum().backward()
            self.optimiser.step()
        seconds = now(self.device) - began
        if self.device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self.device) / 2**30
        return steps * self.images / seconds


def bench_detection(options: DetectionOptions, console: Console) -> dict[str, Any]:
    """Measures, prints and returns what it found."""
    options.check()
    with one_process(options.device) as world:
        device = world.device
        images, targets = random_batch(options, device)
        console.print(
            f"{options.batch} images of {options.height} × {options.width} px, {options.classes} classes, on "
            f"{about_machine(device)}; warming up ...",
            soft_wrap=True,
        )
        ours = _ours(options, device, images, targets)
        ours.train(options.warm_up)
        theirs = _theirs(options, device, images, targets)
        formats = _formats(theirs, options)
        rounds = []
        for number in range(options.rounds):
            one = Round(ours.train(options.measure), theirs.train(options.measure))
            rounds.append(one)
            console.print(
                f"round {number + 1}: {one.ours:.2f} and {one.theirs:.2f} images/s: {one.ours / one.theirs:.3f}"
            )
    found = {
        "encoder": options.encoder,
        "options": {name: value for name, value in asdict(options).items() if name != "json"},
        "machine": about_machine(device),
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
        "precision": str(_precision(device)).removeprefix("torch."),
        "memory_formats_of_theirs": formats,
        "rounds": [asdict(one) for one in rounds],
        "trained_parameters": {"ours": ours.trained, "theirs": theirs.trained},
        "peak_gib": {"ours": ours.peak, "theirs": theirs.peak},
        **summary(rounds),
    }
    _print(found, console)
    write_json(options.json, found)
    return found


def _precision(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def random_batch(options: DetectionOptions, device: torch.device) -> tuple[list[Tensor], list[Target]]:
    """Images as uint8, and boxes between a thirtieth and a half of their sides: the same ones every time."""
    seeded = torch.Generator().manual_seed(0)
    sides = torch.tensor([options.width, options.height])
    images, targets = [], []
    for _ in range(options.batch):
        image = torch.randint(0, 256, (3, options.height, options.width), dtype=torch.uint8, generator=seeded)
        shares = 1 / 30 + (1 / 2 - 1 / 30) * torch.rand(options.boxes, 2, generator=seeded)
        corners = (1 - shares) * torch.rand(options.boxes, 2, generator=seeded)
        boxes = torch.cat([corners * sides, (corners + shares) * sides], dim=1)
        labels = torch.randint(0, options.classes, (options.boxes,), generator=seeded)
        images.append(image.to(device))
        targets.append({"boxes": boxes.to(device), "labels": labels.to(device)})
    return images, targets


def _ours(options: DetectionOptions, device: torch.device, images: list[Tensor], targets: list[Target]) -> Trained:
    min_size, max_size = sorted((options.height, options.width))
    tuned = Tuned(norm=options.norm, min_size=min_size, max_size=max_size)
    detector = Detector(load_model(options.encoder), options.classes, tuned)
    detector.to(device).precision = _precision(device)
    return Trained(detector, lambda: detector(images, targets), options.batch, device)


def _theirs(options: DetectionOptions, device: torch.device, images: list[Tensor], targets: list[Target]) -> Trained:
    detector = torchvision_detector(options).to(device).train()
    floats, precision = [image / 255 for image in images], _precision(device)

    def losses() -> dict[str, Tensor]:
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            found: dict[str, Tensor] = detector(floats, targets)
        return found

    return Trained(detector, losses, options.batch, device)


def torchvision_detector(options: DetectionOptions) -> nn.Module:
    """Its retinanet_resnet50_fpn with all layers trained, for images of this size."""
    sizes = dict(zip(("min_size", "max_size"), sorted((options.height, options.width)), strict=True))
    detector: nn.Module
    if options.norm == "synchronised":
        detector = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=options.classes, **sizes)
        return detector
    # As it is made with weights, but for the layers that it freezes.
    backbone = resnet_fpn_backbone(
        backbone_name="resnet50",
        weights=None,
        norm_layer=FrozenBatchNorm2d,
        trainable_layers=5,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    detector = RetinaNet(backbone, options.classes, **sizes)
    return detector


def _formats(theirs: Trained, options: DetectionOptions) -> dict[str, float]:
    """Images a second in each memory format; the faster one is kept."""
    rates = {}
    for name, layout in FORMATS.items():
        theirs.start(layout)
        theirs.train(options.warm_up)
        rates[name] = theirs.train(options.measure)
    theirs.start(FORMATS[max(rates, key=lambda name: rates[name])])
    theirs.train(options.warm_up)
    return rates


def summary(rounds: list[Round]) -> dict[str, float]:
    """Medians over the rounds, and ratios of each round's own figures."""
    ratios = [one.ours / one.theirs for one in rounds]
    return {
        "images_per_second": median(one.ours for one in rounds),
        "theirs_per_second": median(one.theirs for one in rounds),
        "ratio": median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
    }


def _print(found: dict[str, Any], console: Console) -> None:
    shown = table("", "images/s", "of torchvision's", "peak memory")
    spread = f"{found['ratio']:.3f} ({found['ratio_least']:.3f} to {found['ratio_most']:.3f})"
    peaks = {name: f"{peak:.1f} GiB" if peak else "" for name, peak in found["peak_gib"].items()}
    shown.add_row(found["encoder"], f"{found['images_per_second']:.2f}", spread, peaks["ours"])
    shown.add_row("torchvision's ResNet-50", f"{found['theirs_per_second']:.2f}", "1", peaks["theirs"])
    console.print(shown)


def main() -> None:
    bench_detection(tyro.cli(DetectionOptions, prog=command()), SafeConsole())


if __name__ == "__main__":
    start(main)
