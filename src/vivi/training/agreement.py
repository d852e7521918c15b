"""Processes that train a run together must mean the same: one recipe, one set of data, one version of the software.

Each of them makes its part of every batch by itself. Were their recipes or data not the same, nothing would stop, and
the encoder would be wrong.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vivi.errors import UserError
from vivi.recipe_files import flat
from vivi.recipes import Recipe
from vivi.training.data import IN_WORDS, Data
from vivi.training.distributed import World

_PACKAGES = ("vivi", "torch", "timm")


@dataclass(frozen=True)
class Claim:
    """What one process is about to train."""

    host: str
    versions: dict[str, str]
    recipe: dict[str, Any]  # every field by its dotted name
    places: dict[str, str]
    fingerprints: dict[str, str]


def check_agreement(world: World, recipe: Recipe, data: Data) -> None:
    """Ends all processes where one of them would train something else than the first."""
    if world.size == 1:
        return
    claims = world.gather_objects(world.together(lambda: _claim(recipe, data)))
    world.together(lambda: compare(claims))


def _claim(recipe: Recipe, data: Data) -> Claim:
    versions = {name: _version(name) for name in _PACKAGES}
    return Claim(socket.gethostname(), versions, flat(recipe), data.places(), data.fingerprints())


def compare(claims: Sequence[Claim]) -> None:
    """Raises for the first claim that differs from that of process 0."""
    first = claims[0]
    for number, other in enumerate(claims):
        if difference := _difference(first, other):
            raise UserError(
                f"process {number} of {len(claims)}, on {other.host}, {difference} as process 0 on {first.host}: "
                "give all of them the same"
            )


def _difference(first: Claim, other: Claim) -> str:
    """What the other has, and what it has not; nothing if they agree."""
    for name, value in first.versions.items():
        if other.versions.get(name) != value:
            return f"has {name} {other.versions.get(name)}, not {value}"
    for name, value in first.recipe.items():
        if other.recipe[name] != value:
            return f"has --{name.replace('_', '-')} {other.recipe[name]}, not {value}"
    for name, (what, place) in IN_WORDS.items():
        if other.fingerprints.get(name) != first.fingerprints.get(name):
            return f"learns from {what} ({other.places.get(place)}), not the same ({first.places.get(place)})"
    return ""


def _version(name: str) -> str:
    """Without what stands after a +: builds for several GPUs are of one version."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:  # run from its source
        return "of unknown version"
