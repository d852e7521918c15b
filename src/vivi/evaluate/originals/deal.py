"""Splits that we deal ourselves where a data set has none: always the same for the same number of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SEED = 1910


def sizes(count: int, shares: Sequence[int]) -> list[int]:
    """How many of `count` go to each share: shares (9, 1) of 50000 are 45000 and 5000."""
    ends = [count * sum(shares[: index + 1]) // sum(shares) for index in range(len(shares))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def deal(count: int, shares: Sequence[int]) -> list[list[int]]:
    """The indices 0 to count - 1, shuffled and dealt by the shares; each part in ascending order."""
    # numpy promises never to change what RandomState draws, so that a split outlives the numpy it was made with.
    shuffled = np.random.RandomState(_SEED).permutation(count)
    ends = np.cumsum(sizes(count, shares))[:-1]
    return [np.sort(part).tolist() for part in np.split(shuffled, ends)]
