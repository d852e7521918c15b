"""vivi bench: runs a benchmark of the repository."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import vivi
from vivi.cli.command import Command
from vivi.runtime.errors import UserError


class Bench(Command):
    """Run a benchmark of the repository, beside other programs: vivi bench NAME --help."""


def run_benchmark(words: Sequence[str]) -> None:
    """`vivi bench NAME ...` is `python benchmarks/NAME.py ...` in a checkout of the repository."""
    folder = Path(vivi.__file__).parents[2] / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py") if "def main" in path.read_text())
    if not names:
        raise UserError("the benchmarks are part of the repository, not of the package: run this in a checkout")
    if not words or words[0] not in names:
        raise UserError(f"name a benchmark: vivi bench {{{','.join(names)}}} ...; vivi bench NAME --help says more")
    sys.argv = [f"vivi bench {words[0]}", *words[1:]]
    sys.path.insert(0, str(folder))
    runpy.run_path(str(folder / f"{words[0]}.py"), run_name="__main__")
