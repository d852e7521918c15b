"""The commands; nothing else lives here."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import tyro
from rich.console import Console
from rich.text import Text
from tyro.conf import OmitArgPrefixes, Positional, arg, subcommand

from vivi.errors import UserError
from vivi.synthetic.synthesize import SynthesizeSettings, synthesize
from vivi.video.piece import PrepareSettings
from vivi.video.prepare import Machine, prepare
from vivi.video.statistics import print_summary

# What only one command needs, and the flags do not, is imported where it runs: `vivi --help` answers at once.


@dataclass(frozen=True)
class Prepare:
    """Turn video files into a corpus of shots and frames."""

    videos: Annotated[Positional[tuple[Path, ...]], arg(metavar="VIDEOS...")]
    """Video files, folders (searched recursively), or manifests (.txt, .csv, .parquet with a column 'path' and
    optional columns 'video' and 'split')."""
    out: Path
    """The corpus: a new folder, an interrupted one to go on with, or one to add to."""
    settings: OmitArgPrefixes[PrepareSettings] = field(default_factory=PrepareSettings)
    machine: OmitArgPrefixes[Machine] = field(default_factory=Machine)

    def run(self, console: Console) -> None:
        if not self.videos:
            raise UserError("name at least one video file, folder or manifest")
        rows = prepare(self.videos, self.out, self.settings, self.machine, console)
        print_summary(self.out, console)
        if not any(row.status == "ok" for row in rows):
            raise UserError("none of the videos could be used")
        console.print(f"look at it: vivi inspect {shlex.quote(str(self.out))} --out page/", soft_wrap=True)


@dataclass(frozen=True)
class Inspect:
    """Make a page that shows a corpus: statistics, film strips with shot boundaries, skipped files."""

    corpus: Positional[Path]
    """A corpus made by vivi prepare."""
    out: Path = Path("page")
    """Folder of the page; open its index.html."""
    videos: int = 24
    """How many videos to show as film strips."""
    seed: int = 0
    """Which ones: another seed shows others."""

    def run(self, console: Console) -> None:
        from vivi.inspect.page import write_page

        page = write_page(self.corpus, self.out, self.videos, self.seed)
        console.print(f"open {page}", soft_wrap=True)


@dataclass(frozen=True)
class Synthesize:
    """Make videos of a procedural world, with true shot boundaries and labelled tasks."""

    out: Path
    """Folder for the videos, truth.json and tasks/."""
    settings: OmitArgPrefixes[SynthesizeSettings] = field(default_factory=SynthesizeSettings)

    def run(self, console: Console) -> None:
        synthesize(self.out, self.settings)
        console.print(
            f"prepare them: vivi prepare {shlex.quote(str(self.out))} --out corpus/ --rate 5", soft_wrap=True
        )


@dataclass(frozen=True)
class Bench:
    """Measure on the present machine: vivi prepare beside ffmpeg and PySceneDetect, on the same files and cores."""

    what: Positional[Literal["prepare"]]
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

    def run(self, console: Console) -> None:
        from vivi.bench.prepare import bench_prepare

        bench_prepare(self.files, self.work, self.copies, self.rate, self.rounds, self.json, console)


@dataclass(frozen=True)
class Demo:
    """The whole flow on synthesized videos, ending with a page to open."""

    out: Path = Path("demo")
    """Folder for everything the demo makes."""
    videos: int = 40
    """How many videos to synthesize."""

    def run(self, console: Console) -> None:
        from vivi.demo import demo

        demo(self.out, self.videos, console)


Command = (
    Annotated[Prepare, subcommand("prepare")]
    | Annotated[Inspect, subcommand("inspect")]
    | Annotated[Synthesize, subcommand("synthesize")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[Demo, subcommand("demo")]
)


def main() -> None:
    """Runs a command; what is wrong is said in one line."""
    # Names of files are no markup, whatever brackets they hold.
    console, errors = (Console(stderr=stderr, markup=False, highlight=False) for stderr in (False, True))
    signal.signal(signal.SIGTERM, _interrupt)
    command: Command | None = None
    try:
        command = tyro.cli(Command, prog="vivi", description="Image representations from unlabelled video.")
        command.run(console)
    except UserError as error:
        errors.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has left
        sys.exit(1)
    except KeyboardInterrupt:
        resumes = isinstance(command, Prepare | Synthesize | Demo)
        errors.print("stopped; the same command goes on from here" if resumes else "stopped")
        sys.exit(130)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
