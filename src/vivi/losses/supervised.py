"""The supervised loss: name the class of a labelled image."""

from __future__ import annotations

from torch import Tensor, nn

from vivi.model.heads import linear, precise


class Supervised(nn.Module):
    """A linear classifier on the representation, and cross-entropy; every copy of an image counts."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.head = linear(features, classes)

    def forward(self, h: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """h (cores, copies, images, augmented, d), labels (cores, images)."""
        scores = precise(self.head(h)).log_softmax(-1)  # (cores, copies, images, augmented, classes)
        truth = labels[:, None, :, None].expand(scores.shape[:-1])
        loss = -scores.gather(-1, truth.unsqueeze(-1)).squeeze(-1).mean((1, 2, 3))
        accuracy = (scores.argmax(-1) == truth).to(scores.dtype).mean((1, 2, 3))
        return loss, {"supervised_accuracy": accuracy}
