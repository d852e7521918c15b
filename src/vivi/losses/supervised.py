"""The supervised loss: name the class of a labelled image."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from vivi.losses.base import Loss, Measured, cross_entropy
from vivi.losses.layers import linear


class Supervised(Loss):
    """A linear classifier on the representation, and cross-entropy; every copy of an image counts."""

    label = "labels"
    metrics: ClassVar = {"supervised_accuracy": "label accuracy"}

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.head = linear(features, classes)

    def measure(self, h: Tensor, labels: Tensor | None = None) -> Measured:
        """h is (..., views, images, copies, features), labels (..., images)."""
        assert labels is not None
        logits = self.head(h)  # (..., views, images, copies, classes)
        loss, accuracy = cross_entropy(logits, labels[..., None, :, None].expand(logits.shape[:-1]), (-3, -2, -1))
        return loss, {"supervised_accuracy": accuracy}
