"""What tests of encoders ask of them: features, and the line with which one is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vivi.evaluate.encoders import Model, load_model
from vivi.runtime.errors import UserError


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def features(model: Model | nn.Module, images: Tensor) -> Tensor:
    backbone = model.backbone if isinstance(model, Model) else model.eval()
    with torch.no_grad():
        output: Tensor = backbone(images)
    return output


def line_of(*arguments: Any, **options: Any) -> str:
    """What load_model says when it refuses."""
    with pytest.raises(UserError) as caught:
        load_model(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
