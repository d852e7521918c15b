"""What the benchmarks share: how they start, what they are told, and how they show what they found."""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from vivi.runtime.console import SafeConsole
from vivi.runtime.distributed import World, join_world
from vivi.runtime.errors import UserError
from vivi.runtime.machine import available_cores
from vivi.runtime.storage import write_atomically


def start(main: Callable[[], None]) -> None:
    """Runs a script. What is wrong is said in one line, as the command `vivi` says it."""
    try:
        main()
    except UserError as error:
        line = " ".join(str(error).splitlines())
        SafeConsole(stderr=True).print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        SafeConsole(stderr=True).print("stopped")
        sys.exit(130)


def command() -> str:
    """Under which name this script is started."""
    return f"vivi bench {Path(sys.argv[0]).stem}"


def check_file(flag: str, path: Path | None) -> None:
    """Raises, before anything is measured, where a file cannot be written."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UserError(
            f"{flag} {path} cannot be written: " + ("it is a folder" if path.is_dir() else "no such folder")
        )


@contextmanager
def one_process(device: str) -> Iterator[World]:
    """This process alone, on a device."""
    with join_world(device) as world:
        if world.size > 1:
            raise UserError("a benchmark measures one process: start it without torchrun")
        yield world


def now(device: torch.device) -> float:
    """Seconds, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def about_machine(device: torch.device | None = None) -> str:
    on_gpu = device is not None and device.type == "cuda"
    return f"{torch.cuda.get_device_name(device) if on_gpu else platform.machine()}, {available_cores()} CPU cores"


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def spread(values: Iterable[float], digits: int = 2) -> str:
    """The median, and the least and the largest value."""
    values = list(values)
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def table(*columns: str, title: str | None = None) -> Table:
    """The first column holds names, and those without a title hold notes; the others hold numbers."""
    made = Table(title=title)
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number and column else "left")
    return made


def write_json(path: Path | None, found: dict[str, Any]) -> None:
    """Writes what was found, and the command that found it, if there is a file to write to."""
    if path is not None:
        about = {"command": f"{command()} {shlex.join(sys.argv[1:])}"}
        content = json.dumps({**about, **_rounded(found)}, indent=1)
        write_atomically(path, content.encode() + b"\n")


def _rounded(value: Any) -> Any:
    """With six digits: the rest is noise."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
