"""MATLAB files by scipy, whose exceptions for damaged ones are many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vivi.evaluate.originals.source import damaged, need_module


def read_matlab(path: Path, *names: str) -> list[NDArray[Any]]:
    """These variables of a file."""
    scipy = need_module("scipy.io", "scipy")
    try:
        variables = scipy.loadmat(path, variable_names=names)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # scipy's own, numpy's, zlib's: whatever the damage leads to
        raise damaged(path, error) from None
    for name in names:
        if name not in variables:
            raise damaged(path, f"it has no variable {name}")
    return [variables[name] for name in names]


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a file's variables, without reading them."""
    scipy = need_module("scipy.io", "scipy")
    try:
        return {name: shape for name, shape, _ in scipy.whosmat(path)}
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        raise damaged(path, error) from None
