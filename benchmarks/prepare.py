"""vivi prepare beside what people use instead: ffmpeg writing JPEGs, and PySceneDetect finding the shots.

    vivi bench prepare FILES... --rate 5

All three do their work on the same files and cores, one after the other, in every round. Each file is repeated to
enough footage, and this in as many copies as there are cores: prepare is made for many videos. ffmpeg, which uses all
cores for one video, only samples and scales; PySceneDetect only finds shots; vivi does both and writes the corpus.
"""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from common import about_machine, check_file, command, median, spread, start, table, write_json
from rich.console import Console
from tyro.conf import Positional, arg

from vivi.prepare.container import UnusableVideo
from vivi.prepare.decode import VideoInfo, sample_frames
from vivi.runtime.console import SafeConsole
from vivi.runtime.errors import UserError
from vivi.runtime.machine import available_cores

PEERS = ("ffmpeg", "scenedetect")


@dataclass(frozen=True)
class PrepareOptions:
    """Measure vivi prepare beside ffmpeg and PySceneDetect, on the same files and cores."""

    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILES...")]
    """Video files."""
    work: float = 10.0
    """Repeat each file until ffmpeg is busy with it for this many seconds, so that start-up does not count."""
    copies: int = 0
    """How many copies of each repeated file; 0: one for each core, 1: a single long video."""
    rate: float = 1.0
    """Frames a second."""
    rounds: int = 3
    """The median over the rounds and their spread are printed."""
    json: Path | None = None
    """Also write the figures to this file."""

    def check(self) -> None:
        if not self.files:
            raise UserError("name at least one video file")
        for file in self.files:
            if not file.is_file():
                raise UserError(f"{file} is not a file; vivi bench prepare takes video files")
        for flag, value in (("--work", self.work), ("--rounds", self.rounds), ("--rate", self.rate)):
            if not 0 < value < math.inf:
                raise UserError(f"{flag} is {value}; it must be positive")
        if self.copies < 0:
            raise UserError(f"--copies is {self.copies}; it must be 0 or more")
        check_file("--json", self.json)
        if shutil.which("ffmpeg") is None:
            raise UserError("vivi bench prepare compares with ffmpeg; install it (Debian: apt install ffmpeg)")
        try:
            import scenedetect  # noqa: F401
        except ImportError:
            raise UserError(
                "vivi bench prepare compares with PySceneDetect: pip install scenedetect[opencv]"
            ) from None


@dataclass(frozen=True)
class Measured:
    """Seconds of every round, by tool; and the footage they worked on."""

    file: str
    footage_seconds: float
    seconds: dict[str, list[float]]

    def ratio(self, tool: str) -> list[float]:
        """How many times faster vivi was, round by round."""
        return [theirs / ours for theirs, ours in zip(self.seconds[tool], self.seconds["vivi"], strict=True)]


def bench_prepare(options: PrepareOptions, console: Console) -> list[Measured]:
    """Measures every file, repeated so that ffmpeg works on a copy for `work` seconds; then all files together."""
    options.check()
    measured, rate, rounds = [], options.rate, options.rounds
    with tempfile.TemporaryDirectory(prefix="vivi-bench-") as scratch:
        folder = Path(scratch)
        long_files = [
            _repeat(file, options.work, rate, folder / str(number)) for number, file in enumerate(options.files)
        ]
        for file, long_file in zip(options.files, long_files, strict=True):
            copies = _copies(long_file, options.copies or available_cores())
            measured.append(_measure(file.name, copies, rate, rounds, folder))
            console.print(
                f"{file.name}: {spread(measured[-1].ratio('ffmpeg'))} × ffmpeg", style="dim", soft_wrap=True
            )
        if len(options.files) > 1:
            measured.append(_measure("all together", long_files, rate, rounds, folder))
    _print(measured, rate, console)
    about = {"machine": about_machine(), "rate": rate}
    write_json(options.json, {**about, "files": [_as_json(one) for one in measured]})
    return measured


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


def _print(measured: Sequence[Measured], rate: float, console: Console) -> None:
    shown = table(
        *("file", "footage", "ffmpeg", "scenedetect", "vivi", "÷ ffmpeg", "÷ scenedetect"),
        title=f"{rate:g} frames/s, {available_cores()} cores: seconds, and how many times faster vivi is",
    )
    for one in measured:
        times = [f"{median(one.seconds[tool]):.1f}" for tool in (*PEERS, "vivi")]
        ratios = [spread(one.ratio(tool)) for tool in PEERS]
        shown.add_row(one.file, f"{one.footage_seconds / 60:.1f} min", *times, *ratios)
    console.print(shown)


def _as_json(measured: Measured) -> dict[str, Any]:
    return {
        "file": measured.file,
        "footage_seconds": measured.footage_seconds,
        "seconds": measured.seconds,
        "times_faster_than": {tool: measured.ratio(tool) for tool in PEERS},
    }


def main() -> None:
    console = SafeConsole()
    console.width = max(console.width, 120)  # of the table
    bench_prepare(tyro.cli(PrepareOptions, prog=command()), console)


if __name__ == "__main__":
    start(main)
