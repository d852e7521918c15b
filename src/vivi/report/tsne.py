"""t-SNE (van der Maaten and Hinton, 2008): points on a plane, such that neighbours among features stay neighbours.

For the few hundred frames of a page, in full: no trees, and the same features always give the same map.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEPS, EXAGGERATED = 600, 150  # in the first steps, attraction is 12 times stronger
Matrix = NDArray[np.float64]


def tsne(features: Matrix, perplexity: float = 6.0) -> Matrix:
    """Features (n, d) -> places (n, 2) between 0 and 1. Each has about `perplexity` neighbours."""
    n = len(features)
    centred = features - features.mean(axis=0)
    p = _affinities(_squared_distances(centred), min(perplexity, (n - 1) / 3))  # (n, n)
    p = np.maximum((p + p.T) / (2 * n), 1e-12)
    # It starts from the two principal components.
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    y = np.zeros((n, 2))
    y[:, : min(2, len(s))] = (u * s)[:, :2]
    y *= 1e-4 / (y[:, 0].std() or 1)
    velocity = np.zeros_like(y)
    for step in range(STEPS):
        early = step < EXAGGERATED
        closeness = 1 / (1 + _squared_distances(y))
        np.fill_diagonal(closeness, 0)
        q = np.maximum(closeness / closeness.sum(), 1e-12)
        pull = ((12 if early else 1) * p - q) * closeness  # (n, n)
        gradient = 4 * (pull.sum(axis=1, keepdims=True) * y - pull @ y)
        velocity = (0.5 if early else 0.8) * velocity - max(n / 12, 50) * gradient
        y = y + velocity
    low, high = y.min(axis=0), y.max(axis=0)
    return _apart((y - (low + high) / 2) / (max(high - low) or 1) + 0.5)


def _apart(places: Matrix, least: float = 0.022) -> Matrix:
    """Places between 0 and 1, moved a little where points would cover each other."""
    turns = np.arange(len(places))[:, None] + [0, np.pi / 2]
    places = places + 1e-3 * np.cos(turns)  # equal ones would not know where to go
    for _ in range(100):
        gaps = places[:, None] - places  # (n, n, 2)
        lengths = np.linalg.norm(gaps, axis=2, keepdims=True) + np.eye(len(places))[:, :, None]
        places = places + 0.3 * (gaps / lengths * (least - lengths).clip(min=0)).sum(axis=1)
    return places.clip(0, 1)


def _squared_distances(points: Matrix) -> Matrix:
    """(n, d) -> (n, n)"""
    squares = (points**2).sum(axis=1)
    distances: Matrix = (squares[:, None] + squares - 2 * points @ points.T).clip(min=0)
    return distances


def _affinities(distances: Matrix, perplexity: float) -> Matrix:
    """How likely each point is to choose each other one (n, n): Gaussians, as narrow as the perplexity asks for."""
    low, high = np.full(len(distances), -30.0), np.full(len(distances), 30.0)  # the logarithm of 1 / (2 variance)
    chances: Matrix = np.zeros_like(distances)
    shifted = distances.copy()
    np.fill_diagonal(shifted, np.inf)
    shifted -= shifted.min(axis=1, keepdims=True)
    for _ in range(60):
        middle = (low + high) / 2
        weights = np.exp(-shifted * np.exp(middle)[:, None])
        chances = weights / weights.sum(axis=1, keepdims=True)
        entropy = -(chances * np.log(np.maximum(chances, 1e-300))).sum(axis=1)
        too_wide = entropy > np.log(perplexity)
        low, high = np.where(too_wide, middle, low), np.where(too_wide, high, middle)
    return chances
