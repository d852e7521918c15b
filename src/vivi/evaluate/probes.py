"""Probes: how far frozen features alone solve a task."""

from __future__ import annotations

from collections.abc import Sequence

import torch
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


# Strengths of the regularisation that are tried, relative to the mean square of a feature.
STRENGTHS = tuple(10.0**power for power in range(-6, 3))


def linear_probe(
    train: Tensor, labels: Tensor, tests: Sequence[Tensor], classes: int, strengths: Sequence[float] = STRENGTHS
) -> list[list[Tensor]]:
    """Logits of ridge regression from features (n, d) to one-hot labels, in closed form: for each strength, those of
    each test set.

    Weights W minimise |X W − Y|² / n + strength · |W|² · s, where X and Y have their mean over the training images
    taken away, and s is the mean square of the entries of X. All strengths share one decomposition.
    """
    mean = train.double().mean(dim=0)
    x = train.double() - mean
    targets = F.one_hot(labels.to(x.device), classes).double()
    y = targets - targets.mean(dim=0)
    scale = len(x) * x.square().mean().clamp_min(1e-30)
    left, singular, right = torch.linalg.svd(x, full_matrices=False)  # x = left · singular · right
    projected = left.T @ y  # (rank, classes)
    turned = [(test.double().to(x.device) - mean) @ right.T for test in tests]  # (m, rank)
    logits = []
    for strength in strengths:
        shrunk = (singular / (singular.square() + strength * scale))[:, None] * projected
        logits.append([part @ shrunk + targets.mean(dim=0) for part in turned])
    return logits


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) == labels.to(logits.device)).double().mean())
