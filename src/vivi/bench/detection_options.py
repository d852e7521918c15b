"""How detectors are measured, as the command line is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vivi.bench.options import check_file
from vivi.detection.settings import Norm
from vivi.errors import check_ranges


@dataclass(frozen=True)
class DetectionBenchOptions:
    """Which detector, on what images, how long."""

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
