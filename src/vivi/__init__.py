"""VIVI: image representations learned from unlabelled video."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torchvision.transforms import v2

__version__ = "0.1.0"
__all__ = ["load_encoder", "losses", "model"]


def __getattr__(name: str) -> Any:
    """`vivi.losses` and `vivi.model`, imported when they are asked for: `import vivi` costs nothing."""
    if name in ("losses", "model"):
        return importlib.import_module(f"vivi.{name}")
    raise AttributeError(f"module 'vivi' has no attribute '{name}'")


def load_encoder(path: Path | str) -> tuple[nn.Module, v2.Transform]:
    """The encoder of a run, as a plain timm model in eval mode, and the transform from images to its input."""
    from vivi.model.encoder import load_encoder

    return load_encoder(path)
