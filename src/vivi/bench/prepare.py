"""vivi prepare beside what people use instead: ffmpeg writing JPEGs, and PySceneDetect finding the shots.

All three do their work on the same files and cores, one after the other, in every round. Each file is repeated to
enough footage, and this in as many copies as there are cores: prepare is made for many videos. ffmpeg, which uses all
cores for one video, only samples and scales; PySceneDetect only finds shots; vivi does both and writes the corpus.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vivi.console import SafeConsole
from vivi.errors import UserError
from vivi.machine import available_cores
from vivi.video.container import UnusableVideo
from vivi.video.decode import VideoInfo, sample_frames


@dataclass(frozen=True)
class Measured:
    """Seconds of every round, by tool; and the footage they worked on."""

    file: str
    footage_seconds: float
    seconds: dict[str, list[float]]

    def ratio(self, tool: str) -> list[float]:
        """How many times faster vivi was, round by round."""
        return [theirs / ours for theirs, ours in zip(self.seconds[tool], self.seconds["vivi"], strict=True)]


def bench_prepare(
    files: Sequence[Path],
    work_seconds: float,
    copies: int,
    rate: float,
    rounds: int,
    out: Path | None,
    console: Console,
) -> list[Measured]:
    """Measures every file, repeated so that ffmpeg works on a copy for `work_seconds`; then all files together."""
    _check(files, work_seconds, copies, rate, rounds)
    measured = []
    with tempfile.TemporaryDirectory(prefix="vivi-bench-") as scratch:
        folder = Path(scratch)
        long_files = [_repeat(file, work_seconds, rate, folder / str(index)) for index, file in enumerate(files)]
        for file, long_file in zip(files, long_files, strict=True):
            measured.append(
                _measure(file.name, _copies(long_file, copies or available_cores()), rate, rounds, folder)
            )
            _print_row(measured[-1], console)
        if len(files) > 1:
            measured.append(_measure("all together", long_files, rate, rounds, folder))
    _print_table(measured, rate, console)
    if out is not None:
        out.write_text(json.dumps(_as_json(measured, rate), indent=1) + "\n")
    return measured


def _check(files: Sequence[Path], work_seconds: float, copies: int, rate: float, rounds: int) -> None:
    if shutil.which("ffmpeg") is None:
        raise UserError("vivi bench prepare compares with ffmpeg; install it (Debian: apt install ffmpeg)")
    try:
        import scenedetect  # noqa: F401
    except ImportError:
        raise UserError("vivi bench prepare compares with PySceneDetect: pip install scenedetect[opencv]") from None
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is not a file; vivi bench prepare takes video files")
    if not files:
        raise UserError("name at least one video file")
    for flag, value in (("--work", work_seconds), ("--rounds", rounds), ("--rate", rate)):
        if not 0 < value < math.inf:
            raise UserError(f"{flag} is {value}; it must be positive")
    if copies < 0:
        raise UserError(f"--copies is {copies}; it must be 0 or more")


def _repeat(file: Path, work_seconds: float, rate: float, folder: Path) -> Path:
    """The file, looped without encoding it again, until ffmpeg takes long enough for start-up not to count."""
    folder.mkdir()
    loops = max(1, math.ceil(60 / max(_footage_seconds(file), 0.1)))
    looped = _loop(file, loops, folder)
    started = time.perf_counter()
    _run_ffmpeg([looped], rate, folder / "calibration")
    loops = math.ceil(loops * max(1.0, work_seconds / (time.perf_counter() - started)))
    return _loop(file, loops, folder)


def _copies(file: Path, count: int) -> list[Path]:
    copies = [file.with_name(f"{index}-{file.name}") for index in range(count)]
    for copy in copies:
        copy.hardlink_to(file)
    return copies


def _loop(file: Path, times: int, folder: Path) -> Path:
    """Copies the stream; containers that cannot hold it looped give way to Matroska."""
    looped = folder / f"{file.stem}-looped{file.suffix}"
    source = ["-stream_loop", str(times - 1), "-i", str(file), "-map", "0:v:0", "-c", "copy"]
    command = ["ffmpeg", "-y", "-v", "error", *source]
    if subprocess.run([*command, str(looped)], capture_output=True).returncode != 0:
        _check_call([*command, "-f", "matroska", str(looped)])
    return looped


def _measure(name: str, files: Sequence[Path], rate: float, rounds: int, folder: Path) -> Measured:
    tools: dict[str, Callable[[Sequence[Path], float, Path], None]] = {
        "ffmpeg": _run_ffmpeg,
        "scenedetect": _run_scenedetect,
        "vivi": _run_vivi,
    }
    seconds: dict[str, list[float]] = {tool: [] for tool in tools}
    for _ in range(rounds):
        for tool, run in tools.items():
            target = folder / tool
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            started = time.perf_counter()
            run(files, rate, target)
            seconds[tool].append(time.perf_counter() - started)
    return Measured(name, sum(map(_footage_seconds, files)), seconds)


def _run_ffmpeg(files: Sequence[Path], rate: float, out: Path) -> None:
    """ffmpeg with its default threads: all cores, file after file."""
    for file in files:
        target = out / file.name
        target.mkdir(parents=True, exist_ok=True)
        # As vivi: down to a short side of 256, never up.
        scale = "scale='if(gt(iw,ih),-2,min(256,iw))':'if(gt(iw,ih),min(256,ih),-2)'"
        filters = ["-vf", f"fps={rate},{scale}", "-q:v", "3"]
        _check_call(["ffmpeg", "-y", "-v", "error", "-i", str(file), *filters, str(target / "%06d.jpg")])


def _run_scenedetect(files: Sequence[Path], rate: float, out: Path) -> None:
    """PySceneDetect's histogram detector with its defaults; it has no way to use several cores on one file."""
    script = (
        "import sys; from scenedetect import detect, HistogramDetector\n"
        "for file in sys.argv[1:]: detect(file, HistogramDetector())"
    )
    _check_call([sys.executable, "-c", script, *map(str, files)])


def _run_vivi(files: Sequence[Path], rate: float, out: Path) -> None:
    command = [sys.executable, "-m", "vivi", "prepare", *map(str, files), "--out", str(out / "corpus")]
    _check_call([*command, "--rate", str(rate)])


def _check_call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise UserError(f"{shlex.join(command)[:80]}… failed: {said[-1]}")


def _footage_seconds(file: Path) -> float:
    info = VideoInfo()
    try:
        for _ in sample_frames(file, rate=0.1, info=info):
            pass
    except UnusableVideo as error:
        raise UserError(f"{file} cannot be used: {error}") from None
    return info.seconds


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def _print_row(measured: Measured, console: Console) -> None:
    console.print(f"{measured.file}: {_spread(measured.ratio('ffmpeg'))} × ffmpeg", style="dim", soft_wrap=True)


def _print_table(measured: Sequence[Measured], rate: float, console: Console) -> None:
    table = Table(title=f"{rate:g} frames/s, {available_cores()} cores: seconds, and how many times faster vivi is")
    for column in ("file", "footage", "ffmpeg", "scenedetect", "vivi", "÷ ffmpeg", "÷ scenedetect"):
        table.add_column(column, justify="left" if column == "file" else "right", no_wrap=True)
    for one in measured:
        times = [f"{statistics.median(one.seconds[tool]):.1f}" for tool in ("ffmpeg", "scenedetect", "vivi")]
        ratios = [_spread(one.ratio(tool)) for tool in ("ffmpeg", "scenedetect")]
        table.add_row(one.file, f"{one.footage_seconds / 60:.1f} min", *times, *ratios)
    SafeConsole(width=max(console.width, 120)).print(table)


def _as_json(measured: Sequence[Measured], rate: float) -> dict[str, object]:
    return {
        "command": "vivi " + " ".join(sys.argv[1:]),
        "machine": f"{platform.machine()}, {available_cores()} cores, Python {platform.python_version()}",
        "rate": rate,
        "files": [
            {
                "file": one.file,
                "footage_seconds": round(one.footage_seconds, 2),
                "seconds": {tool: [round(value, 3) for value in values] for tool, values in one.seconds.items()},
                "times_faster_than": {
                    tool: [round(value, 3) for value in one.ratio(tool)] for tool in ("ffmpeg", "scenedetect")
                },
            }
            for one in measured
        ],
    }
