"""vivi prepare, vivi inspect and vivi synthesize."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, arg

from vivi.cli.command import Command
from vivi.data.footage import about, suit
from vivi.data.index import open_index
from vivi.demo.synthesize import SynthesizeSettings, synthesize
from vivi.prepare.corpus import Corpus
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.prepare.statistics import print_summary
from vivi.runtime.console import hint
from vivi.runtime.errors import UserError


@dataclass(frozen=True)
class Prepare(Command):
    """Turn video files into a corpus of shots and frames."""

    examples: ClassVar = (
        "vivi prepare /disk/videos --out corpus/",
        "vivi prepare clips/ more.mp4 --out corpus/ --rate 5   # short clips: more frames of each",
    )
    goes_on: ClassVar = True
    videos: Annotated[Positional[tuple[Path, ...]], arg(metavar="VIDEOS...")]
    """Video files, folders (searched recursively), or manifests (.txt, .csv, .parquet with a column 'path' and
    optional columns 'video' and 'split')."""
    out: Path
    """The corpus: a new folder, an interrupted one to go on with, or one to add to."""
    settings: OmitArgPrefixes[PrepareSettings] = field(default_factory=PrepareSettings)
    execution: OmitArgPrefixes[PrepareExecution] = field(default_factory=PrepareExecution)

    def run(self, console: Console) -> dict[str, Any]:
        rows = prepare(self.videos, self.out, self.settings, self.execution, console)
        facts = print_summary(self.out, console)
        if not any(row.status == "ok" for row in rows):
            raise UserError("none of the videos could be used")
        corpus, out = Corpus(self.out), shlex.quote(str(self.out))
        done = about(suit(open_index(corpus), corpus.settings))
        hint(console, f"look at it: vivi inspect {out}")
        hint(console, f"train on it: vivi train auto --corpus {out} --out run/")
        if done:
            hint(console, f"({done})")
        return facts


@dataclass(frozen=True)
class Inspect(Command):
    """Make a page that shows a corpus: statistics, film strips with shot boundaries, skipped files."""

    examples: ClassVar = ("vivi inspect corpus/", "vivi inspect corpus/ --verify   # read every frame first")

    corpus: Annotated[Positional[Path], arg(metavar="CORPUS")]
    """A corpus made by vivi prepare."""
    out: Path = Path("inspection")
    """Folder of the page; open its index.html."""
    videos: int = 24
    """How many videos to show as film strips."""
    seed: int = 0
    """Random seed of the choice of videos."""
    verify: bool = False
    """First read every frame and check that it is as it was written; what is damaged is listed in OUT/damaged.csv."""

    def run(self, console: Console) -> dict[str, Any]:
        from vivi.report.inspect import write_page
        from vivi.report.verify import verify

        facts = {}
        verified = verify(self.corpus, self.out, console) if self.verify else None
        if verified is None or not verified.unreadable:
            page = write_page(self.corpus, self.out, self.videos, self.seed)
            facts = {"page": page, **print_summary(self.corpus, console)}
            console.print(f"open {page}", soft_wrap=True)
        if verified is not None and verified.what_to_do:
            raise UserError(verified.what_to_do)
        return facts


@dataclass(frozen=True)
class Synthesize(Command):
    """Make videos of a procedural world, with true shot boundaries and labelled tasks."""

    examples: ClassVar = ("vivi synthesize --out videos/ --videos 100",)
    goes_on: ClassVar = True

    out: Path
    """Folder for the videos, truth.json and tasks/."""
    settings: OmitArgPrefixes[SynthesizeSettings] = field(default_factory=SynthesizeSettings)

    def run(self, console: Console) -> dict[str, Any]:
        synthesize(self.out, self.settings, console)
        console.print(f"{self.settings.videos} videos in {self.out}", soft_wrap=True)
        hint(console, f"prepare them: vivi prepare {shlex.quote(str(self.out))} --out corpus/ --rate 5")
        return {"out": self.out, "videos": self.settings.videos}
