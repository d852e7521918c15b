"""Probes: how far frozen features alone solve a task."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

_CHUNK = 1024  # test features compared with all training features at once


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int = 20,
    temperature: float = 0.07,
) -> float:
    """The share of test features whose nearest neighbours in training vote for their label.

    The `k` neighbours with the highest cosine similarity (all, if there are fewer) vote with weight
    exp(similarity / temperature); of labels with equal votes the smallest wins.
    """
    if len(train_features) != len(train_labels) or len(test_features) != len(test_labels):
        raise ValueError("there must be one label for each feature")
    if not len(train_features) or not len(test_features):
        raise ValueError("there must be at least one feature to train and one to test on")
    train = F.normalize(train_features.float(), dim=1)
    train_labels, test_labels = train_labels.to(train.device), test_labels.to(train.device)
    classes = int(train_labels.max()) + 1
    hits = 0
    for part, labels in zip(test_features.split(_CHUNK), test_labels.split(_CHUNK), strict=True):
        similarity = F.normalize(part.to(train.device).float(), dim=1) @ train.T  # (part, train)
        nearest, neighbours = similarity.topk(min(k, len(train)), dim=1)  # (part, k)
        # Relative to the nearest, which changes no vote's rank and keeps exp in range at any temperature.
        weights = ((nearest - nearest[:, :1]) / temperature).exp()
        votes = weights.new_zeros(len(part), classes).scatter_add_(1, train_labels[neighbours], weights)
        hits += int((votes.argmax(dim=1) == labels).sum())
    return hits / len(test_features)
