"""vivi doctor: what this machine has and lacks, and what to do about it."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from tyro.conf import Positional, arg

import vivi
from vivi.cli.command import Command
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.machine import available_cores, available_memory

GB = 10**9
# Of each package, the extra that brings it and the command that wants it.
EXTRAS = {
    "ray": ("ray", "vivi prepare --engine ray"),
    "onnxruntime": ("export", "vivi export --to onnx"),
    "wandb": ("wandb", "vivi train --log wandb"),
    "mlflow-skinny": ("mlflow", "vivi train --log mlflow"),
}
# Decoders by the names that FFmpeg has for them; any of a line will do. Its own av1 needs a GPU.
DECODERS = {
    "H.264": ("h264",),
    "HEVC": ("hevc",),
    "VP8": ("vp8",),
    "VP9": ("vp9",),
    "AV1": ("libdav1d", "libaom-av1", "libgav1"),
    "MPEG-4": ("mpeg4",),
    "MPEG-2": ("mpeg2video",),
    "ProRes": ("prores",),
    "DNxHD": ("dnxhd",),
    "Motion JPEG": ("mjpeg",),
    "WMV": ("wmv3",),
    "Theora": ("theora",),
    "VVC": ("vvc",),
}
_DISK_BLOCK, _DISK_BLOCKS, _DISK_SECONDS = 4 << 20, 64, 1.5
_SLOW_DISK = 50e6  # bytes a second: less than frames of a fast GPU need


State = Literal["ok", "optional", "could be better", "missing"]  # missing: vivi does not work without it


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Doctor(Command):
    """Say what this machine has and lacks, and what to do about it."""

    examples: ClassVar = ("vivi doctor", "vivi doctor /disk   # where the videos and the corpus are to lie")

    folder: Annotated[Positional[Path], arg(metavar="FOLDER")] = Path()
    """Where to measure the disk; default: here."""

    @property
    def only_prints(self) -> bool:
        return True

    def run(self, console: Console) -> list[dict[str, Any]]:
        checks: list[Callable[[], Finding]] = [python, pytorch, gpu, triton, video, jpeg, cores, memory]
        found = [*map(_safely, [*checks, shared_memory]), disk(self.folder), _safely(hub), *extras()]
        table = Table(Column(), Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False)
        signs = {"ok": ("✓", "green"), "optional": ("·", "dim")}
        signs |= {"could be better": ("–", "yellow"), "missing": ("✗", "red")}
        for one in found:
            sign, style = signs[one.state]
            table.add_row(Text(sign, style), one.what, one.found)
            if one.advice:
                table.add_row("", "", Text(f"→ {one.advice}", style))
        console.print(table)
        missing = [one.what for one in found if one.state == "missing"]
        if missing:
            raise UserError(f"vivi does not work here without {', '.join(missing)}; the lines above say what to do")
        better = sum(one.state == "could be better" for one in found)
        console.print(f"all that vivi needs is there; what could be better: {better}")
        return [asdict(one) for one in found]


def _safely(check: Callable[[], Finding]) -> Finding:
    """The finding, also where a package cannot even be imported."""
    try:
        return check()
    except Exception as error:
        why, advice = f"{type(error).__name__}: {first_line(error)}", "pip install --force-reinstall vivi-video"
        return Finding(check.__name__, "missing" if check in NEEDED else "could be better", why, advice)


def python() -> Finding:
    return Finding("Python", "ok", f"{sys.version.split()[0]}, vivi {vivi.__version__}")


def pytorch() -> Finding:
    import torch
    import torchvision  # its operators must fit torch, which shows when it is imported

    about = f"{torch.__version__}, torchvision {torchvision.__version__}, timm {version('timm')}"
    return Finding("torch", "ok", f"{about}, {torch.backends.cpu.get_cpu_capability()} on the CPU")


def gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        why, advice = "none that torch can use", ""
        if torch.version.cuda is None and torch.version.hip is None:
            why = "none: this torch is built for CPUs"
            advice = "with an NVIDIA GPU: install torch for CUDA (pytorch.org, Get Started); "
        elif shutil.which("nvidia-smi") is None:
            why = "none: there is no NVIDIA driver"
            advice = "with an NVIDIA GPU: install its driver; in a container: start it with --gpus all; "
        return Finding("GPU", "could be better", why, f"{advice}without one, take the -tiny recipes")
    lines = []
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        lines.append(f"{name}, {free / GB:.0f} of {total / GB:.0f} GB free")
    about = f"{'; '.join(lines)}; CUDA {torch.version.cuda}"
    try:
        torch.ones(64, 64, device="cuda").square().sum().item()
    except RuntimeError as error:  # of a driver, or a GPU, that this torch is not made for
        advice = "update its driver, or install another torch (pytorch.org, Get Started); until then --device cpu"
        return Finding("GPU", "could be better", f"{about}: {first_line(error)}", advice)
    if not torch.cuda.is_bf16_supported():
        return Finding("GPU", "could be better", about, "it has no bfloat16: train with --precision float32")
    return Finding("GPU", "ok", about)


def triton() -> Finding:
    """Compiles the encoder, and the augmentation, for GPUs."""
    import torch

    on_gpu = torch.cuda.is_available()
    if importlib.util.find_spec("triton") is None:
        advice = "pip install triton: training on a GPU is faster with it" if on_gpu else ""
        state: State = "could be better" if on_gpu else "optional"
        return Finding("Triton", state, "not installed; only GPUs need it", advice)
    about, compiler = version("triton"), shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    if on_gpu and not (compiler and headers):
        lacks = "C compiler" if not compiler else "Python.h"
        advice = f"install gcc and python3-dev, or train with --compile off; it finds no {lacks}"
        return Finding("Triton", "could be better", about, advice)
    return Finding("Triton", "ok", about)


def video() -> Finding:
    import av

    there = [name for name, decoders in DECODERS.items() if any(map(_has_decoder, decoders))]
    lacking = [name for name in DECODERS if name not in there]
    about = f"PyAV {av.__version__} with FFmpeg decodes {', '.join(there)}"
    if lacking:
        advice = f"videos in {', '.join(lacking)} would be skipped: pip install --force-reinstall av"
        return Finding("video", "could be better", about, advice)
    return Finding("video", "ok", about)


def _has_decoder(name: str) -> bool:
    import av

    try:
        return bool(av.Codec(name, "r"))
    except ValueError:  # of which UnknownCodecError is one
        return False


def jpeg() -> Finding:
    import numpy as np
    import simplejpeg

    image = np.full((16, 16, 3), 200, np.uint8)
    decoded = simplejpeg.decode_jpeg(simplejpeg.encode_jpeg(image, 95))
    if abs(int(decoded[8, 8, 0]) - 200) > 3:
        return Finding("JPEG", "missing", "simplejpeg decodes wrongly", "pip install --force-reinstall simplejpeg")
    return Finding("JPEG", "ok", f"simplejpeg {version('simplejpeg')}")


def cores() -> Finding:
    usable, all_of_them = available_cores(), os.cpu_count() or 1
    about = f"{usable}" + (f" of the machine's {all_of_them}" if usable < all_of_them else "")
    if usable < 4 and _has_gpu():
        return Finding(
            "cores", "could be better", about, "a GPU waits for frames with fewer than 4: --resident on helps"
        )
    return Finding("cores", "ok", about)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def memory() -> Finding:
    free = available_memory()
    if not free:
        return Finding("memory", "ok", "how much is free cannot be told on this system")
    if free < 4 * GB:
        advice = "close other programs; prepare with --workers 1, train a -tiny recipe with --resident off"
        return Finding("memory", "could be better", f"{free / GB:.1f} GB free", advice)
    return Finding("memory", "ok", f"{free / GB:.1f} GB free")


def shared_memory() -> Finding:
    """Ray keeps its objects there, and torch's processes what they exchange."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding("/dev/shm", "ok", "not there; only Ray would use it")
    size = shutil.disk_usage(folder).total
    if size < GB:
        advice = "Ray is slow with so little: start the container with --shm-size 8g"
        return Finding("/dev/shm", "could be better", f"{size / GB:.2f} GB", advice)
    return Finding("/dev/shm", "ok", f"{size / GB:.1f} GB")


def disk(folder: Path) -> Finding:
    """Room, and how fast a file is written to the disk and read back from it."""
    what = f"disk at {folder.absolute()}"
    try:
        free = shutil.disk_usage(folder).free
        written, read = disk_speed(folder)
    except OSError as error:
        return Finding(
            what, "could be better", f"{error.strerror}", "name a folder that you can write to: vivi doctor FOLDER"
        )
    about = f"{free / GB:.0f} GB free, writes {written / 1e6:.0f} MB/s, reads {read / 1e6:.0f} MB/s"
    if free < 10 * GB:
        return Finding(what, "could be better", about, "an hour of video takes about 0.1 GB as a corpus, a run 1 GB")
    if read < _SLOW_DISK:
        return Finding(what, "could be better", about, "put the corpus on a local disk, or train with --resident on")
    return Finding(what, "ok", about)


def disk_speed(folder: Path) -> tuple[float, float]:
    """Bytes a second, written and read, of a file that is gone afterwards."""
    block = os.urandom(_DISK_BLOCK)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began, count = time.monotonic(), 0
        while count < _DISK_BLOCKS and time.monotonic() - began < _DISK_SECONDS:
            file.write(block)
            os.fsync(file)
            count += 1
        written = count * len(block) / (time.monotonic() - began)
        if hasattr(os, "posix_fadvise"):  # from the disk, not from memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0, io.SEEK_SET)
        began, seen = time.monotonic(), 0
        while time.monotonic() - began < _DISK_SECONDS and (part := file.read(_DISK_BLOCK)):
            seen += len(part)
        return written, seen / max(time.monotonic() - began, 1e-9)


def hub() -> Finding:
    from vivi.model.pretrained import hub_answers

    if hub_answers():
        return Finding("network", "ok", "the hub of timm's weights answers")
    advice = "timm:NAME works from the hub's cache only, or with --weights FILE"
    return Finding("network", "could be better", "the hub of timm's weights does not answer", advice)


def extras() -> Iterator[Finding]:
    """Packages that only some commands need."""
    for name, (extra, command) in EXTRAS.items():
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            advice = f"for {command}: pip install 'vivi-video[{extra}]'"
            yield Finding(name, "optional", "not installed", advice)


NEEDED = (python, pytorch, video, jpeg)
