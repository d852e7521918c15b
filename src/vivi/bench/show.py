"""What the benches found: as tables, and as JSON."""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vivi.machine import available_cores
from vivi.storage import write_atomically


def about_machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{name}, {available_cores()} CPU cores"


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def write_json(path: Path, found: dict[str, Any]) -> None:
    content = json.dumps({"command": shlex.join(["vivi", *sys.argv[1:]]), **_rounded(found)}, indent=1)
    write_atomically(path, content.encode() + b"\n")


def _rounded(value: Any) -> Any:
    """With six digits: the rest is noise."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def print_train(found: dict[str, Any], console: Console) -> None:
    table = _table("", "frames/s, as the encoder sees them", "of the encoder alone")
    alone = found["encoder_alone_per_second"]
    spread = f"{found['ratio']:.3f} ({found['ratio_least']:.3f} to {found['ratio_most']:.3f})"
    table.add_row("whole step", f"{found['frames_per_second']:,.0f}", spread)
    if found["work"]["two_passes"]:
        table.add_row("its first pass counted", "", f"{found['ratio_with_first_pass']:.3f}")
    table.add_row("encoder alone", f"{alone:,.0f}", "1")
    for name, rate in found["alone"].items():
        if not rate:  # there is no GPU
            continue
        table.add_row(name.replace("_", " "), f"{rate:,.0f}", f"{rate / alone:.2f}")
    for name, peer in found.get("peers", {}).items():
        rate, note = peer["frames_per_second"], peer["note"]
        table.add_row(name, f"{rate:,.0f}" if rate else note, f"{rate / alone:.3f}" if rate else "")
    console.print(table)
    said = [f"{found['seconds_per_step']:.3f} s a step, {found['days']:.2f} days for the recipe's steps"]
    if found["peak_gib"]:
        said.append(f"the device waits for pictures {100 * found['waiting']:.1f} % of the time")
        said.append(f"peak memory {found['peak_gib']:.1f} GiB")
    if found["cores_cost"] is not None:
        said.append(f"statistics within cores cost the encoder {100 * found['cores_cost']:.1f} %")
    console.print("; ".join(said), soft_wrap=True)


def print_loader(found: dict[str, Any], console: Console) -> None:
    table = _table("", "frames/s", "")
    for name, (rate, note) in found["rates"].items():
        table.add_row(name, f"{rate:,.0f}" if rate else "", note)
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number == 1 else "left")
    return table
